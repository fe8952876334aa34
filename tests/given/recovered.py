"""Recovery, until nothing is left for it to do."""

from __future__ import annotations

import anyio

from changelog.base.runtime import SystemRuntime
from recovery.loop import RecoveryLoop
from tiered.open import open_backends
from tiered.settings import Settings


async def recover_all(settings: Settings, within_s: float) -> RecoveryLoop:
    """Returns the loop when the changelog is empty: after the leases, because nobody who could hold an entry lives."""
    runtime = SystemRuntime()
    async with open_backends(settings, runtime) as backends:
        loop = RecoveryLoop(backends.tiers, backends.log, runtime, settings)
        with anyio.fail_after(within_s):
            while (await backends.log.entries("", 1)).entries:
                await loop.run_once()
                await anyio.sleep(0.1)
    return loop
