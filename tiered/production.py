"""Opens a store on Bigtable and GCS: rows and changelog in Bigtable, blobs in GCS. Only `tiered.open` calls it.

    one pool of connections -> BigtableTable, objects   -> BigtableRows
                            -> BigtableTable, changelog -> BigTableChangeLog
    one HTTP session                                    -> GcsBlobs               -> OwnedBlobs

This is a module of its own so that embedded mode loads none of Google's packages. Before anything else the schema is
verified: without its families nothing can be written, and marks that are collected too early would lose data. So is the
owner of the blobs: a store would delete those of another one. With `verify` False this was done before, and the
packages for it are not loaded; `OwnedBlobs` still asks for the owner before it changes anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from changelog.base.errors import ConfigurationError, InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.bigtable.channel import BigtableTable, delete_family
from changelog.bigtable.log import BigtableChangeLog
from changelog.bigtable.pool import connect
from changelog.log import ChangeLog
from tiered.bigtable.cells import LEGACY_FAMILIES
from tiered.bigtable.rows import BigtableRows
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.http import SCOPE
from tiered.gcs.owned import OwnedBlobs
from tiered.protocol.backends import Tiers
from tiered.protocol.upload_lanes import UploadLanes
from tiered.settings import BIGTABLE_EMULATOR, GCS_EMULATOR, BigtableSettings, GcsSettings, Settings

PROBED_ROW = b"~families"
"""A row key that belongs to no object and to no entry."""


@asynccontextmanager
async def open_google(settings: Settings, runtime: Runtime, *, writes: bool, verify: bool) -> AsyncIterator[tuple[Tiers, ChangeLog]]:
    """Opens both tiers, and the changelog in Bigtable.

    `writes` False: what only writers need may be missing. `verify` False: tables and bucket are not looked at.
    `ConfigurationError` says what to run. `UnavailableError`: Bigtable did not answer.
    """
    bigtable, gcs = settings.bigtable, settings.gcs
    assert bigtable is not None and gcs is not None, "settings allow one only with the other"
    if (bigtable.emulator_host is None) != (gcs.endpoint is None):
        raise ConfigurationError(_half_emulated(bigtable, gcs))
    authorize = sign = None
    if gcs.endpoint is None:  # first, because it ends in time also where a metadata server hangs
        from changelog.google.signing import GoogleSigner
        from changelog.google.tokens import GoogleAuthorization

        authorize = await GoogleAuthorization.default(runtime, SCOPE)
        sign = GoogleSigner(authorize)
    families: frozenset[str] | None = None
    if verify:
        from tiered.provision.tables import verify_on_open

        families = await verify_on_open(bigtable, settings.marks, writes=writes, logged=settings.changelog == "bigtable")
    instance = f"projects/{bigtable.project}/instances/{bigtable.instance}"
    async with (
        connect(
            instance, runtime, emulator_host=bigtable.emulator_host, app_profile=bigtable.app_profile, channels=bigtable.connections
        ) as channel,
        GcsBlobs.connect(
            gcs.bucket, runtime, endpoint=gcs.endpoint, authorize=authorize, connections_max=gcs.connections_max,
            answer_timeout_s=gcs.timeout_s,
            lanes=UploadLanes(gcs.upload_lanes, gcs.upload_lanes_from_bytes, gcs.upload_part_bytes, gcs.upload_memory_bytes),
            upload_budget_s=settings.store.answer_budget_s, sign=sign,
        ) as bucket,
    ):
        blobs = OwnedBlobs(bucket, gcs.bucket, gcs.prefix, bigtable.owner)
        try:
            # Says now, not at the first large put, that the bucket is missing, forbidden or another store's.
            if verify and (ownerless := await blobs.check_owner()) is not None:
                if writes:
                    raise ConfigurationError(ownerless)
                events.warning("bucket_without_owner", ownerless, bucket=gcs.bucket)
        except UnavailableError as error:  # small objects and the changelog work without the bucket
            events.warning("bucket_not_reached", error, bucket=gcs.bucket)
        rows, entries = (
            BigtableTable(
                channel, f"{instance}/tables/{table}", bigtable.app_profile, bigtable.timeout_s, channel.blocking, channel.authorize
            )
            for table in (bigtable.table, bigtable.changelog_table)
        )
        if families is None and writes:
            families = await told_by_deletions(rows)
        payload_families = [family for family in LEGACY_FAMILIES if family in (families or ())]
        tiers = Tiers(BigtableRows(rows, runtime, payload_families), blobs, inline_write_s_max=bigtable.timeout_s)
        yield tiers, BigtableChangeLog(entries, runtime)


async def told_by_deletions(rows: BigtableTable) -> frozenset[str]:
    """Which of the families that only some tables have this table has. For a process that did not see the schema.

    It deletes from each family in a row that is empty. The service refuses this where the family does not exist. Raises
    `UnavailableError` if the service does not answer.
    """
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


def _half_emulated(bigtable: BigtableSettings, gcs: GcsSettings) -> str:
    """The error for one emulator and one real service: a variable was left set, or was forgotten.

    Rows that everybody reads would then name blobs that are on one developer's machine.
    """
    emulated, real = (
        (f"bigtable.emulator_host is {bigtable.emulator_host}", f"gcs.endpoint ({GCS_EMULATOR})") if gcs.endpoint is None
        else (f"gcs.endpoint is {gcs.endpoint}", f"bigtable.emulator_host ({BIGTABLE_EMULATOR})")
    )
    return f"{emulated}, an emulator, but {real} is not set: rows would name blobs of another world; set both or neither"
