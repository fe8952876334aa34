"""Lost blobs are restored if a tombstone names them and the service keeps them; no restoration leaves garbage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId, Entry
from emulators.gcs.server import GcsEmulator
from emulators.world.services import SimulatedBlobs
from recovery.audit.deleting import restoring
from recovery.audit.deleting.loss_notes import LossNotes
from recovery.audit.deleting.losses import Loss, Losses, RestoreOutcome
from recovery.audit.files.directory import DirectoryFiles
from tests.given.audit_grounds import BEGINS_NS, DAY_NS, OLD_NS, SimulatedGround
from tests.given.audited_store import audit, plant
from tests.given.findings import as_older_software_wrote
from tiered.gcs.blobs import GcsBlobs
from tiered.services.backends import Tiers, Tombstone
from tiered.services.capabilities import DeletedGeneration
from tiered.services.scans import Generation

pytestmark = pytest.mark.anyio
PATH = "media/objects/key"


def keeping() -> tuple[SimulatedGround, SimulatedBlobs]:
    ground = SimulatedGround()
    blobs = cast(SimulatedBlobs, ground.tiers.long_term)
    blobs.kept_s = 7 * 86_400.0
    return ground, blobs


async def lost(ground: SimulatedGround, deadline_ns: int | None = None, *, legacy: bool = False) -> str:
    """Plants a live tombstone whose blob was deleted by hand, and returns the blob's name."""
    name = PATH if legacy else f"{PATH}/{ground.clock.at(OLD_NS)}"
    await ground.blob(name, 10, OLD_NS, deadline_ns)
    await ground.row(PATH, name, deadline_ns)
    ground.clock.now_ns = BEGINS_NS - DAY_NS
    await ground.tiers.long_term.delete(name)
    ground.clock.now_ns = BEGINS_NS
    return name


def losses_of(ground: SimulatedGround) -> Losses:
    return Losses(ground.tiers, cast(SimulatedBlobs, ground.tiers.long_term), ground.log, ground.clock)


async def restore(ground: SimulatedGround, name: str, before: Loss | None = None) -> Loss:
    losses = losses_of(ground)
    [loss] = await losses.look([name], {} if before is None else {name: before})
    return await losses.restore(loss) if loss.is_to_do else loss


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_lost_blob_is_restored_and_found_by_the_next_call(legacy: bool) -> None:
    ground, blobs = keeping()
    name = await lost(ground, legacy=legacy)
    [loss] = await losses_of(ground).look([name], {})
    assert loss.end is RestoreOutcome.RESTORABLE and (loss.size, loss.deleted_ns) == (10, BEGINS_NS - DAY_NS) and name not in blobs.blobs
    assert loss.kept_until_ns == BEGINS_NS + 6 * DAY_NS
    restored = await restore(ground, name)
    assert restored.end is RestoreOutcome.RESTORED and blobs.blobs[name].generation == restored.restored
    assert (await restore(ground, name, restored)) == restored
    assert (await restore(ground, name)).end is RestoreOutcome.THERE


async def test_the_newest_generation_is_taken() -> None:
    ground, blobs = keeping()
    await ground.blob(PATH, 5, OLD_NS, None)
    await ground.tiers.long_term.delete(PATH)
    await lost(ground, legacy=True)
    assert (await restore(ground, PATH)).end is RestoreOutcome.RESTORED and len(blobs.blobs[PATH].payload) == 10


async def nothing(ground: SimulatedGround, name: str) -> None:
    cast(SimulatedBlobs, ground.tiers.long_term).deleted.clear()


async def too_late(ground: SimulatedGround, name: str) -> None:
    ground.clock.now_ns += 7 * DAY_NS


async def overwritten(ground: SimulatedGround, name: str) -> None:
    token = ground.clock.at(BEGINS_NS)
    row = Tombstone(f"{PATH}/{token}", token=token)
    assert await ground.tiers.high_volume.swap(PATH, token, name, row, ground.clock.boot_time() + 60)


async def neither_kept_nor_named(ground: SimulatedGround, name: str) -> None:
    """It was called lost, although nobody misses it."""
    await overwritten(ground, name)
    await nothing(ground, name)


async def under_way(ground: SimulatedGround, name: str) -> None:
    token = ground.clock.at(BEGINS_NS)
    await ground.entry(Change(token, PATH, f"{PATH}/{token}", None))  # a first record does not know what is replaced


@pytest.mark.parametrize(("happens", "end"), [
    (nothing, RestoreOutcome.NOT_KEPT), (too_late, RestoreOutcome.NOT_KEPT), (overwritten, RestoreOutcome.NOT_NAMED),
    (under_way, RestoreOutcome.LOGGED), (neither_kept_nor_named, RestoreOutcome.NOT_NAMED),
])  # fmt: skip
async def test_a_blob_that_must_not_or_cannot_be_restored_is_not(
    happens: Callable[[SimulatedGround, str], Awaitable[None]], end: RestoreOutcome
) -> None:
    ground, blobs = keeping()
    name = await lost(ground)
    await happens(ground, name)
    assert (await restore(ground, name)).end is end and not blobs.blobs


