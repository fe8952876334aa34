"""With `verify`, the audit reads payloads: what `get` would refuse is found, and what a listing shows is not enough."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from changelog.base.errors import UnavailableError
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Verify
from recovery.audit.sweeping.verify import TRIES, BlobRead, Verifier, is_chosen
from tests.given.audit_grounds import EmbeddedGround, SimulatedGround, embedded_ground
from tests.given.audited_blobs import SIZE, Wrapped, audit, flip, plant
from tiered.services.backends import DamagedError

pytestmark = pytest.mark.anyio


@pytest.fixture
async def embedded(anyio_backend: object, tmp_path: Path) -> AsyncIterator[EmbeddedGround]:
    async with embedded_ground(tmp_path) as ground:
        assert isinstance(ground, EmbeddedGround)
        yield ground


async def test_flipped_byte_is_found_only_where_bytes_are_read(embedded: EmbeddedGround) -> None:
    names = [await plant(embedded, f"a/objects/{number}") for number in range(5)]
    flip(embedded, names[1], 7)
    flip(embedded, names[2], SIZE + 3)  # in its metadata, which a listing does not read
    flip(embedded, names[4], -1)  # in its footer, of which a listing takes the lengths and the times
    garbage = await plant(embedded, "a/objects/garbage", row=False)
    summary, found = await audit(embedded)
    assert ([each.name for each in found], summary.verified) == ([garbage], 0)
    summary, found = await audit(embedded, Verify())
    assert {each.name: each.class_ for each in found} == {
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
        assert (found.class_, found.detail) == (FindingClass.DESTROYED, "crc32c")
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
    assert (found.class_, found.name) == (FindingClass.DANGLING, name)
    assert {kind: each.number for kind, each in summary.totals().items() if each.number} == {FindingClass.DANGLING: 1}


async def test_whole_payload_that_shows_a_fact_of_no_class_stays_referenced(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = SimulatedGround()
    await plant(ground)

    async def look(self: Verifier, name: str) -> BlobRead:
        return BlobRead(True, SIZE, "stale", {"stale": True})

    monkeypatch.setattr(Verifier, "look", look)
    summary, found = await audit(ground, Verify())
    assert (found, summary.verified, summary.totals()[FindingClass.REFERENCED].number) == ([], 1, 1)
