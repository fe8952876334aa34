"""Everything that is known about one name now: the row, its blobs, the changelog, and what an earlier run found.

    look_at(backends, name, ...) -> NameReport     NAME is read as an object's path and as a blob's name; both are tried
    told_by(directory, proof, name) -> RunRecord   what the findings of a run say about it
    verdict(looked) -> str                       the result, in one sentence

The audit itself judges the blobs and the rows, as ranges of one name each. So the same tables decide, in the same order
of reading. What is printed beside the verdicts (row, entries, sizes) is read before them. So on a busy object the two
may differ by a change.

The payload of a blob that a live row names is read, too, if it is not too large: nothing is called good that `get`
refuses. `verdict` says what was looked at.

Each name that is judged costs one or two readings of the whole changelog; at most `BLOBS_MAX` listed blobs are judged.
*Failure*: `TieredError` if anything cannot be read; then there is no result at all. `InvalidRequestError` if the text
cannot be a name. This module only reads.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from changelog.base.errors import CorruptRecordError, InvalidRequestError, TieredError
from changelog.base.runtime import Runtime
from changelog.change import Entry, Unreadable
from changelog.lease import entry_state
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import IN_USE, OF_ROWS, FindingClass, NameForm, Subject
from recovery.audit.manifest import Bounds, Cutoff, Verify
from recovery.audit.names import after, is_of, read_name
from recovery.audit.sweeping.sweep import audit_range
from recovery.audit.sweeping.tier_reads import ENTRIES_PAGE
from recovery.audit.sweeping.verify import READ_BUDGET_S
from recovery.display import escape_controls, moment, size
from tiered.metadata import NS_PER_MS
from tiered.open import Backends
from tiered.services.backends import Inline, Tombstone
from tiered.services.capabilities import BlobRestoration, DeletedGeneration
from tiered.services.retry import retry_read
from tiered.services.scans import BlobInfo, Generation, Oddity
from tiered.settings import Settings

if TYPE_CHECKING:
    from recovery.audit.files.evidence import Evidence  # these need Arrow, and looking at a name needs no Arrow
    from recovery.audit.files.ledger import RunDirectory

BLOBS_MAX = 20
TOLD_MAX = 100
PAYLOAD_MAX = 64 * 1024 * 1024
"""A payload of up to so many bytes is read unless the caller asks for more or less."""

NAME_BYTES_MAX = 1024
"""The longest name that a bucket allows, in bytes. An object's path is shorter."""

NOBODY_ASKS = "nobody can ask this tier whether it keeps what was deleted: look for a backup, or for a snapshot below it"
"""The remedy for a blob that is gone, where nothing tells of deleted ones, as in a directory."""


@dataclass(frozen=True, slots=True)
class LookedRow:
    """A row. `state`: tombstone, inline, absent or corrupt.

    `class_`: what is wrong with the row, or None; `detail` says it in words.

    `size`: bytes of an inline object. `won` and `refused`: its marks. Times are nanoseconds since 1970, as everywhere
    here.
    """

    path: str
    state: str
    target: str | None = None
    deadline_ns: int | None = None
    token: str | None = None
    size: int | None = None
    won: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    class_: FindingClass | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LookedBlob:
    """A blob, or a name that a tombstone names but that has no blob.

    `class_`: what the audit calls it; None: it disappeared meanwhile.

    `there`: whether the blob exists. `remedy`: if it is lost, what can be done about it. `was_read`: its payload was
    read to the end, and matches its checksum.
    """

    name: str
    there: bool
    class_: FindingClass | None
    detail: str
    size: int | None = None
    created_ns: int | None = None
    deadline_ns: int | None = None
    generation: Generation | None = None
    remedy: tuple[str, ...] = ()
    was_read: bool = False


@dataclass(frozen=True, slots=True)
class LookedEntry:
    """An entry of the changelog that names it. `error`: why the entry is stuck or cannot be read; None: neither."""

    key: str
    object: str | None
    new: str | None
    old: str | None
    state: str
    error: str | None


