"""Checksums of a payload that its caller declares: they are computed while its chunks pass, and compared at its end.

    crc32c       as GCS tells it; needs the package of the extra `gcp` or `s3`
    md5, sha256  of chunks from 128 KiB on in a thread: for 256 KiB they take a millisecond, and the loop has others
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, Protocol

from anyio import CapacityLimiter

from changelog.base.errors import ConfigurationError, InvalidRequestError
from changelog.base.extras import installing
from changelog.base.threads import in_thread
from tiered.text import quoted

DIGEST_BYTES = {"crc32c": 4, "md5": 16, "sha256": 32}
"""The algorithms, and how long their digests are."""

IN_THREAD_BYTES = 128 * 1024
"""A call into a thread costs 50 to 200 µs. A chunk of this size takes 200 µs with sha256, and 500 µs with md5."""


class Running(Protocol):
    """A checksum that is being computed, as `hashlib` has it."""

    def update(self, chunk: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class _Declared(NamedTuple):
    algorithm: str
    text: str
    digest: bytes
    running: Running


class DeclaredChecksums:
    """The checksums that were declared of one payload."""

    def __init__(self, declared: object) -> None:
        """`declared`: a mapping of algorithm to hex or base64. `InvalidRequestError`: it is none.

        `ConfigurationError`: crc32c was declared, and its package is not installed.
        """
        if not isinstance(declared, Mapping):
            raise InvalidRequestError(f"checksums is a mapping such as {{'sha256': …}}, not {quoted(declared)}")
        self._declared = [_Declared(name, text, _digest(name, text), _begin(name)) for name, text in declared.items()]
        self._are_slow = any(each.algorithm != "crc32c" for each in self._declared)
        self._threads: CapacityLimiter | None = None

    async def add(self, chunk: bytes | memoryview) -> None:
        """Adds the next chunk of the payload."""
        if not self._are_slow or len(chunk) < IN_THREAD_BYTES:
            self._update(chunk)
            return
        if self._threads is None:
            self._threads = CapacityLimiter(1)
        await in_thread(partial(self._update, chunk), self._threads)

    def _update(self, chunk: bytes | memoryview) -> None:
        for each in self._declared:
            each.running.update(chunk)

    def compare(self) -> None:
        """Raises `InvalidRequestError` if the payload, which has ended, has another checksum."""
        for algorithm, text, digest, running in self._declared:
            if (found := running.digest()) != digest:
                shown = found.hex() if _is_hex(text, digest) else base64.b64encode(found).decode()
                raise InvalidRequestError(
                    f"the {algorithm} of the payload is {shown}, and {text} was declared: other bytes came than were meant"
                )


def checksum_of(payload: bytes) -> str | None:
    """The crc32c of a payload as a head tells it, such as `crc32c=yZRlqg==`. None: its package is not installed."""
    try:
        from tiered.payload.crc32c import encode_crc, extend_crc
    except ImportError:
        return None
    return f"crc32c={encode_crc(extend_crc(0, payload))}"


def running_crc32c() -> Running | None:
    """A crc32c that is being computed. None: its package is not installed."""
    try:
        return _Crc32c()
    except ImportError:
        return None


def _digest(algorithm: object, text: object) -> bytes:
    size = DIGEST_BYTES.get(algorithm) if isinstance(algorithm, str) else None
    if size is None:
        raise InvalidRequestError(f"a checksum is one of {', '.join(DIGEST_BYTES)}, not {quoted(algorithm)}")
    if isinstance(text, str):
        for read in (bytes.fromhex, partial(base64.b64decode, validate=True)):
            try:
                digest = read(text)
            except ValueError:
                continue
            if len(digest) == size:
                return digest
    raise InvalidRequestError(f"the {algorithm} of the payload is declared as {quoted(text)}, not as {size} bytes in hex or base64")


def _is_hex(text: str, digest: bytes) -> bool:
    return text.lower() == digest.hex()


def _begin(algorithm: str) -> Running:
    if algorithm == "crc32c":
        try:
            return _Crc32c()
        except ImportError:
            missing = f"crc32c needs google-crc32c, which is missing: {installing('gcp')}, or declare sha256"
            raise ConfigurationError(missing) from None
    return hashlib.new(algorithm, usedforsecurity=False)


class _Crc32c:
    def __init__(self) -> None:
        from tiered.payload.crc32c import digest_of, extend_crc

        self._extend, self._digest_of = extend_crc, digest_of
        self._crc = 0

    def update(self, chunk: bytes | memoryview, /) -> None:
        self._crc = self._extend(self._crc, chunk)

    def digest(self) -> bytes:
        return self._digest_of(self._crc)
