"""Two kinds of writers at once are told from a move, on rows as both kinds write them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from changelog.bigtable.channel import BigtableTable, set_cell
from changelog.change import ChangeId
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from emulators.world.services import SimulatedBlobs
from recovery.audit.finding import Finding, Summary
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds
from recovery.audit.sweeping import beside_blobs
from recovery.audit.sweeping.beside_blobs import WRITERS, tell_mixed_writers
from recovery.mixed_writers import BLOBS_MAX, MixedWriters, find_mix, some_rows
from tests.given.audit_grounds import BEGINS_NS, SetRuntime
from tiered.bigtable.rows import BigtableRows
from tiered.metadata import NS_PER_S, Expiration, Metadata, TimeToIdle, TimeToLive, encode_metadata
from tiered.object_id import blob_name
from tiered.provision.schema import FAMILIES
from tiered.services.backends import BlobHead, Inline, Tiers, Tombstone

PLANTED_ONLY_HERE = FindingClass.MIXED_WRITERS  # who wrote a row is looked at beside all this
pytestmark = pytest.mark.anyio

MINUTE, HOUR = 60 * NS_PER_S, 3600 * NS_PER_S
IDLE, LIVE = TimeToIdle(ns=8 * HOUR), TimeToLive(ns=8 * HOUR)
BOTH = pytest.mark.parametrize("large", [False, True], ids=["small", "large"])


@dataclass
class SharedTable:
    """A table that two kinds of writers share. Times are minutes before now; what is written later has a later key."""

    clock: SetRuntime = field(default_factory=SetRuntime)
    table: BigtableTable = field(init=False)
    tiers: Tiers = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.table = BigtableTable(MemoryChannel(MemoryBigtable(self.clock, {"t": FAMILIES})), "t")
        self.tiers = Tiers(BigtableRows(self.table, self.clock), SimulatedBlobs(self.clock))

    def at(self, minutes: float) -> int:
        self.clock.now_ns = BEGINS_NS - round(minutes * MINUTE)
        return self.clock.now_ns

    async def ours(self, minutes: float, expiration: Expiration = None, *, large: bool = False, of: str = "shared") -> str:
        return await self._write(f"{of}/org.1", minutes, expiration, None, large=large, token=True)

    async def theirs(
        self, minutes: float, expiration: Expiration = None, renewed: float | None = None, *, large: bool = False
    ) -> str:
        """`renewed`: when its time to idle was extended. That leaves no token, whoever wrote it first."""
        return await self._write("shared/theirs.1", minutes, expiration, renewed, large=large, token=False)

    async def _write(
        self, of: str, minutes: float, expiration: Expiration, renewed: float | None, *, large: bool, token: bool
    ) -> str:
        self.count += 1
        path, now_ns = f"{of}/objects/{self.count:03}", self.at(minutes)
        deadline_ns = None
        if expiration is not None:
            deadline_ns = (now_ns if renewed is None else BEGINS_NS - round(renewed * MINUTE)) + expiration.ns
        revision, metadata = ChangeId.new(self.clock), Metadata(expiration, now_ns, deadline_ns, size=1)
        target = blob_name(path, revision)
        if large:
            upload = await self.tiers.long_term.open_upload(target, metadata, 1)
            await upload.write(b"x")
            await upload.finalise()
        if token:
            state = Tombstone(target, expiration, deadline_ns) if large else Inline(metadata, b"x")
            assert await self.tiers.high_volume.swap(path, revision, None, state, self.clock.boot_time() + 60)
        else:
            family, at_us = ("fm", -1) if deadline_ns is None else ("fg", deadline_ns // 1000)
            cells = {b"r": target.encode()} if large else {b"p": b"x", b"m": encode_metadata(metadata)}
            await self.table.mutate(path.encode(), *(set_cell(family, column, value, at_us) for column, value in cells.items()))
        return path

    async def found(self) -> MixedWriters | None:
        self.at(0)
        rows = await some_rows(self.tiers.high_volume, b"", None, 1000)
        assert len(rows) == self.count
        return await find_mix(rows, self.tiers.long_term, self.clock.now_ns)


@BOTH
@pytest.mark.parametrize("expiration", [None, LIVE, IDLE], ids=["stays", "time to live", "time to idle"])
async def test_writers_of_both_kinds_at_once_are_seen(large: bool, expiration: Expiration) -> None:
    world = SharedTable()
    ours, theirs = await world.ours(100, expiration, large=large), await world.theirs(90, expiration, large=large)
    await world.ours(89.5, expiration, large=large)
    assert await world.found() is None, "it may have been the first after us, by a clock that is a little behind"
    await world.ours(60, expiration, large=large)
    found = await world.found()
    assert found is not None and found.theirs == theirs
    assert found.theirs_ns // NS_PER_S == world.at(90) // NS_PER_S
    assert f"{theirs}, or extended its life, by 2026-09-21" in found.sentence
    assert f"this one wrote {found.ours} 30 s later" in found.sentence
    assert found.ours != ours


@BOTH
async def test_a_renewal_by_other_software_while_this_one_writes_is_seen(large: bool) -> None:
    world = SharedTable()
    for minutes in (170, 120, 80):
        await world.ours(minutes, IDLE, large=large)
    theirs = await world.theirs(165, IDLE, 60, large=large)
    assert await world.found() is None, "it may have been renewed when this software had stopped"
    await world.ours(40, IDLE, large=large)
    found = await world.found()
    assert found is not None and found.theirs == theirs


@BOTH
async def test_a_move_over_and_back_and_over_again_is_no_mix(large: bool) -> None:
    """Other software's right to write was taken, and so was ours; an hour after that this one came again.

    Each renews what is there when it comes.
    """
    world = SharedTable()
    for before in (0, 10, 29):
        await world.theirs(2001 + before, IDLE, large=large)
        await world.theirs(2001 + before, IDLE, 1980, large=large)  # renewed by this software, which keeps its form
        await world.ours(1970 + before, IDLE, large=large)
        await world.theirs(1975 + before, IDLE, 1969, large=large)  # ours, renewed by the other
        await world.theirs(1975 + before, IDLE, 1890, large=large)  # and then by this one
        await world.theirs(1940 + before, LIVE, large=large)
        await world.theirs(1940 + before, None, large=large)
        await world.ours(1880 + before, None, large=large)
    assert await world.found() is None


async def test_usecases_of_their_own_are_no_mix() -> None:
    world = SharedTable()
    for minutes in (5, 10, 15):
        await world.ours(minutes, of="ours")
        await world.theirs(minutes)
    assert await world.found() is None


async def test_a_mix_is_forgotten_when_no_mark_of_then_is_left() -> None:
    world = SharedTable()
    await world.ours(2 * 24 * 60 + 1)
    await world.theirs(2 * 24 * 60 - 5)
    await world.ours(2 * 24 * 60 - 10)
    assert await world.found() is None
    await world.ours(2 * 24 * 60 - 1)
    assert await world.found() is not None


async def test_what_tells_no_time_accuses_nobody() -> None:
    world = SharedTable()
    await world.ours(20)
    await world.ours(1)
    world.at(10)
    for path, column, value in (
        ("shared/objects/legacy", b"r", b""), ("shared/objects/bare", b"p", b"x"),
        ("shared/objects/dateless", b"m", b'{"content_type":"a/b"}'), ("shared/objects/corrupt", b"m", b"{"),
        ("shared/objects/gone", b"r", blob_name("shared/objects/gone", ChangeId.new(world.clock)).encode()),
    ):
        await world.table.mutate(path.encode(), set_cell("fm", column, value))
        world.count += 1
    assert await world.found() is None


async def test_so_many_blobs_are_asked_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SharedTable()
    for minutes in (300, 280):
        await world.ours(minutes, large=True)
    for _ in range(BLOBS_MAX + 3):
        await world.theirs(295, IDLE, 40, large=True)
    asked: list[str] = []
    head = world.tiers.long_term.head

    async def counted(name: str) -> BlobHead | None:
        asked.append(name)
        return await head(name)

    monkeypatch.setattr(world.tiers.long_term, "head", counted)
    assert await world.found() is None and len(asked) == BLOBS_MAX
    small = await world.theirs(290)
    found = await world.found()
    assert found is not None and found.theirs == small, "what needs no question is still seen"


# --- as a finding of the audit -----------------------------------------------------------------------


async def audited(world: SharedTable, bounds: Bounds) -> tuple[Summary, list[Finding]]:
    world.at(0)
    summary, told = Summary(), list[Finding]()
    await tell_mixed_writers(world.tiers, bounds, world.clock, told.extend, summary)
    return summary, told


async def test_the_audit_of_a_range_tells_one_row_of_a_mix_there(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SharedTable()
    ours, theirs = await world.ours(100), await world.theirs(90)
    await world.theirs(95)
    await world.ours(70)
    summary, [finding] = await audited(world, Bounds(start="", end=None))
    assert (finding.class_, finding.name, finding.object) == (FindingClass.MIXED_WRITERS, theirs, theirs)
    assert finding.created_ns is not None and finding.size is None and ours in finding.detail
    assert {usecase: counts[FindingClass.MIXED_WRITERS].number for usecase, counts in summary.counts.items()} == {"shared": 1}
    for bounds in (Bounds(start="", end="shared/theirs.1/"), Bounds(start="shared/theirs.1/", end=None)):
        assert (await audited(world, bounds))[1] == [], "each range is judged by its own rows"
    monkeypatch.setattr(beside_blobs, "WRITERS_ROWS", 1)
    assert (await audited(world, Bounds(start="", end=None)))[1] == []


async def test_rows_that_cannot_be_read_do_not_end_the_audit() -> None:
    world = SharedTable()
    await world.ours(10)
    elsewhere = BigtableRows(BigtableTable(MemoryChannel(MemoryBigtable(world.clock, {})), "t"), world.clock)
    summary, told = Summary(), list[Finding]()
    await tell_mixed_writers(Tiers(elsewhere, world.tiers.long_term), Bounds(start="", end=None), world.clock, told.extend, summary)
    assert told == [] and "t" in summary.unknown[WRITERS] and not summary.counts