@dataclass(frozen=True, slots=True)
class NameReport:
    """The result of `look_at`. `more`: there are more blobs below the name than are shown.

    `as_of_ns`: when it was read, by the service's clock.
    """

    name: str
    as_of_ns: int
    grace_s: float
    rows: tuple[LookedRow, ...]
    blobs: tuple[LookedBlob, ...]
    more: bool
    entries: tuple[LookedEntry, ...]
    log_is_durable: bool

    @property
    def findings(self) -> tuple[FindingClass, ...]:
        """The classes that are findings, each once."""
        classes = [*(row.class_ for row in self.rows), *(blob.class_ for blob in self.blobs)]
        return tuple(dict.fromkeys(class_ for class_ in classes if class_ is not None and class_.finding is not None))

    @property
    def is_known(self) -> bool:
        return bool(self.blobs or self.entries) or any(row.state != "absent" or row.won or row.refused for row in self.rows)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run says about a name. `audited`: whether the range of the name was audited to this name.

    `doubts`: why its findings may be wrong, one sentence each; empty if it is complete. `more`: there are further
    findings.
    """

    run: str
    started_ns: int
    grace_s: float
    complete: bool
    doubts: tuple[str, ...]
    audited: bool
    findings: tuple[Finding, ...]
    more: bool


async def look_at(
    backends: Backends, name: str, settings: Settings, cutoff: Cutoff, runtime: Runtime, payload_max: int | None = PAYLOAD_MAX
) -> NameReport:
    """Reads everything about a name. `cutoff`: as for an audit that begins now; a younger blob is not called an orphan.

    `payload_max`: payloads of up to so many bytes are read; None: of any size.

    Raises `TieredError` if anything cannot be read, and `InvalidRequestError` if `name` cannot be a name.
    """
    look = _NameLook(backends, name, settings, runtime)
    blobs, corrupt, more = await look.list()
    entries = tuple([entry async for entry in look.entries({*blobs, *corrupt})])
    rows = [await look.read_row(path) for path in look.paths]
    own_targets = [row.target for row in rows if row.target is not None and is_of(row.path, row.target)]
    for target in own_targets:
        if target not in blobs and target not in corrupt:  # it may be behind those that are shown: revisions sort by age
            page = await look.retry_read(partial(backends.tiers.long_term.list, target, after(target), 1))
            blobs |= {blob.name: blob for blob in page.blobs}
            corrupt |= {oddity.name: oddity for oddity in page.oddities if oddity.is_blob}
    found: list[LookedBlob] = []
    for place in dict.fromkeys([*look.paths, *blobs, *corrupt, *own_targets]):
        reads = place in blobs and (payload_max is None or blobs[place].size <= payload_max)
        class_, detail, of_row, was_read = await look.judge(place, cutoff, Verify() if reads else None)
        rows = [_with(row, of_row) if row.path == place else row for row in rows]
        if place in blobs or place in corrupt or class_ is not None:
            remedies = await look.remedies(place, class_)
            seen = blobs.get(place) or corrupt.get(place)
            found.append(_blob(place, seen, class_, detail, remedies, was_read))
    return NameReport(name, cutoff.as_of_ns, cutoff.grace_s, tuple(rows), tuple(found), more, entries, backends.log.durable)


class _NameLook:
    def __init__(self, backends: Backends, name: str, settings: Settings, runtime: Runtime) -> None:
        _check(name)
        self._backends, self._settings, self._runtime = backends, settings, runtime
        self._name = name
        reading = read_name(name)
        stem = reading.object if reading.form is NameForm.REVISION else None
        self.paths = [name] if stem is None else [stem, name]

    async def list(self) -> tuple[dict[str, BlobInfo], dict[str, Oddity], bool]:
        """Returns the blobs of this name and below it, those that cannot be read, and whether there are more."""
        blobs: dict[str, BlobInfo] = {}
        corrupt: dict[str, Oddity] = {}
        for first, end in ((self._name, after(self._name)), (f"{self._name}/", f"{self._name}0")):  # 0 comes right after the slash
            start: str | None = first
            while start is not None and len(blobs) + len(corrupt) <= BLOBS_MAX:
                page = await self.retry_read(partial(self._backends.tiers.long_term.list, start, end, BLOBS_MAX + 1))
                blobs |= {blob.name: blob for blob in page.blobs}
                corrupt |= {oddity.name: oddity for oddity in page.oddities if oddity.is_blob}
                start = page.next_start
        shown = sorted([*blobs, *corrupt])[:BLOBS_MAX]
        more = len(blobs) + len(corrupt) > len(shown)
        return {name: blobs[name] for name in shown if name in blobs}, {name: corrupt[name] for name in shown if name in corrupt}, more

    async def entries(self, names: set[str]) -> AsyncIterator[LookedEntry]:
        names = {self._name, *names}
        revisions = {read_name(name).revision for name in names}
        now_ms = self._runtime.wall_ns() // NS_PER_MS
        expiry_ms, attempts_max = round(self._settings.lease.expiry_s * 1000), self._settings.recovery.attempts_max
        start: str | None = ""
        while start is not None:
            page = await self.retry_read(partial(self._backends.log.entries, start, ENTRIES_PAGE))
            for entry in page.entries:
                where = entry_state(entry, now_ms, expiry_ms, attempts_max).name.lower()
                if isinstance(entry, Unreadable):
                    if entry.key.rpartition("/")[2] in revisions:
                        yield LookedEntry(entry.key, None, None, None, where, entry.error)
                elif entry.change.object == self._name or names & {entry.change.new, entry.change.old}:
                    yield _entry(entry, where)
            start = page.next_start

    async def read_row(self, path: str) -> LookedRow:
        try:
            row = await self.retry_read(partial(self._backends.tiers.high_volume.read, path, marks=True))
        except CorruptRecordError as error:
            return LookedRow(path, "corrupt", class_=FindingClass.CORRUPT_ROW, detail=str(error))
        marks: dict[str, Any] = {"won": tuple(sorted(row.won)), "refused": tuple(sorted(row.refused))}
        match row.state:
            case Tombstone(target, _, deadline_ns, token):
                return LookedRow(path, "tombstone", target, deadline_ns, token, **marks)
            case Inline(_, payload, token) as inline:
                return LookedRow(path, "inline", None, inline.deadline_ns, token, len(payload), **marks)
            case _:
                return LookedRow(path, "absent", **marks)

    async def judge(self, place: str, cutoff: Cutoff, verify: Verify | None) -> tuple[FindingClass | None, str, Finding | None, bool]:
        """Returns what the blob of this name is and why, and the finding about the row of this key, if there is one.

        Last: whether its payload was read and is whole.
        """
        findings: list[Finding] = []
        bounds = Bounds(start=place, end=after(place))
        summary = await audit_range(self._backends.tiers, self._backends.log, bounds, cutoff, self._runtime, findings.extend, verify=verify)
        was_read = bool(summary.verified)
        of_row = next((each for each in findings if each.name == place and each.class_ in OF_ROWS), None)
        of_blob = next((each for each in findings if each.name == place and each.class_ not in OF_ROWS), None)
        if of_blob is not None:
            return of_blob.class_, of_blob.detail or of_blob.class_.meaning, of_row, was_read
        counted = [class_ for class_, number in summary.totals().items() if class_.finding is None and number.number]
        class_, why = (counted[0], counted[0].meaning) if counted else (None, "it went while it was looked at")
        return class_, why, of_row, was_read

    async def remedies(self, name: str, class_: FindingClass | None) -> tuple[str, ...]:
        """Returns what can be done about a blob of this class: one sentence for each way."""
        if class_ is None or class_.finding is None:
            return ()
        if class_.finding.of is not Subject.LOST_BLOB:
            return (class_.finding.remedy,) if class_.finding.remedy else ()
        blobs = self._backends.tiers.long_term
        if not isinstance(blobs, BlobRestoration):
            return (NOBODY_ASKS,)
        try:
            kept = await self.retry_read(partial(blobs.deleted_generations, name))
        except TieredError as error:  # this takes its own permission, and no verdict depends on it
            return (f"whether the bucket keeps a deleted generation is not known: {error}",)
        if not kept:
            kept_none = "the bucket keeps no deleted generation of it, neither soft-deleted nor noncurrent"
            return (f"{kept_none}: it is lost, unless a backup has it",)
        return tuple(_restoring(each) for each in reversed(kept))

    async def retry_read(self, read: Callable[[], Any]) -> Any:
        return await retry_read(read, self._runtime, READ_BUDGET_S)


def told_by(directory: RunDirectory, proof: Evidence, name: str) -> RunRecord:
    """Returns the run's findings for this name, for the row of this blob's name and every name below it. It blocks.

    `proof`: what may be doubted about the run (`recovery.audit.files.evidence`).
    """
    _check(name)
    manifest = proof.manifest
    names = {name, read_name(name).object}
    hits = (
        finding for finding in directory.findings(manifest.run)
        if finding.name in names or finding.name.startswith(f"{name}/")
    )  # fmt: skip
    found = list(islice(hits, TOLD_MAX + 1))
    audited = any(header.audited.holds(name) for _, header in directory.tiling(manifest).done)
    return RunRecord(
        manifest.run, manifest.started_ns, manifest.cutoff.grace_s, proof.complete, proof.doubts, audited, tuple(found[:TOLD_MAX]),
        len(found) > TOLD_MAX,
    )


def _check(name: str) -> None:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{escape_controls(name)!r} is no text in UTF-8, and so no name: quote it as it was printed") from None
    if not 0 < length <= NAME_BYTES_MAX or "\0" in name:
        raise InvalidRequestError(f"a name has 1 to {NAME_BYTES_MAX} bytes: give an object's path, or a blob's name")


def _with(row: LookedRow, finding: Finding | None) -> LookedRow:
    """Returns the row with the audit's finding added to it."""
    if finding is None:
        return row
    return LookedRow(**{**asdict(row), "class_": finding.class_, "detail": finding.detail})


