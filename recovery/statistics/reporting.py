"""`Reporting`, what every source has in common: reports now and then, within a budget.

Whatever fails is logged, once for a row of failures, and not raised: the work is worth more than its statistics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import anyio

from changelog.base.errors import TieredError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.log import ChangeLog

REPORT_EVERY_S = 10.0
REPORT_BUDGET_S = 20.0
FINAL_BUDGET_S = 5.0
"""How long one report may take, in seconds, and the last one, for which the end of the process waits."""


class Reporting(ABC):
    """`run` goes on until it is cancelled; `report` reports once. `instance`: the name of the worker.

    A log that keeps nothing gets no report.
    """

    budget_s, final_budget_s = REPORT_BUDGET_S, FINAL_BUDGET_S

    def __init__(self, log: ChangeLog, runtime: Runtime, instance: str) -> None:
        self._log = log
        self._runtime = runtime
        self._instance = instance
        self._fails = False

    async def run(self) -> None:
        """Reports at once, and then every `REPORT_EVERY_S` seconds. Ends only when it is cancelled."""
        while True:
            await self.report()
            await self._runtime.sleep(REPORT_EVERY_S * self._runtime.random.uniform(0.9, 1.1))

    async def report(self, *, left: bool = False) -> None:
        """Reports once. `left`: it is the last report. Whatever fails is logged and not raised."""
        if not self._log.durable:
            return
        try:
            with anyio.fail_after(self.final_budget_s if left else self.budget_s):
                await self._report(left)
        except Exception as error:  # noqa: BLE001 - the work is worth more than its statistics
            if not self._fails:
                self._tell(error, None if isinstance(error, TieredError | TimeoutError) else error)
            self._fails = True
        else:
            if self._fails:
                events.info("statistics_reported_again", instance=self._instance)
            self._fails = False

    def _tell(self, error: Exception, unforeseen: Exception | None) -> None:
        events.warning("statistics_not_reported", error, exc_info=unforeseen, instance=self._instance)

    @abstractmethod
    async def _report(self, left: bool) -> None:
        """Reports once. It may raise anything."""
