"""An audit that takes its references from the index of a change feed finds what an audit finds that scans the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError
from changelog.change import Change, ChangeId, Entry, Unreadable, decode
from recovery.audit.finding import Finding, Summary
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, FeedAtEnd, FeedReferences, Manifest, index_not_whole
from recovery.audit.sweeping.references import FeedIndex, references_of
from recovery.audit.sweeping.sweep import audit_until
from recovery.audit.sweeping.window import WINDOW_NAMES
from recovery.feed.writer.checkpoint import NOTE, Checkpoint
from tests.given.audit_grounds import BEGINS_NS, DAY_NS, OLD_NS, AuditGround, SimulatedGround, ground_of
from tests.given.feed_index import GENERATION, STORE, keep_up, perfect, publish, rows_of
from tests.given.planted_world import CUTOFF, PAST_NS, plant
from tiered.metadata import NS_PER_S
from tiered.services.backends import HighVolumeBackend, Tiers, Tombstone

pytestmark = pytest.mark.anyio

CUTS: Sequence[Sequence[str]] = ((), ("prefix/objects/foo-bar/", "unicode/objects/\U00010000"), ("a/objects/foo", "a/objects/foo-", "m"))


@dataclass
class Seen:
    """What ranges found together: findings without the times of reading, and the counts. `calls`: of the rows."""

    summary: Summary = field(default_factory=Summary)
    findings: Counter[Finding] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def counts(self) -> dict[tuple[str, FindingClass], tuple[int, int]]:
        found = {
            (usecase, kind): (count.number, count.size) for usecase, kinds in self.summary.counts.items() for kind, count in kinds.items()
        }
        return {key: count for key, count in found.items() if count != (0, 0)}

    def assert_same(self, other: Seen, how: object) -> None:
        assert self.findings == other.findings, how
        assert self.counts == other.counts, how
        for figure in ("names", "redirects", "windows", "entries_max", "dated_ahead", "ages", "age_sizes"):
            assert getattr(self.summary, figure) == getattr(other.summary, figure), (how, figure)


class CountedRows:
    """Rows that count the calls of an audit."""

    def __init__(self, rows: Any, calls: Counter[str]) -> None:
        self._rows = rows
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        self._calls[name] += 1
        return getattr(self._rows, name)


async def audit(
    ground: AuditGround, references: FeedReferences | None = None, bounds: Sequence[str] = (), window_names: int = WINDOW_NAMES
) -> Seen:
    seen = Seen()
    tiers = Tiers(cast(HighVolumeBackend, CountedRows(ground.tiers.high_volume, seen.calls)), ground.tiers.long_term)

    def tell(findings: Sequence[Finding]) -> None:
        seen.findings.update(each._replace(listed_ns=0, logged_ns=0, scanned_ns=0, confirmed_ns=None) for each in findings)

    for start, end in zip(("", *bounds), (*bounds, None), strict=True):
        summary, _ = await audit_until(
            tiers, ground.log, Bounds(start=start, end=end), CUTOFF, ground.clock, tell, lambda _: False, window_names=window_names,
            references=references,
        )  # fmt: skip
        seen.summary.merge(summary)
    return seen


def forget_unreadable(ground: SimulatedGround) -> None:
    """Removes the entries that nobody can read: because of them, the rows are scanned all the same."""
    stored = ground.stored.stored
    for key in [key for key, each in stored.items() if isinstance(decode(key, each.value, 0, each.state), Unreadable)]:
        del stored[key]


async def forget_unreadable_in(ground: AuditGround) -> None:
    start: str | None = ""
    while start is not None:
        page = await ground.log.entries(start, 1000)
        for entry in page.entries:
            if isinstance(entry, Unreadable):
                # `forget` takes only an entry: one with the key of what cannot be read.
                await ground.log.forget(Entry(Change(ChangeId(entry.key.rpartition("/")[2]), "a/objects/k"), entry.key, "nobody"))
        start = page.next_start


# --- the planted world: everything that an audit may find ------------------------------------------


async def test_planted_world_is_judged_the_same_with_a_feed_that_is_up_to_date() -> None:
    ground = SimulatedGround()
    await plant(ground)
    forget_unreadable(ground)
    # Its blob has no deadline, so only the row tells that it has expired (docs/audit.md).
    ground.tiers.high_volume.states.pop("expired/objects/row")  # type: ignore[attr-defined]
    references = await perfect(ground.log, ground.tiers.high_volume, BEGINS_NS)
    for bounds in CUTS:
        for window_names in (2, 7, WINDOW_NAMES):
            told = await audit(ground, references, bounds, window_names)
            told.assert_same(await audit(ground, None, bounds, window_names), (bounds, window_names))
            assert told.summary.indexed == references.live
            assert told.calls["redirects"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("where", ["embedded", pytest.param("emulators", marks=pytest.mark.night)])
async def test_planted_world_on_a_real_log_is_judged_the_same_but_for_rows_that_nothing_leads_to(
    request: pytest.FixtureRequest, tmp_path: Path, where: str
) -> None:
    async with ground_of(where, request, tmp_path) as ground:
        await plant(ground)
        await forget_unreadable_in(ground)
        references = await perfect(ground.log, ground.tiers.high_volume, BEGINS_NS)
        for bounds in CUTS:
            told, scanned = await audit(ground, references, bounds), await audit(ground, None, bounds)
            unseen = scanned.findings - told.findings
            assert told.findings <= scanned.findings and told.calls["redirects"] == 0 and told.summary.indexed == references.live
            assert {(each.class_, each.name) for each in unseen} <= {
                (FindingClass.CORRUPT_ROW, "\\xff/"), (FindingClass.CORRUPT_ROW, "corrupt/objects/target"),
                *((kind, name) for kind, name in {(each.class_, each.name) for each in unseen} if kind is FindingClass.MISFILED),
            }  # fmt: skip
            usecases = {usecase for usecase, _ in {**told.counts, **scanned.counts} if usecase not in ("expired", "corrupt", "\\xff")}
            assert {key: count for key, count in told.counts.items() if key[0] in usecases} == {
                key: count for key, count in scanned.counts.items() if key[0] in usecases
            }


async def test_blob_without_a_deadline_counts_as_referenced_though_its_tombstone_has_expired() -> None:
    ground = SimulatedGround()
    name = f"a/objects/row/{ground.clock.at(OLD_NS)}"
    await ground.blob(name, 3, OLD_NS, None)
    await ground.row("a/objects/row", name, PAST_NS)
    ground.clock.now_ns = BEGINS_NS
    told = await audit(ground, await perfect(ground.log, ground.tiers.high_volume, BEGINS_NS))
    assert told.counts == {("a", FindingClass.REFERENCED): (1, 3)} and not told.findings
    assert (await audit(ground)).counts == {("a", FindingClass.EXPIRED): (1, 3)}


async def test_entry_that_nobody_can_read_makes_the_audit_scan_the_rows() -> None:
    ground = SimulatedGround()
    await plant(ground)
    references = await perfect(ground.log, ground.tiers.high_volume, BEGINS_NS)
    told = await audit(ground, references)
    told.assert_same(await audit(ground), "unreadable entries")
    assert told.calls["redirects"] > 0 and told.summary.looked_up == told.summary.redirects and told.summary.indexed == references.live


# --- worlds that chance makes, with a feed that is behind ------------------------------------------

KEYS = ("a", "b", "foo", "foo-bar", "foo!", "foo/bar", "x/1", "x/2", "é", "z")


class Changing:
    """A store that goes on after its feed was last published. Every change leaves its entry, as where a feed is on."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.ground = SimulatedGround()
        self.states: dict[str, Any] = self.ground.tiers.high_volume.states  # type: ignore[attr-defined]

    async def grow(self, steps: int, *, logged: bool) -> None:
        """`logged`: the feed does not know of it yet, so its entries are in the log, open or kept."""
        for _ in range(steps):
            await self._step(logged)
        self.ground.clock.now_ns = BEGINS_NS

    async def _step(self, logged: bool) -> None:
        path = f"{self.chance.choice('am')}/objects/{self.chance.choice(KEYS)}"
        at_ns = self.chance.choice((OLD_NS, OLD_NS, BEGINS_NS - 3600 * NS_PER_S))
        token = self.ground.clock.at(at_ns)
        before = self.states.get(path)
        old = before.target if isinstance(before, Tombstone) else None
        what = self.chance.choice(("put", "put", "put", "mortal", "delete", "upload", "orphan", "lose"))
        new = f"{path}/{token}" if what in ("put", "mortal", "upload") else None
        if what == "orphan":
            await self.ground.blob(f"{path}/{token}", 5, at_ns, None)
            return
        if what == "lose":  # a blob disappears, and nobody logs that
            self.ground.tiers.long_term.blobs.pop(old, None)  # type: ignore[attr-defined]
            return
        deadline_ns = self.chance.choice((PAST_NS, BEGINS_NS - 9 * DAY_NS, BEGINS_NS + DAY_NS)) if what == "mortal" else None
        if new is not None:
            await self.ground.blob(new, 3, at_ns, deadline_ns)
        if logged:
            entry = await self.ground.log.record(Change(token, path, new, old), "somebody")
            if self.chance.random() < 0.5:
                assert await self.ground.log.keep(entry)
        elif old is not None and what != "upload":
            self.ground.tiers.long_term.blobs.pop(old, None)  # type: ignore[attr-defined]
        if what == "delete":
            self.states.pop(path, None)
        elif new is not None and what != "upload":
            self.states[path] = Tombstone(new, deadline_ns=deadline_ns)


