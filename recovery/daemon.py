"""The recovery daemon: the loop, the embedded mode's garbage collection, and signals.

    SIGTERM, SIGINT    stop claiming; finish what is held within `recovery.shutdown_budget_s`, release the rest
    the second one     leave at once, which is safe: the claims go stale and others take them over

A SIGINT that was ignored when the daemon began (nohup, a shell's background) stays ignored.

*Crash* at any moment is as safe as the second signal. Any number of daemons run side by side.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import TaskStatus

from changelog.base.runtime import Runtime
from changelog.log import ChangeLog, Collects, LeftGarbageError
from recovery.entries import count_stuck, stuck_sentence
from recovery.loop import RecoveryLoop, Report
from tiered.errors import TieredError
from tiered.open import Backends
from tiered.settings import Settings

logger = logging.getLogger("tiered")

COLLECT_PAGE = 1000
EXIT_AT_ONCE = 130

RESTS = 4
"""How many times longer than a collection the pause after it is at least: a million blobs shall not keep a disk busy for ever."""


async def run_daemon(backends: Backends, runtime: Runtime, settings: Settings) -> Report:
    """Runs until a signal stops it; returns what it did. Signals need the main thread."""
    loop = RecoveryLoop(backends.tiers, backends.log, runtime, settings)
    failure: TieredError | None = None
    async with anyio.create_task_group() as beside:
        await beside.start(_heed_signals, loop)
        beside.start_soon(_collect_for_ever, backends, runtime, settings.recovery.collect_every_s)
        beside.start_soon(_warn_of_stuck, backends.log, runtime, settings.recovery.full_pass_every_s)
        logger.info("recovery_started instance=%s", loop.instance)
        try:
            await loop.run()
        except TieredError as error:  # raised below: the group would wrap it
            failure = error
        beside.cancel_scope.cancel()
    if failure is not None:
        raise failure
    logger.info("recovery_stopped instance=%s", loop.instance)
    return loop.total


@dataclass(frozen=True, slots=True)
class Collected:
    """What a round came to. `removed`: how many things. `failures`: of the parts that are not, or not wholly, done."""

    removed: int
    failures: Sequence[TieredError]


async def collect(backends: Backends) -> Collected:
    """One round through what nobody else collects in embedded mode; may be cancelled at any time.

    Files first: unlinking them needs no space and gives some, which the deletion of rows may need. A blob outlives its row's
    deadline by an hour, so no reader misses it, in whatever order they go. A part that fails is logged, and the others go on.
    """
    removed = 0
    failures: list[TieredError] = []
    for part in (backends.tiers.long_term, backends.tiers.high_volume, backends.log):
        if not isinstance(part, Collects):
            continue
        try:
            page = COLLECT_PAGE
            while page == COLLECT_PAGE:
                page = await part.collect(COLLECT_PAGE)
                removed += page
        except TieredError as error:
            removed += error.removed if isinstance(error, LeftGarbageError) else 0
            failures.append(error)
            logger.warning("collection_failed: %s", error)
    return Collected(removed, failures)


async def _collect_for_ever(backends: Backends, runtime: Runtime, every_s: float) -> None:
    while True:
        began = runtime.monotonic()
        if removed := (await collect(backends)).removed:
            logger.info("collected count=%d", removed)
        rest_s = RESTS * (runtime.monotonic() - began)
        await runtime.sleep(max(rest_s, every_s * runtime.random.uniform(0.5, 1.0)))


async def _warn_of_stuck(log: ChangeLog, runtime: Runtime, every_s: float) -> None:
    """At the start and whenever their number has changed: each was told when it was parked, to whoever listened then."""
    known = 0
    while True:
        try:
            if (count := await count_stuck(log)) != known:
                logger.warning("entries_stuck count=%d: %s", count, stuck_sentence(count) if count else "none any more")
                known = count
        except TieredError as error:
            logger.warning("entries_not_counted: %s", error)
        await runtime.sleep(every_s * runtime.random.uniform(0.5, 1.0))


async def _heed_signals(loop: RecoveryLoop, *, task_status: TaskStatus[None]) -> None:
    heeded = [signal.SIGTERM] if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else [signal.SIGTERM, signal.SIGINT]
    with anyio.open_signal_receiver(*heeded) as signals:
        task_status.started()
        async for number in signals:
            if loop.stopping:
                os._exit(EXIT_AT_ONCE)
            logger.info("recovery_stopping signal=%s: once more to leave at once", signal.Signals(number).name)
            loop.stop()

