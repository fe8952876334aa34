"""Candidates are judged by what the services say now.

So whatever a report and an export show of a planted world, each finding is the one that a live audit has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import cast

import pytest

from recovery.audit.finding import Finding, Summary
from recovery.audit.finding_classes import FindingClass
from recovery.audit.inventory import candidates
from recovery.audit.inventory.candidates import Suspect, SuspectRow, judge
from tests.given.audit_grounds import SimulatedGround, embedded_ground
from tests.given.planted_world import CUTOFF, Planted, plant
from tiered.protocol.backends import HighVolumeBackend
from tiered.protocol.capabilities import ColumnarRedirects, RedirectColumns
from tiered.protocol.scans import Redirect

pytestmark = pytest.mark.anyio

REACHED_BY_THE_LISTING_ALONE = {FindingClass.CORRUPT_BLOB, FindingClass.FOREIGN}
"""What is no blob is in no report. What cannot be read is found only if nothing live names it."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world(anyio_backend: object) -> Planted:
    return await plant(SimulatedGround())


async def reported(planted: Planted) -> list[Suspect]:
    page = await planted.ground.tiers.long_term.list("", None, 100_000)
    return [Suspect(blob.name, blob.generation, blob.size) for blob in page.blobs]


async def exported(planted: Planted) -> tuple[list[Redirect], list[SuspectRow]]:
    page = await planted.ground.tiers.high_volume.redirects(b"", None, 100_000)
    return list(page.redirects), [SuspectRow(row.path.encode(), None) for row in page.corrupt]


class Judged:
    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.summary = Summary()

    async def judge(self, planted: Planted, suspects: Sequence[Suspect], rows: Sequence[SuspectRow]) -> Judged:
        ground = planted.ground
        self.summary.merge(await judge(ground.tiers, ground.log, suspects, rows, CUTOFF, ground.clock, self.findings.extend))
        return self

    def found(self, planted: Planted) -> Counter[tuple[FindingClass, str]]:
        return Counter((each.kind, each.name) for each in self.findings if each.name not in planted.undecided)


def wanted(planted: Planted) -> Counter[tuple[FindingClass, str]]:
    return Counter({
        (kind, name): number for (kind, name), number in planted.findings.items()
        if kind is not FindingClass.CORRUPT_BLOB and name not in planted.undecided
    })  # fmt: skip


def joined(suspects: list[Suspect], redirects: list[Redirect]) -> tuple[list[Suspect], list[SuspectRow]]:
    """What the join leaves, by sets."""
    live = {each.target for each in redirects if each.deadline_ns is None or each.deadline_ns > CUTOFF.as_of_ns}
    names = {each.name for each in suspects}
    strange = [each for each in redirects if each.target != each.path and not each.target.startswith(f"{each.path}/")]
    missing = [each for each in redirects if each.target not in names]
    rows = [SuspectRow(each.path.encode(), each.target) for each in {*missing, *strange}]
    return [each for each in suspects if each.name not in live], rows


async def test_everything_may_be_a_candidate(world: Planted) -> None:
    suspects, (redirects, corrupt) = await reported(world), await exported(world)
    rows = [SuspectRow(each.path.encode(), each.target) for each in redirects] + corrupt
    judged = await Judged().judge(world, suspects, rows)
    assert judged.found(world) == wanted(world)
    assert judged.summary.names == len(suspects) and judged.summary.redirects == len(redirects)


async def test_what_the_join_leaves_gives_the_same_findings(world: Planted) -> None:
    suspects, (redirects, corrupt) = await reported(world), await exported(world)
    left, rows = joined(suspects, redirects)
    assert 50 < len(left) < len(suspects) / 1.2 and len(rows) < len(redirects)
    judged = await Judged().judge(world, left, [*rows, *corrupt])
    assert judged.found(world) == wanted(world)


async def test_chunks_give_the_same_findings(world: Planted) -> None:
    suspects, (redirects, corrupt) = await reported(world), await exported(world)
    left, rows = joined(suspects, redirects)
    chance, judged = Random(3), Judged()
    chance.shuffle(left)
    for first in range(0, len(left), 17):
        await judged.judge(world, left[first : first + 17], [])
    for first in range(0, len(rows), 17):
        await judged.judge(world, [], rows[first : first + 17])
    await judged.judge(world, [], corrupt)
    assert judged.found(world) == wanted(world)


