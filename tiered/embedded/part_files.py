"""What blocks of uploads in parts: their directories and files. `tiered/embedded/blobs.py` calls it in threads.

    uploads/{id}.parts/about            the blob's name and its metadata, with a crc32
    uploads/{id}.parts/{number}         a part, and behind its bytes their crc32
    uploads/{id}.parts/{number}-{size}-{crc32}-{sha256}    empty: this was uploaded as this part, now or before
    uploads/{id}.parts/{attempt}        a part on its way, or a whole blob that is about to be linked into place
    uploads/{id}.ended                  what is left of an upload that has ended

    complete: write all parts into one file -> fsync -> link(…/{attempt}, blobs/…) -> fsync the directories -> end
    end:      rename to .ended -> fsync uploads/ -> remove the files, and the directory

A session outlives its process, so nobody locks anything. All that is named has been synced before: what was told is
there after a power cut. Ending is what a completion races with. When the directory is removed, the file that was to be
linked has no name any more, so no link can be made of it, however late; and no new file can be made in there.

The ETag of a part is its SHA-256, which nobody can aim at. A listing takes it from the empty file that has the part's
size and crc32 in its name. If there are several, somebody has aimed at the crc32, and the part is read. If there is
none, older software has uploaded the part; then its ETag is `{size}-{crc32}`, as that software told it.

*Crash*: of an attempt, a file stays until the upload ends. If the blob was linked, that file has two names, which is
how the next collection knows that the upload is complete. Everything raises `OSError`, or an error of ours.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from changelog.base.directories import sync_directory, sync_file
from changelog.base.errors import CorruptRecordError, InvalidRequestError
from changelog.change import ChangeId
from tiered.embedded.blob_files import BlobFile, give, give_directory, link_blob, make_both, mode_of, write_all
from tiered.embedded.crc32 import crc32
from tiered.embedded.file import Checksums, encode_trailer
from tiered.metadata import NS_PER_MS, Metadata, decode_metadata, encode_metadata
from tiered.payload.chunks import Chunk
from tiered.payload.crcs import CRC32, join_crcs
from tiered.services.backends import SessionEndedError
from tiered.services.capabilities import PART_NUMBER_MAX, Part

PARTS, ENDED = ".parts", ".ended"
_ABOUT = "about"
_NUMBER = re.compile(r"[0-9]{5}")
_TAG = re.compile(r"[0-9]{5}-[0-9]+-[0-9a-f]{8}-[0-9a-f]{64}")
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">I")
_TEXT = "crc32="
COPIED_BYTES = 1 << 20


class PartsDirectory:
    """The directory of one upload in parts of the blob `name`. `uploads`: where it is."""

    def __init__(self, uploads: Path, session: ChangeId, name: str) -> None:
        self._uploads = uploads
        self._session = session
        self._path = uploads / f"{session}{PARTS}"
        self._name = name

    def begin(self, root: Path, metadata: Metadata) -> None:
        """Makes it, durably. `root`: of the blobs."""
        make_both(root, self._uploads, [])
        sync_directory(root.parent)
        self._path.mkdir(mode_of(self._uploads))
        give_directory(self._path)
        raw = self._name.encode()
        about = _LENGTH.pack(len(raw)) + raw + encode_metadata(metadata)
        self._write(self._path / _ABOUT, [memoryview(about + _CRC.pack(crc32(about)))])
        sync_directory(self._path)
        sync_directory(self._uploads)

    def put(self, number: int, payload: Sequence[Chunk], attempt: ChangeId) -> Part:
        if not 1 <= number <= PART_NUMBER_MAX:
            raise InvalidRequestError(f"a part has a number from 1 to {PART_NUMBER_MAX}, not {number}")
        self._metadata()
        chunks = [memoryview(chunk).cast("B") for chunk in payload]
        size, crc, sha = sum(map(len, chunks)), 0, hashlib.sha256()
        for chunk in chunks:
            crc = crc32(chunk, crc)
            sha.update(chunk)
        part = _part(number, size, crc, sha.hexdigest())
        path = self._path / attempt
        try:
            self._write(path, [*chunks, memoryview(_CRC.pack(crc))])
            with suppress(FileExistsError), self._new(self._path / f"{number:05}-{size}-{crc:08x}-{part.etag}"):
                pass  # it is durable with the directory
            os.rename(path, self._path / f"{number:05}")
            sync_directory(self._path)
        except FileNotFoundError:
            raise self._ended() from None
        except OSError:
            with suppress(OSError):
                os.unlink(path)
            raise
        return part

    def parts(self) -> Sequence[Part]:
        self._metadata()
        try:
            numbers, tags = self._listed()
            return [self._look(number, tags) for number in numbers]
        except FileNotFoundError:
            raise self._ended() from None

    def complete(self, parts: Sequence[Part], target: Path, root: Path, attempt: ChangeId, written_ns: int) -> None:
        """Links a blob of these parts to `target`, durably, and ends the upload."""
        try:
            metadata = self._metadata()
        except SessionEndedError:
            if not _is_of(target, parts):
                raise
            return
        whole = self._path / attempt
        try:
            _, tags = self._listed()
            if [self._look(part.number, tags) for part in parts] != list(parts):
                raise FileNotFoundError
        except FileNotFoundError:
            if not self._path.exists():
                raise self._ended() from None
            raise InvalidRequestError(f"a part of blob {self._name!r} is not there, or was uploaded again; list them") from None
        is_linked = False
        try:
            self._put_together(whole, parts, metadata, written_ns)
            link_blob(whole, target, root)
            is_linked = True
        except FileExistsError:
            if not _is_of(target, parts):
                raise
        except FileNotFoundError:
            if self._path.exists():
                raise
            if not _is_of(target, parts):  # somebody else may just have completed it
                raise self._ended() from None
        finally:
            if not is_linked:
                with suppress(OSError):
                    os.unlink(whole)
        with suppress(OSError):  # the blob is there; a collection tries again
            end_parts(self._uploads, self._session)

    def _put_together(self, path: Path, parts: Sequence[Part], metadata: Metadata, written_ns: int) -> None:
        checksums = Checksums()

        def chunks() -> Iterator[memoryview]:
            for part in parts:
                for chunk in self._read(part):
                    checksums.add(chunk)
                    yield chunk
            yield memoryview(encode_trailer(metadata, checksums, written_ns))

        self._write(path, chunks())

    def _read(self, part: Part) -> Iterator[memoryview]:
        """The bytes of a part. The last ones come only if all match their checksum and their ETag."""
        crc, sha, left = 0, hashlib.sha256(), part.size

        def is_it() -> bool:
            return part in (_part(part.number, part.size, crc), _part(part.number, part.size, crc, sha.hexdigest()))

        with self._open(part.number) as file:
            while left:
                chunk = file.read(min(left, COPIED_BYTES))
                if not chunk:
                    break
                left -= len(chunk)
                crc = crc32(chunk, crc)
                sha.update(chunk)
                if left or is_it():
                    yield memoryview(chunk)
        if left or not is_it():
            raise CorruptRecordError(f"part {part.number} does not match its checksum: bytes on the disk have changed")

    def _listed(self) -> tuple[Sequence[int], Mapping[str, Sequence[str]]]:
        """The numbers of the parts, in order; and by number, size and crc32 the SHA-256 of what was uploaded so."""
        numbers, tags = list[int](), defaultdict[str, list[str]](list)
        for name in os.listdir(self._path):
            if _NUMBER.fullmatch(name):
                numbers.append(int(name))
            elif _TAG.fullmatch(name):
                described, _, sha = name.rpartition("-")
                tags[described].append(sha)
        return sorted(numbers), tags

    def _look(self, number: int, tags: Mapping[str, Sequence[str]]) -> Part:
        with self._open(number) as file:
            size = os.fstat(file.fileno()).st_size - _CRC.size
            raw = os.pread(file.fileno(), _CRC.size, max(0, size))
            if size < 0 or len(raw) < _CRC.size:
                raise CorruptRecordError(f"part {number} was cut short")
            crc = _CRC.unpack(raw)[0]
            etags = tags.get(f"{number:05}-{size}-{crc:08x}", ())
            if len(etags) > 1:
                sha = hashlib.sha256()
                for start in range(0, size, COPIED_BYTES):
                    sha.update(os.pread(file.fileno(), min(COPIED_BYTES, size - start), start))
                etags = [sha.hexdigest()]
        return _part(number, size, crc, *etags)

    def _open(self, number: int) -> io.FileIO:
        return io.FileIO(self._path / f"{number:05}", "rb")

    def _metadata(self) -> Metadata:
        """Of the blob. `InvalidRequestError`: the session is that of another one."""
        try:
            name, metadata = _decoded((self._path / _ABOUT).read_bytes())
        except FileNotFoundError:
            raise self._ended() from None
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{self._path / _ABOUT} {error}") from None
        if name != self._name:
            raise InvalidRequestError(f"the upload session is that of another blob than {self._name!r}")
        return decode_metadata(metadata)

    def _write(self, path: Path, chunks: Iterable[memoryview]) -> None:
        """Makes a new file of these bytes, and syncs it."""
        with self._new(path) as file:
            for chunk in chunks:
                write_all(file, chunk)
            sync_file(file.fileno())

    def _new(self, path: Path) -> io.FileIO:
        mode = mode_of(self._path) & 0o666
        file = io.FileIO(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))
        try:
            give(file.fileno(), os.stat(path.parent))
        except BaseException:
            file.close()
            raise
        return file

    def _ended(self) -> SessionEndedError:
        return SessionEndedError(f"the upload of blob {self._name!r} was cancelled or completed before, or was too old").telling(heard=True)


def end_parts(uploads: Path, session: ChangeId) -> None:
    """Ends an upload in parts, durably. When this returns, it can never be completed. No error if it has ended."""
    ended = uploads / f"{session}{ENDED}"
    try:
        os.rename(uploads / f"{session}{PARTS}", ended)
    except FileNotFoundError:
        if not uploads.is_dir():
            return
    sync_directory(uploads)
    remove_ended(ended)


def open_parts(uploads: Path, before_ns: int, after: str, limit: int) -> tuple[list[tuple[str, str]], str | None]:
    """The blob's name and the session of up to `limit` uploads, in the order of the sessions, and where to go on.

    An upload whose `about` is not there or is damaged is left out: a collection ends it some day.
    """
    try:
        names = sorted(name.removesuffix(PARTS) for name in os.listdir(uploads) if name.endswith(PARTS))
    except FileNotFoundError:
        return [], None
    following = [session for session in names if ChangeId.matches(session) and session > after]
    found: list[tuple[str, str]] = []
    for session in following[:limit]:
        if ChangeId(session).created_ms * NS_PER_MS < before_ns:
            with suppress(OSError, CorruptRecordError):
                found.append((_decoded((uploads / f"{session}{PARTS}" / _ABOUT).read_bytes())[0], session))
    return found, following[limit - 1] if len(following) > limit else None


def remove_ended(ended: Path) -> None:
    """Removes what is left. It goes on until nothing is made in there any more."""
    while True:
        try:
            for name in os.listdir(ended):
                with suppress(FileNotFoundError):
                    os.unlink(ended / name)
            os.rmdir(ended)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return


def is_left(path: Path, before_ns: int) -> bool:
    """Whether nobody needs an upload in parts: its blob is there, or it last changed before `before_ns`."""
    if os.stat(path).st_mtime_ns < before_ns:
        return True
    return any(os.stat(path / name).st_nlink > 1 for name in os.listdir(path) if ChangeId.matches(name))


def _is_of(target: Path, parts: Sequence[Part]) -> bool:
    """Whether there is a blob that has the size and the checksum of the parts."""
    blob = BlobFile.open(target, None)
    if blob is None:
        return False
    try:
        if blob.size != sum(part.size for part in parts):
            return False
        crcs = [(int((part.checksum or "").removeprefix(_TEXT), 16), part.size) for part in parts]
        return blob.crc() == join_crcs(crcs, CRC32)
    except ValueError:  # a checksum that is none of ours
        return False
    finally:
        blob.close()


def _decoded(raw: bytes) -> tuple[str, bytes]:
    """What `about` holds: the blob's name, and its metadata as they are stored."""
    about, crc = raw[: -_CRC.size], raw[-_CRC.size :]
    if len(about) < _LENGTH.size or crc != _CRC.pack(crc32(about)):
        raise CorruptRecordError("does not match its checksum")
    end = _LENGTH.size + _LENGTH.unpack_from(about)[0]
    return about[_LENGTH.size : end].decode(), about[end:]


def _part(number: int, size: int, crc: int, sha: str | None = None) -> Part:
    """`sha` None: older software uploaded it."""
    return Part(number, size, f"{_TEXT}{crc:08x}", sha or f"{size}-{crc:08x}")
