"""The recovery daemon: the recovery loop, the garbage collection of embedded mode, and the handling of signals.

    SIGTERM, SIGINT      stop claiming; finish what is held within `recovery.shutdown_budget_s`; release the rest
    the second signal    exit at once; this is safe, because the claims go stale and another daemon takes them over

If SIGINT was ignored when the daemon began (nohup, a shell's background job), it stays ignored.

*Crash*: at any moment, a crash is as safe as the second signal. Any number of daemons may run at the same time.
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
"""The pause after a collection lasts at least this many times as long as the collection.

So a million blobs do not keep a disk busy all the time.
"""


async def run_daemon(backends: Backends, runtime: Runtime, settings: Settings) -> Report:
    """Run until a signal stops the loop, then return the report of what the loop did.

    It must run in the main thread, because only the main thread receives signals. It raises the `TieredError` that
    ended the loop.
    """
    loop = RecoveryLoop(backends.tiers, backends.log, runtime, settings, backends.observer)
    failure: TieredError | None = None
    async with anyio.create_task_group() as beside:
        await beside.start(_heed_signals, loop)
        beside.start_soon(_collect_for_ever, backends, runtime, settings.recovery.collect_every_s)
        beside.start_soon(_warn_of_stuck, backends.log, runtime, settings.recovery.full_pass_every_s)
        logger.info("recovery_started instance=%s", loop.instance)
        try:
            await loop.run()
        except TieredError as error:  # raised below, because the task group would wrap it in an exception group
            failure = error
        beside.cancel_scope.cancel()
    if failure is not None:
        raise failure
    logger.info("recovery_stopped instance=%s", loop.instance)
    return loop.total


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of one collection. `removed`: how many things it deleted.

    `failures`: one error for each part that is not finished.
    """

    removed: int
    failures: Sequence[TieredError]


async def collect(backends: Backends) -> Collected:
    """Delete once what nobody else deletes in embedded mode. It may be cancelled at any time.

    It returns how much it deleted, and the errors. A part that fails is logged, and the other parts go on.

    Files go first. Deleting a file needs no space and frees some, and deleting rows may need that space. A reader loses
    nothing by any order: a blob is kept for an hour after its row's deadline.
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
    """Log how many entries are stuck: at the start, and whenever the number has changed.

    The loop logs each entry when it parks it, but an operator who starts to watch later would not see that line.
    """
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

