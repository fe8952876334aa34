"""The audit beside writers, crashes and recovery, under many schedules: no verdict is wrong.

Each part that makes it right is needed: without it, a verdict is wrong.

    what is taken away                                      worlds until a verdict is wrong (found once)
    the second look                                         8
    the second look, and the log read before the listing    1
    the second look, and the rows read before the log       2
    the second look, and the rows read before the listing   86
    that the blob must still be there at the second look    15
    the second look at the log                              over 120: between two reads, the blob's successor must be
                                                            recorded, committed and dead; so that schedule is by hand
    the log (Noop), with a grace of 0                       4

The second look is itself list, log, rows in the right order. With it, the order of the first one does no harm (120
worlds each).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from changelog.change import Change, ChangeId
from emulators.world.services import SimulatedRows
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.sweeping.judge import SuspectBlob
from recovery.audit.sweeping.second_look import SecondReading
from recovery.audit.sweeping.sweep import _Sweep, audit_range
from recovery.audit.sweeping.window import LoggedNames, Window
from tests.given.audit_beside_writers import BusyScene, first_wrong
from tests.given.audit_grounds import BEGINS_NS, OLD_NS, SimulatedGround
from tests.given.virtual_time import simulated
from tiered.metadata import NS_PER_S
from tiered.services.backends import HighVolumeBackend, Tiers, Tombstone

pytestmark = pytest.mark.slow

FEW_AND_MORE = [4, pytest.param(25, marks=pytest.mark.night)]
"""How many worlds are looked at."""

ONCE_WRONG = (1129, 1245, 1287)
"""Worlds in which a verdict was wrong once.

