"""The audit beside writers, crashes and recovery, under many schedules: no verdict is wrong, and each part of its order is missed.

Where an order or a look is taken away, the same worlds find a wrong verdict: `FOUND_AFTER` says after how many of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import pytest

import recovery.audit.sweep as sweep
from recovery.audit.names import Reading
from recovery.audit.sweep import _Logged, _Sweep, _Window
from recovery.audit.verdicts import Kind
from tests.audit_scene import Scene, first_wrong
from tiered.backends import BlobHead, BlobInfo

SEEDS = 60

Again = Callable[[_Sweep, _Window, Sequence[tuple[BlobInfo, Reading]]], Awaitable[None]]
Audit = Callable[[_Sweep, str], Awaitable[str | None]]


async def once(self: _Sweep, window: _Window, suspects: Sequence[tuple[BlobInfo, Reading]]) -> None:
    """What the first look has found is told."""
    for blob, reading in suspects:
        self._conclude(window, blob, reading, Kind.ORPHAN, 0)


def in_order(*steps: str) -> Audit:
    """A window whose parts are done in this order: L, C, R."""
    async def audit_window(self: _Sweep, start: str) -> str | None:
        window = _Window(start, self._bounds.end, [], set(), 0)
        logged, named, next_start = _Logged(), list[object](), None
        everything = _Window("", None, [], set(), 0)

        async def remember(_: _Window, missing: Sequence[object]) -> None:
            named.extend(missing)

        for step in steps:
            match step:
                case "L":
                    window, _, next_start = await self._list(start)
                case "C":
                    logged = await self._read_log(everything)
                case "R":
                    page = await self._ask(lambda: self._rows.redirects(b"", None, 1000))
                    named.extend(page.redirects)
        self._count_listed(window)
        await self._look_for(window, self._match(window, named))  # type: ignore[arg-type]
        await self._judge(window, logged)
        return next_start

    return audit_window
