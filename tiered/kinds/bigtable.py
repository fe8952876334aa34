"""Rows in Bigtable, and the changelog beside them, in a table of its own or in the same one.

    one pool of connections -> BigtableTable, objects   -> BigtableRows
                            -> BigtableTable, changelog -> BigTableChangeLog

Before anything else the schema is verified: without its families nothing can be written, and marks that are collected
too early would lose data. With `verify` False this was done before, and the packages for it are not loaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from anyio import CapacityLimiter

from changelog.base.errors import ConfigurationError, InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from tiered.kinds.kind import OpenRows, TrialNeeds, needs_asyncio, needs_packages
from tiered.provision.findings import Notice, Provisioning, findings_of, no_changelog
from tiered.provision.probes import NotTriedError
from tiered.settings import BIGTABLE_EMULATOR, GCS_EMULATOR, BigtableSettings, Settings

if TYPE_CHECKING:
    from changelog.bigtable.channel import BigtableTable
    from changelog.google.authorize import Authorize

PROBED_ROW = b"~families"
"""A row key that belongs to no object and to no entry."""


class BigtableKind:
    def address(self, settings: Settings) -> str:
        at = _section(settings)
        return f"bigtable:{at.project}/{at.instance}/{at.table}"

    def inputs(self, settings: Settings) -> Mapping[str, str]:
        at = _section(settings)
        instance = f"{at.project}/{at.instance}"
        changelog = {"changelog": f"{instance}/{at.changelog_table}"} if settings.logged else {}
        return {"table": f"{instance}/{at.table}", **changelog, **({"Bigtable emulator": at.emulator_host} if at.emulator_host else {})}

    @asynccontextmanager
    async def open(self, settings: Settings, runtime: Runtime, *, writes: bool, verify: bool) -> AsyncIterator[OpenRows]:
        needs_asyncio("Bigtable and GCS need asyncio, because gRPC does")
        at = _section(settings)
        _refuse_half_emulated(settings)
        with needs_packages("Bigtable", "gcp"):
            from changelog.bigtable.log import BigtableChangeLog
            from tiered.bigtable.cells import LEGACY_FAMILIES
            from tiered.bigtable.rows import BigtableRows
        authorize = await _authorization(at, runtime)  # first, because it ends in time also where a metadata server hangs
        families: frozenset[str] | None = None
        if verify:
            from tiered.provision.tables import verify_on_open

            families = await verify_on_open(at, writes=writes, logged=settings.logged)
        async with _tables(at, runtime, authorize) as (rows, entries):
            if families is None and writes:
                families = await told_by_deletions(rows)
            payload_families = [family for family in LEGACY_FAMILIES if family in (families or ())]
            yield OpenRows(BigtableRows(rows, runtime, payload_families), BigtableChangeLog(entries, runtime), at.owner, at.timeout_s)

    async def owner(self, settings: Settings, runtime: Runtime) -> str:
        return _section(settings).owner

    async def inspect(self, settings: Settings, runtime: Runtime) -> list[Notice]:
        with needs_packages("Bigtable", "gcp"):
            from tiered.provision.tables import inspect_tables

        look = partial(inspect_tables, _section(settings), logged=settings.logged)
        found = await in_thread(partial(findings_of, look), CapacityLimiter(1), abandon_on_cancel=True)
        return found if settings.logged else [*found, no_changelog(settings.changelog_kept)]

    async def provision(self, settings: Settings, runtime: Runtime, wanted: Provisioning) -> list[Notice]:
        with needs_packages("Bigtable", "gcp"):
            from tiered.provision.tables import provision_tables

        at = _section(settings)
        # A trial has rows that expired years ago. The service would collect them when it likes, an emulator soon.
        collects = not at.table.startswith(_TRIALS)
        work = partial(provision_tables, at, dry_run=wanted.dry_run, logged=settings.logged, collects=collects)
        return await in_thread(partial(findings_of, work), CapacityLimiter(1))

    async def hand_back(self, settings: Settings, runtime: Runtime, *, dry_run: bool) -> list[Notice]:
        with needs_packages("Bigtable", "gcp"):
            from tiered.provision.tables import hand_back_table

        work = partial(hand_back_table, _section(settings), dry_run=dry_run)
        return await in_thread(partial(findings_of, work), CapacityLimiter(1))

    def beside(self, settings: Settings, trial: str) -> Settings:
        name = f"{_TRIALS}{trial}"
        return settings.model_copy(update={"bigtable": _section(settings).model_copy(update={"table": name, "changelog_table": name})})

    async def trials(self, settings: Settings, runtime: Runtime) -> Sequence[str]:
        from tiered.provision.tables import table_names

        found = await in_thread(partial(table_names, _section(settings)), CapacityLimiter(1), abandon_on_cancel=True)
        return sorted(name.removeprefix(_TRIALS) for name in found if name.startswith(_TRIALS))

    async def clear(self, settings: Settings, runtime: Runtime) -> None:
        from changelog.bigtable.channel import DELETE_ROW, WITHOUT_VALUES, KeySpan

        at = _section(settings)
        async with _tables(at, runtime, await _authorization(at, runtime)) as (table, _):
            found = await table.scan([KeySpan(b"", b"")], WITHOUT_VALUES, 0)
            for error in filter(None, await table.mutate_rows([(row.key, [DELETE_ROW]) for row in found]) if found else ()):
                raise error

    async def remove(self, settings: Settings, runtime: Runtime, trial: str) -> None:
        from tiered.provision.tables import delete_table

        await in_thread(partial(delete_table, _section(settings), f"{_TRIALS}{trial}"), CapacityLimiter(1))

    async def told(self, settings: Settings, runtime: Runtime) -> Mapping[str, str]:
        return {"version": "an emulator" if _section(settings).emulator_host else "Google's service"}

    async def excess(self, settings: Settings, runtime: Runtime) -> Sequence[str]:
        from tiered.provision.tables import excess_of

        if _section(settings).emulator_host is not None:
            raise NotTriedError("only Google's service tells what an identity may do")
        return await in_thread(partial(excess_of, _section(settings)), CapacityLimiter(1), abandon_on_cancel=True)

    def trial_needs(self, settings: Settings) -> TrialNeeds:
        return TrialNeeds(f"a table {_TRIALS}…", "bigtable.tables.create, delete, get and list, and those of a writer on the instance")


ROWS = BigtableKind()

_TRIALS = "tiered-prove-"
"""How the tables of trials are named."""


async def _authorization(at: BigtableSettings, runtime: Runtime) -> Authorize | None:
    """None: an emulator wants none."""
    if at.emulator_host is not None:
        return None
    from changelog.bigtable.pool import SCOPE
    from changelog.google.tokens import GoogleAuthorization

    return await GoogleAuthorization.default(runtime, SCOPE)


@asynccontextmanager
async def _tables(
    at: BigtableSettings, runtime: Runtime, authorize: Authorize | None
) -> AsyncIterator[tuple[BigtableTable, BigtableTable]]:
    """The tables of the objects and of the changelog, over one pool of connections."""
    from changelog.bigtable.channel import BigtableTable
    from changelog.bigtable.pool import connect

    instance = f"projects/{at.project}/instances/{at.instance}"
    async with connect(
        instance, runtime, emulator_host=at.emulator_host, app_profile=at.app_profile, channels=at.connections, authorize=authorize
    ) as channel:
        rows, entries = (
            BigtableTable(channel, f"{instance}/tables/{table}", at.app_profile, at.timeout_s, channel.blocking, channel.authorize)
            for table in (at.table, at.changelog_table)
        )
        yield rows, entries


async def told_by_deletions(rows: BigtableTable) -> frozenset[str]:
    """Which of the families that only some tables have this table has. For a process that did not see the schema.

    It deletes from each family in a row that is empty. The service refuses this where the family does not exist. Raises
    `UnavailableError` if the service does not answer.
    """
    from changelog.bigtable.channel import delete_family
    from tiered.bigtable.cells import LEGACY_FAMILIES

    found: set[str] = set()
    for family in LEGACY_FAMILIES:
        try:
            await rows.mutate(PROBED_ROW, delete_family(family))
        except (ConfigurationError, InvalidRequestError):  # if the cause is another one, the first write reports it
            continue
        except UnconfirmedError as error:
            raise UnavailableError(f"the families of table {rows.name} are not known: {error}") from error
        found.add(family)
    return frozenset(found)


def _section(settings: Settings) -> BigtableSettings:
    assert settings.bigtable is not None, "whoever chooses this kind has seen its section"
    return settings.bigtable


def _refuse_half_emulated(settings: Settings) -> None:
    """Refuses one emulator of Google's and one real service: a variable was left set, or was forgotten.

    Rows that everybody reads would then name blobs that are on one developer's machine.
    """
    bigtable, gcs = _section(settings), settings.gcs
    if gcs is None or (bigtable.emulator_host is None) == (gcs.endpoint is None):
        return
    emulated, real = (
        (f"bigtable.emulator_host is {bigtable.emulator_host}", f"gcs.endpoint ({GCS_EMULATOR})") if gcs.endpoint is None
        else (f"gcs.endpoint is {gcs.endpoint}", f"bigtable.emulator_host ({BIGTABLE_EMULATOR})")
    )
    raise ConfigurationError(f"{emulated}, an emulator, but {real} is not set: rows would name blobs of another world; set both or neither")
