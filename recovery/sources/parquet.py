"""Writes the table of all objects of a store to Parquet files of this machine, part by part.

    TO.unfinished/manifest.json          what is exported, written first
    TO.unfinished/part-000000.parquet    the keys from the beginning up to `end`, which its footer tells
    TO.unfinished/part-000001.parquet    from there on, and so on
    TO.unfinished/  -> rename ->  TO/    with a manifest that tells when it ended, and its files

So a directory `TO` is whole, and whoever reads `TO/*.parquet` never sees a part of an export. Each part ends after
`PART_ROWS` rows or `PART_S` seconds. Memory holds one page of rows and one row group.

The table is no snapshot. Each row was read at the time in its column `read`, between `began` and `ended` of the
manifest. A part has the same two times in its footer, key `tiered.export`.

*Crash*: what was published stays, and the next call goes on after the last part. *Failure*: `UnavailableError` with one
sentence if a service or the disk fails; call again. `ConfigurationError` if the place or the settings must change, also
if the place holds an export of another store or with other options. `CorruptRecordError`: a part of the unfinished
export is damaged. One process at a time exports to a place; a lock on the directory ends with its process.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from changelog.base.directories import sync_directory
from changelog.base.errors import ConfigurationError, CorruptRecordError, newer_version
from changelog.base.runtime import Runtime
from recovery.audit.files.directory import DirectoryFiles
from recovery.audit.running.jobs import check_there
from recovery.audit.running.plan import check_same, inputs_of
from recovery.sources.columns import ARROW, OBJECTS, TableRow, batch_of
from recovery.sources.reading import bounds_of
from recovery.sources.stored_objects import ROWS_PAGE, read_objects
from tiered.metadata import as_datetime
from tiered.open import open_backends
from tiered.services.backends import Tiers
from tiered.settings import Settings
from tiered.stored import Tier
from tiered.text import refuse_password
from tiered.whose import refuse_store

VERSION = 1
"""Of the columns, of a footer and of the manifest. A later one may add columns without a new version."""

PART_ROWS, PART_S = 1_000_000, 180.0
ROW_GROUP = 50_000
MANIFEST = "manifest.json"
UNFINISHED = ".unfinished"
FOOTER = b"tiered.export"
WHAT = "the export"
_PART = re.compile(r"part-(\d{6,})\.parquet")
_TIER, _SIZE, _EXPIRED, _ERROR = (list(OBJECTS).index(name) for name in ("tier", "size", "expired", "error"))


@dataclass(slots=True)
class ObjectCounts:
    """How many objects were written. `bytes`: of their payloads, as far as they are known.

    `damaged`: rows with an error. `without_size`: rows without an error whose size nobody told.
    """

    objects: int = 0
    small: int = 0
    large: int = 0
    expired: int = 0
    damaged: int = 0
    without_size: int = 0
    bytes: int = 0

    def add_rows(self, rows: Sequence[TableRow]) -> None:
        self.objects += len(rows)
        for row in rows:
            self.small += row[_TIER] == Tier.HIGH_VOLUME.value
            self.large += row[_TIER] == Tier.LONG_TERM.value
            self.expired += row[_EXPIRED] is True
            self.damaged += row[_ERROR] is not None
            self.without_size += row[_ERROR] is None and row[_SIZE] is None
            self.bytes += row[_SIZE] or 0

    def add(self, other: ObjectCounts) -> None:
        for name, number in asdict(other).items():
            setattr(self, name, getattr(self, name) + number)


@dataclass(frozen=True, slots=True)
class ExportPart:
    """A file of an export: the keys from `start` (inclusive) to `end` (exclusive; None: the last one)."""

    file: str
    start: bytes
    end: bytes | None
    began: str
    ended: str
    counts: ObjectCounts


@dataclass(frozen=True, slots=True)
class ObjectsExport:
    """What is exported. `store`: as in an audit's manifest. Times are in ISO 8601. `ended` None: it is not whole yet.

    `prefix`: the objects that `tiered ls PREFIX` lists. `blobs`: whether the blobs of large objects were asked for.
    """

    store: Mapping[str, str]
    prefix: str
    blobs: bool
    export: str
    began: str
    ended: str | None = None
    counts: ObjectCounts = field(default_factory=ObjectCounts)
    files: tuple[Mapping[str, Any], ...] = ()

    def told(self) -> dict[str, Any]:
        return {"version": VERSION, "table": "tiered.objects", **asdict(self), "files": list(self.files)}


async def export_table(
    settings: Settings, to: str, runtime: Runtime, *, prefix: str = "", blobs: bool = True,
    told: Callable[[ObjectCounts], None] = lambda _: None,
) -> ObjectsExport:  # fmt: skip
    """Exports all objects to the directory `to`, or goes on with an export that was interrupted.

    `prefix`: only those that `tiered ls PREFIX` lists. `blobs`: whether to ask for the blobs of large objects. `told`
    is called after each part with the counts of all parts so far.
    """
    bounds = bounds_of(prefix)
    check_there(settings)
    files, target = _place(to, settings, runtime)
    wanted = ObjectsExport(inputs_of(settings), prefix, blobs, f"{runtime.random.getrandbits(64):016x}", _now(runtime))
    async with open_backends(settings, runtime, writes=False) as backends:
        with _unfinished(files):
            found = _begun(files, wanted)
            parts = list(_parts(files, found))
            counts = ObjectCounts()
            for part in parts:
                counts.add(part.counts)
            writing = _Writing(files, found, backends.tiers, runtime, None if bounds.end is None else bounds.end.encode())
            start: bytes | None = parts[-1].end if parts else bounds.start.encode()
            while start is not None:
                parts.append(part := await writing.write(len(parts), start))
                counts.add(part.counts)
                told(counts)
                start = part.end
            listed = tuple({"file": part.file, "rows": part.counts.objects, "bytes": _size(files, part.file)} for part in parts)
            whole = replace(found, ended=parts[-1].ended, counts=counts, files=listed)
            files.write(MANIFEST, json.dumps(whole.told(), indent=1).encode())
            with files.explained("be named as it was asked for"):
                os.rename(files.path, target)
                sync_directory(target.parent)
    return whole


# --- the place -------------------------------------------------------------------------------------


def _place(to: str, settings: Settings, runtime: Runtime) -> tuple[DirectoryFiles, Path]:
    """The directory in which the export is written, and the one that it becomes."""
    refuse_password(WHAT, to)
    if "://" in to and urlsplit(to).scheme != "file":
        raise ConfigurationError(
            f"{WHAT} {to} is not on this machine: give a directory, or let Spark write the table"
            " (spark.read.format('tiered.objects')), which does so from many machines"
        )
    asked = DirectoryFiles.at(to, runtime, WHAT)
    target = Path(asked.path)
    refuse_store(target, settings.directory)
    with asked.explained("be looked into"):
        if (target / MANIFEST).exists():
            raise ConfigurationError(f"{target} holds an export already: give another directory, or delete this one")
        if target.is_symlink():  # nothing can be given its name in the end
            raise ConfigurationError(f"{target} is a symbolic link: give the directory that it names, or one that is not there yet")
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigurationError(f"{target} is a file, or a directory that is not empty: give one that is not there yet")
    return DirectoryFiles.at(f"{target}{UNFINISHED}", runtime, WHAT), target


@contextmanager
def _unfinished(files: DirectoryFiles) -> Iterator[None]:
    """Makes the directory if it is not there, and keeps others out of it as long as the block lasts."""
    files.make("")
    with files.explained("be locked"):
        held = os.open(files.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(held), os.stat(files.path))  # not what another process has just finished
        except OSError:
            is_ours = False
        if not is_ours:
            raise ConfigurationError(f"another process exports to {files.path}: wait for its end, or give another directory")
        yield
    finally:
        os.close(held)


def _begun(files: DirectoryFiles, wanted: ObjectsExport) -> ObjectsExport:
    """The export that goes on in this directory, or the `wanted` one, which begins. Refuses what is of another one."""
    names = [seen.name for seen in files.list()]
    left = [name for name in names if name.startswith("_") and name.endswith(".tmp")]
    for name in names:
        if name not in left and name != MANIFEST and not _PART.fullmatch(name):
            raise ConfigurationError(f"{files.path} holds {name}, which is of no export: move it, or give another directory")
    for name in left:
        files.remove(f"{files.path}/{name}")
    if (text := files.read(MANIFEST)) is None:
        if parts := [name for name in names if _PART.fullmatch(name)]:
            raise ConfigurationError(f"{files.path} holds {parts[0]} and no {MANIFEST}: delete it, or give another directory")
        files.write(MANIFEST, json.dumps(wanted.told(), indent=1).encode())
        return wanted
    found = _told_in(text, f"{files.path}/{MANIFEST}")
    check_same(
        {**found.store, "prefix of paths": found.prefix or "none", "blobs": "asked for" if found.blobs else "not asked for"},
        {**wanted.store, "prefix of paths": wanted.prefix or "none", "blobs": "asked for" if wanted.blobs else "not asked for"}, files.path,
    )
    return found


def _told_in(text: bytes, where: str) -> ObjectsExport:
    try:
        fields = json.loads(text)
        version, store, prefix, blobs, export, began = (fields[key] for key in ("version", "store", "prefix", "blobs", "export", "began"))
        if type(version) is int and version > VERSION:
            raise ConfigurationError(newer_version(where, version, f"version {VERSION}"))
        texts = [prefix, export, began, *store, *store.values()]
        if version != VERSION or type(blobs) is not bool or not all(isinstance(each, str) for each in texts):
            raise ValueError("its values are of other types")
    except ConfigurationError:  # which is a ValueError, too
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptRecordError(f"{where} is no manifest of an export ({error}): delete its directory, and export anew") from None
    return ObjectsExport(store, prefix, blobs, export, began)


def _parts(files: DirectoryFiles, found: ObjectsExport) -> Iterator[ExportPart]:
    """The parts that are there. Each must go on where the one before it ends."""
    names = sorted((seen.name for seen in files.list() if _PART.fullmatch(seen.name)), key=lambda name: (len(name), name))
    end: bytes | None = bounds_of(found.prefix).start.encode()
    for number, name in enumerate(names):
        part = _part_of(files, name, found.export)
        if name != _name(number) or part.start != end:
            raise _broken(files, name, "a part before it is not there")
        yield part
        end = part.end


def _part_of(files: DirectoryFiles, name: str, export: str) -> ExportPart:
    with files.explained("be read", name):
        try:
            parquet = pq.read_metadata(f"{files.path}/{name}")
        except (pa.ArrowInvalid, FileNotFoundError) as error:
            raise _broken(files, name, "it is cut off, or no Parquet file") from error
    try:
        footer = json.loads((parquet.metadata or {})[FOOTER])
        if type(version := footer["version"]) is int and version > VERSION:
            raise ConfigurationError(newer_version(f"{files.path}/{name}", version, f"version {VERSION}"))
        if version != VERSION or footer["export"] != export:
            raise _broken(files, name, "it is of another export")
        counts = ObjectCounts(**footer["counts"])
        start, end = bytes.fromhex(footer["start"]), None if footer["end"] is None else bytes.fromhex(footer["end"])
        part = ExportPart(name, start, end, str(footer["began"]), str(footer["ended"]), counts)
    except ConfigurationError:  # which is a ValueError, too
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _broken(files, name, "its footer cannot be read") from error
    if parquet.num_rows != counts.objects or (end is not None and end <= start):
        raise _broken(files, name, "its footer contradicts itself")
    return part


def _broken(files: DirectoryFiles, name: str, why: str) -> CorruptRecordError:
    return CorruptRecordError(f"{files.path}/{name} cannot be used, because {why}: delete {files.path}, and export anew")


def _name(number: int) -> str:
    return f"part-{number:06d}.parquet"


def _size(files: DirectoryFiles, name: str) -> int:
    with files.explained("be read", name):
        return os.stat(f"{files.path}/{name}").st_size


# --- a part ----------------------------------------------------------------------------------------


class _Writing:
    def __init__(self, files: DirectoryFiles, export: ObjectsExport, tiers: Tiers, runtime: Runtime, end: bytes | None) -> None:
        self._files = files
        self._export = export
        self._tiers = tiers
        self._runtime = runtime
        self._end = end

    async def write(self, number: int, start: bytes) -> ExportPart:
        """Writes the part that begins at this key, and publishes it."""
        name, began, began_s = _name(number), _now(self._runtime), self._runtime.monotonic()
        counts, held = ObjectCounts(), list[Any]()
        following: bytes | None = start
        with self._files.draft(name) as draft:
            with self._files.explained("be written", name):
                file = pq.ParquetWriter(draft.file, SCHEMA, compression="zstd", write_page_checksum=True)
            try:
                while following is not None and counts.objects < PART_ROWS and self._runtime.monotonic() - began_s < PART_S:
                    limit = min(ROWS_PAGE, PART_ROWS - counts.objects)
                    page = await read_objects(self._tiers, self._runtime, following, self._end, blobs=self._export.blobs, limit=limit)
                    following = page.next_start
                    counts.add_rows(page.rows)
                    held.append(batch_of(OBJECTS, page.rows, list(OBJECTS)))
                    if sum(map(len, held)) >= ROW_GROUP:
                        self._flush(file, name, held)
                self._flush(file, name, held)
                part = ExportPart(name, start, following, began, _now(self._runtime), counts)
                with self._files.explained("be written", name):
                    file.add_key_value_metadata({FOOTER.decode(): json.dumps(self._footer(number, part))})
                    file.close()
            finally:
                with suppress(OSError, ValueError, pa.ArrowException):  # what did not fit does not fit now: nobody will read this file
                    file.close()
                file.is_open = False  # otherwise the garbage collector closes it again, and that error appears on stderr
            draft.publish()
        return part

    def _flush(self, file: Any, name: str, held: list[Any]) -> None:
        """Writes these batches as one row group."""
        with self._files.explained("be written", name):
            file.write_table(pa.Table.from_batches(held, SCHEMA), row_group_size=ROW_GROUP + ROWS_PAGE)
        held.clear()

    def _footer(self, number: int, part: ExportPart) -> dict[str, Any]:
        return {
            "version": VERSION, "export": self._export.export, "store": dict(self._export.store), "prefix": self._export.prefix,
            "blobs": self._export.blobs, "number": number, "start": part.start.hex(), "end": None if part.end is None else part.end.hex(),
            "began": part.began, "ended": part.ended, "counts": asdict(part.counts),
        }  # fmt: skip


SCHEMA = pa.schema([(name, ARROW[kind]) for name, kind in OBJECTS.items()])


def _now(runtime: Runtime) -> str:
    moment = as_datetime(runtime.wall_ns())
    assert moment is not None, "this machine's clock shows no year after 9999"
    return moment.isoformat(timespec="milliseconds")
