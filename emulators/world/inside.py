"""What a process of a world opens: a store with its caller, or a recovery.

It is loaded for each code whose processes a world has (`emulators.world.code`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from changelog.log import ChangeLog
from emulators.world.client import Client
from emulators.world.faults import Process
from emulators.world.ghost import Ghost
from emulators.world.history import RegisterHistory
from recovery.loop import RecoveryLoop
from tiered.services.backends import Tiers
from tiered.settings import Settings
from tiered.storage import TieredStorage


@asynccontextmanager
async def open_client(
    process: Process, tiers: Tiers, log: ChangeLog, settings: Settings, history: RegisterHistory, ghost: Ghost, skew_max_s: float
) -> AsyncIterator[Client]:
    """Opens a store in this process. When it closes, its caller notes whether it has left nothing behind."""
    async with TieredStorage(tiers, log, process.runtime, understood(settings)) as storage:
        client = Client(process, storage, history, ghost, skew_max_s)
        yield client
        if not await storage.aclose():
            client.note_end()


def recovery_in(process: Process, tiers: Tiers, log: ChangeLog, settings: Settings) -> RecoveryLoop:
    return RecoveryLoop(tiers, log, process.runtime, understood(settings))


def understood(settings: Settings) -> Settings:
    """Returns the settings as this code has them: its own defaults, but for what differs from the defaults there.

    What a world sets does not always fit together, so each section is checked by itself. One that is not there by
    default is left out.
    """
    if isinstance(settings, Settings):
        return settings
    plain = Settings(directory=settings.directory, changelog=settings.changelog)
    told = {
        name: value for name, value in settings.model_dump(exclude_defaults=True).items()
        if not isinstance(value, dict) or getattr(plain, name) is not None
    }
    sections = {name: type(getattr(plain, name)).model_validate(value) for name, value in told.items() if isinstance(value, dict)}
    return plain.model_copy(update=told | sections)