def _blob(
    name: str, seen: BlobInfo | Oddity | None, class_: FindingClass | None, detail: str, remedy: tuple[str, ...], was_read: bool
) -> LookedBlob:
    if seen is None:
        return LookedBlob(name, False, class_, detail, remedy=remedy)
    deadline_ns = None if isinstance(seen, Oddity) else seen.deadline_ns
    return LookedBlob(name, True, class_, detail, seen.size, seen.created_ns, deadline_ns, seen.generation, remedy, was_read)


def _restoring(kept: DeletedGeneration) -> str:
    """Returns the command that restores it.

    Some names would be read as something else by the shell or gcloud; for them, it returns advice. In S3 it takes away
    the newest delete marker, which is what hides the blob.
    """
    until = "as a noncurrent generation" if kept.kept_until_ns is None else f"until {moment(kept.kept_until_ns)}"
    known = f"deleted {moment(kept.deleted_ns)}, kept {until}, {size(kept.size)}"
    if set("*?[]") & set(kept.address) or escape_controls(kept.address) != kept.address:
        return f"restore generation {kept.generation} by the API, since its name has wildcards or cannot be typed ({known})"
    if kept.address.startswith("s3://"):
        place, _, version = kept.address.removeprefix("s3://").rpartition("#")
        bucket, _, key = place.partition("/")
        return f"aws s3api delete-object --bucket {bucket} --key {shlex.quote(key)} --version-id {shlex.quote(version)} ({known})"
    if kept.kept_until_ns is None:
        target = kept.address.rpartition("#")[0]
        return f"gcloud storage cp --no-clobber {shlex.quote(kept.address)} {shlex.quote(target)} ({known})"
    return f"gcloud storage restore {shlex.quote(kept.address)} ({known})"


