"""Lists the blobs of `tiered/embedded/blobs.py` in the byte order of their names, and everything else that it meets.

    directory of 1,000,000 names, 40 pages of 25,000     read 4 times, at most 375,000 names held

A page ends at the place of its last blob in the tree. So what is no blob is reported once, whatever the size of the
pages. All blobs of a store may be in one directory. So a listing that goes on does not read the directory again for
each page: it holds up to `NAMES_HELD` names that come next. A blob that was written after they were read may be missing
from the pages, and one that was deleted is left out.

An audit lists many ranges of names one after the other. Each would read the directory again. So the listings of one
audit, in one process, share what they hold (`share_names`).

An audit looks at some blobs twice. It reads a file's trailer the first time. The second time the system's word is
enough that it is the same file and was not changed (`generations`).

The functions block and raise the system's own `OSError`; `tiered/embedded/blobs.py` runs them in threads and translates
it.
"""

from __future__ import annotations

import os
import stat
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from heapq import nsmallest
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from changelog.base.errors import CorruptRecordError
from changelog.change import ChangeId
from tiered.buckets.row_keys import printable
from tiered.embedded.blob_files import is_of_this_process, lock, open_blob, read_footer_at
from tiered.embedded.file import DIRECTORY_SUFFIX, components_of, decode_name, encode_name, is_component
from tiered.metadata import NS_PER_S
from tiered.services.capabilities import AbandonedUpload, UploadPage
from tiered.services.scans import BlobInfo, BlobPage, Generation, ListedBlob, Oddity

_ENTRIES_MIN = 100
NAMES_HELD = 250_000
"""How many names of a directory a listing holds. About 130 bytes each."""

LONG = 1000
"""A listing in pages of this many names is expected to go on. With fewer, it holds no more names than it needs."""

SAMPLED_PER_CUT = 64

SETTLED_NS = 5 * NS_PER_S
"""A file that changed less than this before it was looked at may change again and show the same time of change.

The system takes that time from a clock with steps of some milliseconds, and a few file systems keep whole seconds.
"""

_CHANGE_ID_LENGTH = 36

_DIRECTORY, _FILE, _OTHER = "\0d", "\0f", "\0o"
"""What an entry is, after its name. A NUL is in no name and sorts before everything, so the order is that of the names.
"""


