"""Two stores in one bucket of S3, and what provisioning makes of a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock

import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.s3.faults import FaultKind, FaultyProxy, ServiceFault
from emulators.s3.servers import REGION
from tests.given.s3_buckets import make_bucket, new_bucket, s3_blobs
from tiered.metadata import NS_PER_S, Metadata, TimeToLive
from tiered.provision import s3 as provision
from tiered.provision import s3_probes
from tiered.provision.findings import NoticeKind, Provisioning, problems
from tiered.provision.s3 import inspect_bucket, provision_bucket
from tiered.s3.owned import OwnedS3Blobs
from tiered.settings import S3Settings
from tiered.testing.contracts.whole_blobs import read, store

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
RUNTIME = SystemRuntime()
OURS, THEIRS = "postgres:host/db/ours", "postgres:host/db/theirs"
WANTED = Provisioning()


def settings(url: str, prefix: str = "", bucket: str | None = None) -> S3Settings:
    return S3Settings(
        bucket=bucket or f"bucket-{ChangeId.new(RUNTIME)}", prefix=prefix, endpoint=url, region=REGION, addressing_style="path",
        whole_checksums=False,
    )  # fmt: skip


@asynccontextmanager
async def owned(at: S3Settings, owner: str = OURS) -> AsyncIterator[OwnedS3Blobs]:
    assert at.endpoint is not None
    async with s3_blobs(at.endpoint, at.bucket, RUNTIME, prefix=at.prefix, whole_checksums=False) as blobs:
        yield OwnedS3Blobs(blobs, at.bucket, at.prefix, owner)


@pytest.mark.parametrize("server", ["moto", "versitygw"])
async def test_a_bucket_is_made_given_to_its_store_and_found_as_it_must_be(request: pytest.FixtureRequest, server: str) -> None:
    at = settings(request.getfixturevalue(f"{server}_url"))
    assert "there is no bucket" in problems(await inspect_bucket(at, RUNTIME, OURS))[0]
    assert [each.kind for each in await provision_bucket(at, RUNTIME, OURS, Provisioning(dry_run=True))] == [NoticeKind.PLANNED] * 2
    made = await provision_bucket(at, RUNTIME, OURS, WANTED)
    assert problems(made) == []
    told = " ".join(each.sentence for each in made)
    if server == "moto":
        assert sum(each.kind is NoticeKind.DONE for each in made) == 3 and "uploads in parts are ended after 30 days" in told
    else:  # it has no lifecycle rules: nobody says that one was added, nor that a right is missing
        assert sum(each.kind is NoticeKind.DONE for each in made) == 2 and "ended after" not in told and "allow this identity" not in told
        assert "the service has none (NotImplemented)" in told and "so nobody knows whether" in told
    assert f"belongs to the store of {OURS}" in problems(await inspect_bucket(at, RUNTIME, THEIRS))[0]
    request.getfixturevalue("tried")
    assert problems(await inspect_bucket(at, RUNTIME, OURS)) == []
    async with owned(at) as blobs:
        assert await blobs.check_owner() is None and (await blobs.list("", None, 10)).blobs == []


async def test_a_rule_that_may_not_be_added_is_a_problem_and_is_not_said_to_be_there(moto_url: str) -> None:
    async with FaultyProxy(moto_url).serve() as proxy:
        proxy.faults.append(ServiceFault("PUT", FaultKind.BEFORE, 403, "AccessDenied", "lifecycle"))
        made = await provision_bucket(settings(proxy.url), RUNTIME, OURS, WANTED)
        [problem] = problems(made)
        assert problem.startswith("could not add a lifecycle rule to bucket") and "AccessDenied" in problem
        assert [each.sentence for each in made if "keeps, and bills, for ever" in each.sentence] != []


@pytest.mark.parametrize("refused", [False, True])
async def test_the_rules_of_a_bucket_that_another_process_made_meanwhile_were_replaced(
    moto_url: str, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    async with FaultyProxy(moto_url).serve() as proxy, new_bucket(proxy.url, RUNTIME, whole_checksums=False) as theirs:
        ending = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 40}}
        rule = {"ID": "theirs", "Status": "Enabled", "Filter": {"Prefix": ""}, **ending}
        await theirs.client.call(
            "put_bucket_lifecycle_configuration", "adding theirs", effect=True, ChecksumAlgorithm="CRC32",
            LifecycleConfiguration={"Rules": [rule]},
        )  # fmt: skip
        looks = iter([True])  # the first look came before it was made
        monkeypatch.setattr(provision, "_is_missing", AsyncMock(side_effect=lambda *_: next(looks, False)))
        if refused:
            proxy.faults.append(ServiceFault("PUT", FaultKind.BEFORE, 409, "OperationAborted"))
        made = await provision_bucket(settings(proxy.url, bucket=theirs.client.bucket), RUNTIME, OURS, WANTED)
        kept = await theirs.client.call("get_bucket_lifecycle_configuration", "reading the rules")
        assert not isinstance(kept, tuple) and [each["ID"] for each in kept["Rules"]] == ["theirs"]
        told = " ".join(each.sentence for each in made)
        assert "added a lifecycle rule" not in told
        assert ("could not create bucket" if refused else "has lifecycle rules already, and they are not changed") in told


@pytest.mark.usefixtures("tried")
@pytest.mark.parametrize("call", ["PutObject", "CompleteMultipartUpload"])
async def test_a_service_that_ignores_the_condition_is_refused(moto_url: str, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(s3_probes, "PROBES", [each for each in s3_probes.PROBES if each.name in ("an object", call)])
    async with FaultyProxy(moto_url, without={"If-None-Match"}, of="PUT" if call == "PutObject" else "POST").serve() as proxy:
        at = settings(proxy.url)
        await make_bucket(proxy.url, at.bucket)
        found = problems(await inspect_bucket(at, RUNTIME, None))
        assert f"ignores If-None-Match in {call}, so a write that arrives late would replace a blob" in found[0]
        async with s3_blobs(moto_url, at.bucket, RUNTIME) as blobs:
            assert (await blobs._page("listing everything", "")).items == (), "what was tried is removed"


@pytest.mark.usefixtures("tried")
async def test_a_service_that_tells_a_wrong_checksum_is_a_problem_that_names_the_setting(moto_url: str) -> None:
    at = settings(moto_url).model_copy(update={"whole_checksums": True})
    await make_bucket(moto_url, at.bucket)
    assert ["s3.whole_checksums: false" in each for each in problems(await inspect_bucket(at, RUNTIME, None))] == [True]


async def test_two_stores_in_one_bucket_see_and_collect_only_their_own(versitygw_url: str) -> None:
    first = settings(versitygw_url, "a/")
    second = settings(versitygw_url, "b/", first.bucket)
    await make_bucket(versitygw_url, first.bucket)
    for at, owner in ((first, OURS), (second, THEIRS)):
        assert problems(await provision_bucket(at, RUNTIME, owner, WANTED)) == []
    expired = Metadata(TimeToLive(ns=1), time_expires_ns=1_700_000_000 * NS_PER_S)
    async with owned(first) as ours, owned(second, THEIRS) as theirs:
        for blobs in (ours, theirs):
            await store(blobs, "u/objects/kept", b"kept")
            await store(blobs, "u/objects/expired", b"expired", expired)
        assert await ours.collect(100) == 2
        assert [each.name for each in (await ours.list("", None, 10)).blobs] == ["u/objects/kept"]
        assert [each.name for each in (await theirs.list("u/", None, 10)).blobs] == ["u/objects/expired", "u/objects/kept"]
        assert await read(ours, "u/objects/kept") == b"kept"
    async with owned(first, THEIRS) as stranger:
        for wrong in (stranger.delete("u/objects/kept"), stranger.collect(1), store(stranger, "u/objects/new")):
            with pytest.raises(ConfigurationError, match="belongs to the store of"):
                await wrong
        assert await read(stranger, "u/objects/kept") == b"kept"


async def test_what_lies_in_a_bucket_is_taken_only_if_somebody_says_so(versitygw_url: str) -> None:
    at = settings(versitygw_url)
    await make_bucket(versitygw_url, at.bucket)
    async with s3_blobs(versitygw_url, at.bucket, RUNTIME) as blobs:
        await store(blobs, "u/objects/old")
    assert "--adopt-bucket" in problems(await provision_bucket(at, RUNTIME, OURS, WANTED))[0]
    assert problems(await provision_bucket(at, RUNTIME, OURS, Provisioning(adopt=True))) == []
    taken = await provision_bucket(at, RUNTIME, THEIRS, Provisioning(adopt_from=OURS))
    assert problems(taken) == [] and problems(await inspect_bucket(at, RUNTIME, THEIRS)) == []


async def test_a_blob_that_is_not_in_a_bucket_of_nobody_was_called_lost(moto_url: str) -> None:
    """A reader's settings named another bucket, and somebody was woken for lost data."""
    at = settings(moto_url)
    await make_bucket(moto_url, at.bucket)
    async with owned(at) as blobs:
        for look in (blobs.head, blobs.open):
            with pytest.raises(ConfigurationError, match="says nothing, because no store owns"):
                await look("media/objects/a/0123")
    assert problems(await provision_bucket(at, RUNTIME, OURS, WANTED)) == []
    async with owned(at, THEIRS) as blobs:
        with pytest.raises(ConfigurationError, match="belongs to the store of"):
            await blobs.head("media/objects/a/0123")
    async with owned(at) as blobs:
        assert await blobs.head("media/objects/a/0123") is None and await blobs.open("media/objects/a/0123") is None
        async with s3_blobs(moto_url, at.bucket, RUNTIME) as whole:
            await whole.delete("~owners/owner")
        assert await blobs.head("media/objects/a/0123") is None, "it was this store's, and somebody emptied it"
