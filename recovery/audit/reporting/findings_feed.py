"""What changed from run to run, as a change feed: +1 for a finding that is new, -1 for one that is gone.

    run -> findings -.
                      difference -> DIR/run-000005.avro       one file for each run; it appears whole, or not at all
    DIR -> view   ---'

A record is a finding: its class, its name and its object, and nothing that changes while it stays the same finding. The
time is the moment of which the run is true (its cut-off's `as_of_ns`), in milliseconds since 1970. So the time at which
a record appears says since when it is known. The last message of a file is the progress from the end of the file before
it. `recovery.feed` has the format; any of its readers can read the files.

A feed is bound to what its runs look at: the store, the scope, the payloads, the grace, and the time of being overdue.
If a run looks at anything else, "gone" may mean "not looked at", so it is refused. So is a run that is not complete,
and one that is older than the feed (docs/decisions/audit.md, 85).

*Crash* at any moment: the file of the run is there or is not. The same command adds it, and does nothing if it is
there. *Two at once*: a file is never replaced. On this machine only one process can make the file of a number.
Elsewhere each writer leaves a claim first, and gives way if it sees another's. *Failure*: `ConfigurationError`,
`CorruptRecordError` or `FeedError` if the feed is not one that this run may go on with, `UnavailableError` if the
directory cannot be read or written. The feed is then as it was, or has the whole run: the same command tells which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, BinaryIO, Self, cast

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError, newer_version
from changelog.base.runtime import Runtime
from recovery import display
from recovery.audit.files.directory import DirectoryFiles
from recovery.audit.files.evidence import evidence
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding_classes import FINDINGS, FindingClass
from recovery.audit.manifest import Manifest
from recovery.audit.sweeping.beside import UPLOADS, WRITERS
from recovery.feed.avro import ContainerReader, ContainerWriter, schema
from recovery.feed.errors import FeedError
from recovery.feed.files import is_left_out
from recovery.feed.messages import Progress, Update, Updates, canonical
from tiered.metadata import NS_PER_MS

VERSION = "1"
WHAT = "the feed directory"
SHA256 = "tiered.sha256"
"""The entry of the header with the checksum. Avro has none: a bit that flips may change a name, and nothing else."""
MESSAGE = 1000
"""So many updates are in one message."""

SCHEMA = schema({
    "type": "record", "name": "finding", "namespace": "tiered.audit", "fields": [
        {"name": "class", "type": "string"}, {"name": "name", "type": "string"}, {"name": "object", "type": "string"},
    ],
})  # fmt: skip
"""What identifies a finding. `object` is empty if the name does not tell it."""

_COLUMNS = ("class", "name", "object")
_FILE = re.compile(r"run-(\d{6})\.avro")
_CLAIM = "_claim-"


@dataclass(frozen=True, slots=True)
class Added:
    """What a run added to a feed. `file`: where. `time_ms`: of which moment the run is true, Unix milliseconds.

    `found`, `gone`: how many findings are new, and how many are no more. `now`: how many there are. `before_ms`: the
    time of the run before it; None: it is the first. `again`: an earlier call had added it.
    """

    file: str
    time_ms: int
    found: int
    gone: int
    now: int
    before_ms: int | None
    again: bool


class FindingsFeed:
    """The feed in one directory. Its calls block, so call them in a thread."""

    def __init__(self, files: DirectoryFiles, runtime: Runtime) -> None:
        self.files = files
        self._runtime = runtime

    @classmethod
    def open(cls, where: str, runtime: Runtime) -> Self:
        """Returns the feed of a path or a URI. It need not exist yet. Raises `ConfigurationError` for other text."""
        return cls(DirectoryFiles.at(where, runtime, WHAT), runtime)

    def check(self, manifest: Manifest, run: DirectoryFiles) -> None:
        """Refuses a run that the feed cannot take, before it is carried out. `run`: its directory.

        It reads the beginning of each file, and writes nothing. Raises the errors that the module names.
        """
        feed, apart = f"{self.files.path}/", f"{run.path}/"
        if self.files.filesystem.type_name == run.filesystem.type_name and (feed.startswith(apart) or apart.startswith(feed)):
            raise ConfigurationError(f"{WHAT} {self.files.uri} and the run directory {run.uri} lie in each other: give each its own")
        _check_moment(manifest)
        names = self._names()
        heads = [self._head(name, manifest) for name in names]
        if manifest.run not in (head.run for head in heads):
            self._check_time(manifest, heads[-1].time_ms if heads else None)

    def add(self, directory: RunDirectory) -> Added:
        """Adds the findings of a run that has ended. The run is checked first, as before a deletion.

        If the run was added before, nothing is written, but its findings must be what was added. Raises the errors that
        the module names. It holds the names of all findings of the run before in memory, some 0.25 KB each.
        """
        proven = evidence(directory, self._runtime.wall_ns())
        manifest = proven.manifest
        if not proven.complete:
            raise ConfigurationError(
                f"nothing was added to {WHAT} {self.files.uri}: the run in {directory.uri} is not complete ({proven.doubts[0]}),"
                " so nobody knows what is gone"
            )
        _check_moment(manifest)
        view: set[str] = set()
        before_ms: int | None = None
        names = self._names()
        for name in names:
            head = self._head(name, manifest)
            if head.run == manifest.run:
                return self._again(name, directory, manifest, view, before_ms)
            self._apply(name, head, view, before_ms)
            before_ms = head.time_ms
        self._check_time(manifest, before_ms)
        return self._write(len(names), directory, manifest, view, before_ms)

    # --- what is there

    def _names(self) -> list[str]:
        """Returns the names of the files of runs. Refuses a directory that holds anything else, or has a gap."""
        names = [seen.name for seen in self.files.list() if not is_left_out(seen.name)]
        for number, name in enumerate(names):
            if (told := _FILE.fullmatch(name)) is None:
                raise ConfigurationError(f"{WHAT} {self.files.uri} holds {name!r}, which is no file of a run: give a directory of its own")
            if int(told[1]) != number:
                raise CorruptRecordError(f"{WHAT} {self.files.uri} has no {_file_of(number)}: put it back, or begin another feed")
        return names

    def _head(self, name: str, manifest: Manifest) -> _Head:
        """Returns the header of a file. Refuses a feed whose runs look at something else than this one."""
        with self._opened(name) as reader:
            head = _Head.of(reader.metadata, f"{self.files.uri}/{name}")
        mine = _bound(manifest)
        for what in sorted({*mine, *head.bound}):
            theirs, ours = head.bound.get(what), mine.get(what)
            if theirs != ours:
                raise ConfigurationError(
                    f"{WHAT} {self.files.uri} is of runs with {what} {_printable(theirs)}, and this run has {_printable(ours)}:"
                    " what it does not look at would seem to be gone; give another feed directory, or the same choices"
                )
        return head

    def _apply(self, name: str, head: _Head, view: set[str], before_ms: int | None) -> None:
        """Applies a file to the view. Refuses a file that is not the next one."""
        where = f"{self.files.uri}/{name}"
        number, latest, summed = 0, None, sha256(head.told)
        with self._opened(name) as reader:
            for message, block in reader:
                if latest is not None:
                    raise CorruptRecordError(f"{where}, byte {block}: a message follows the progress message, which is the last")
                if isinstance(message, Progress):
                    latest = message
                    continue
                for each in message.updates:
                    number += 1
                    key = canonical(each.data)
                    summed.update(_line(key, each.diff))
                    if each.time != head.time_ms or each.diff not in (1, -1) or (key in view) == (each.diff > 0):
                        raise CorruptRecordError(
                            f"{where}, byte {block}: {each.diff:+} at time {each.time} does not follow for {display.escape_controls(key)}"
                        )
                    (view.add if each.diff > 0 else view.remove)(key)
        if summed.hexdigest() != head.sha256:
            raise CorruptRecordError(f"{where} does not match its checksum: restore it, or begin another feed")
        if latest != _progress(before_ms, head.time_ms, number):
            raise CorruptRecordError(f"{where}: its progress message is not the one that follows the file before it; begin another feed")

    def _check_time(self, manifest: Manifest, before_ms: int | None) -> None:
        time_ms = _time_of(manifest)
        if before_ms is not None and time_ms <= before_ms:
            raise ConfigurationError(
                f"{WHAT} {self.files.uri} knows the findings of {_moment(before_ms)}, and this run is of {_moment(time_ms)}:"
                " add a later run, or give another feed directory"
            )

    @contextmanager
    def _opened(self, name: str) -> Iterator[ContainerReader]:
        """Opens a file. Errors inside of the block name it."""
        try:
            with self.files.explained("be read", name), self.files.filesystem.open_input_file(f"{self.files.path}/{name}") as file:
                yield ContainerReader(file, SCHEMA)
        except FeedError as error:
            raise error.at(f"{self.files.uri}/{name}") from None

    # --- what is added

    def _again(self, name: str, directory: RunDirectory, manifest: Manifest, view: set[str], before_ms: int | None) -> Added:
        there = set(view)
        self._apply(name, self._head(name, manifest), there, before_ms)
        now = _now(directory, manifest, view)
        if now != there:
            raise ConfigurationError(
                f"{self.files.uri}/{name} has other findings of this run than {directory.uri}: files of the run were written anew"
                " after it was added, and what was told is never changed; add a new run"
            )
        self.files.settle("")
        return Added(name, _time_of(manifest), len(now - view), len(view - now), len(now), before_ms, again=True)

    def _write(self, number: int, directory: RunDirectory, manifest: Manifest, view: set[str], before_ms: int | None) -> Added:
        time_ms, name = _time_of(manifest), _file_of(number)
        now = _now(directory, manifest, view)
        found, gone = sorted(now - view), sorted(view - now)
        changed = [*((key, 1) for key in found), *((key, -1) for key in gone)]
        metadata = _metadata(manifest)
        summed = sha256(_head_of(metadata))
        for key, diff in changed:
            summed.update(_line(key, diff))
        self.files.make("")
        claim = None if self.files.local is not None else self._claim(number, manifest)
        try:
            with self.files.draft(name) as draft, self.files.explained("be written", name):
                writer = ContainerWriter(cast(BinaryIO, draft.file), SCHEMA, metadata=metadata | {SHA256: summed.hexdigest()})
                for start in range(0, len(changed), MESSAGE):
                    writer.write(Updates(tuple(Update(json.loads(key), time_ms, diff) for key, diff in changed[start : start + MESSAGE])))
                writer.write(_progress(before_ms, time_ms, len(changed)))
                writer.flush()
                draft.publish(replace=False)
            if self._head(name, manifest).run != manifest.run:
                raise UnavailableError(f"another run was added to {WHAT} {self.files.uri} meanwhile: run the same command again")
        finally:
            if claim is not None:
                self.files.remove(f"{self.files.path}/{claim}")
        return Added(name, time_ms, len(found), len(gone), len(now), before_ms, again=False)

    def _claim(self, number: int, manifest: Manifest) -> str:
        """Leaves a claim to this number, for writers elsewhere. Of two that claim at once, each sees the other.

        A claim that a killed writer left is that of its run, so the same command goes on.
        """
        claim = f"{_CLAIM}{number:06d}-{manifest.run}"
        self.files.write(claim, b"")
        seen = {each.name for each in self.files.list()}
        others = sorted(name for name in seen if name.startswith(_CLAIM) and name != claim)
        if not others and _file_of(number) not in seen:
            return claim
        self.files.remove(f"{self.files.path}/{claim}")
        if others:
            raise UnavailableError(
                f"another run is being added to {WHAT} {self.files.uri}, or was killed meanwhile: run the same command again later;"
                f" if no audit is under way, delete {others[0]} there"
            )
        raise UnavailableError(f"another run was added to {WHAT} {self.files.uri} meanwhile: run the same command again")


@dataclass(frozen=True, slots=True)
class _Head:
    """What the header of a file says: of which run it is, of which moment, and what its runs look at.

    `sha256`: of `told`, all that the header says, and of the updates after it.
    """

    run: str
    time_ms: int
    bound: Mapping[str, Any]
    sha256: str
    told: bytes

    @classmethod
    def of(cls, metadata: Mapping[str, str], where: str) -> _Head:
        version = metadata.get("tiered.feed")
        if version is not None and version.isdecimal() and int(version) > int(VERSION):
            raise ConfigurationError(newer_version(where, version, f"version {VERSION} of a feed of findings"))
        if version != VERSION:
            raise ConfigurationError(f"{where} is of version {version or 'none'} of this feed, and this software reads {VERSION}")
        try:
            bound = json.loads(metadata["tiered.bound"])
            choices = {str(key): value for key, value in bound.items()}
            return cls(metadata["tiered.run"], int(metadata["tiered.time"]), choices, metadata[SHA256], _head_of(metadata))
        except (KeyError, ValueError, AttributeError, RecursionError):
            raise CorruptRecordError(f"{where} has a header that cannot be read") from None


# --- what a run is to a feed -----------------------------------------------------------------------


def _check_moment(manifest: Manifest) -> None:
    """Refuses a run of which nobody knows the moment of all that it compared."""
    if manifest.inventory is not None and manifest.inventory.export is not None:
        raise ConfigurationError(
            f"the rows of this run are from {manifest.inventory.export}, and an export does not tell of which moment it is, so what"
            f" it does not find may not be gone: leave out the export, or {WHAT}"
        )


def _bound(manifest: Manifest) -> dict[str, Any]:
    """Returns what a run looks at. Two runs of one feed must look at the same."""
    return {
        **manifest.inputs,
        "prefix": manifest.scope or None,
        "share of payloads": None if manifest.verify is None else manifest.verify.share,
        "grace in seconds": manifest.cutoff.grace_s,
        "overdue after seconds": manifest.cutoff.overdue_s,
        "inventory": None if manifest.inventory is None else "a report",
        "references": None if manifest.references is None else "a change feed",
    }


def _metadata(manifest: Manifest) -> dict[str, str]:
    bound = json.dumps(_bound(manifest), sort_keys=True)
    return {"tiered.feed": VERSION, "tiered.run": manifest.run, "tiered.time": str(_time_of(manifest)), "tiered.bound": bound}


def _head_of(metadata: Mapping[str, str]) -> bytes:
    return canonical({key: value for key, value in metadata.items() if key != SHA256}).encode()


def _line(key: str, diff: int) -> bytes:
    return f"\n{diff:+d} {key}".encode()


_TOLD_BESIDE = {UPLOADS: FindingClass.STALE_UPLOAD, WRITERS: FindingClass.MIXED_WRITERS}
"""What a store may not tell, and the findings that it would be."""


def _printable(value: object) -> str:
    return "none" if value is None else display.escape_controls(str(value))


def _time_of(manifest: Manifest) -> int:
    return manifest.cutoff.as_of_ns // NS_PER_MS


def _moment(time_ms: int) -> str:
    return display.moment(time_ms * NS_PER_MS)


def _progress(before_ms: int | None, time_ms: int, number: int) -> Progress:
    lower = 0 if before_ms is None else before_ms + 1
    return Progress((lower,), (time_ms + 1,), ((time_ms, number),) if number else ())


def _now(directory: RunDirectory, manifest: Manifest, before: set[str]) -> set[str]:
    """Returns the findings of a run, and those from `before` that it could not look at: they are not gone.

    Nobody can tell what a corrupt row names, so what was found about its object stays. If the store did not tell which
    uploads are left, or who wrote its rows, what was found of that stays.
    """
    now, corrupt = set[str](), set[str]()
    for rows in directory.batches(manifest.run, FINDINGS, _COLUMNS):
        for values in zip(*(rows[column].to_pylist() for column in _COLUMNS), strict=True):
            record = {column: value or "" for column, value in zip(_COLUMNS, values, strict=True)}
            now.add(canonical(record))
            if record["class"] == FindingClass.CORRUPT_ROW:
                corrupt.add(record["name"])
    unknown = {what for _, header in directory.tiling(manifest).done for what in header.summary.unknown}
    silent = {kind for what, kind in _TOLD_BESIDE.items() if what in unknown}
    if corrupt or silent:
        for key in before:
            record = json.loads(key)
            if {record["name"], record["object"]} & corrupt or record["class"] in silent:
                now.add(key)
    return now


def _file_of(number: int) -> str:
    return f"run-{number:06d}.avro"