async def test_an_expired_tombstone_gets_no_blob_back() -> None:
    ground, blobs = keeping()
    name = await lost(ground, BEGINS_NS)
    assert (await restore(ground, name)).end is RestoreOutcome.EXPIRED and not blobs.blobs


async def test_a_blob_without_revision_that_was_deleted_just_now_may_be_older_softwares_work() -> None:
    ground, blobs = keeping()
    await lost(ground, legacy=True)
    ground.clock.now_ns -= DAY_NS - 1
    assert (await restore(ground, PATH)).end is RestoreOutcome.RECENT and not blobs.blobs


async def test_a_row_that_cannot_be_read_leaves_all_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ground, blobs = keeping()
    name = await lost(ground)

    async def fail(*_: object) -> None:
        raise CorruptRecordError("x")

    monkeypatch.setattr(ground.tiers.high_volume, "redirects_at", fail)
    assert (await restore(ground, name)).end is RestoreOutcome.UNREADABLE and not blobs.blobs


# --- beside a writer -------------------------------------------------------------------------------


class Moments:
    """A backend before each of whose calls something may happen."""

    def __init__(self, backend: Any, moment: Callable[[], Awaitable[None]]) -> None:
        self._backend = backend
        self._moment = moment

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._backend, name)

        async def later(*args: Any) -> Any:
            await self._moment()
            return await call(*args)

        return later


async def raced(moments: Sequence[int], losses_type: type[Losses]) -> tuple[RestoreOutcome, set[str]]:
    """Restores a blob beside an overwrite whose four steps come before these calls of the restoration.

    Returns the end, and the names of what is garbage when both have ended.
    """
    ground, blobs = keeping()
    name = await lost(ground)
    token = ChangeId.new(ground.clock)
    new = f"{PATH}/{token}"
    await ground.blob(new, 11, BEGINS_NS, None)
    entries: list[Entry] = []

    async def record() -> None:
        entries.append(await ground.log.record(Change(token, PATH, new, name), "writer"))

    async def swap() -> None:
        assert await ground.tiers.high_volume.swap(PATH, token, name, Tombstone(new, token=token), ground.clock.boot_time() + 60)

    async def clean_up() -> None:
        await blobs.delete(name)

    async def forget() -> None:
        await ground.log.forget(entries[0])

    steps = list(zip(moments, (record, swap, clean_up, forget), strict=True))
    calls = 0

    async def moment() -> None:
        nonlocal calls
        calls += 1
        while steps and steps[0][0] <= calls:
            await steps.pop(0)[1]()

    rows, watched, log = [cast(Any, Moments(each, moment)) for each in (ground.tiers.high_volume, blobs, ground.log)]
    losses = losses_type(Tiers(rows, watched), watched, log, ground.clock)
    [loss] = await losses.look([name], {})
    if loss.is_to_do:
        loss = await losses.restore(loss)
    for _, step in steps:
        await step()
    return loss.end, set(blobs.blobs) - {new}


MOMENTS = list(combinations_with_replacement(range(1, 11), 4))


async def test_no_restoration_beside_an_overwrite_leaves_garbage_whenever_its_steps_come() -> None:
    ended = {moments: await raced(moments, Losses) for moments in MOMENTS}
    assert {moments: garbage for moments, (_, garbage) in ended.items() if garbage} == {}
    expected = {RestoreOutcome.RESTORED, RestoreOutcome.TAKEN_BACK, RestoreOutcome.LOGGED, RestoreOutcome.NOT_NAMED}
    assert {end for end, _ in ended.values()} >= expected


class OnceOnly(Losses):
    """Does not look at the row again."""

    async def _take_back(self, loss: Loss, *, is_ours: bool) -> RestoreOutcome:
        return RestoreOutcome.RESTORED


async def test_a_restoration_that_does_not_look_at_the_row_again_leaves_garbage() -> None:
    assert any([(await raced(moments, OnceOnly))[1] for moments in MOMENTS])


# --- killed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
async def test_what_a_killed_call_restored_is_kept_or_taken_back_by_the_next(named: bool) -> None:
    ground, blobs = keeping()
    name = await lost(ground)
    [noted] = await losses_of(ground).look([name], {})
    assert noted.generation is not None
    await blobs.restore(name, noted.generation)  # and then it is killed
    if not named:
        await overwritten(ground, name)
    [looked] = await losses_of(ground).look([name], {name: noted})
    assert looked.end is (RestoreOutcome.RESTORED if named else RestoreOutcome.HALF_DONE)
    ended = await restore(ground, name, noted)
    assert (ended.end, set(blobs.blobs)) == ((RestoreOutcome.RESTORED, {name}) if named else (RestoreOutcome.TAKEN_BACK, set()))


async def test_a_restoration_whose_answer_was_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ground, blobs = keeping()
    name = await lost(ground)
    call = blobs.restore
    answers: list[Generation | None] = []

    async def unanswered(*args: Any) -> Any:
        answers.append(await call(*args))
        if len(answers) == 1:
            raise UnconfirmedError("no answer")
        return answers[-1]

    monkeypatch.setattr(blobs, "restore", unanswered)
    assert (await restore(ground, name)).end is RestoreOutcome.RESTORED and set(blobs.blobs) == {name} and answers[1:] == [None]


