"""`tiered provision` and `tiered check` on the emulators."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from google.cloud.bigtable_admin_v2.types import (
    ColumnFamily,
    GcRule,
    Table,
)

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from tiered.kinds.chosen import inspect, provision
from tiered.provision import bucket
from tiered.provision.findings import Notice, NoticeKind
from tiered.provision.schema import FAMILIES, lifecycle_rule, parts_rule
from tiered.provision.tables import open_admin, provision_tables, verify_on_open
from tiered.settings import BigtableSettings, Settings

pytestmark = pytest.mark.asyncio

PROJECT, INSTANCE = "test", "emulated"
NOWHERE = "127.0.0.1:1"


def sentences(findings: list[Notice], *kinds: NoticeKind) -> list[str]:
    return [finding.sentence for finding in findings if finding.kind in kinds]


@pytest_asyncio.fixture
async def gcs() -> AsyncIterator[GcsEmulator]:
    async with GcsEmulator() as server:
        yield server


@pytest.fixture
def settings(bigtable_host: str, gcs: GcsEmulator) -> Settings:
    """Of tables that are not there yet, and of a bucket that is not."""
    name = str(ChangeId.new(SystemRuntime()))[-12:]
    return Settings(
        bigtable={
            "project": PROJECT, "instance": INSTANCE, "emulator_host": bigtable_host,
            "table": f"rows-{name}", "changelog_table": f"log-{name}",
        },
        gcs={"bucket": f"bucket-{name}", "endpoint": gcs.url}, changelog="bigtable",
    )


def bigtable_of(settings: Settings) -> BigtableSettings:
    assert settings.bigtable is not None
    return settings.bigtable


def create_table(at: BigtableSettings, **rules: GcRule) -> None:
    families = {family: ColumnFamily(gc_rule=rule) for family, rule in rules.items()}
    with open_admin(at) as admin:
        admin.tables.create_table(parent=admin.instance, table_id=at.table, table=Table(column_families=families), timeout=10)


def rules_of(at: BigtableSettings) -> dict[str, GcRule]:
    with open_admin(at) as admin:
        found = admin.tables.get_table(name=admin.table(at.table), timeout=10).column_families
        return {family: described.gc_rule for family, described in found.items()}


# --- on the emulators ----------------------------------------------------------------------------


async def test_a_check_of_nothing_names_each_thing_and_what_to_run(settings: Settings, gcs: GcsEmulator) -> None:
    assert settings.bigtable is not None and settings.gcs is not None
    cure = "run 'tiered provision', or correct the names in the section bigtable"
    assert sentences(await inspect(settings), NoticeKind.PROBLEM) == [
        f"there is no table {settings.bigtable.table} in projects/test/instances/emulated: {cure}",
        f"there is no table {settings.bigtable.changelog_table} in projects/test/instances/emulated: {cure}",
        f"there is no bucket {settings.gcs.bucket}: run 'tiered provision', or correct gcs.bucket",
    ]
    assert gcs.buckets == {}


async def test_a_dry_run_says_what_provisioning_then_does_and_changes_nothing(settings: Settings, gcs: GcsEmulator) -> None:
    planned = sentences(await provision(settings, dry_run=True), NoticeKind.PLANNED)
    assert len(planned) == 3 and gcs.buckets == {}
    assert sentences(await provision(settings, dry_run=True), NoticeKind.PLANNED) == planned
    done = sentences(await provision(settings), NoticeKind.DONE)
    assert done == [sentence.replace("would create", "created") for sentence in planned]
    assert sentences(await inspect(settings), NoticeKind.PROBLEM) == []


async def test_provisioning_twice_does_nothing_the_second_time(settings: Settings, gcs: GcsEmulator) -> None:
    await provision(settings, location="EU")
    gcs.calls.clear()
    assert sentences(await provision(settings), NoticeKind.DONE, NoticeKind.PLANNED, NoticeKind.PROBLEM) == []
    assert set(gcs.calls) == {"bucket.get", "object.list"}


async def test_a_new_bucket_deletes_expired_blobs_lets_nobody_in_and_keeps_the_safety_net(settings: Settings, gcs: GcsEmulator) -> None:
    await provision(settings, location="EU")
    [made] = [bucket.settings for bucket in gcs.buckets.values()]
    assert made["location"] == "EU"
    assert made["lifecycle"] == {"rule": [lifecycle_rule(), parts_rule()]}
    assert made["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    assert made["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"] is True
    assert made["softDeletePolicy"]["retentionDurationSeconds"] == str(7 * 86_400)
    [note] = [said for said in sentences(await inspect(settings), NoticeKind.NOTE) if "soft delete" in said]
    assert "bills, what is deleted for 7 days" in note and "--clear-soft-delete" in note


async def test_what_is_missing_is_added_what_destroys_is_mended_and_what_wastes_is_only_reported(settings: Settings) -> None:
    at = bigtable_of(settings)
    create_table(at, fg=GcRule(max_num_versions=3), fm=GcRule(max_age=timedelta(days=9)), fpg=GcRule(max_num_versions=7))
    before = sentences(await inspect(settings), NoticeKind.PROBLEM)
    assert f"table {at.table} has no family ff: run 'tiered provision'" in before
    assert any("deletes objects that do not expire: run 'tiered provision' to make it none" in said for said in before)
    findings = await provision(settings)
    assert sentences(findings, NoticeKind.DONE)[:2] == [
        f"changed the GC rule maxage=9d of family fm of table {at.table} to none, because it deletes objects that do not expire",
        f"added family ff to table {at.table}, GC rule maxage=2d",
    ]
    [wasteful] = [said for said in sentences(findings, NoticeKind.NOTE) if "never collects" in said]
    assert wasteful.endswith(f"run 'cbt -project test -instance emulated setgcpolicy {at.table} fg maxage=1s'")
    assert rules_of(at) == {
        "fg": GcRule(max_num_versions=3), "fm": GcRule(), "ff": FAMILIES["ff"], "fpg": GcRule(max_num_versions=7),
    }
    assert sentences(await provision(settings), NoticeKind.DONE, NoticeKind.PROBLEM) == []


async def test_marks_that_are_kept_too_briefly_are_a_problem(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    at = bigtable_of(settings).model_copy(update={"changelog_table": bigtable_of(settings).table})
    create_table(at, **{**FAMILIES, "ff": GcRule(max_age=timedelta(days=1))})
    with pytest.raises(ConfigurationError, match="collects marks before the 90030 s are over in which a swap may still arrive"):
        await verify_on_open(at)
    with monkeypatch.context() as patched:
        patched.setattr("tiered.provision.schema.MARK_AGE_MIN_S", 7230)
        await verify_on_open(at)
    assert [finding.kind for finding in provision_tables(at)].count(NoticeKind.DONE) == 1
    await verify_on_open(at)


async def test_opening_tells_everything_that_is_missing_at_once(settings: Settings) -> None:
    with pytest.raises(ConfigurationError) as missing:
        await verify_on_open(bigtable_of(settings))
    assert len(str(missing.value).splitlines()) == 2
    await provision(settings)
    await verify_on_open(bigtable_of(settings))


async def test_opening_on_an_emulator_warns_of_nothing(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    await provision(settings)
    with caplog.at_level(logging.INFO, logger="tiered"):
        await verify_on_open(bigtable_of(settings))
    assert {record.levelno for record in caplog.records} == {logging.INFO}


async def test_where_nobody_listens_each_address_is_named_once() -> None:
    settings = Settings(
        changelog="bigtable",
        bigtable={"project": PROJECT, "instance": INSTANCE, "emulator_host": NOWHERE},
        gcs={"bucket": "bucket", "endpoint": f"http://{NOWHERE}"},
    )
    for findings in (await inspect(settings), await provision(settings), await provision(settings, dry_run=True)):
        assert [finding.kind for finding in findings] == [NoticeKind.PROBLEM, NoticeKind.PROBLEM]
        assert findings[0].sentence.startswith(f"Bigtable does not answer at {NOWHERE}: start it, or correct bigtable.emulator_host (")
        assert findings[1].sentence.startswith(f"GCS does not answer at http://{NOWHERE}: start it, or correct gcs.endpoint (")
        assert all("\n" not in finding.sentence for finding in findings)
    with pytest.raises(UnavailableError, match=NOWHERE):
        await verify_on_open(bigtable_of(settings))


async def test_a_proxy_of_the_environment_diverts_neither(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://{NOWHERE}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert sentences(await provision(settings), NoticeKind.PROBLEM) == []


# --- buckets as others made them -----------------------------------------------------------------

OURS = {
    "lifecycle": {"rule": [lifecycle_rule(), parts_rule()]}, "softDeletePolicy": {"retentionDurationSeconds": "0"},
    "iamConfiguration": {"publicAccessPrevention": "enforced", "uniformBucketLevelAccess": {"enabled": True}},
}


def deleting(**condition: Any) -> dict[str, Any]:
    return {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": condition}, lifecycle_rule(), parts_rule()]}}


async def about_bucket(settings: Settings, gcs: GcsEmulator, made: dict[str, Any]) -> list[Notice]:
    """What is found of a bucket with these settings over ours; provisioning finds the same, and leaves it as it is."""
    assert settings.gcs is not None
    gcs.create_bucket(settings.gcs.bucket, {**OURS, **made})
    found = [finding for finding in await inspect(settings) if f"bucket {settings.gcs.bucket}" in finding.sentence]
    before = dict(gcs.buckets[settings.gcs.bucket].settings)
    assert [finding for finding in await provision(settings) if f"bucket {settings.gcs.bucket}" in finding.sentence] == found
    assert gcs.buckets[settings.gcs.bucket].settings == before
    return found


async def test_of_a_bucket_that_is_as_it_must_be_nothing_is_said_but_that(settings: Settings, gcs: GcsEmulator) -> None:
    [finding] = await about_bucket(settings, gcs, {})
    assert finding.kind is NoticeKind.OK and finding.sentence.endswith("is as it must be")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"retentionPolicy": {"retentionPeriod": "86400"}}, "--clear-retention-period"),
        ({"defaultEventBasedHold": True}, "--no-default-event-based-hold"),
        (deleting(age=30), "with the condition {'age': 30} deletes live blobs: remove it"),
    ],
    ids=["retention", "hold", "lifecycle"],
)
async def test_a_bucket_that_keeps_garbage_or_loses_blobs_is_a_problem(
    settings: Settings, gcs: GcsEmulator, made: dict[str, Any], said: str
) -> None:
    [finding] = await about_bucket(settings, gcs, made)
    assert finding.kind is NoticeKind.PROBLEM and said in finding.sentence


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"lifecycle": {"rule": [parts_rule()]}}, "keeps expired blobs for ever: add the lifecycle rule"),
        ({"lifecycle": {"rule": [lifecycle_rule()]}}, "never completed: add the lifecycle rule {action: AbortIncompleteMultipartUpload"),
        ({"lifecycle": {"rule": [lifecycle_rule(), parts_rule("a/")]}}, "never completed: add"),
        ({"lifecycle": {"rule": [lifecycle_rule(), {**parts_rule(), "condition": {"age": 7}}]}}, "after 7 days"),
        ({"lifecycle": {"rule": [deleting(daysSinceCustomTime=0)["lifecycle"]["rule"][0], parts_rule()]}}, "at their deadline"),
        (deleting(age=1, matchesPrefix=["tmp/"]), "remove it if their names may match"),
        ({"softDeletePolicy": {"retentionDurationSeconds": str(10 * 86_400)}}, "bills, what is deleted for 10 days"),
        ({"versioning": {"enabled": True}}, "--no-versioning"),
        ({"iamConfiguration": {"publicAccessPrevention": "enforced"}}, "--uniform-bucket-level-access"),
        ({"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}, "--public-access-prevention"),
    ],
    ids=["lifecycle", "parts", "parts-below", "parts-early", "no-day", "prefix", "soft-delete", "versions", "uniform", "public"],
)
async def test_a_bucket_that_costs_more_or_is_more_open_is_a_note(
    settings: Settings, gcs: GcsEmulator, made: dict[str, Any], said: str
) -> None:
    fine, finding = await about_bucket(settings, gcs, made)
    assert (fine.kind, finding.kind) == (NoticeKind.OK, NoticeKind.NOTE)
    assert fine.sentence.endswith("can be used") and said in finding.sentence


async def test_a_bucket_that_may_not_be_looked_at_is_a_note(settings: Settings, gcs: GcsEmulator) -> None:
    gcs.faults.append(GcsFault(FaultMode.STATUS, "bucket.get", status=403))
    assert [said for said in sentences(await inspect(settings), NoticeKind.NOTE) if "grant storage.buckets.get" in said]


# --- whose the bucket is -------------------------------------------------------------------------


def with_prefix(settings: Settings, prefix: str, table: str | None = None) -> Settings:
    assert settings.gcs is not None and settings.bigtable is not None
    bigtable = settings.bigtable if table is None else settings.bigtable.model_copy(update={"table": table})
    return settings.model_copy(update={"gcs": settings.gcs.model_copy(update={"prefix": prefix}), "bigtable": bigtable})


async def about_owner(settings: Settings, **more: Any) -> list[tuple[NoticeKind, str]]:
    assert settings.gcs is not None
    found = await provision(settings, **more)
    return [(each.kind, each.sentence) for each in found if f"gs://{settings.gcs.bucket}/" in each.sentence]


async def test_a_bucket_was_given_to_every_store_that_named_it(settings: Settings, gcs: GcsEmulator) -> None:
    at = bigtable_of(settings)
    assert settings.gcs is not None
    bucket = settings.gcs.bucket
    gcs.create_bucket(bucket)
    [(kind, problem)] = [(each.kind, each.sentence) for each in await inspect(settings) if f"owns gs://{bucket}/" in each.sentence]
    assert kind is NoticeKind.PROBLEM and problem.startswith(f"no store owns gs://{bucket}/ yet: run 'tiered provision'")
    given = f"gs://{bucket}/ to this store, {at.owner}"
    assert await about_owner(settings, dry_run=True) == [(NoticeKind.PLANNED, f"would give {given}")]
    assert list(gcs.buckets[bucket].objects) == []
    assert await about_owner(settings) == [(NoticeKind.DONE, f"gave {given}")]
    [marker] = gcs.buckets[bucket].objects.values()
    assert (marker.name, marker.metadata["tiered-owner"]) == ("~owners/owner", at.owner) and at.owner.encode() in marker.payload
    assert marker.custom_time is None, "no lifecycle rule of ours deletes it"
    assert await about_owner(settings, adopt=True) == [(NoticeKind.OK, f"gs://{bucket}/ belongs to this store, {at.owner}")]
    [(kind, problem)] = await about_owner(with_prefix(settings, "", "restored"), adopt=True)
    assert kind is NoticeKind.PROBLEM and problem.startswith(
        f"gs://{bucket}/ belongs to the store of {at.owner}, and this is the store of "
    )
    assert gcs.buckets[bucket].objects["~owners/owner"] is marker


async def test_what_lies_in_a_bucket_is_taken_for_this_stores_only_by_a_word(settings: Settings, gcs: GcsEmulator) -> None:
    assert settings.gcs is not None
    bucket = gcs.create_bucket(settings.gcs.bucket)
    for name in ("a/x", "~quarantine/x", "é"):
        bucket.objects.clear()
        bucket._order.clear()
        bucket.insert(name, b"x", {}, {}, (), 1)
        assert [kind for kind, _ in await about_owner(settings)] == [NoticeKind.PROBLEM] and list(bucket.objects) == [name]
        assert [kind for kind, _ in await about_owner(with_prefix(settings, "b/"), dry_run=True)] == [NoticeKind.PLANNED], (
            "nothing lies there"
        )
    [(kind, sentence)] = await about_owner(settings, adopt=True)
    assert kind is NoticeKind.DONE and sentence.endswith(", with what it holds")


async def test_an_owner_is_replaced_only_by_who_names_it(settings: Settings, gcs: GcsEmulator) -> None:
    await provision(settings)
    restored, owner = with_prefix(settings, "", "restored"), bigtable_of(settings).owner
    for wrong in (None, "", f"{owner}x", bigtable_of(restored).owner):
        assert [kind for kind, _ in await about_owner(restored, adopt=True, adopt_from=wrong)] == [NoticeKind.PROBLEM]
    [(kind, sentence)] = await about_owner(restored, adopt_from=owner)
    assert kind is NoticeKind.DONE and sentence.endswith(f"{bigtable_of(restored).owner}, with what it holds, in place of {owner}")
    assert [kind for kind, _ in await about_owner(settings)] == [NoticeKind.PROBLEM]


async def test_of_two_stores_that_take_a_bucket_at_once_one_gets_it(
    settings: Settings, gcs: GcsEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.gcs is not None
    gcs.create_bucket(settings.gcs.bucket)
    mark = bucket._mark

    def second(*args: Any) -> None:
        monkeypatch.setattr(bucket, "_mark", mark)
        mark(args[0], args[1], "projects/p/instances/i/tables/first")
        mark(*args)

    monkeypatch.setattr(bucket, "_mark", second)
    [(kind, sentence)] = await about_owner(settings)
    assert kind is NoticeKind.PROBLEM and "its owner was changed at the same moment: run 'tiered check'" in sentence
    [(kind, sentence)] = await about_owner(settings)
    assert kind is NoticeKind.PROBLEM and "belongs to the store of projects/p/instances/i/tables/first" in sentence


async def test_whose_a_bucket_is_that_may_not_be_listed_is_not_known(settings: Settings, gcs: GcsEmulator) -> None:
    await provision(settings)
    gcs.faults.append(GcsFault(FaultMode.STATUS, "object.list", status=403))
    [note] = [said for said in sentences(await inspect(settings), NoticeKind.NOTE) if "nobody can tell who owns" in said]
    assert "grant storage.objects.list" in note


async def test_a_new_bucket_below_a_prefix_deletes_expired_blobs_of_its_store_only(settings: Settings, gcs: GcsEmulator) -> None:
    await provision(with_prefix(settings, "a/"))
    [made] = [each.settings for each in gcs.buckets.values()]
    assert made["lifecycle"] == {"rule": [lifecycle_rule("a/"), parts_rule("a/")]}
    assert not any("expired blobs" in said for said in sentences(await inspect(with_prefix(settings, "a/"))))
    other = await provision(with_prefix(settings, "b/", "other"))
    assert any("keeps expired blobs for ever" in said and "matchesPrefix: [b/]" in said for said in sentences(other, NoticeKind.NOTE))
    assert [said for said in sentences(other, NoticeKind.PROBLEM) if "gs://" in said] == []


async def test_a_bucket_that_cannot_be_created_is_said_and_the_tables_are_made_all_the_same(settings: Settings, gcs: GcsEmulator) -> None:
    gcs.faults.append(GcsFault(FaultMode.STATUS, "bucket.create", status=403))
    findings = await provision(settings)
    assert len(sentences(findings, NoticeKind.DONE)) == 2
    [problem] = sentences(findings, NoticeKind.PROBLEM)
    assert problem.startswith("could not create bucket") and "403" in problem
