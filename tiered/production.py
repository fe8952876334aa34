"""The production form, opened from settings: rows and changelog in Bigtable, blobs in GCS. Only `tiered.open` calls it.

    one pool of connections -> BigtableTable, objects   -> BigtableRows
                            -> BigtableTable, changelog -> BigTableChangeLog
    one HTTP session                                    -> GcsBlobs

A module of its own, so that embedded mode loads none of Google's packages. The schema is looked at first: without its
families nothing could be written, and marks that are collected too early would lose data. Where that was done already, the
packages to do it with are not even loaded.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from changelog.base.errors import ConfigurationError, InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.bigtable.channel import BigtableTable, delete_family
from changelog.bigtable.log import BigTableChangeLog
from changelog.bigtable.pool import connect
from changelog.log import ChangeLog
from tiered.bigtable.cells import LEGACY_FAMILIES
from tiered.bigtable.rows import BigtableRows
from tiered.gcs.auth import GoogleAuthorization
from tiered.gcs.blobs import GcsBlobs
from tiered.protocol.backends import Tiers
from tiered.settings import BIGTABLE_EMULATOR, GCS_EMULATOR, BigtableSettings, GcsSettings, Settings

logger = logging.getLogger("tiered")

PROBED_ROW = b"~families"
"""Neither an object's nor an entry's."""


@asynccontextmanager
async def open_google(settings: Settings, runtime: Runtime, *, writes: bool, verify: bool) -> AsyncIterator[tuple[Tiers, ChangeLog]]:
    """Both tiers, and the changelog in Bigtable. Raises `ConfigurationError` with what to run, `UnavailableError`.

    `writes` False: whatever only writing needs may be missing.
    """
    bigtable, gcs = settings.bigtable, settings.gcs
    assert bigtable is not None and gcs is not None, "settings allow one only with the other"
    if (bigtable.emulator_host is None) != (gcs.endpoint is None):
        raise ConfigurationError(_half_emulated(bigtable, gcs))
    families: frozenset[str] | None = None
    if verify:
        from tiered.provision.tables import verify_on_open

        families = await verify_on_open(bigtable, settings.marks, writes=writes, logged=settings.changelog == "bigtable")
    instance = f"projects/{bigtable.project}/instances/{bigtable.instance}"
    authorize = None if gcs.endpoint else await GoogleAuthorization.default(runtime)
    async with (
        connect(
            instance, runtime, emulator_host=bigtable.emulator_host, app_profile=bigtable.app_profile, channels=bigtable.connections
        ) as channel,
        GcsBlobs.connect(
            gcs.bucket, runtime, endpoint=gcs.endpoint, authorize=authorize, connections_max=gcs.connections_max,
            answer_timeout_s=gcs.timeout_s,
        ) as blobs,
    ):
        try:
            if verify:
                await blobs.list("", None, 1)  # a bucket that is missing or forbidden is said now, not by the first large put
        except UnavailableError as error:  # small objects and the changelog do without it
            logger.warning("bucket_not_reached bucket=%s: %s", gcs.bucket, error)
        rows, entries = (
            BigtableTable(channel, f"{instance}/tables/{table}", bigtable.app_profile, bigtable.timeout_s)
            for table in (bigtable.table, bigtable.changelog_table)
        )
        if families is None and writes:
            families = await told_by_deletions(rows)
        payload_families = [family for family in LEGACY_FAMILIES if family in (families or ())]
        yield Tiers(BigtableRows(rows, runtime, payload_families), blobs), BigTableChangeLog(entries, runtime)


async def told_by_deletions(rows: BigtableTable) -> frozenset[str]:
    """Which of the families that only some tables have this one has, where it may not be looked at.

    Nothing can be deleted of a family that there is not, and nothing is in this row. Raises `UnavailableError`.
    """
    found: set[str] = set()
    for family in LEGACY_FAMILIES:
        try:
            await rows.mutate(PROBED_ROW, delete_family(family))
        except (ConfigurationError, InvalidRequestError):  # whatever else is wrong, the first write says
            continue
        except UnconfirmedError as error:
            raise UnavailableError(f"the families of table {rows.name} are not known: {error}") from error
        found.add(family)
    return frozenset(found)


def _half_emulated(bigtable: BigtableSettings, gcs: GcsSettings) -> str:
    """A variable that was left set, or was forgotten: rows that everybody reads would name blobs on one developer's machine."""
    emulated, real = (
        (f"bigtable.emulator_host is {bigtable.emulator_host}", f"gcs.endpoint ({GCS_EMULATOR})") if gcs.endpoint is None
        else (f"gcs.endpoint is {gcs.endpoint}", f"bigtable.emulator_host ({BIGTABLE_EMULATOR})")
    )
    return f"{emulated}, an emulator, but {real} is not set: rows would name blobs of another world; set both or neither"