@pytest.mark.parametrize("named", [True, False])
async def test_a_noncurrent_generation_was_told_as_lost_and_is_restored(named: bool) -> None:
    ground, _ = keeping()
    async with GcsEmulator(runtime=ground.clock) as server:
        bucket = server.create_bucket("blobs", {"versioning": {"enabled": True}, "softDeletePolicy": {"retentionDurationSeconds": "0"}})
        async with GcsBlobs.connect("blobs", ground.clock, endpoint=server.url) as blobs:
            ground.tiers = Tiers(ground.tiers.high_volume, blobs)
            name = await lost(ground)
            losses = Losses(ground.tiers, blobs, ground.log, ground.clock)
            [loss] = await losses.look([name], {})
            assert (loss.end, loss.size, loss.kept_until_ns) == (RestoreOutcome.RESTORABLE, 10, None) and not bucket.objects
            if not named:
                await overwritten(ground, name)
            ended = await losses.restore(loss)
            [found] = await losses.look([name], {name: ended})
    if named:
        assert ended.end is found.end is RestoreOutcome.RESTORED and str(bucket.objects[name].generation) == ended.restored
        assert ended.restored != loss.generation
    else:
        assert (ended.end, found.end) == (RestoreOutcome.TAKEN_BACK, RestoreOutcome.NOT_NAMED) and not bucket.objects


class KeepsNothing:
    async def deleted_generations(self, name: str) -> list[DeletedGeneration]:
        return []


async def test_a_run_that_may_not_name_all_that_is_lost_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = await plant(tmp_path / "store")
    await audit(settings, tmp_path / "run")
    monkeypatch.setattr(restoring, "keeps_deleted", lambda blobs: KeepsNothing())

    async def look() -> restoring.RestoredLosses:
        return await restoring.restore_lost(settings, str(tmp_path / "run"), SystemRuntime(), 100, lambda _: None, dry=True)

    found = await look()
    assert (found.number, dict(found.ends), found.doubts) == (1, {RestoreOutcome.NOT_KEPT: 1}, ())
    for file in (tmp_path / "run" / "findings").glob("*.parquet"):
        file.unlink()
    found = await look()
    assert found.number == 0 and any("is not there" in doubt for doubt in found.doubts)
    assert not (tmp_path / "run" / "restored").exists()


# --- notes -----------------------------------------------------------------------------------------


def test_notes_are_read_back_as_they_were_written_and_checked(tmp_path: Path) -> None:
    files = DirectoryFiles.at(str(tmp_path), SystemRuntime())
    notes = LossNotes(files, "run")
    losses = [
        Loss("a", RestoreOutcome.RESTORABLE, "5", 10, 1_000_000, 2_000_000),
        Loss("b", RestoreOutcome.RESTORED, "1", 2, 3_000, 4_000, "6"), Loss("c", RestoreOutcome.NOT_KEPT),
    ]  # fmt: skip
    assert notes.read(0, ["a"]) == {}
    notes.write(0, losses)
    assert list(notes.read(0, ["a", "b", "c"]).values()) == losses
    as_older_software_wrote(tmp_path / "restored" / "range-000000.parquet", 0, "generation", "restored")
    assert list(notes.read(0, ["a", "b", "c"]).values()) == losses, "older software wrote numbers"
    for wrong, names in ((notes, ["a", "b"]), (LossNotes(files, "other"), ["a", "b", "c"])):
        with pytest.raises(CorruptRecordError, match="is of another run, or of other findings"):
            wrong.read(0, names)
    (tmp_path / "restored" / "range-000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptRecordError, match=r"restored/range-000000.parquet breaks the format"):
        notes.read(0, ["a"])


def test_notes_of_newer_software_are_refused_and_stay(tmp_path: Path) -> None:
    notes, path = LossNotes(DirectoryFiles.at(str(tmp_path), SystemRuntime()), "run"), tmp_path / "restored" / "range-000000.parquet"
    notes.write(0, [Loss("a", RestoreOutcome.NOT_KEPT)])
    table = pq.read_table(path)
    assert table.schema.metadata[b"tiered.schema"] == b"1"
    later = table.append_column("later", pa.array([1])).replace_schema_metadata({b"tiered.schema": b"2"})
    pq.write_table(later, path)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="in version 2, and this one reads version 1: install a newer tiered"):
        notes.read(0, ["a"])
    assert path.read_bytes() == before
    pq.write_table(table.replace_schema_metadata({b"tiered.schema": b"one"}), path)
    with pytest.raises(CorruptRecordError, match="breaks the format"):
        notes.read(0, ["a"])
    pq.write_table(table.replace_schema_metadata(), path)
    assert notes.read(0, ["a"]) == {"a": Loss("a", RestoreOutcome.NOT_KEPT)}, "software before 0.1.0 wrote no version"
