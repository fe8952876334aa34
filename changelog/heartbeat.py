"""Keeps the entries of one owner alive: a single task renews all that are due.

    record / claim -> Lease (held) --renewed--> held ... --"not yours" or silence for expiry--> ended
                      drop: nobody renews it any more; others may take the entry over once it is stale

When a lease has ended, its owner sends no further swap and cleans nothing up. Safety never depends on that. *Crash*:
renewals stop, and recovery claims the entries after the expiry. *Failure* of the log: the leases run out by the
boot-time clock. It goes on while the machine sleeps, because recovery elsewhere goes on, too
(docs/decisions/protocol.md, 15). Where the log keeps nothing (`durable` False), nobody can take an entry over, so
leases do not end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import anyio

from changelog.base.errors import TieredError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.base.tasks import elsewhere_is_an_error
from changelog.change import Change, Entry
from changelog.lease import Lease, Renewal
from changelog.log import ChangeLog

BATCH_MAX = 100
TICKS_PER_INTERVAL = 4


class Heartbeat:
    """All leases of one owner. `run` must run beside the work, in the owner's task group."""

    def __init__(self, log: ChangeLog, runtime: Runtime, owner: str, interval_s: float, expiry_s: float) -> None:
        self.owner = owner
        self._log = log
        self._runtime = runtime
        self._interval_s = interval_s
        self._expiry_s = expiry_s if log.durable else math.inf
        self._leases: dict[str, Lease] = {}

    async def record(self, change: Change) -> Lease:
        """Records the change and holds its lease. Raises as `ChangeLog.record` does. Safe to repeat."""
        sent_at = self._runtime.boot_time()
        return self._hold(await self._log.record(change, self.owner), sent_at)

    async def claim(self, entry: Entry) -> Lease | None:
        """Takes a stale entry over and holds its lease. None: another instance was faster."""
        sent_at = self._runtime.boot_time()
        claimed = await self._log.claim(entry, self.owner)
        return None if claimed is None else self._hold(claimed, sent_at)

    def held(self, lease: Lease) -> bool:
        """Whether its owner may go on: send a swap, clean up."""
        return lease.held(self._runtime.boot_time())

    def drop(self, lease: Lease) -> None:
        """Stops renewing the entry. Safe to repeat."""
        if self._leases.get(lease.entry.key) is lease:  # an old lease must not stop a new one of the same entry
            del self._leases[lease.entry.key]

    async def run(self) -> None:
        """Renews what is due, in batches. Ends only when it is cancelled."""
        tick_s = self._interval_s / TICKS_PER_INTERVAL
        while True:
            await self._runtime.sleep(tick_s)
            due_before = self._runtime.boot_time() - self._interval_s + tick_s
            due = [lease for lease in self._leases.values() if lease.renewed_at <= due_before]
            for first in range(0, len(due), BATCH_MAX):
                await self._renew(due[first : first + BATCH_MAX])

    def _hold(self, entry: Entry, sent_at: float) -> Lease:
        lease = Lease(entry, sent_at, self._expiry_s)
        self._leases[entry.key] = lease
        return lease

    async def _renew(self, leases: Sequence[Lease]) -> None:
        sent_at = self._runtime.boot_time()
        renewals: Sequence[Renewal] = [Renewal.FAILED] * len(leases)
        with anyio.move_on_after(self._interval_s):
            try:
                with elsewhere_is_an_error("the renewal was cancelled elsewhere"):
                    renewals = await self._log.renew([lease.entry for lease in leases])
            except Exception as error:  # noqa: BLE001 - logged, with its traceback where it is no error of ours
                # Each stays held until its expiry; the next tick tries again.
                events.warning(
                    "renewal_failed", error, exc_info=None if isinstance(error, TieredError) else error,
                    count=len(leases), owner=self.owner,
                )
        for lease, renewal in zip(leases, renewals, strict=True):
            lease.after(renewal, sent_at)
            if not self.held(lease):
                self.drop(lease)