A blob expired while it was audited, its row was collected, and it was called an orphan.
"""

GRACE_S = 600.0
"""Longer than any put in these worlds is under way."""


@pytest.mark.parametrize("seeds", FEW_AND_MORE)
def test_no_verdict_is_wrong_beside_writers_crashes_and_recovery(seeds: int) -> None:
    seen: Counter[str] = Counter()
    for seed in (*range(1, seeds + 1), *ONCE_WRONG):
        scene = BusyScene(seed).play()
        assert scene.wrong == [], f"seed {seed}"
        seen += scene.seen
    assert seen["audits"] > seeds, "each of them found what was planted"


@pytest.mark.parametrize("seeds", FEW_AND_MORE)
def test_no_verdict_is_wrong_with_references_from_a_feed_and_at_rest_all_verdicts_are_those_of_a_scan(seeds: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, seeds + 1):
        scene = BusyScene(seed, fed=True).play()
        assert scene.wrong == [], f"seed {seed}"
        seen += scene.seen
    assert seen["audits"] > seeds and seen["compared"] == 3 * seeds


async def once(self: SecondReading, window: Window, suspects: Sequence[SuspectBlob]) -> None:
    """What the first look has found is told."""
    for blob, reading, _ in suspects:
        self._judge.conclude(window, blob, reading, FindingClass.ORPHAN, 0)




def in_order(*steps: str) -> Callable[[_Sweep, str], Awaitable[str | None]]:
    """A window whose parts are done in this order."""
    async def audit_window(self: _Sweep, start: str) -> str | None:
        window, next_start = Window(start, None, [], {}, 0), None
        everything = Window("", None, [], {}, 0)
        logged, named = LoggedNames(), list[Any]()
        for step in steps:
            match step:
                case "L":
                    window, _, next_start = await self.windows.read(start)
                case "C":
                    logged = await self.windows.read_log(everything)
                case "R":
                    named += (await self.reads.retry(lambda: self.reads.rows.redirects(b"", None, 1000))).redirects
        self.judge.count_listed(window)
        await self.second.confirm_missing(window, self.match.match(window, named))
        if suspects := self.judge.suspects(window, logged):
            await self.second.confirm_accused(window, suspects)
        self.judge.flush()
        return next_start

    return audit_window


@pytest.mark.parametrize(
    ("parts", "seeds"), [({"confirm_accused": once}, 30), ({"confirm_accused": once, "audit_window": in_order("C", "L", "R")}, 10),
                         ({"confirm_accused": once, "audit_window": in_order("L", "R", "C")}, 10)],
    ids=["no second look", "the log before the listing", "the rows before the log"],
)  # fmt: skip
def test_without_its_order_a_verdict_is_wrong(monkeypatch: pytest.MonkeyPatch, parts: dict[str, object], seeds: int) -> None:
    for name, part in parts.items():
        monkeypatch.setattr(SecondReading if name == "confirm_accused" else _Sweep, name, part)
    assert first_wrong(range(1, seeds + 1)) is not None


# --- without a log -------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [8, *FEW_AND_MORE[1:]])
def test_without_a_log_only_the_grace_protects_what_is_under_way(seeds: int) -> None:
    wrong = [seed for seed in range(1, seeds + 1) if BusyScene(seed, durable=False).play().wrong]
    assert wrong, "with a grace of 0, blobs are accused that a row names soon after"
    accused = 0
    for seed in range(1, seeds + 1):
        scene = BusyScene(seed, durable=False, grace_s=GRACE_S).play()
        assert scene.wrong == [], f"seed {seed}"
        accused += len(scene.accusations)
    assert accused, "what was left by writers that died is told all the same"


# --- by hand -------------------------------------------------------------------------------------


class Between:
    """The rows; `event` happens before they are scanned for the first time."""

    def __init__(self, rows: Any, event: Callable[[], Awaitable[None]]) -> None:
        self._rows, self._event, self._is_over = rows, event, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    async def redirects(self, *asked: Any) -> Any:
        if not self._is_over:
            self._is_over = True
            await self._event()
        return await self._rows.redirects(*asked)


@simulated
async def test_a_blob_that_is_replaced_between_the_log_and_the_rows_is_no_orphan_while_its_entry_is_there() -> None:
    ground, path = SimulatedGround(), "a/objects/k"
    old = f"{path}/{ground.clock.at(OLD_NS)}"
    await ground.blob(old, 1, OLD_NS, None)
    await ground.row(path, old, None)

    async def overwrite_and_die() -> None:
        token = ChangeId.new(ground.clock)
        new = f"{path}/{token}"
        await ground.entry(Change(token, path, new, old))
        await ground.blob(new, 1, BEGINS_NS, None)
        assert await ground.tiers.high_volume.swap(path, token, old, Tombstone(new), ground.clock.boot_time() + 60)

    ground.clock.now_ns = BEGINS_NS
    tiers = Tiers(cast(HighVolumeBackend, Between(ground.tiers.high_volume, overwrite_and_die)), ground.tiers.long_term)
    found: list[Finding] = []
    summary = await audit_range(
        tiers, ground.log, Bounds(start="", end=None), Cutoff(as_of_ns=BEGINS_NS, grace_s=0), ground.clock, found.extend
    )  # fmt: skip
    assert found == []
    assert summary.totals()[FindingClass.SUPERSEDED].number == 1


@simulated
async def test_a_blob_that_expires_while_it_is_audited_and_whose_row_is_collected_is_no_orphan() -> None:
    """Nothing was lost track of: its row went because its time was over, and so will the blob."""
    ground, path, deadline_ns = SimulatedGround(), "a/objects/k", BEGINS_NS + NS_PER_S
    name = f"{path}/{ground.clock.at(OLD_NS)}"
    await ground.blob(name, 1, OLD_NS, deadline_ns)
    await ground.row(path, name, deadline_ns)

    async def collect() -> None:
        ground.clock.now_ns = deadline_ns
        assert await cast(SimulatedRows, ground.tiers.high_volume).collect(10) == 2, "the row, and its old mark"

    ground.clock.now_ns = BEGINS_NS
    tiers = Tiers(cast(HighVolumeBackend, Between(ground.tiers.high_volume, collect)), ground.tiers.long_term)
    found: list[Finding] = []
    summary = await audit_range(
        tiers, ground.log, Bounds(start="", end=None), Cutoff(as_of_ns=BEGINS_NS, grace_s=0), ground.clock, found.extend
    )  # fmt: skip
    assert found == []
    assert summary.totals()[FindingClass.EXPIRED].number == 1