class Listings:
    """The listings of one root. It remembers where the last page ended, so that the next one goes on from there."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept: dict[tuple[str, str | None], Iterator[tuple[str | None, str]]] = {}
        self._shared: _Shared | None = None

    def share_names(self, label: str) -> None:
        """As in `SharedListing`."""
        self._shared = _shared(self._root, label)

    def page(self, start: str, end: str | None, limit: int, now_ns: int = 0) -> BlobPage:
        """As `list` in `LongTermBackend`.

        `now_ns`: the time by this machine's clock; 0: `generations` is not going to be asked about these blobs.
        """
        if end == "" or not self._root.is_dir():  # the directory is made when the first blob is written
            return BlobPage((), (), None)
        kept = self._kept.pop((start, end), None)
        self._kept.clear()
        after = encode_name(start.removesuffix("\0")) if start.endswith("\0") else None
        walk = kept or self._walk_from(start, end, limit)
        settled_ns = now_ns - SETTLED_NS
        blobs: list[ListedBlob] = []
        oddities: list[Oddity] = []
        named, last = 0, start
        for text, path in walk:
            if named >= limit:
                next_start = f"{last}\0"
                if limit >= LONG:
                    self._kept[next_start, end] = chain([(text, path)], walk)
                return BlobPage(blobs, oddities, next_start)
            if after is not None and text == after:
                continue
            found = look_at(text, path, settled_ns)
            if isinstance(found, ListedBlob):
                blobs.append(found)
                named, last = named + 1, found.name
            elif found is not None:
                oddities.append(found)
                if found.is_blob:
                    named, last = named + 1, found.name
        return BlobPage(blobs, oddities, None)

    def _walk_from(self, start: str, end: str | None, limit: int) -> Iterator[tuple[str | None, str]]:
        low, high = _components(start, end)
        if limit < LONG:
            return _walk(self._root, "", low, high, max(limit + 1, _ENTRIES_MIN))
        return _walk(self._root, "", low, high, NAMES_HELD, self._shared)

    def cuts(self, start: str, end: str | None, count: int) -> list[str]:
        """As in `NamePartitioning`. It reads the directory of the root once, and opens no file.

        Long names share the beginning that is the name of their directory. They are counted as one.
        """
        if count < 2 or end == "" or not self._root.is_dir():
            return []
        low, high = _components(start, end)
        entries = _entries(self._root, low[0] if low else "", high[0] if high else None)
        # Those with the least checksums are a fair sample: which they are depends on nothing but the names.
        sample = sorted(nsmallest(count * SAMPLED_PER_CUT, entries, key=lambda entry: zlib.crc32(entry.encode(errors="replace"))))
        names = [decode_name(entry[:-2].removesuffix(DIRECTORY_SUFFIX)) for entry in sample if entry.endswith((_DIRECTORY, _FILE))]
        inside = [name for name in names if name is not None and start < name and (end is None or name < end)]
        return sorted({inside[place * len(inside) // count] for place in range(1, count)}) if inside else []


def _components(start: str, end: str | None) -> tuple[Sequence[str], Sequence[str] | None]:
    return components_of(start.removesuffix("\0")), None if end is None else components_of(end)


def list_abandoned(uploads: Path, start: str, before_ns: int, limit: int) -> UploadPage:
    """Up to `limit` files of uploads whose process has died, with names from `start` on.

    They last changed before `before_ns`. It tries each file's lock for a moment. So `before_ns` must be so long ago
    that no upload is just about to lock its file.
    """
    found: list[AbandonedUpload] = []
    if not uploads.is_dir():
        return UploadPage(found, None)
    for entry in _sorted_entries(uploads, start, None, max(limit, _ENTRIES_MIN)):
        name, kind = entry[:-2], entry[-2:]
        if len(found) >= limit:
            return UploadPage(found, name)
        if kind != _FILE or not ChangeId.matches(name):
            continue
        with suppress(FileNotFoundError, CorruptRecordError), open_blob(f"{uploads}/{name}") as file:
            seen = os.fstat(file.fileno())
            if seen.st_mtime_ns < before_ns and lock(file):
                found.append(AbandonedUpload(f"uploads/{name}", seen.st_size, seen.st_mtime_ns))
    return UploadPage(found, None)


class _Seen(NamedTuple):
    """A file as it was when its trailer was read. `changed_ns`: the system's time of its last change, of any kind."""

    path: str
    inode: int
    changed_ns: int
    size: int


def look_at(text: str | None, path: str, settled_ns: int = 0) -> ListedBlob | Oddity | None:
    """What the file at `path` is. None: it is gone. `text`: its encoded name; None: no blob can have its name.

    `settled_ns`: a file that last changed before this time shows any later change by another time.
    """
    name = None if text is None else decode_name(text)
    if name is None:
        return _odd(printable(os.fsencode(path)), path, "it is no blob: this software did not put it there", is_blob=False)
    try:
        footer, file = read_footer_at(path)
    except FileNotFoundError:
        return None
    except CorruptRecordError as error:
        return _odd(name, path, str(error))
    except OSError as error:
        if is_of_this_process(error):
            raise
        return _odd(name, path, f"it cannot be read: {error.strerror}")
    changed_ns = file.st_ctime_ns
    seen = _Seen(path, file.st_ino, changed_ns, file.st_size) if changed_ns < settled_ns else None
    return ListedBlob(name, footer.size, footer.written_ns, footer.deadline_ns, footer.generation, seen)


def generations(root: Path, blobs: Sequence[BlobInfo]) -> dict[str, Generation]:
    """The generation of each of these blobs that is there and can be read. It reads no directory.

    A file that was replaced, written to, cut off or linked since it was listed shows another inode or another time of
    change. Only then its trailer is read again.
    """
    found: dict[str, Generation] = {}
    for blob in blobs:
        seen = blob.seen if isinstance(blob, ListedBlob) else None
        try:
            if isinstance(seen, _Seen):
                file = os.lstat(seen.path)
                if (file.st_ino, file.st_ctime_ns, file.st_size) == seen[1:]:
                    found[blob.name] = blob.generation
                    continue
            found[blob.name] = read_footer_at("/".join((str(root), *components_of(blob.name))))[0].generation
        except (FileNotFoundError, CorruptRecordError):
            continue
        except OSError as error:
            if is_of_this_process(error):
                raise
    return found


