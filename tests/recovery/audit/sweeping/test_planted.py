"""A planted world is audited, however the names are cut into ranges.

Each thing that was planted is found to be what it is, and nothing else is found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import pytest

from recovery.audit.finding import Finding, Summary
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds
from recovery.audit.sweeping.sweep import audit_range
from recovery.audit.sweeping.window import WINDOW_NAMES
from tests.given.audit_grounds import BEGINS_NS, AuditGround, SimulatedGround, ground_of
from tests.given.planted_world import CUTOFF, FAMILY, UNICODE, UNREADABLE, Planted, plant
from tests.given.repository import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CUTS: dict[str, Sequence[str]] = {
    "whole": (),
    "in three": ("prefix/objects/foo-bar/", "unicode/objects/\U00010000"),
    "inside of families": sorted({
        "\0", "!", "refs", "refs/", "refs-", "zzz", "\U0010ffff",
        *(f"{usecase}/objects/{key}{more}" for usecase in ("prefix", "prefix-gone", "prefix-old", "prefix-lost") for key in FAMILY
          for more in ("", "/", "/0", "-", "\0", "/01a10000-0000-7000-8000-000000000000", "/zzz")),
        *(f"unicode/objects/{more}{key}" for key in UNICODE for more in ("", "gone/")),
        *(f"{usecase}/objects/{key}" for usecase in ("both", "flight", "expired", "misdirected") for key in "aegjlqsu4"),
        *(f"long/objects/{character}/{character * 40}" for character in ("x", "é", "😀", "-")),
    }),
}  # fmt: skip
PLANTED_ELSEWHERE = {
    FindingClass[name] for path in (ROOT / "tests" / "recovery").rglob("test_*.py")
    for name in re.findall(r"^PLANTED_ONLY_HERE = FindingClass\.(\w+)", path.read_text("utf-8"), re.MULTILINE)
}  # fmt: skip
"""Classes that no planted world holds. The test that plants one says so."""

WINDOWS = {"whole": (1, 2, 7, WINDOW_NAMES), "in three": (1, 2, 7, WINDOW_NAMES), "inside of families": (2, WINDOW_NAMES)}


@pytest.fixture(params=["simulated", *(pytest.param(each, marks=pytest.mark.night) for each in ("embedded", "emulators"))])
async def world(
    request: pytest.FixtureRequest, anyio_backend: object, tmp_path: Path
) -> AsyncIterator[Planted]:
    async with ground_of(request.param, request, tmp_path) as ground:
        yield await plant(ground)


class RangesFound:
    """What ranges between these bounds have found, together."""

    def __init__(self) -> None:
        self.summary = Summary()
        self.findings: list[Finding] = []

    async def audit(self, ground: AuditGround, bounds: Sequence[str], window_names: int = WINDOW_NAMES) -> RangesFound:
        for start, end in zip(("", *bounds), (*bounds, None), strict=True):
            within = Bounds(start=start, end=end)
            self.summary.merge(await audit_range(
                ground.tiers, ground.log, within, CUTOFF, ground.clock, self.findings.extend, window_names=window_names
            ))  # fmt: skip
        return self

    def named(self, planted: Planted) -> Counter[tuple[FindingClass, str]]:
        return Counter((finding.class_, finding.name) for finding in self.findings if finding.name not in planted.undecided)

    def totals(self, planted: Planted) -> dict[tuple[str, FindingClass], tuple[int, int]]:
        """Number and bytes by usecase and kind; without what could be either."""
        counts = {
            (usecase, kind): (count.number, count.size)
            for usecase, kinds in self.summary.counts.items() for kind, count in kinds.items()
        }  # fmt: skip
        for name in planted.undecided:
            kind = FindingClass.ORPHAN if any(finding.name == name for finding in self.findings) else FindingClass.REFERENCED
            key = name.partition("/")[0], kind
            counts[key] = counts[key][0] - 1, counts[key][1] - 1
        return {key: count for key, count in counts.items() if count != (0, 0)}


def assert_exact(planted: Planted, found: RangesFound, how: str) -> None:
    named = found.named(planted)
    assert named - planted.findings == Counter(), f"found, and not planted: {how}"
    assert planted.findings - named == Counter(), f"planted, and not found: {how}"
    assert found.totals(planted) == planted.totals(), how
    assert found.summary.names == len(planted.sizes) + len(planted.undecided), how
    assert found.summary.dated_ahead == planted.dated_ahead, how
    assert found.summary.unreadable_max == UNREADABLE, how
    assert found.summary.entries_max > UNREADABLE, how


async def test_everything_that_was_planted_is_found_and_nothing_else_however_it_is_cut(world: Planted) -> None:
    in_memory = isinstance(world.ground, SimulatedGround)
    for cut, bounds in CUTS.items():
        for window_names in WINDOWS[cut] if in_memory else WINDOWS[cut][-2:]:
            assert_exact(world, await RangesFound().audit(world.ground, bounds, window_names), f"{cut}, windows of {window_names}")
    names = sorted({name for _, name in world.expected} | world.undecided)
    for seed in range(2 if in_memory else 1):
        bounds = sorted(Random(seed).sample(names, len(names) // 5))
        assert_exact(world, await RangesFound().audit(world.ground, bounds), f"cut at names that seed {seed} chooses")
    missing = set(FindingClass) - {kind for kind, _ in world.expected} - PLANTED_ELSEWHERE
    assert not PLANTED_ELSEWHERE & {kind for kind, _ in world.expected}
    rest = {FindingClass.CORRUPT_ROW, FindingClass.MISFILED, FindingClass.CORRUPT_BLOB, FindingClass.DESTROYED}
    assert missing <= rest, "every class that this ground can hold was planted"


async def test_a_finding_says_what_is_known_of_the_blob(world: Planted) -> None:
    found = await RangesFound().audit(world.ground, ())
    for finding in found.findings:
        assert BEGINS_NS == finding.listed_ns == finding.logged_ns == finding.scanned_ns
        if finding.class_ in (FindingClass.ORPHAN, FindingClass.LEGACY_ORPHAN) and finding.name not in world.undecided:
            head = await world.ground.tiers.long_term.head(finding.name)
            assert head is not None
            assert (finding.size, finding.created_ns, finding.generation) == (head.size, head.created_ns, head.generation)
            assert (finding.size, finding.deadline_ns) == (world.sizes[finding.name], head.metadata.time_expires_ns)
            assert finding.name == (f"{finding.object}/{finding.revision}" if finding.class_ is FindingClass.ORPHAN else finding.object)
            assert finding.confirmed_ns == BEGINS_NS
