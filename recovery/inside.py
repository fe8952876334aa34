"""Recovery inside a service: `open_storage(settings, recover=True)` runs what a daemon runs, beside the store.

    enter   the loop and the collection begin; nobody waits for their first pass
    inside  an error of theirs is logged and ends nothing: the loop begins again after a wait
    leave   the loop claims nothing more while the store drains; it finishes or releases what it holds

`tiered.open` finds this module by its name, because `tiered` imports nothing of `recovery` (docs/decisions/recovery.md,
40). Signals are the service's own: this module touches none. *Crash* of the service: as of a daemon. The claims go
stale, and the service cleans up after itself when it runs again, or another one does.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.base.tasks import elsewhere_is_an_error, end_tasks
from recovery.daemon import Recovery
from tiered.open import Backends
from tiered.settings import Settings


class RecoveryInside:
    """Recovery beside a store, in tasks of its own. Enter it once, around the store; call `stop` when the block ends.

    Leaving it waits until the loop has ended, at most `recovery.shutdown_budget_s` after `stop` and a few seconds. If
    the block was cancelled, it waits only until the claims are given back, which takes 5 s at most.
    """

    def __init__(self, backends: Backends, runtime: Runtime, settings: Settings) -> None:
        if settings.instance is not None:
            # The store has this name already, and the two hold entries of their own.
            settings = settings.model_copy(update={"instance": f"{settings.instance}-recovery"})
        self._recovery = Recovery(backends, runtime, settings)
        self._runtime = runtime
        self._wait_max_s = settings.recovery.pause_max_s
        self._ended = anyio.Event()
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._recovery.say_start()
        self._tasks.start_soon(self._run_loop)
        self._tasks.start_soon(self._run_beside)
        return self

    def stop(self) -> None:
        """Tells the loop to claim nothing more."""
        self._recovery.loop.stop()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None, "entered before it is left"
        self.stop()
        cut: BaseException | None = error
        try:
            if error is None or isinstance(error, Exception):
                await self._ended.wait()
                await self._recovery.leave()
                await self._recovery.say_end()
                return
        except BaseException as late:
            cut = late
            raise
        finally:
            try:
                await end_tasks(tasks, cut)
            finally:
                self._recovery.loop.outages.close()
                if not self._recovery.said_end:  # the block was cancelled: nobody may wait for a number now
                    self._recovery.say_stopped(None)

    async def _run_loop(self) -> None:
        """Runs the loop until `stop`, whatever happens to it. Only a cancellation ends it before."""
        loop = self._recovery.loop
        try:
            while not loop.stopping:
                if await self._goes_on():
                    continue
                with anyio.move_on_after(self._wait_max_s * self._runtime.random.uniform(0.5, 1.0)):
                    await loop.stopped()
        finally:
            self._ended.set()

    async def _goes_on(self) -> bool:
        """Runs the loop once. False: it ended with an error, which was logged, and it should rest."""
        try:
            with elsewhere_is_an_error("recovery was cancelled elsewhere"):
                await self._recovery.run_loop()
        except Exception as error:  # noqa: BLE001 - it must not end the service's block
            events.error("recovery_restarts", error, exc_info=error, instance=self._recovery.loop.instance)
            return False
        return True

    async def _run_beside(self) -> None:
        while True:
            try:
                with elsewhere_is_an_error("what runs beside recovery was cancelled elsewhere"):
                    await self._recovery.run_beside()
            except Exception as error:  # noqa: BLE001 - it must not end the service's block
                events.error("work_beside_failed", error, exc_info=error)
            await self._runtime.sleep(self._wait_max_s)
