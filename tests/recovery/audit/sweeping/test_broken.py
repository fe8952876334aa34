"""What an audit does when it cannot read to the end, or reads what is not true.

It asks again, within bounds; it says so; it never guesses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.noop import NoopChangeLog
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.world.services import SimulatedRows
from recovery.audit.finding import Finding, Summary, Tally
from recovery.audit.finding_classes import DOUBTS, FindingClass
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.sweeping.sweep import audit_range
from recovery.audit.sweeping.verify import READ_BUDGET_S
from tests.given.audit_grounds import DAY_NS, OLD_NS, AuditGround, EmbeddedGround, SetRuntime, SimulatedGround, embedded_ground
from tests.given.planted_world import CUTOFF
from tiered.gcs.blobs import GcsBlobs
from tiered.metadata import NS_PER_S
from tiered.services.backends import HighVolumeBackend, LongTermBackend, Tiers
from tiered.services.capabilities import GenerationLookup
from tiered.services.scans import BlobPage, ListedBlob, Redirect, RedirectPage

PLANTED_ONLY_HERE = FindingClass.UNLISTED  # a listing that leaves out what is there is no store's
pytestmark = pytest.mark.anyio

OBJECTS = 30
EVERYTHING = Bounds(start="", end=None)
ASKS_MAX = 200
"""In the budget, even by a clock that lets no wait take longer than it was asked for."""


class TickingRuntime(SetRuntime):
    """Sleep takes no time but for its own monotonic clock."""

    def __init__(self) -> None:
        super().__init__()
        self.slept_s = 0.0

    def monotonic(self) -> float:
        return self.slept_s

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        await super().sleep(seconds)


class Lying:
    """A long-term tier; `lists` answers instead of its `list`."""

    def __init__(self, blobs: LongTermBackend, lists: Callable[[str, str | None, int], Awaitable[BlobPage]]) -> None:
        self._blobs = blobs
        if isinstance(blobs, GenerationLookup):  # in its own dict, where `isinstance` looks from Python 3.12 on
            self.generations = blobs.generations
        self.list = lists

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)


async def fill(ground: AuditGround) -> list[str]:
    """Whole objects; the names of their blobs."""
    names = []
    for number in range(OBJECTS):
        path = f"a/objects/{number:02}"
        names.append(name := f"{path}/{ground.clock.at(OLD_NS)}")
        await ground.blob(name, 3, OLD_NS, None)
        await ground.row(path, name, None)
    ground.clock.now_ns = CUTOFF.as_of_ns
    return names


async def audit(
    ground: AuditGround, long_term: object = None, *, high_volume: object = None, cutoff: Cutoff = CUTOFF, clock: Runtime | None = None
) -> tuple[Summary, list[Finding]]:
    found: list[Finding] = []
    tiers = Tiers(
        cast(HighVolumeBackend, high_volume or ground.tiers.high_volume), cast(LongTermBackend, long_term or ground.tiers.long_term)
    )
    return await audit_range(tiers, ground.log, EVERYTHING, cutoff, clock or ground.clock, found.extend, window_names=10), found


class TickingGround(SimulatedGround):
    def __init__(self) -> None:
        super().__init__()
        self.ticking = TickingRuntime()
        self.clock = self.ticking


async def test_a_listing_that_silently_ends_early_is_found_out_by_the_tombstones() -> None:
    ground = SimulatedGround()
    names = await fill(ground)
    whole = ground.tiers.long_term.list

    async def ends_early(start: str, end: str | None, limit: int) -> BlobPage:
        page = await whole(start, end, limit)
        return replace(page, next_start=None) if len(page.blobs) and page.blobs[-1].name >= names[19] else page

    summary, found = await audit(ground, Lying(ground.tiers.long_term, ends_early))
    assert {(finding.class_, finding.name) for finding in found} == {(FindingClass.UNLISTED, name) for name in names[20:]}
    assert summary.totals()[FindingClass.UNLISTED].number == OBJECTS - 20
    assert not any(finding.class_ in (FindingClass.ORPHAN, FindingClass.DANGLING) for finding in found)


async def test_a_listing_that_leaves_out_a_blob_in_the_middle_is_found_out() -> None:
    ground = SimulatedGround()
    names = await fill(ground)
    whole = ground.tiers.long_term.list

    async def leaves_out(start: str, end: str | None, limit: int) -> BlobPage:
        page = await whole(start, end, limit)
        return replace(page, blobs=[blob for blob in page.blobs if blob.name != names[7]])

    _, found = await audit(ground, Lying(ground.tiers.long_term, leaves_out))
    assert [(finding.class_, finding.name) for finding in found] == [(FindingClass.UNLISTED, names[7])]


@pytest.mark.parametrize("old_file", [False, True])
async def test_blob_of_a_writer_whose_clock_is_behind_accuses_no_listing(tmp_path: Path, old_file: bool) -> None:
    """The file says when it was written, by the clock of the machine. The writer's clock is three days behind."""
    async with embedded_ground(tmp_path) as ground:
        assert isinstance(ground, EmbeddedGround)
        names = await fill(ground)
        whole = ground.tiers.long_term.list
        for name in names[20:] if not old_file else ():
            ground.set_time(name, CUTOFF.as_of_ns + NS_PER_S)

        async def before(start: str, end: str | None, limit: int) -> BlobPage:
            page = await whole(start, end, limit)
            return replace(page, blobs=[blob for blob in page.blobs if blob.name < names[20]])

        summary, found = await audit(ground, Lying(ground.tiers.long_term, before))
    assert [finding.class_ for finding in found] == ([FindingClass.UNLISTED] * 10 if old_file else [])
    assert summary.totals()[FindingClass.REFERENCED].number == (20 if old_file else OBJECTS)


