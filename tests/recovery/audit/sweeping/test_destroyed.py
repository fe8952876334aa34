"""A blob that is there and cannot be read is loss if a live tombstone names it, and garbage if none does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from changelog.base.errors import CorruptRecordError, UnavailableError
from recovery.audit.finding import Finding, Summary
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Verify
from recovery.audit.sweeping.sweep import audit_range
from recovery.audit.sweeping.verify import TRIES, is_chosen
from tests.given.audit_grounds import DAY_NS, OLD_NS, AuditGround, EmbeddedGround, SimulatedGround, embedded_ground, emulated_ground
from tests.given.planted_world import CUTOFF, PAST_NS
from tiered.gcs.http import GcsRequest
from tiered.protocol.backends import DamagedError, LongTermBackend
from tiered.protocol.scans import BlobPage, Oddity

pytestmark = pytest.mark.anyio

PATH = "a/objects/k"
SIZE = 1000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def embedded(anyio_backend: object, tmp_path: Path) -> AsyncIterator[EmbeddedGround]:
    async with embedded_ground(tmp_path) as ground:
        assert isinstance(ground, EmbeddedGround)
        yield ground


async def plant(ground: AuditGround, path: str = PATH, *, row: bool = True, deadline_ns: int | None = None) -> str:
    name = f"{path}/{ground.clock.at(OLD_NS)}"
    await ground.blob(name, SIZE, OLD_NS, None)
    if row:
        await ground.row(path, name, deadline_ns)
    ground.clock.now_ns = CUTOFF.as_of_ns
    return name


def cut(ground: EmbeddedGround, name: str, size: int = SIZE // 2) -> None:
    file = ground.file_of(name)
    file.write_bytes(file.read_bytes()[:size])


def flip(ground: EmbeddedGround, name: str, at: int) -> None:
    raw = bytearray(ground.file_of(name).read_bytes())
    raw[at] ^= 1
    ground.file_of(name).write_bytes(raw)


async def audit(ground: AuditGround, verify: Verify | None = None, long_term: object | None = None) -> tuple[Summary, list[Finding]]:
    found: list[Finding] = []
    tiers = ground.tiers if long_term is None else replace(ground.tiers, long_term=cast(LongTermBackend, long_term))
    everything = Bounds(start="", end=None)
    return await audit_range(tiers, ground.log, everything, CUTOFF, ground.clock, found.extend, verify=verify), found


class Wrapped:
    """A long-term tier, some of whose methods are others'."""

    def __init__(self, blobs: LongTermBackend, **methods: Any) -> None:
        self._blobs = blobs
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)


# --- without reading bytes ------------------------------------------------------------------------


