"""A network's delay in front of a tier, which is a file or a loopback server a few microseconds away; and a witness of it.

    far        each call of a tier takes a while
    witness    notes which writes of a row timed out, so that it can be told which of them landed later all the same

Each call of a tier waits a random moment on its way there, and another on its way back. Both the fenced and the
unfenced demo's writers stand behind it, so that being killed or stopped in the middle of an exchange is as likely as it
is with a real service. Nothing is lost, repeated or reordered here: that is the simulation's part.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, cast

from changelog.base.errors import UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from emulators.demo.journal import Journal
from tiered.protocol.backends import HighVolumeBackend, Inline, LongTermBackend, RowState, Tiers

THERE_MAX_S = 0.020
BACK_MAX_S = 0.005


def far(tiers: Tiers, runtime: Runtime) -> Tiers:
    """The same tiers, a network away."""
    return Tiers(cast(HighVolumeBackend, _Far(tiers.high_volume, runtime)), cast(LongTermBackend, _Far(tiers.long_term, runtime)))


class _Far:
    """Stands for whatever it is given; only calls that are awaited take time."""

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
            return _Far(answer, self._runtime) if hasattr(answer, "finalise") else answer

        return exchange


def witness(tiers: Tiers, journal: Journal, runtime: Runtime, timeout_s: float) -> Tiers:
    """The same tiers; the journal gets a line for each write of a row that timed out, and for what is known of it later."""
    return Tiers(cast(HighVolumeBackend, _Witness(tiers.high_volume, journal, runtime, timeout_s)), tiers.long_term)


class _Witness:
    """Stands for rows. What breaks off at once may have arrived in time; only what waited for nearly `timeout_s` is noted."""

    def __init__(self, rows: HighVolumeBackend, journal: Journal, runtime: Runtime, timeout_s: float) -> None:
        self._rows = rows
        self._journal = journal
        self._runtime = runtime
        self._patience_s = 0.9 * timeout_s
        self._timed_out: set[ChangeId] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    async def swap(self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float) -> bool:
        effective = await self._watch(token, self._rows.swap(path, token, expected, state, deadline_s))
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