@pytest.mark.parametrize("age_s", [0, 30, 7200])
@pytest.mark.parametrize("shown", ["nothing", "half", "another name"])
async def test_what_a_listing_leaves_out_or_renames_is_a_doubt_whatever_its_age(shown: str, age_s: int) -> None:
    ground = SimulatedGround()
    names = []
    for number in range(4):
        at_ns = CUTOFF.as_of_ns - age_s * NS_PER_S
        names.append(name := f"a/objects/{number}/{ground.clock.at(at_ns)}")
        await ground.blob(name, 3, at_ns, None)
        await ground.row(f"a/objects/{number}", name, None)
    ground.clock.now_ns = CUTOFF.as_of_ns

    async def lying(start: str, end: str | None, limit: int) -> BlobPage:
        page = await ground.tiers.long_term.list(start, end, limit)
        if shown == "another name":
            return replace(page, blobs=[cast(ListedBlob, blob)._replace(name=f"a/objects/x{blob.name[10:]}") for blob in page.blobs])
        return replace(page, blobs=[blob for blob in page.blobs if shown == "half" and blob.name <= names[1]])

    summary, found = await audit(ground, Lying(ground.tiers.long_term, lying))
    left_out = names[2:] if shown == "half" else names
    assert [finding.name for finding in found if finding.class_ is FindingClass.UNLISTED] == left_out
    assert FindingClass.UNLISTED in DOUBTS and not summary.totals().get(FindingClass.ORPHAN)


@pytest.mark.parametrize(("grace_s", "unlisted"), [(0.0, ["a/objects/7200"]), (86_400.0, [])])
async def test_a_blob_whose_writer_may_have_been_at_work_when_it_was_listed_accuses_no_listing(grace_s: float, unlisted: list[str]) -> None:
    """Without a grace, too: it is dated when its upload began."""
    ground, ages_s = SimulatedGround(), (7200, 1800)
    for age_s in ages_s:
        name = f"a/objects/{age_s}/{ground.clock.at(CUTOFF.as_of_ns - age_s * NS_PER_S)}"
        await ground.blob(name, 3, CUTOFF.as_of_ns - age_s * NS_PER_S, None)
        await ground.row(f"a/objects/{age_s}", name, None)
    ground.clock.now_ns = CUTOFF.as_of_ns

    asked: list[str] = []

    async def empty_at_first(start: str, end: str | None, limit: int) -> BlobPage:
        asked.append(start)
        return BlobPage((), (), None) if len(asked) == 1 else await ground.tiers.long_term.list(start, end, limit)

    cutoff = CUTOFF.model_copy(update={"grace_s": grace_s})
    summary, found = await audit(ground, Lying(ground.tiers.long_term, empty_at_first), cutoff=cutoff)
    assert [(finding.class_, finding.object, finding.size) for finding in found] == [(FindingClass.UNLISTED, path, 3) for path in unlisted]
    assert summary.totals()[FindingClass.REFERENCED] == Tally(2 - len(unlisted), 6 - 3 * len(unlisted))


class LateRows:
    """Rows that the first look does not see, and the second one does. `first`: what the first look sees instead."""

    def __init__(self, rows: HighVolumeBackend, *, backwards: bool = False, first: Sequence[Redirect] = ()) -> None:
        self._rows, self._backwards = rows, backwards
        self._first = first
        self.scans = 0

    async def redirects(self, start: bytes, end: bytes | None, limit: int) -> RedirectPage:
        self.scans += 1
        return self._turned(await self._rows.redirects(start, end, limit)) if self.scans > 1 else RedirectPage(self._first, (), None)

    async def redirects_at(self, keys: Sequence[bytes]) -> RedirectPage:
        return self._turned(await self._rows.redirects_at(keys))

    def _turned(self, page: RedirectPage) -> RedirectPage:
        return replace(page, redirects=page.redirects[::-1] if self._backwards else page.redirects)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("scanned", [False, True], ids=["by their keys", "by a scan"])
