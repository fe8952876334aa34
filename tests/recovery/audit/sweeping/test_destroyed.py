"""A blob that is there and cannot be read is loss if a live tombstone names it, and garbage if none does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from changelog.base.errors import CorruptRecordError
from recovery.audit.finding_classes import FindingClass
from tests.given.audit_grounds import EmbeddedGround, SimulatedGround, embedded_ground, emulated_ground
from tests.given.audited_blobs import PATH, SIZE, Wrapped, audit, cut, plant
from tests.given.planted_world import PAST_NS
from tiered.gcs.http import GcsRequest
from tiered.services.scans import BlobPage, Oddity

pytestmark = pytest.mark.anyio


@pytest.fixture
async def embedded(anyio_backend: object, tmp_path: Path) -> AsyncIterator[EmbeddedGround]:
    async with embedded_ground(tmp_path) as ground:
        assert isinstance(ground, EmbeddedGround)
        yield ground


async def test_live_blob_that_was_cut_short_is_loss_and_the_finding_says_which(embedded: EmbeddedGround) -> None:
    name = await plant(embedded)
    cut(embedded, name)
    summary, [found] = await audit(embedded)
    assert (found.class_, found.name, found.object, f"{PATH}/{found.revision}") == (FindingClass.DESTROYED, name, PATH, name)
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
    assert (found.class_, found.name, found.object, found.size) == (FindingClass.CORRUPT_BLOB, name, PATH, SIZE // 2)
    assert found.generation and found.detail.endswith(told)


async def test_blob_that_a_corrupt_row_may_name_is_not_called_loss(embedded: EmbeddedGround) -> None:
    name = await plant(embedded)
    cut(embedded, name)
    await embedded.sql("UPDATE rows SET target = CAST(X'FE' AS TEXT)")
    _, found = await audit(embedded)
    assert {each.class_ for each in found} == {FindingClass.CORRUPT_ROW, FindingClass.CORRUPT_BLOB}
    assert "nobody can tell" in next(each.detail for each in found if each.class_ is FindingClass.CORRUPT_BLOB)


async def test_row_that_moved_on_meanwhile_makes_no_loss(embedded: EmbeddedGround) -> None:
    name = await plant(embedded)
    cut(embedded, name)
    head = embedded.tiers.long_term.head

    async def moves(of: str) -> Any:
        await embedded.sql("DELETE FROM rows")
        return await head(of)

    _, [found] = await audit(embedded, long_term=Wrapped(embedded.tiers.long_term, head=moves))
    assert found.class_ is FindingClass.CORRUPT_BLOB


async def test_blob_that_is_gone_by_the_second_look_dangles_if_its_row_still_stands(embedded: EmbeddedGround) -> None:
    names = [await plant(embedded, f"a/objects/{number}", row=number == 0) for number in range(2)]
    for name in names:
        cut(embedded, name)

    async def gone(of: str) -> None:
        return None

    _, [found] = await audit(embedded, long_term=Wrapped(embedded.tiers.long_term, head=gone))
    assert (found.class_, found.name) == (FindingClass.DANGLING, names[0])


async def test_blob_that_can_be_read_by_the_second_look_is_judged_like_the_others() -> None:
    ground = SimulatedGround()
    live, orphan = await plant(ground), await plant(ground, "a/objects/orphan", row=False)
    whole = ground.tiers.long_term.list

    async def stumbles(start: str, end: str | None, limit: int) -> BlobPage:
        page = await whole(start, end, limit)
        return BlobPage((), [Oddity(blob.name, "the disk stumbled", is_blob=True) for blob in page.blobs], page.next_start)

    summary, found = await audit(ground, long_term=Wrapped(ground.tiers.long_term, list=stumbles))
    assert [(each.class_, each.name) for each in found] == [(FindingClass.ORPHAN, orphan)]
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
    assert (found.class_, found.name, found.object) == (FindingClass.DESTROYED, name, PATH)


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
    assert [(each.class_, each.name, each.size) for each in found] == [
        (FindingClass.DESTROYED, names[0], SIZE), (FindingClass.CORRUPT_BLOB, names[1], SIZE)
    ]  # fmt: skip
    assert all(each.generation for each in found)
