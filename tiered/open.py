"""The composition root: it opens the backends that the settings name, and a store on top of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from changelog.base.errors import ConfigurationError
from changelog.base.events import events
from changelog.base.home_loop import left_at_home
from changelog.base.observe import SILENT, Observer
from changelog.base.runtime import Runtime, SystemRuntime
from changelog.log import ChangeLog
from tiered.kinds.chosen import open_tiers
from tiered.own import own
from tiered.services.backends import Tiers
from tiered.services.capabilities import ServerRole
from tiered.settings import Settings, load_settings
from tiered.storage import TieredStorage
from tiered.text import check_flags

if TYPE_CHECKING:
    from tiered.telemetry.telemetry import Telemetry

INSIDE = "recovery.inside"
"""The module that runs recovery beside a store."""


@dataclass(frozen=True, slots=True)
class Backends:
    """What a store and a recovery loop need: the two tiers and the changelog.

    `observer`: whom the store or the loop tells about its work.
    """

    tiers: Tiers
    log: ChangeLog
    observer: Observer = SILENT


@left_at_home("this storage")
@asynccontextmanager
async def open_storage(
    source: str | Path | Settings, runtime: Runtime | None = None, *,
    writes: bool = True, recover: bool = False, telemetry: Telemetry | None = None,
) -> AsyncIterator[TieredStorage]:
    """Opens a store. `source` is the path of a YAML file, or `Settings`.

    Raises `ConfigurationError`, which says what to change.

    In embedded mode the directory is created. Any number of stores and processes may have one store open at once.
    `writes` False opens it for reading only. Then a Bigtable table that other software wrote is enough, a put or delete
    raises `ConfigurationError`, and what is read keeps its deadline: no time to idle is extended. Of PostgreSQL, a
    standby is read if no primary answers, with a warning: then an object may be missing, or an older one.

    `recover` True also does what `tiered recover` does, beside the store and as long as it is open: it cleans up after
    processes that died, and deletes what has expired from a directory. No error of this work ends the block, and it
    touches no signal. Leaving the block takes up to `recovery.shutdown_budget_s` seconds and a few more.

    `telemetry`: where metrics and spans of this store go (docs/metrics.md); None: there are none.
    """
    if source is None:  # `load_settings` reads the environment alone for None; here None is a forgotten argument
        raise ConfigurationError("pass Settings(…), or the path of a settings file, not None")
    check_flags(writes=writes, recover=recover)
    settings = source if isinstance(source, Settings) else load_settings(source)
    runtime = runtime or SystemRuntime()
    if recover:
        _check_may_recover(settings, writes)
    async with (
        open_backends(settings, runtime, writes=writes, standby=not writes, telemetry=telemetry) as backends,
        _recovery_beside(backends, runtime, settings, recover) as stop_recovery,
        TieredStorage(backends.tiers, backends.log, runtime, settings, writes=writes, observer=backends.observer) as storage,
    ):
        try:
            yield storage
        finally:
            stop_recovery()  # it ends while the store drains


def _check_may_recover(settings: Settings, writes: bool) -> None:
    if not writes:
        raise ConfigurationError("recover=True deletes and writes, and writes=False forbids both: leave one of them out")
    if not settings.logged and not settings.embedded:
        raise ConfigurationError(
            f"recover=True has nothing to recover without a changelog: set changelog: {settings.changelog_kept}, or leave it out"
        )


class _BesideStore(Protocol):
    def stop(self) -> None: ...


@asynccontextmanager
async def _recovery_beside(
    backends: Backends, runtime: Runtime, settings: Settings, wanted: bool
) -> AsyncIterator[Callable[[], None]]:
    """Runs recovery beside the block, if it is wanted. Yields what tells it to stop."""
    if not wanted:
        yield lambda: None
        return
    # Found by its name: `recovery` is built on `tiered`, and no module of `tiered` imports it.
    own("recovery")
    beside: AbstractAsyncContextManager[_BesideStore] = import_module(INSIDE).RecoveryInside(backends, runtime, settings)
    async with beside as recovery:
        yield recovery.stop


@asynccontextmanager
async def open_backends(
    settings: Settings, runtime: Runtime, *, writes: bool = True, verify: bool = True, standby: bool = False,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[Backends]:
    """Opens both tiers and the changelog that the settings name.

    Raises `ConfigurationError`, which says what to change.

    `writes` False: for reading only; what only writers and recovery need may be missing. `verify` False: tables and
    bucket are not looked at. Use it in one of many processes, when another has just looked at them. `standby` True: a
    standby may answer, for who reads objects and draws no conclusion. `telemetry`: each call to these backends is told
    to it; None: they are not wrapped.
    """
    if settings.changelog is None and writes:
        events.warning(
            "no_changelog", "no changelog is set, so what a killed process leaves behind stays there for good; "
            f"set changelog: {settings.changelog_kept} (or changelog: noop to accept it)"
        )
    async with open_tiers(settings, runtime, writes=writes, verify=verify) as (tiers, log):
        if not standby and isinstance(tiers.high_volume, ServerRole):
            tiers.high_volume.primary_only()
        yield Backends(tiers, log) if telemetry is None else Backends(*telemetry.observe(tiers, log, runtime))