async def test_of_two_rows_that_name_a_blob_at_the_second_look_the_live_one_protects_it(backwards: bool, scanned: bool) -> None:
    """Both readings of its name are rows, neither of which the first look saw."""
    ground = SimulatedGround()
    name = f"a/objects/k/{ground.clock.at(OLD_NS)}"
    await ground.blob(name, 3, OLD_NS, None)
    await ground.row("a/objects/k", name, CUTOFF.as_of_ns - NS_PER_S)
    await ground.row(name, name, None)
    ground.clock.now_ns = CUTOFF.as_of_ns
    others = [Redirect(f"b/objects/{number}", f"b/objects/{number}", OLD_NS) for number in range(0 if scanned else 2)]
    late = LateRows(ground.tiers.high_volume, backwards=backwards, first=others)
    summary, found = await audit(ground, high_volume=late)
    assert found == [] and late.scans == (2 if scanned else 1), "many rows in a window are not scanned for two keys"
    assert {kind: count.number for kind, count in summary.totals().items()} == {
        FindingClass.REFERENCED: 1, **({} if scanned else {FindingClass.EXPIRED: 2})
    }  # fmt: skip


async def test_the_second_look_tries_both_readings_of_a_name() -> None:
    ground = SimulatedGround()
    for path in ("a/objects/k", "a/objects/l"):
        name = f"{path}/{ground.clock.at(OLD_NS)}"
        await ground.blob(name, 3, OLD_NS, None)
        await ground.row(path if path.endswith("k") else name, name, None)
    ground.clock.now_ns = CUTOFF.as_of_ns
    summary, found = await audit(ground, high_volume=LateRows(ground.tiers.high_volume))
    assert found == [] and summary.totals() == {FindingClass.REFERENCED: Tally(2, 6)}


async def test_a_blob_that_another_one_of_its_name_replaced_since_it_was_listed_is_not_accused() -> None:
    ground = SimulatedGround()
    await ground.blob(f"a/objects/k/{ground.clock.at(OLD_NS)}", 3, OLD_NS, None)
    ground.clock.now_ns = CUTOFF.as_of_ns
    asked = 0

    async def of_before(start: str, end: str | None, limit: int) -> BlobPage:
        nonlocal asked
        asked += 1
        page = await ground.tiers.long_term.list(start, end, limit)
        [blob] = page.blobs
        before = ListedBlob(blob.name, blob.size, blob.created_ns, blob.deadline_ns, f"{blob.generation}1")
        return replace(page, blobs=[before] if asked == 1 else page.blobs)

    summary, found = await audit(ground, Lying(ground.tiers.long_term, of_before))
    assert found == [] and asked == 2
    assert summary.totals() == {FindingClass.REFERENCED: Tally(0, 0)}, "what was listed has gone, and what is there was not judged"


@pytest.mark.parametrize("orphans", [5, OBJECTS])
async def test_files_that_change_after_they_were_listed_are_not_accused(tmp_path: Path, orphans: int) -> None:
    """A directory is not listed twice: each file is looked at by its name."""
    asked = 0
    async with embedded_ground(tmp_path) as ground:
        assert isinstance(ground, EmbeddedGround)
        names = await fill(ground)
        await ground.sql(f"DELETE FROM rows WHERE path < 'a/objects/{orphans:02}'")
        gone, shorter, empty, other, kept = names[:5]
        blobs = ground.tiers.long_term

        async def change_then_end(start: str, end: str | None, limit: int) -> BlobPage:
            nonlocal asked
            asked += 1
            page = await blobs.list(start, end, OBJECTS + 1)
            await blobs.delete(gone)
            ground.file_of(shorter).write_bytes(ground.file_of(shorter).read_bytes()[:-1])
            ground.file_of(empty).write_bytes(b"")
            await blobs.delete(other)
            await ground.blob(other, 4, OLD_NS + NS_PER_S, None)
            ground.clock.now_ns = CUTOFF.as_of_ns
            return page

        summary, found = await audit(ground, Lying(blobs, change_then_end))
    assert [finding.name for finding in found] == [kept, *names[5:orphans]]
    assert {finding.class_ for finding in found} == {FindingClass.ORPHAN}
    assert asked == 1 and summary.names == OBJECTS
    assert summary.totals()[FindingClass.REFERENCED] == Tally(OBJECTS - orphans, 3 * (OBJECTS - orphans))


@pytest.mark.parametrize(("error", "asks"), [(ConfigurationError, 1), (UnavailableError, ASKS_MAX)])
async def test_a_permission_or_a_service_that_goes_half_way_ends_the_range_within_bounds(error: type[TieredError], asks: int) -> None:
    ground = TickingGround()
    await fill(ground)
    whole, asked = ground.tiers.long_term.list, 0

    async def ends(start: str, end: str | None, limit: int) -> BlobPage:
        nonlocal asked
        if start:
            asked += 1
            raise error("the second page: not any more")
        return await whole(start, end, limit)

    with pytest.raises(error, match="the second page"):
        await audit(ground, Lying(ground.tiers.long_term, ends))
    assert 1 <= asked <= asks
    assert ground.ticking.slept_s <= READ_BUDGET_S