def spoil_nothing(ground: SimulatedGround, chance: Random) -> None:
    pass


def spoil_values(ground: SimulatedGround, chance: Random) -> None:
    """Some values become bytes that are no text, or name something that is no blob of the object."""
    for key in [key for key in ground.stored.values if "/index/" in key]:
        if chance.random() < 0.3:
            ground.stored.values[key] = (chance.choice((b"\xff", b"", b"m/objects/else/where", b"zzz")), ground.stored.values[key][1])


@pytest.mark.parametrize("spoil", [spoil_nothing, spoil_values])
@pytest.mark.parametrize("lag", [0, 3, 12])
async def test_worlds_of_chance_are_judged_the_same_with_a_feed_that_is_behind_or_damaged(
    spoil: Callable[[SimulatedGround, Random], None], lag: int
) -> None:
    seen = Counter[FindingClass]()
    for seed in range(12):
        world = Changing(seed)
        await world.grow(30, logged=False)
        references = await perfect(world.ground.log, world.ground.tiers.high_volume, BEGINS_NS)
        await world.grow(lag, logged=True)
        spoil(world.ground, world.chance)
        bounds, window_names = world.chance.choice(CUTS), world.chance.choice((1, 3, WINDOW_NAMES))
        scanned = await audit(world.ground, None, bounds, window_names)
        (await audit(world.ground, references, bounds, window_names)).assert_same(scanned, (seed, bounds, window_names))
        seen.update({kind: count.number for kind, count in scanned.summary.totals().items()})
    assert {FindingClass.ORPHAN, FindingClass.DANGLING, FindingClass.OVERDUE, FindingClass.EXPIRED} <= {
        kind for kind, number in seen.items() if number
    }
    assert not lag or {FindingClass.SUPERSEDED, FindingClass.IN_FLIGHT} & {kind for kind, number in seen.items() if number}


