"""The published protocol, for comparison: it shows what the same store and the same recovery lose without the fence.

    settle    only reads whether the row shows the revision. It refuses nothing, so a blob that recovery takes for
              garbage may still be swapped in
    swap      a plain compare-and-swap on the row's target, with a new token each time. So no mark ever says that
              recovery has given this change up, or that the change took effect already

Everything else is as in the product: the write-ahead entry, the heartbeat, the check of the lease before the swap, the
claim. That check and the swap are two steps, and a process can be stopped between them for longer than any lease. The
product never uses this module.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from tiered.object_id import blob_name
from tiered.open import Backends, open_backends
from tiered.services.backends import HighVolumeBackend, Only, RowState, Tiers
from tiered.settings import Settings

logger = logging.getLogger("tiered")


@asynccontextmanager
async def open_demo_backends(settings: Settings, runtime: Runtime, unfenced: bool) -> AsyncIterator[Backends | None]:
    """Opens the product's backends, with unfenced rows if `unfenced`. Yields None if they are out of reach."""
    async with AsyncExitStack() as stack:
        try:
            backends = await stack.enter_async_context(open_backends(settings, runtime))
        except (UnavailableError, UnconfirmedError) as error:
            logger.warning("out_of_reach: %s", error)
            yield None
            return
        if unfenced:
            tiers = Tiers(without_fence(backends.tiers.high_volume, runtime), backends.tiers.long_term)
            backends = Backends(tiers, backends.log)
        yield backends


def without_fence(rows: HighVolumeBackend, runtime: Runtime) -> HighVolumeBackend:
    return cast(HighVolumeBackend, _Unfenced(rows, runtime))


class _Unfenced:
    """Stands for rows. It keeps no marks."""

    def __init__(self, rows: HighVolumeBackend, runtime: Runtime) -> None:
        self._rows = rows
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    async def settle(self, path: str, token: ChangeId) -> bool:
        row = await self._rows.read(path)
        return row.target == blob_name(path, token) or (row.state is not None and row.state.token == token)

    async def swap(
        self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None,
        since_ms: int | None = None,
    ) -> bool:  # fmt: skip
        return await self._rows.swap(path, ChangeId.new(self._runtime), expected, state, deadline_s, only, since_ms)