def _entry(entry: Entry, where: str) -> LookedEntry:
    change, stuck = entry.change, entry.stuck
    return LookedEntry(entry.key, change.object, change.new, change.old, where, None if stuck is None else stuck.error)


def verdict(looked: NameReport) -> str:
    """Returns the result in one sentence. It claims nothing of what was not looked at."""
    young = any(blob.class_ is FindingClass.TOO_YOUNG for blob in looked.blobs)
    return (
        _verdict(looked)
        + ("; a blob that nothing names is too young to judge" if young else "")
        + ("; there are more blobs below this name, which were not looked at" if looked.more else "")
    )


def _verdict(looked: NameReport) -> str:
    if looked.findings:
        return "; ".join(f"{class_}: {class_.meaning}" for class_ in looked.findings)
    if not looked.is_known:
        return "there is nothing of this name"
    live = [blob for blob in looked.blobs if blob.class_ in IN_USE]
    unread = [blob for blob in live if not blob.was_read]
    if not live:
        return "no fault was found in its row, its entries and the names of its blobs; no live row names a blob"
    if unread:
        known = "" if unread[0].size is None else f" ({size(unread[0].size)})"
        return f"no fault was found, but the payload{known} was not read"
    return "no fault was found: its row names a blob that is there, and whose payload matches its checksum"
