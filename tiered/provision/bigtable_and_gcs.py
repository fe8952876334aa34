"""`tiered provision` and `tiered check` for Bigtable and GCS.

    inspect     looks at tables, families, GC rules, app profile, bucket, permissions    -> findings
    provision   the same look, without permissions, and the mend of each finding         -> findings

Because both use the same look, they agree, `provision` may be repeated, and a dry run is a look. Somebody who may
create tables runs it. Whoever runs the store needs only roles/bigtable.user and roles/storage.objectUser. *Crash*
anywhere: run it again. *Failure*: a service that does not answer is a problem among the findings, and the other service
is still looked at. The store verifies Bigtable's part when it is opened (`tiered.provision.tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from anyio import CapacityLimiter

from changelog.base.errors import ConfigurationError, TieredError
from changelog.base.threads import in_thread
from tiered.provision import bucket
from tiered.provision.bucket import look_at_bucket, look_at_owner, open_client
from tiered.provision.findings import Notice, NoticeKind, carry_out, no_changelog, problems
from tiered.provision.schema import tables_of
from tiered.provision.tables import look_at_permissions, look_at_profile, look_at_tables, open_admin, switch_collection_on
from tiered.settings import BigtableSettings, GcsSettings, MarkSettings, Settings

Look = Callable[[], Iterator[Notice]]


async def inspect(settings: Settings) -> list[Notice]:
    """The findings of `tiered check`. `ConfigurationError`: the settings name no Bigtable and no bucket."""
    bigtable, gcs = _both(settings)

    def rows() -> Iterator[Notice]:
        with open_admin(bigtable, tables_of(bigtable, logged=_logged(settings))) as admin:
            yield from look_at_tables(admin, settings.marks)
            yield from look_at_profile(admin)
            yield from look_at_permissions(admin)

    def blobs() -> Iterator[Notice]:
        with open_client(gcs, bigtable.project) as client:
            yield from look_at_bucket(client, gcs, bigtable.owner, None)
            yield from look_at_owner(client, gcs, bigtable.owner)
            if gcs.endpoint is None:
                yield from bucket.look_at_permissions(client, gcs)

    found = await in_thread(lambda: _all_of(rows, blobs), CapacityLimiter(1), abandon_on_cancel=True)
    return found if _logged(settings) else [*found, no_changelog("bigtable")]


async def provision(
    settings: Settings, *, dry_run: bool = False, location: str | None = None, adopt: bool = False, adopt_from: str | None = None
) -> list[Notice]:
    """Creates what is missing and mends what destroys data. Everything else stays as it is. Repeatable.

    `location` of a new bucket, such as EU or europe-west1; only the real service needs it. `dry_run`: the findings say
    what would be done (`NoticeKind.PLANNED`). `adopt`, `adopt_from`: as in `look_at_owner`. Raises as `inspect`.
    """
    bigtable, gcs = _both(settings)

    def blobs() -> Iterator[Notice]:
        with open_client(gcs, bigtable.project) as client:
            for finding in look_at_bucket(client, gcs, bigtable.owner, location):
                yield carry_out(finding, dry_run=dry_run)
            for finding in look_at_owner(client, gcs, bigtable.owner, adopt=adopt, adopt_from=adopt_from):
                yield carry_out(finding, dry_run=dry_run)

    def rows() -> Iterator[Notice]:
        return provision_tables(bigtable, settings.marks, dry_run=dry_run, logged=_logged(settings))

    return await in_thread(lambda: _all_of(rows, blobs), CapacityLimiter(1))


def provision_tables(
    bigtable: BigtableSettings, marks: MarkSettings, *, dry_run: bool = False, logged: bool = True
) -> Iterator[Notice]:
    """Bigtable's part of `provision`. `logged`: with the changelog's table. Blocks. `UnavailableError`: no answer."""
    with open_admin(bigtable, tables_of(bigtable, logged=logged)) as admin:
        results = [carry_out(finding, dry_run=dry_run) for finding in [*look_at_tables(admin, marks), *look_at_profile(admin)]]
        yield from results
        if bigtable.emulator_host is not None and not dry_run and not problems(results):
            switch_collection_on(admin)


def _both(settings: Settings) -> tuple[BigtableSettings, GcsSettings]:
    if settings.bigtable is None or settings.gcs is None:
        raise ConfigurationError("this store is in a directory, not in Bigtable and GCS: nothing has to be provisioned")
    return settings.bigtable, settings.gcs


def _logged(settings: Settings) -> bool:
    return settings.changelog == "bigtable"


def _all_of(*looks: Look) -> list[Notice]:
    """The findings of all looks. A finding that two looks have in common appears once."""
    findings: dict[Notice, None] = {}
    for look in looks:
        try:
            for finding in look():
                findings[finding] = None
        except TieredError as error:
            findings[Notice(NoticeKind.PROBLEM, str(error))] = None
    return list(findings)
