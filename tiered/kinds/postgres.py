"""Rows and changelog in a schema of a PostgreSQL database, over one pool of connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from changelog.base.runtime import Runtime
from tiered.kinds.kind import OpenRows, needs_asyncio, needs_packages
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


ROWS = PostgresKind()


def _section(settings: Settings) -> PostgresSettings:
    assert settings.postgres is not None, "whoever chooses this kind has seen its section"
    return settings.postgres
