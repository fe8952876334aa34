"""The production form, opened from settings: rows and changelog in Bigtable, blobs in GCS. Only `tiered.compose` calls it.

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

from changelog.bigtable import BigTableChangeLog
from changelog.bigtable_channel import BigtableTable
from changelog.bigtable_pool import connect
from changelog.errors import ConfigurationError, UnavailableError
from changelog.log import ChangeLog
from changelog.runtime import Runtime
from tiered.bigtable import BigtableRows
from tiered.gcs import GcsBlobs
from tiered.gcs_auth import GoogleAuthorization
from tiered.settings import BIGTABLE_EMULATOR, GCS_EMULATOR, BigtableSettings, GcsSettings, Settings
from tiered.settle import Tiers

logger = logging.getLogger("tiered")


@asynccontextmanager
async def open_google(settings: Settings, runtime: Runtime, verify: bool) -> AsyncIterator[tuple[Tiers, ChangeLog]]:
    """Both tiers, and the changelog in Bigtable. Raises `ConfigurationError` with what to run, `UnavailableError`."""
    bigtable, gcs = settings.bigtable, settings.gcs
    assert bigtable is not None and gcs is not None, "settings allow one only with the other"
    if (bigtable.emulator_host is None) != (gcs.endpoint is None):
        raise ConfigurationError(_half_emulated(bigtable, gcs))
    if verify:
        from tiered.bigtable_admin import verify_on_open

        await verify_on_open(bigtable, settings.marks)
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
        yield Tiers(BigtableRows(rows, runtime), blobs), BigTableChangeLog(entries, runtime)


def _half_emulated(bigtable: BigtableSettings, gcs: GcsSettings) -> str:
    """A variable that was left set, or was forgotten: rows that everybody reads would name blobs on one developer's machine."""
    emulated, real = (
        (f"bigtable.emulator_host is {bigtable.emulator_host}", f"gcs.endpoint ({GCS_EMULATOR})") if gcs.endpoint is None
        else (f"gcs.endpoint is {gcs.endpoint}", f"bigtable.emulator_host ({BIGTABLE_EMULATOR})")
    )
    return f"{emulated}, an emulator, but {real} is not set: rows would name blobs of another world; set both or neither"
