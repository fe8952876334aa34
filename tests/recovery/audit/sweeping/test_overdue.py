"""What should have been removed long ago is told: expired blobs, and parts of uploads that nobody can finish."""

from __future__ import annotations

import pytest

from recovery.audit.finding_classes import FindingClass
from tests.given.audit_grounds import DAY_NS, SimulatedGround
from tests.given.audited_blobs import PATH, SIZE, Wrapped, audit
from tests.given.planted_world import CUTOFF
from tiered.services.scans import BlobPage

pytestmark = pytest.mark.anyio


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