async def test_live_blob_that_was_cut_short_is_loss_and_the_finding_says_which(embedded: EmbeddedGround) -> None:
    name = await plant(embedded)
    cut(embedded, name)
    summary, [found] = await audit(embedded)
    assert (found.kind, found.name, found.object, f"{PATH}/{found.revision}") == (FindingClass.DESTROYED, name, PATH, name)
    assert (found.size, found.generation) == (SIZE // 2, str(found.created_ns // 1000) if found.created_ns else "")
    assert found.confirmed_ns is not None and "footer" in found.detail
    assert {kind: (each.number, each.size) for kind, each in summary.totals().items()} == {FindingClass.DESTROYED: (1, SIZE // 2)}
    assert summary.names == 1, "it was listed"


@pytest.mark.parametrize(("row", "deadline_ns", "told"), [
    (False, None, "nothing names it"), (True, PAST_NS, "only an expired tombstone names it"),
])  # fmt: skip
async def test_blob_that_was_cut_short_and_no_live_tombstone_names_is_garbage_with_its_size(
    embedded: EmbeddedGround, row: bool, deadline_ns: int | None, told: str
) -> None:
    name = await plant(embedded, row=row, deadline_ns=deadline_ns)
    cut(embedded, name)
    _, [found] = await audit(embedded)
    assert (found.kind, found.name, found.object, found.size) == (FindingClass.CORRUPT_BLOB, name, PATH, SIZE // 2)
    assert found.generation and found.detail.endswith(told)


async def test_blob_that_a_corrupt_row_may_name_is_not_called_loss(embedded: EmbeddedGround) -> None:
    name = await plant(embedded)
    cut(embedded, name)
    await embedded.sql("UPDATE rows SET target = CAST(X'FE' AS TEXT)")
    _, found = await audit(embedded)
    assert {each.kind for each in found} == {FindingClass.CORRUPT_ROW, FindingClass.CORRUPT_BLOB}
    assert "nobody can tell" in next(each.detail for each in found if each.kind is FindingClass.CORRUPT_BLOB)


async def test_row_that_moved_on_meanwhile_makes_no_loss(embedded: EmbeddedGround) -> None:
    name = await plant(embedded)
    cut(embedded, name)
    head = embedded.tiers.long_term.head

    async def moves(of: str) -> Any:
        await embedded.sql("DELETE FROM rows")
        return await head(of)

    _, [found] = await audit(embedded, long_term=Wrapped(embedded.tiers.long_term, head=moves))
    assert found.kind is FindingClass.CORRUPT_BLOB


async def test_blob_that_is_gone_by_the_second_look_dangles_if_its_row_still_stands(embedded: EmbeddedGround) -> None:
    names = [await plant(embedded, f"a/objects/{number}", row=number == 0) for number in range(2)]
    for name in names:
        cut(embedded, name)

    async def gone(of: str) -> None:
        return None

    _, [found] = await audit(embedded, long_term=Wrapped(embedded.tiers.long_term, head=gone))
    assert (found.kind, found.name) == (FindingClass.DANGLING, names[0])


async def test_blob_that_can_be_read_by_the_second_look_is_judged_like_the_others() -> None:
    ground = SimulatedGround()
    live, orphan = await plant(ground), await plant(ground, "a/objects/orphan", row=False)
    whole = ground.tiers.long_term.list

    async def stumbles(start: str, end: str | None, limit: int) -> BlobPage:
        page = await whole(start, end, limit)
        return BlobPage((), [Oddity(blob.name, "the disk stumbled", is_blob=True) for blob in page.blobs], page.next_start)

    summary, found = await audit(ground, long_term=Wrapped(ground.tiers.long_term, list=stumbles))
    assert [(each.kind, each.name) for each in found] == [(FindingClass.ORPHAN, orphan)]
    totals = {kind: (each.number, each.size) for kind, each in summary.totals().items() if each.number}
    assert totals == {FindingClass.REFERENCED: (1, SIZE), FindingClass.ORPHAN: (1, SIZE)}
    assert live not in {each.name for each in found}


async def test_unlisted_blob_whose_head_is_corrupt_is_loss() -> None:
    ground = SimulatedGround()
    name = await plant(ground)

    async def nothing(start: str, end: str | None, limit: int) -> BlobPage:
        return BlobPage((), (), None)

    async def corrupt(of: str) -> None:
        raise CorruptRecordError("its metadata do not match their checksum")

    _, [found] = await audit(ground, long_term=Wrapped(ground.tiers.long_term, list=nothing, head=corrupt))
    assert (found.kind, found.name, found.object) == (FindingClass.DESTROYED, name, PATH)


async def test_record_of_the_bucket_that_breaks_the_format_keeps_what_can_be_read(request: pytest.FixtureRequest) -> None:
    async with emulated_ground(request.getfixturevalue("fresh_table")) as ground:
        names = [await plant(ground, f"a/objects/{number}", row=number == 0) for number in range(2)]
        blobs = cast(Any, ground.tiers.long_term)
        call = blobs._http.call

        async def breaks(request: GcsRequest) -> Any:
            answer = await call(request)
            broken = replace(answer, body=answer.body.replace(b'"timeCreated"', b'"created"'))
            return replace(broken, told=request.shape(broken) if "/o?" in request.url else json.loads(broken.body))

        blobs._http.call = breaks
        _, found = await audit(ground)
    assert [(each.kind, each.name, each.size) for each in found] == [
        (FindingClass.DESTROYED, names[0], SIZE), (FindingClass.CORRUPT_BLOB, names[1], SIZE)
    ]  # fmt: skip
    assert all(each.generation for each in found)


# --- reading bytes --------------------------------------------------------------------------------


async def test_flipped_byte_is_found_only_where_bytes_are_read(embedded: EmbeddedGround) -> None:
    names = [await plant(embedded, f"a/objects/{number}") for number in range(5)]
    flip(embedded, names[1], 7)
    flip(embedded, names[2], SIZE + 3)  # in its metadata, which a listing does not read
    flip(embedded, names[4], -1)  # in its footer, of which a listing takes the lengths and the times
    garbage = await plant(embedded, "a/objects/garbage", row=False)
    summary, found = await audit(embedded)
    assert ([each.name for each in found], summary.verified) == ([garbage], 0)
    summary, found = await audit(embedded, Verify())
    assert {each.name: each.kind for each in found} == {
        garbage: FindingClass.ORPHAN, names[1]: FindingClass.DESTROYED, names[2]: FindingClass.DESTROYED, names[4]: FindingClass.DESTROYED,
    }  # fmt: skip
    lost = next(each for each in found if each.name == names[1])
    assert lost.size == SIZE and lost.generation and lost.object == "a/objects/1" and "checksum" in lost.detail
    assert (summary.verified, summary.verified_bytes) == (2, 2 * SIZE)
    assert summary.totals()[FindingClass.REFERENCED].number == 2


async def test_share_of_the_names_is_the_same_in_every_run() -> None:
    ground = SimulatedGround()
    names = [await plant(ground, f"a/objects/{number:03}") for number in range(200)]
    summary, _ = await audit(ground, Verify(share=0.1))
    again, _ = await audit(ground, Verify(share=0.1))
    chosen = [name for name in names if is_chosen(name, 0.1)]
    assert summary.verified == again.verified == len(chosen)
    assert 5 <= len(chosen) <= 40
    assert set(chosen) <= {name for name in names if is_chosen(name, 0.5)}, "a larger share holds the smaller one"
    assert all(is_chosen(name, 1.0) for name in names)


async def test_no_more_bytes_are_read_in_a_second_than_were_allowed() -> None:
    ground = SimulatedGround()
    for number in range(20):
        await plant(ground, f"a/objects/{number:03}")
    slept: list[float] = []
    clock = ground.clock
    began = clock.monotonic()
    clock.monotonic = lambda: began + sum(slept)  # type: ignore[method-assign]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    clock.sleep = sleep  # type: ignore[method-assign]
    summary, _ = await audit(ground, Verify(bytes_per_s=100))
    assert summary.verified_bytes == 20 * SIZE
    assert sum(slept) >= 20 * SIZE / 100 * 0.99


@pytest.mark.parametrize("error", [DamagedError("crc32c"), UnavailableError("no answer")])
async def test_bytes_that_come_damaged_every_time_are_loss_and_no_answer_fails_the_range(error: UnavailableError) -> None:
    ground = SimulatedGround()
    await plant(ground)
    opened: list[str] = []

    class RefusingBlobs:
        size = SIZE

        async def chunks(self) -> AsyncIterator[bytes]:
            yield b"x"
            raise error

        async def aclose(self) -> None: ...

    async def open(name: str) -> RefusingBlobs:
        opened.append(name)
        return RefusingBlobs()

    blobs = Wrapped(ground.tiers.long_term, open=open)
    if isinstance(error, DamagedError):
        _, [found] = await audit(ground, Verify(), blobs)
        assert (found.kind, found.detail) == (FindingClass.DESTROYED, "crc32c")
    else:
        with pytest.raises(UnavailableError, match="no answer"):
            await audit(ground, Verify(), blobs)
    assert len(opened) == TRIES


async def test_blob_that_vanishes_before_it_is_read_is_dangling_only_if_its_row_stands() -> None:
    ground = SimulatedGround()
    name = await plant(ground)

    async def gone(of: str) -> None:
        return None

    summary, [found] = await audit(ground, Verify(), Wrapped(ground.tiers.long_term, open=gone))
    assert (found.kind, found.name) == (FindingClass.DANGLING, name)
    assert {kind: each.number for kind, each in summary.totals().items() if each.number} == {FindingClass.DANGLING: 1}


# --- overdue --------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [400, 8, 6, 1])
@pytest.mark.parametrize("row", [False, True])
async def test_expired_blob_that_nothing_removes_for_days_is_overdue(days: int, row: bool) -> None:
    ground = SimulatedGround()
    at_ns, deadline_ns = CUTOFF.as_of_ns - 500 * DAY_NS, CUTOFF.as_of_ns - days * DAY_NS
    name = f"{PATH}/{ground.clock.at(at_ns)}"
    await ground.blob(name, SIZE, at_ns, deadline_ns)
    if row:
        await ground.row(PATH, name, deadline_ns)
    ground.clock.now_ns = CUTOFF.as_of_ns
    summary, found = await audit(ground)
    kind = FindingClass.OVERDUE if days > 7 else FindingClass.EXPIRED
    assert {of: each.number for of, each in summary.totals().items() if each.number} == {kind: 1}
    if kind is FindingClass.OVERDUE:
        [told] = found
        assert (told.name, told.size, told.deadline_ns, told.detail) == (
            name, SIZE, deadline_ns, f"its deadline passed {days} days before the audit began",
        )  # fmt: skip
        assert told.generation and told.confirmed_ns is not None


async def test_blob_that_the_lifecycle_removes_meanwhile_is_not_called_overdue() -> None:
    ground = SimulatedGround()
    at_ns = CUTOFF.as_of_ns - 500 * DAY_NS
    name = f"{PATH}/{ground.clock.at(at_ns)}"
    await ground.blob(name, SIZE, at_ns, at_ns + DAY_NS)
    ground.clock.now_ns = CUTOFF.as_of_ns

    async def gone(of: str) -> None:
        return None

    whole, lists = ground.tiers.long_term.list, []

    async def once(start: str, end: str | None, limit: int) -> BlobPage:
        lists.append(start)
        return await whole(start, end, limit) if len(lists) == 1 else BlobPage((), (), None)

    summary, found = await audit(ground, long_term=Wrapped(ground.tiers.long_term, head=gone, list=once))
    assert not found and not any(each.number for each in summary.totals().values())


@pytest.mark.parametrize(("age_days", "kind"), [(9, FindingClass.STALE_UPLOAD), (7, FindingClass.UPLOAD)])
async def test_part_of_an_upload_that_nobody_can_finish_any_more_is_stale(age_days: int, kind: FindingClass) -> None:
    ground = SimulatedGround()
    await ground.blob("a/org.1/uploads/k/part-1", SIZE, CUTOFF.as_of_ns - age_days * DAY_NS, None)
    ground.clock.now_ns = CUTOFF.as_of_ns
    summary, found = await audit(ground)
    assert [of for of, each in summary.totals().items() if each.number] == [kind]
    assert len(found) == (kind is FindingClass.STALE_UPLOAD)
