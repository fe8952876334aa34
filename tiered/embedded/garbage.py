"""Finds garbage among the files of `tiered/embedded/blobs.py`: one round through all of them, in steps.

    uploads/   temporary files whose process is dead, which therefore nobody has locked; uploads in parts that have
               ended, or that nobody completed for a month
    blobs/     blobs that have expired, looked at again once they are locked against a touch; copies in quarantine stay

A round meets every file that is there from its beginning to its end, in no order, and keeps none of their names. A
fault of one file or directory is reported, and the round goes on with the others (I6). *Crash*: the next round begins
from the start. The functions block. They raise `OSError` only if this process has no file descriptors or memory left.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from changelog.base.errors import CorruptRecordError
from changelog.change import ChangeId
from tiered.buckets.row_keys import printable
from tiered.embedded.blob_files import BEGINNING, is_of_this_process, read_footer, unlink_if
from tiered.embedded.blob_listing import look_at
from tiered.embedded.file import DIRECTORY_SUFFIX, is_component
from tiered.embedded.part_files import ENDED, PARTS, end_parts, is_left
from tiered.metadata import NS_PER_S, is_expired
from tiered.services.capabilities import PARTS_DAYS_MAX
from tiered.services.scans import QUARANTINE, Oddity

PARTS_AGE_MAX_NS = PARTS_DAYS_MAX * 86_400 * NS_PER_S


@dataclass(frozen=True, slots=True)
class CollectionFault:
    """Something that could not be dealt with. `event` says why.

    FOREIGN: it is not a file of ours. CORRUPT: it is a blob that breaks the format or cannot be read. LEFT: it is a
    directory that cannot be read, or a file that cannot be removed.
    """

    event: str
    what: str
    why: str


FOREIGN, CORRUPT, LEFT = "foreign_file", "corrupt_blob", "garbage_left"


@dataclass(slots=True)
class CollectionStep:
    """The result of one step."""

    removed: int = 0
    faults: list[CollectionFault] = field(default_factory=list)
    is_last: bool = False


class Round:
    """One round, in calls of `step`. No two calls may run at the same time."""

    def __init__(self, blobs: Path, uploads: Path) -> None:
        self._now_ns = 0
        self._met = self._go_through(blobs, uploads)

    def step(self, met_max: int, removed_max: int, now_ns: int) -> CollectionStep:
        """Looks at up to `met_max` more files, until `removed_max` are removed.

        Removes what expired by `now_ns` (ns since 1970).
        """
        self._now_ns = now_ns
        chunk = CollectionStep()
        for _ in range(met_max):
            match next(self._met, None):
                case None:
                    chunk.is_last = True
                    break
                case CollectionFault() as fault:
                    chunk.faults.append(fault)
                case removed:
                    chunk.removed += removed
            if chunk.removed == removed_max:
                break
        return chunk

    def _go_through(self, blobs: Path, uploads: Path) -> Iterator[bool | CollectionFault]:
        """For each file, whether it was removed."""
        for entry in _entries(uploads):
            yield entry if isinstance(entry, CollectionFault) else self._upload(entry)
        yield from self._below(blobs, "")

    def _upload(self, entry: os.DirEntry[str]) -> bool | CollectionFault:
        session, suffix = os.path.splitext(entry.name)
        if suffix not in (PARTS, ENDED) or not ChangeId.matches(session) or not entry.is_dir(follow_symlinks=False):
            return _stray(entry)
        try:
            if suffix == PARTS and not is_left(Path(entry.path), self._now_ns - PARTS_AGE_MAX_NS):
                return False
            end_parts(Path(entry.path).parent, ChangeId(session))
        except FileNotFoundError:  # its own process ended it
            return False
        except OSError as error:
            return _fault(entry.path, error, "it cannot be removed")
        return True

    def _below(self, directory: Path | str, stem: str) -> Iterator[bool | CollectionFault]:
        for entry in _entries(directory):
            if isinstance(entry, CollectionFault):
                yield entry
            elif entry.is_dir(follow_symlinks=False) and is_component(entry.name, directory=True):
                yield from self._below(entry.path, stem + entry.name.removesuffix(DIRECTORY_SUFFIX))
            elif ChangeId.matches(entry.name):
                yield _stray(entry)  # left by an opening that was killed while it tested the directories
            else:
                is_named = entry.is_file(follow_symlinks=False) and is_component(entry.name, directory=False)
                yield self._blob(stem + entry.name if is_named else None, entry.path)

    def _blob(self, text: str | None, path: str) -> bool | CollectionFault:
        found = look_at(text, path)
        if isinstance(found, Oddity):
            return CollectionFault(CORRUPT if found.is_blob else FOREIGN, found.name, found.fault)
        if found is None or not is_expired(found.deadline_ns, self._now_ns) or found.name.startswith(QUARANTINE):
            return False
        return _remove(path, lambda file: is_expired(read_footer(file).deadline_ns, self._now_ns))


def _entries(directory: Path | str) -> Iterator[os.DirEntry[str] | CollectionFault]:
    """The entries of a directory. No entries if there is no such directory: nothing was written yet, or it is gone."""
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except FileNotFoundError:
        return
    except OSError as error:
        yield _fault(directory, error, "it cannot be read")


def _stray(entry: os.DirEntry[str]) -> bool | CollectionFault:
    if not ChangeId.matches(entry.name) or not entry.is_file(follow_symlinks=False):
        return False
    with BEGINNING:
        return _remove(entry.path, lambda file: True)


def _remove(path: str, doomed: Callable[[io.FileIO], bool]) -> bool | CollectionFault:
    try:
        return unlink_if(Path(path), doomed)
    except CorruptRecordError as error:
        return CollectionFault(CORRUPT, path, str(error))
    except OSError as error:
        return _fault(path, error, "it cannot be removed")


def _fault(path: Path | str, error: OSError, what: str) -> CollectionFault:
    if is_of_this_process(error):
        raise error
    return CollectionFault(LEFT, printable(os.fsencode(path)), f"{what}: {error.strerror}")