async def test_index_without_what_was_published_accuses_nobody_and_makes_the_run_doubtful() -> None:
    world = Changing(5)
    await world.grow(40, logged=False)
    references = await perfect(world.ground.log, world.ground.tiers.high_volume, BEGINS_NS)
    lost = [key for key in world.ground.stored.values if "/index/" in key][::3]
    for key in lost:
        del world.ground.stored.values[key]
    told, scanned = await audit(world.ground, references), await audit(world.ground)
    assert told.findings <= scanned.findings, "what is found is true"
    manifest = manifest_of(references, told.summary.indexed)
    assert "a part of the index is lost" in str(index_not_whole(manifest))
    assert index_not_whole(manifest_of(references, references.live)) is None


async def test_index_of_another_store_accuses_nobody() -> None:
    world, other = Changing(6), Changing(7)
    await world.grow(40, logged=False)
    await other.grow(40, logged=False)
    await publish(world.ground.log, await rows_of(other.ground.tiers.high_volume), BEGINS_NS)
    references = await references_of(world.ground.log, STORE, BEGINS_NS, 60)
    told, scanned = await audit(world.ground, references), await audit(world.ground)
    assert told.findings <= scanned.findings


@pytest.mark.parametrize("call", ["list", "entries", "scan_values", "redirects_at"])
async def test_change_that_the_feed_commits_while_it_is_audited_is_seen_in_the_log_or_in_the_index(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed commits right before this call, and then the entry is gone. The new blob is lost, and that must show."""
    ground, path = SimulatedGround(), "a/objects/k"
    rows, states = ground.tiers.high_volume, cast(Any, ground.tiers.high_volume).states
    old, token = f"{path}/{ground.clock.at(OLD_NS)}", ground.clock.at(OLD_NS)
    await ground.blob(old, 3, OLD_NS, None)
    states[path] = Tombstone(old)
    references = await perfect(ground.log, rows, BEGINS_NS)
    entry = await ground.log.record(Change(token, path, f"{path}/{token}", old), "somebody")
    states[path] = Tombstone(f"{path}/{token}", token=token)
    assert await ground.log.keep(entry)
    ground.clock.now_ns = BEGINS_NS
    of = {"list": ground.tiers.long_term, "redirects_at": rows}.get(call, ground.log)
    before = getattr(of, call)

    async def commit_first(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(of, call, before)
        await keep_up(ground.log, ground.tiers, ground.clock)
        return await before(*arguments, **more)

    monkeypatch.setattr(of, call, commit_first)
    told = await audit(ground, references)
    assert not ground.stored.stored, "the entry is forgotten"
    assert {(each.class_, each.name) for each in told.findings} == {(FindingClass.DANGLING, f"{path}/{token}")}


# --- what it costs ---------------------------------------------------------------------------------


async def test_no_row_is_read_of_an_unchanged_store() -> None:
    ground = SimulatedGround()
    for number in range(40):
        name = f"a/objects/{number:02}/{ground.clock.at(OLD_NS)}"
        await ground.blob(name, 3, OLD_NS, None)
        await ground.row(f"a/objects/{number:02}", name, None)
    ground.clock.now_ns = BEGINS_NS
    references = await perfect(ground.log, ground.tiers.high_volume, BEGINS_NS)
    told = await audit(ground, references, ("a/objects/20",), 7)
    assert told.calls == Counter() and told.summary.looked_up == 0
    assert told.counts == {("a", FindingClass.REFERENCED): (40, 120)} and told.summary.redirects == told.summary.indexed == 40


async def test_rows_are_scanned_where_the_index_would_leave_too_many_to_be_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.audit.sweeping.match.LOOKED_UP_MIN", 3)
    world = Changing(1)
    await world.grow(40, logged=False)
    await publish(world.ground.log, {}, BEGINS_NS)
    references = await references_of(world.ground.log, STORE, BEGINS_NS, 60)
    for window_names in (2, WINDOW_NAMES):
        told = await audit(world.ground, references, (), window_names)
        told.assert_same(await audit(world.ground, None, (), window_names), window_names)
        assert told.calls["redirects"] > 0


# --- which feeds are refused -------------------------------------------------------------------------


async def refusal(ground: SimulatedGround, **wrong: Any) -> str:
    await publish(ground.log, {}, wrong.pop("at_ns", BEGINS_NS), **wrong)
    with pytest.raises(ConfigurationError) as refused:
        await references_of(ground.log, STORE, BEGINS_NS, 60.0)
    return str(refused.value)


async def test_feed_that_cannot_be_used_is_refused_with_the_reason_and_the_fix() -> None:
    ground = SimulatedGround()
    with pytest.raises(ConfigurationError, match=r"knows of no change feed: start its writer \('tiered feed run'\)"):
        await references_of(ground.log, STORE, BEGINS_NS, 60)
    assert "has a gap" in await refusal(ground, gap=True)
    assert "has not read all rows yet" in await refusal(ground, withheld=True)
    assert "has no frontier yet" in await refusal(ground, lower=1)
    assert "is of 'another', and this store is 'the store'" in await refusal(ground, store="another")
    assert "2 min 00 s ago" in await refusal(ground, at_ns=BEGINS_NS - 120 * NS_PER_S)
    assert "lies 2 min 00 s ahead" in await refusal(ground, at_ns=BEGINS_NS + 120 * NS_PER_S)
    await publish(ground.log, {}, BEGINS_NS, withheld=False)  # a later pass withholds nothing
    assert (await references_of(ground.log, STORE, BEGINS_NS, 60)).generation == GENERATION
    await ground.log.erase_values([f"feed/{GENERATION}/began"])
    with pytest.raises(ConfigurationError, match="is lost: start its writer"):
        await references_of(ground.log, STORE, BEGINS_NS, 60)
    ground.stored.notes[NOTE] = b'{"generation":1}'
    with pytest.raises(CorruptRecordError, match=r"the note feed is damaged: progress is missing; .*; or leave --references feed out"):
        await references_of(ground.log, STORE, BEGINS_NS, 60)


async def test_audit_takes_only_a_checkpoint_that_the_writer_of_the_feed_takes() -> None:
    """What newer software wrote beside the rest may change what the rest means."""
    ground = SimulatedGround()
    await publish(ground.log, {}, BEGINS_NS)
    told = ground.stored.notes[NOTE]
    assert Checkpoint.from_bytes(told).to_bytes() == told
    for damaged in (told[:-1] + b',"halves":2}', told.replace(b'"epoch":1', b'"epoch":0'), told.replace(b",", b", ", 1)):
        ground.stored.notes[NOTE] = damaged
        with pytest.raises(CorruptRecordError, match="the note feed is damaged"):
            await references_of(ground.log, STORE, BEGINS_NS, 60)


async def test_feed_that_breaks_off_while_the_audit_reads_it_fails_the_range() -> None:
    ground = SimulatedGround()
    references = await perfect(ground.log, ground.tiers.high_volume, BEGINS_NS)
    wrong: dict[str, dict[str, Any]] = {
        "has a gap": {"gap": True}, "begin another run": {"generation": GENERATION + 1}, "has not read all rows": {"withheld": True},
    }  # fmt: skip
    for why, how in wrong.items():
        await publish(ground.log, {}, BEGINS_NS, **how)
        with pytest.raises(ConfigurationError, match=why):
            await audit(ground, references)
    await publish(ground.log, {}, BEGINS_NS)
    await ground.log.erase_values([f"feed/{GENERATION}/began"])
    with pytest.raises(ConfigurationError, match="is lost"):
        await FeedIndex(ground.log, references).check()


# --- whether the index was whole ---------------------------------------------------------------------


def manifest_of(references: FeedReferences | None, indexed: int, committed: int = 0, scope: str = "") -> Manifest:
    ended = None if references is None else FeedAtEnd(live=references.live, records=references.records + committed)
    return Manifest(
        run="run", inputs={}, log_is_durable=True, references=references, feed_at_end=ended, indexed=indexed, cutoff=CUTOFF, scope=scope,
        ranges=(), started_ns=BEGINS_NS,
    )  # fmt: skip


async def test_index_is_whole_if_it_has_what_its_writer_counts_but_for_what_was_committed_meanwhile() -> None:
    ground = SimulatedGround()
    await publish(ground.log, {"a": "a/1", "b": "b/1"}, BEGINS_NS)
    references = await references_of(ground.log, STORE, BEGINS_NS, 60)
    assert index_not_whole(manifest_of(None, 0)) is None
    assert index_not_whole(manifest_of(references, 2)) is None
    assert index_not_whole(manifest_of(references, 1, committed=1)) is None
    assert index_not_whole(manifest_of(references, 1, scope="a/")) is None
    assert index_not_whole(manifest_of(references.model_copy(update={"last": 1}), 1)) is None, "committed, and not in the index yet"
    assert "had 1 references, and its writer counts 2, with 0 updates" in str(index_not_whole(manifest_of(references, 1)))
    unknown = manifest_of(references, 2).model_copy(update={"feed_at_end": None})
    assert "could not be read at the end" in str(index_not_whole(unknown))
