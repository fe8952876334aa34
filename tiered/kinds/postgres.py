"""Rows and changelog in a schema of a PostgreSQL database, over one pool of connections."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from changelog.base.runtime import Runtime
from tiered.kinds.kind import OpenRows, TrialNeeds, needs_asyncio, needs_packages
from tiered.provision.findings import Notice, Provisioning, no_changelog
from tiered.settings import PostgresSettings, Settings


class PostgresKind:
    def address(self, settings: Settings) -> str:
        return f"postgres:{_section(settings).address}"

    def inputs(self, settings: Settings) -> Mapping[str, str]:
        return {"table": self.address(settings)}

    @asynccontextmanager
    async def open(self, settings: Settings, runtime: Runtime, *, writes: bool, verify: bool) -> AsyncIterator[OpenRows]:
        needs_asyncio("PostgreSQL needs asyncio, because its driver does")
        with needs_packages("PostgreSQL", "postgres"):
            from tiered.postgres.open import open_postgres
        at = _section(settings)
        async with open_postgres(at, runtime, writes=writes) as (rows, log):
            yield OpenRows(rows, log, rows.owner, at.timeout_s)

    async def owner(self, settings: Settings, runtime: Runtime) -> str:
        with needs_packages("PostgreSQL", "postgres"):
            from tiered.postgres.open import owner_of
        return await owner_of(_section(settings))

    async def inspect(self, settings: Settings, runtime: Runtime) -> list[Notice]:
        with needs_packages("PostgreSQL", "postgres"):
            from tiered.provision.postgres import inspect_postgres

        found = await inspect_postgres(_section(settings), runtime)
        return found if settings.logged else [*found, no_changelog(settings.changelog_kept)]

    async def provision(self, settings: Settings, runtime: Runtime, wanted: Provisioning) -> list[Notice]:
        with needs_packages("PostgreSQL", "postgres"):
            from tiered.provision.postgres import provision_postgres

        return await provision_postgres(_section(settings), runtime, dry_run=wanted.dry_run, writer=wanted.writer, reader=wanted.reader)

    def beside(self, settings: Settings, trial: str) -> Settings:
        at = _section(settings)
        return settings.model_copy(update={"postgres": at.model_copy(update={"schema_name": f"{_TRIALS}{trial}"})})

    async def trials(self, settings: Settings, runtime: Runtime) -> Sequence[str]:
        from tiered.postgres.open import connect

        async with connect(_section(settings), writes=False) as pool:
            found = await pool.read("looking for trials", "SELECT nspname::text FROM pg_catalog.pg_namespace")
        return sorted(name.removeprefix(_TRIALS) for (name,) in found if name.startswith(_TRIALS))

    async def clear(self, settings: Settings, runtime: Runtime) -> None:
        from tiered.postgres.open import connect
        from tiered.postgres.schema import EMPTY, in_schema

        at = _section(settings)
        async with connect(at, writes=True) as pool:
            await pool.run("emptying a trial", in_schema(";\n".join(EMPTY), at.schema_name))

    async def remove(self, settings: Settings, runtime: Runtime, trial: str) -> None:
        from tiered.postgres.open import connect
        from tiered.postgres.schema import quoted_schema

        async with connect(_section(settings), writes=True) as pool:
            await pool.run("removing a trial", f"DROP SCHEMA IF EXISTS {quoted_schema(f'{_TRIALS}{trial}')} CASCADE")

    async def told(self, settings: Settings, runtime: Runtime) -> Mapping[str, str]:
        from tiered.postgres.open import connect

        async with connect(_section(settings), writes=True) as pool:
            [(version, durable, waits)] = await pool.read("asking for the version", _TOLD)
            between = await pool.is_pooled()
        asked = [await _server(_section(settings)) for _ in range(_CONNECTIONS)]
        servers, standbys = len(set(asked)), len({each for each in asked if each[0]})
        number = re.match(r"\d{1,3}(\.\d{1,3})*", version)
        return {
            "version": f"PostgreSQL {number[0] if number else 'of an unknown version'}",
            "pooler": f"yes, {'with' if _section(settings).prepared else 'without'} prepared statements" if between else "no",
            "servers": f"{servers}{f', {standbys} of them standbys' if standbys else ''}",
            "fsync": "on" if durable else "off", "synchronous standbys": "yes" if waits else "no",
        }

    async def excess(self, settings: Settings, runtime: Runtime) -> Sequence[str]:
        from tiered.provision.postgres import excess_of

        return await excess_of(_section(settings))

    def trial_needs(self, settings: Settings) -> TrialNeeds:
        return TrialNeeds(f"a schema {_TRIALS}…", "CREATE on the database")


ROWS = PostgresKind()

_TOLD = """SELECT current_setting('server_version'), current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on',
 current_setting('synchronous_standby_names') <> ''"""

_SERVER = "SELECT pg_is_in_recovery(), pg_postmaster_start_time()::text, inet_server_addr()::text, inet_server_port()"
_CONNECTIONS = 4
"""So many are opened one after the other, to see whether something in between leads them to several servers."""

_TRIALS = "tiered_prove_"
"""How the schemas of trials are named."""


async def _server(at: PostgresSettings) -> tuple[object, ...]:
    """What tells the server that answers a new connection from another one; first, whether it is a standby."""
    from tiered.postgres.open import connect

    async with connect(at, writes=False) as pool:
        return tuple((await pool.read("asking which server answers", _SERVER))[0])


def _section(settings: Settings) -> PostgresSettings:
    assert settings.postgres is not None, "whoever chooses this kind has seen its section"
    return settings.postgres