def _odd(name: str, path: str, fault: str, is_blob: bool = True) -> Oddity | None:
    """What is no blob, or one that cannot be read, with what the file system knows of it. None: it is gone.

    A blob's footer would hold its generation, so the time of the file's last change, in microseconds, stands for it.
    """
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError:
        return Oddity(name, fault, is_blob)
    size = seen.st_size if stat.S_ISREG(seen.st_mode) else None
    return Oddity(name, fault, is_blob, size, seen.st_mtime_ns, str(seen.st_mtime_ns // 1000))


def _walk(
    directory: Path | str, stem: str, low: Sequence[str], high: Sequence[str] | None, page: int, shared: _Shared | None = None
) -> Iterator[tuple[str | None, str]]:
    """Encoded names and paths of the files from `low` (inclusive) to `high` (exclusive), in order.

    Both bounds are given as components. A name of None: no blob can have it. A file comes before the directory with the
    same stem, because the directory's suffix makes its name longer. `shared`: the entries of this directory.
    """
    first, last = low[0] if low else "", high[0] if high else None
    entries = _sorted_entries(directory, first, last, page) if shared is None else shared.entries(first, last)
    for entry in entries:
        name, kind = entry[:-2], entry[-2:]
        if len(name) == _CHANGE_ID_LENGTH and ChangeId.matches(name):
            continue  # a test file of an opening
        path = f"{directory}/{name}"
        is_low, is_high = name == first, name == last
        if kind == _DIRECTORY and is_component(name, directory=True):
            inner = stem + name.removesuffix(DIRECTORY_SUFFIX)
            yield from _walk(path, inner, low[1:] if is_low else (), high[1:] if high and is_high else None, page)
        elif (is_low and len(low) > 1) or (high and is_high and len(high) == 1):
            continue
        elif kind == _FILE and is_component(name, directory=False):
            yield stem + name, path
        else:
            yield None, path


class _Shared:
    """The entries of one directory that listings share: all from some name on, up to `NAMES_HELD` of them.

    Threads may use it together: what is held is replaced as a whole, and never changed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: _Held | None = None

    def entries(self, low: str, high: str | None) -> Iterator[str]:
        """As `_sorted_entries`."""
        while True:
            held = self._held
            if held is None or not held.covers(low):
                chosen = _smallest(_entries(self._directory, low, None), NAMES_HELD)
                self._held = held = _Held(low, chosen, len(chosen) < NAMES_HELD)
            first = bisect_right(held.sorted, low)
            # An entry is its name, a NUL and a letter.
            end = len(held.sorted) if high is None else bisect_left(held.sorted, f"{high}\0~")
            yield from islice(held.sorted, first, end)
            if held.is_last or end < len(held.sorted):
                return
            low = held.sorted[-1]


class _Held(NamedTuple):
    """All entries of a directory from `low` to the last one of `sorted`, or to the end of the directory."""

    low: str
    sorted: list[str]
    is_last: bool

    def covers(self, low: str) -> bool:
        """Whether it holds the first entry after `low`, if there is one."""
        return self.low <= low and (self.is_last or low < self.sorted[-1])


@lru_cache(1)
def _shared(root: Path, label: str) -> _Shared:
    return _Shared(root)


def _sorted_entries(directory: Path | str, low: str, high: str | None, page: int) -> Iterator[str]:
    """The entries from `low` to `high`, both inclusive, sorted; each is its name and what it is.

    It reads the directory again for each `page` of entries, so it does not hold all names in memory.
    """
    while True:
        chosen = _smallest(_entries(directory, low, high), page)
        chosen.reverse()
        is_last = len(chosen) < page
        while chosen:
            low = chosen.pop()
            yield low
        if is_last:
            return


def _entries(directory: Path | str, low: str, high: str | None) -> Iterator[str]:
    """The entries from `low` to `high`, both inclusive, in no order. `low`: a name, or an entry that is left out."""
    with os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if name < low or (high is not None and name > high):
                continue
            is_file = entry.is_file(follow_symlinks=False)
            yield name + (_FILE if is_file else _DIRECTORY if entry.is_dir(follow_symlinks=False) else _OTHER)


def _smallest(entries: Iterable[str], number: int) -> list[str]:
    """Returns so many of the smallest, sorted. It holds half as many more at most."""
    chosen: list[str] = []
    bound: str | None = None
    for entry in entries:
        if bound is None or entry < bound:
            chosen.append(entry)
            if len(chosen) >= number + number // 2 + 1:
                chosen.sort()
                del chosen[number:]
                bound = chosen[-1]
    chosen.sort()
    del chosen[number:]
    return chosen
