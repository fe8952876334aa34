"""The small key-value store that each changelog has beside its entries.

A *note*: bytes under a name, changed by compare-and-swap. A *value*: bytes under a key, any number of them. Of each key
the value with the highest version counts, in whatever order they arrive (a last-writer-wins register, after Shapiro et
al., CRDTs, 2011). Statistics, audits and what readers found lost are kept in notes, and the change feed keeps its index
in values. Who needs no entries takes a `KeyValueStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

NOTE_BYTES_MAX = 16 << 10
"""The largest value of a note. A compare-and-swap sends it inside a filter of Bigtable, which may have 20 KB."""

VALUE_KEY_BYTES_MAX = 3000
"""The longest key of a value, as UTF-8."""

VALUE_BYTES_MAX = 1 << 20
"""The largest value under a key."""

VERSION_MAX = (1 << 63) // 1000 - 1
"""The highest version of a value. Bigtable keeps it as a time in microseconds, in 64 bits."""

REMOVED_AGE_MAX_MS = 7 * 24 * 3600 * 1000
"""That a value was removed is remembered for so long. Nobody may write with a version that is this much older."""

PORTION_KEYS, PORTION_BYTES = 500, 4 << 20
"""So many values, and about so many bytes of keys and values, are written, read or removed in one step at most."""


@dataclass(frozen=True, slots=True)
class ValuePage:
    """Values in the order of their keys. `next_start`: where the next page begins; None: the range has no more."""

    values: Mapping[str, bytes]
    next_start: str | None


class KeyValueStore(Protocol):
    """Errors are those of the log. Each call is safe to repeat."""

    async def read_note(self, name: str) -> bytes | None:
        """The value of the note. None: there is none."""

    async def swap_note(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Writes the note iff its value is `expected` (None: there is none) or already `value`.

        False: it has another value, and nothing was written. `ValueError`: `value` is empty or larger than
        `NOTE_BYTES_MAX`.
        """

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """The values under these keys. A key without one is left out. They are not read at one moment.

        Some hundred small values, or a few large ones, are read in time; more than these may be `UnavailableError`.
        """

    async def write_values(self, values: Mapping[str, bytes | None], version: int) -> None:
        """Writes each value (None: removes it), unless the key has a value of a higher version. Durable on return.

        It is not atomic: after an error, also `UnavailableError`, some of them may be written. It is safe to repeat,
        also late. `version`: ms since 1970, 1 or more; whoever writes two values of one key under one version writes
        the same. `ValueError`: see `check_values`; nothing was written.
        """

    async def scan_values(self, start: str, end: str, limit: int) -> ValuePage:
        """Up to `limit` values with keys from `start` (inclusive) to `end` (exclusive), in byte order of the keys."""

    async def erase_values(self, keys: Sequence[str]) -> None:
        """Removes what is under these keys, versions and all: a late write may bring such a value back."""


def check_note(value: bytes) -> None:
    """Raises `ValueError` if no log can keep this value."""
    if not 0 < len(value) <= NOTE_BYTES_MAX:
        raise ValueError(f"a note has 1 to {NOTE_BYTES_MAX} bytes, and not {len(value)}")


def check_values(values: Mapping[str, bytes | None], version: int) -> None:
    """Raises `ValueError` if no log can keep these values under this version."""
    if not 1 <= version <= VERSION_MAX:
        raise ValueError(f"the version of a value is 1 to {VERSION_MAX}, and not {version}")
    for key, value in values.items():
        if not 0 < len(key.encode()) <= VALUE_KEY_BYTES_MAX:
            raise ValueError(f"the key of a value has 1 to {VALUE_KEY_BYTES_MAX} bytes, and not {len(key.encode())}")
        if value is not None and not 0 < len(value) <= VALUE_BYTES_MAX:
            raise ValueError(f"a value has 1 to {VALUE_BYTES_MAX} bytes, and not {len(value)}")


def portions(keys: Iterable[str], bytes_of: Callable[[str], int]) -> Iterator[list[str]]:
    """Divides keys into portions that one call may have. `bytes_of`: how many bytes of the call a key stands for."""
    portion: list[str] = []
    size = 0
    for key in keys:
        if portion and (len(portion) == PORTION_KEYS or size + bytes_of(key) > PORTION_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(key)
        size += bytes_of(key)
    if portion:
        yield portion