async def test_a_permission_that_goes_before_the_second_look_ends_the_range_and_accuses_nobody() -> None:
    """Its heads are asked for by several tasks, and the error is a plain one all the same."""
    ground = TickingGround()
    names = await fill(ground)
    for name in names[:3]:
        await ground.tiers.long_term.delete(name)

    class Denied(Lying):
        async def head(self, name: str) -> object:
            raise ConfigurationError("it may not be read any more")

    found: list[Finding] = []
    tiers = replace(ground.tiers, long_term=cast(LongTermBackend, Denied(ground.tiers.long_term, ground.tiers.long_term.list)))
    with pytest.raises(ConfigurationError, match="may not be read"):
        await audit_range(tiers, ground.log, EVERYTHING, CUTOFF, ground.clock, found.extend)
    assert found == []


async def test_tombstone_is_not_taken_for_expired_by_a_clock_that_is_ahead() -> None:
    """Workers may have clocks of their own, and a live tombstone whose blob is gone is data loss by any of them."""
    ground, paths = SimulatedGround(), ("a/objects/soon", "a/objects/later")
    for path, deadline_ns in zip(paths, (CUTOFF.as_of_ns + 60 * NS_PER_S, CUTOFF.as_of_ns + 30 * DAY_NS), strict=True):
        await ground.row(path, f"{path}/{ground.clock.at(OLD_NS)}", deadline_ns)
    ground.clock.now_ns = CUTOFF.as_of_ns + 3600 * NS_PER_S  # the audit takes its time, and that counts
    worker = SetRuntime()
    worker.now_ns = ground.clock.now_ns + 365 * DAY_NS
    summary, found = await audit(ground, clock=worker)
    assert [(finding.class_, finding.object) for finding in found] == [(FindingClass.DANGLING, "a/objects/later")]
    assert summary.totals()[FindingClass.EXPIRED].number == 1


@pytest.mark.parametrize("damage", ["target = CAST(X'FE' AS TEXT)", "deadline_ms = 'soon'"])
async def test_blobs_whose_own_row_cannot_be_read_are_no_orphans(tmp_path: Path, damage: str) -> None:
    """Which of them it names, nobody can tell; the row is the finding."""
    async with embedded_ground(tmp_path) as ground:
        names = await fill(ground)
        await cast(EmbeddedGround, ground).sql(f"UPDATE rows SET {damage} WHERE path = 'a/objects/07'")
        summary, found = await audit(ground)
        assert [(finding.class_, finding.name) for finding in found] == [(FindingClass.CORRUPT_ROW, "a/objects/07")]
        assert summary.totals()[FindingClass.REFERENCED].number == len(names)


# --- on the wire ---------------------------------------------------------------------------------


@pytest.fixture
async def bucket(anyio_backend: object) -> AsyncIterator[tuple[GcsEmulator, AuditGround]]:
    clock = TickingRuntime()
    async with GcsEmulator(runtime=clock) as server, GcsBlobs.connect(
        server.create_bucket("blobs").name, clock, endpoint=server.url
    ) as blobs:
        yield server, AuditGround(clock, Tiers(SimulatedRows(clock), blobs), NoopChangeLog())


@pytest.mark.parametrize("mode", [FaultMode.TRUNCATE, FaultMode.DROP_BEFORE, FaultMode.DROP_AFTER])
async def test_a_page_that_breaks_off_is_asked_for_again(bucket: tuple[GcsEmulator, AuditGround], mode: FaultMode) -> None:
    server, ground = bucket
    await fill(ground)
    server.faults.append(fault := GcsFault(mode, "object.list", times=3))
    summary, found = await audit(ground)
    assert (summary.names, found) == (OBJECTS, [])
    assert fault.times == 0, "each of them has happened"


async def test_a_listing_that_is_forbidden_half_way_is_no_evidence(bucket: tuple[GcsEmulator, AuditGround]) -> None:
    server, ground = bucket
    await fill(ground)
    whole = ground.tiers.long_term.list

    async def then_forbidden(start: str, end: str | None, limit: int) -> BlobPage:
        page = await whole(start, end, limit)
        server.faults.append(GcsFault(FaultMode.STATUS, "object.list", status=403, times=None))
        return page

    with pytest.raises(ConfigurationError):
        await audit(ground, Lying(ground.tiers.long_term, then_forbidden))
    assert server.calls.count("object.list") == 3, "the time, a page, and what is forbidden is not asked for again"