async def test_rows_are_read_again_in_pages(world: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "POINT_READS", 7)
    redirects, _ = await exported(world)
    judged = await Judged().judge(world, await reported(world), [SuspectRow(each.path.encode(), each.target) for each in redirects])
    assert judged.summary.redirects == len(redirects) > 7 and judged.found(world) == wanted(world)


async def test_a_damaged_row_of_an_export_is_told_as_the_table_says(anyio_backend: object, tmp_path: Path) -> None:
    async with embedded_ground(tmp_path) as ground:
        planted = await plant(ground)
        rows = [SuspectRow(key, None) for key in (b"corrupt/objects/target", b"refs/objects/mortal", b"corrupt/objects/repaired")]
        judged = await Judged().judge(planted, [], rows)
    [found] = judged.findings
    assert (found.kind, found.name) == (FindingClass.CORRUPT_ROW, "corrupt/objects/target") and found.detail


async def test_an_export_that_shows_nothing_makes_no_orphan(world: Planted) -> None:
    """As if every row had been committed after the export."""
    judged = await Judged().judge(world, await reported(world), [])
    orphans = Counter(
        {each: number for each, number in judged.found(world).items() if each[0] in (FindingClass.ORPHAN, FindingClass.LEGACY_ORPHAN)}
    )
    assert orphans == Counter(
        {each: number for each, number in wanted(world).items() if each[0] in (FindingClass.ORPHAN, FindingClass.LEGACY_ORPHAN)}
    )


async def test_a_report_that_shows_nothing_makes_no_dangling_tombstone(world: Planted) -> None:
    """As if every blob had been created after the report. Those that are older than that are told as unlisted."""
    redirects, _ = await exported(world)
    judged = await Judged().judge(world, [], [SuspectRow(each.path.encode(), each.target) for each in redirects])
    dangling = {name for kind, name in judged.found(world) if kind is FindingClass.DANGLING}
    assert dangling == {name for kind, name in wanted(world) if kind is FindingClass.DANGLING}


async def test_a_blob_that_is_gone_or_was_replaced_since_the_report_is_not_accused(world: Planted) -> None:
    orphans = [each for each in await reported(world) if (FindingClass.ORPHAN, each.name) in world.expected]
    gone, replaced, *_ = orphans
    assert gone.generation is not None and replaced.generation is not None
    await world.ground.tiers.long_term.delete(gone.name)
    other = Suspect(replaced.name, f"{replaced.generation}1", replaced.size)
    judged = await Judged().judge(world, [gone, other, Suspect("never/objects/there", "1", 1)], [])
    assert judged.findings == [] and judged.summary.names == 0
    told_nothing = await Judged().judge(world, [Suspect(replaced.name, None, None)], [])
    [found] = told_nothing.findings
    assert (found.kind, found.name, found.generation) == (FindingClass.ORPHAN, replaced.name, replaced.generation)


async def test_a_row_that_changed_since_the_export_is_not_told(world: Planted) -> None:
    redirects, _ = await exported(world)
    live = next(each for each in redirects if each.path.startswith("refs/org."))
    rows = [SuspectRow(live.path.encode(), f"{live.path}/{world.id()}"), SuspectRow(b"no/objects/row", "x")]
    judged = await Judged().judge(world, [], rows)
    assert judged.findings == [] and judged.summary.redirects == 0


async def test_a_damaged_row_that_the_scan_saw_is_told_as_it_said(world: Planted) -> None:
    judged = await Judged().judge(world, [], [SuspectRow(b"\\xff/", None, "the key is no text")])
    [found] = judged.findings
    assert (found.kind, found.name, found.detail) == (FindingClass.CORRUPT_ROW, "\\xff/", "the key is no text")


def test_the_rows_of_an_export_are_not_scanned_in_columns() -> None:
    """The columns of the tier behind them would be of all rows."""

    class InColumns:
        async def redirect_columns(self, start: bytes, end: bytes | None, limit: int) -> RedirectColumns:
            raise NotImplementedError

    assert isinstance(InColumns(), ColumnarRedirects)
    assert not isinstance(candidates._CandidateRows(cast(HighVolumeBackend, InColumns()), []), ColumnarRedirects)
