"""A network delay in front of a tier, and a record of the writes that time out.

    far        delays each call of a tier
    witness    notes which writes of a row timed out, so that the check can count those that took effect later

The demo's tiers are files, or servers on this machine, and answer within microseconds. So each call waits a random time
on its way to the tier, and again on its way back. This makes it as likely as with a real service that a process is
killed or stopped in the middle of a call. The writers of the fenced and of the unfenced demo both use it. Nothing is
lost, repeated or reordered here; the simulation does that.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, cast

from changelog.base.errors import UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from emulators.demo.players.journal import OperationJournal
from tiered.services.backends import HighVolumeBackend, Inline, LongTermBackend, Only, RowState, Tiers

THERE_MAX_S = 0.020
BACK_MAX_S = 0.005


def far(tiers: Tiers, runtime: Runtime) -> Tiers:
    """Returns the same tiers behind a delay."""
    return Tiers(
        cast(HighVolumeBackend, _DelayedService(tiers.high_volume, runtime)),
        cast(LongTermBackend, _DelayedService(tiers.long_term, runtime)),
    )


class _DelayedService:
    """Stands for the object that it is given. Only calls that are awaited are delayed."""

    def __init__(self, near: object, runtime: Runtime) -> None:
        self._near = near
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._near, name)
        return self._delayed(found) if inspect.iscoroutinefunction(found) else found

    def _delayed(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def exchange(*arguments: Any, **named: Any) -> Any:
            await self._runtime.sleep(self._runtime.random.uniform(0, THERE_MAX_S))
            answer = await call(*arguments, **named)
            await self._runtime.sleep(self._runtime.random.uniform(0, BACK_MAX_S))
            return _DelayedService(answer, self._runtime) if hasattr(answer, "finalise") else answer

        return exchange


def witness(tiers: Tiers, journal: OperationJournal, runtime: Runtime, timeout_s: float) -> Tiers:
    """Returns the same tiers. The journal gets a line when a write of a row times out, and when more is known of it."""
    return Tiers(cast(HighVolumeBackend, _Witness(tiers.high_volume, journal, runtime, timeout_s)), tiers.long_term)


class _Witness:
    """Stands for rows. It notes only writes that waited for nearly `timeout_s` seconds.

    A connection that breaks at once says nothing: the write may have arrived in time.
    """

    def __init__(self, rows: HighVolumeBackend, journal: OperationJournal, runtime: Runtime, timeout_s: float) -> None:
        self._rows = rows
        self._journal = journal
        self._runtime = runtime
        self._patience_s = 0.9 * timeout_s
        self._timed_out: set[ChangeId] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    async def swap(
        self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None,
        since_ms: int | None = None,
    ) -> bool:  # fmt: skip
        effective = await self._watch(token, self._rows.swap(path, token, expected, state, deadline_s, only, since_ms))
        if effective and token in self._timed_out:
            self._journal.write(token=token, became="answered")
        return effective

    async def put_inline(self, path: str, token: ChangeId, state: Inline) -> bool:
        return await self._watch(token, self._rows.put_inline(path, token, state))

    async def settle(self, path: str, token: ChangeId) -> bool:
        live = await self._rows.settle(path, token)
        if live and token in self._timed_out:
            self._journal.write(token=token, became="live")
        return live

    async def _watch(self, token: ChangeId, write: Awaitable[bool]) -> bool:
        began = self._runtime.monotonic()
        try:
            return await write
        except UnconfirmedError:
            if self._runtime.monotonic() - began >= self._patience_s:
                self._timed_out.add(token)
                self._journal.write(token=token, became="timed out")
            raise
