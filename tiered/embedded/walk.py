"""Lists the blobs of `tiered/embedded/blobs.py` in the byte order of their names, and everything else that it meets.

    directory of 1,000,000 names, limit 50,000     read once, 50,001 names held

A page ends at the place of its last blob in the tree. So what is no blob is reported once, whatever the size of the
pages. The functions block and raise the system's own `OSError`; `tiered/embedded/blobs.py` runs them in threads and
translates it.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from changelog.base.errors import CorruptRecordError
from changelog.change import ChangeId
from tiered.embedded.file import DIRECTORY_SUFFIX, components_of, decode_name, encode_name, is_component
from tiered.embedded.tree import is_of_this_process, lock, open_blob, read_footer
from tiered.protocol.backends import AbandonedUpload, BlobPage, ListedBlob, Oddity, UploadPage
from tiered.protocol.row_keys import printable

_ENTRIES_MIN = 100


def list_blobs(root: Path, start: str, end: str | None, limit: int) -> BlobPage:
    """As in `LongTermBackend`. Holds little more than `limit` names of a directory in memory, however large it is."""
    if end == "" or not root.is_dir():  # the directory is made when the first blob is written
        return BlobPage((), (), None)
    after = encode_name(start.removesuffix("\0")) if start.endswith("\0") else None
    low, high = components_of(start.removesuffix("\0")), None if end is None else components_of(end)
    blobs: list[ListedBlob] = []
    oddities: list[Oddity] = []
    named, last = 0, start
    for text, path in _walk(root, "", low, high, max(limit + 1, _ENTRIES_MIN)):
        if named >= limit:
            return BlobPage(blobs, oddities, f"{last}\0")
        if after is not None and text == after:
            continue
        found = look_at(text, path)
        match found:
            case ListedBlob(name=name):
                blobs.append(found)
                named, last = named + 1, name
            case Oddity(name=name):
                oddities.append(found)
                if found.is_blob:
                    named, last = named + 1, name
    return BlobPage(blobs, oddities, None)


def list_abandoned(uploads: Path, start: str, before_ns: int, limit: int) -> UploadPage:
    """Up to `limit` files of uploads whose process has died, with names from `start` on.

    They last changed before `before_ns`. It tries each file's lock for a moment. So `before_ns` must be so long ago
    that no upload is just about to lock its file.
    """
    found: list[AbandonedUpload] = []
    if not uploads.is_dir():
        return UploadPage(found, None)
    for entry in _sorted_entries(uploads, start, None, max(limit, _ENTRIES_MIN)):
        if len(found) >= limit:
            return UploadPage(found, entry.name)
        if not ChangeId.matches(entry.name) or not entry.is_file(follow_symlinks=False):
            continue
        with suppress(FileNotFoundError, CorruptRecordError), open_blob(entry.path) as file:
            seen = os.fstat(file.fileno())
            if seen.st_mtime_ns < before_ns and lock(file):
                found.append(AbandonedUpload(f"uploads/{entry.name}", seen.st_size, seen.st_mtime_ns))
    return UploadPage(found, None)


def look_at(text: str | None, path: str) -> ListedBlob | Oddity | None:
    """What the file at `path` is. None: it is gone. `text`: its encoded name; None: no blob can have its name."""
    name = None if text is None else decode_name(text)
    if name is None:
        return Oddity(printable(os.fsencode(path)), "it is no blob: this software did not put it there", is_blob=False)
    try:
        with open_blob(path) as file:
            footer = read_footer(file)
    except FileNotFoundError:
        return None
    except CorruptRecordError as error:
        return _broken(name, path, str(error))
    except OSError as error:
        if is_of_this_process(error):
            raise
        return _broken(name, path, f"it cannot be read: {error.strerror}")
    return ListedBlob(name, footer.size, footer.written_ns, footer.deadline_ns, footer.written_us)


def _broken(name: str, path: str, fault: str) -> Oddity | None:
    """The oddity of a blob's file that cannot be read, with what the file system knows of it. None: it is gone.

    The footer would hold its generation, so the time of the file's last change, in microseconds, stands for it.
    """
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError:
        return Oddity(name, fault, is_blob=True)
    return Oddity(name, fault, True, seen.st_size, seen.st_mtime_ns, seen.st_mtime_ns // 1000)


def _walk(
    directory: Path | str, stem: str, low: Sequence[str], high: Sequence[str] | None, page: int
) -> Iterator[tuple[str | None, str]]:
    """Encoded names and paths of the files from `low` (inclusive) to `high` (exclusive), in order.

    Both bounds are given as components. A name of None: no blob can have it. A file comes before the directory with the
    same stem, because the directory's suffix makes its name longer.
    """
    first, last = low[0] if low else "", high[0] if high else None
    for entry in _sorted_entries(directory, first, last, page):
        if ChangeId.matches(entry.name):
            continue  # a test file of an opening
        is_low, is_high = entry.name == first, entry.name == last
        if entry.is_dir(follow_symlinks=False) and is_component(entry.name, directory=True):
            inner = stem + entry.name.removesuffix(DIRECTORY_SUFFIX)
            yield from _walk(entry.path, inner, low[1:] if is_low else (), high[1:] if high and is_high else None, page)
        elif (is_low and len(low) > 1) or (high and is_high and len(high) == 1):
            continue
        elif entry.is_file(follow_symlinks=False) and is_component(entry.name, directory=False):
            yield stem + entry.name, entry.path
        else:
            yield None, entry.path


def _sorted_entries(directory: Path | str, low: str, high: str | None, page: int) -> Iterator[os.DirEntry[str]]:
    """The entries from `low` to `high`, both inclusive, sorted.

    It reads the directory again for each `page` of entries, so it does not hold all names in memory.
    """
    while True:
        with os.scandir(directory) as entries:
            chosen = heapq.nsmallest(
                page, ((entry.name, entry) for entry in entries if entry.name >= low and (high is None or entry.name <= high))
            )
        for _, entry in chosen:
            yield entry
        if len(chosen) < page:
            return
        low = f"{chosen[-1][0]}\0"
