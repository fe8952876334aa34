"""Recovery, until nothing is left for it to do."""

from __future__ import annotations

import anyio

from changelog.base.runtime import Runtime, SystemRuntime
from recovery.loop import RecoveryLoop
from tiered.open import Backends, open_backends
from tiered.settings import Settings


async def recover_all(settings: Settings, within_s: float) -> RecoveryLoop:
    """Returns the loop when the changelog is empty: after the leases, because nobody who could hold an entry lives."""
    runtime = SystemRuntime()
    async with open_backends(settings, runtime) as backends:
        with anyio.fail_after(within_s):
            loop = await recover_until_empty(backends, settings, runtime)
    return loop


async def recover_until_empty(backends: Backends, settings: Settings, runtime: Runtime) -> RecoveryLoop:
    """The same with what is open, however long it takes."""
    loop = RecoveryLoop(backends.tiers, backends.log, runtime, settings)
    while (await backends.log.entries("", 1)).entries:
        await loop.run_once()
        await anyio.sleep(0.05)
    return loop
