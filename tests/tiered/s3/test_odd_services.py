"""Services that answer within the rules of S3, in ways that no emulator shows, and buckets that others have set up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from unittest.mock import AsyncMock
from urllib.parse import unquote, urlsplit

import pytest

from changelog.base.errors import ConfigurationError, InvalidRequestError, UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.s3.faults import FaultKind, FaultyProxy, ServiceFault
from emulators.s3.servers import REGION
from tests.given.s3_buckets import delete_by_hand, new_bucket
from tiered.buckets.owners import encode_marker, marker_name
from tiered.metadata import NS_PER_S, Metadata, TimeToIdle
from tiered.object_id import blob_name
from tiered.provision.findings import problems
from tiered.provision.s3 import inspect_bucket
from tiered.s3.blobs import S3Blobs
from tiered.s3.format import PROBES
from tiered.services.scans import Removal
from tiered.settings import S3Settings
from tiered.testing.contracts.whole_blobs import begin, read, store

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
RUNTIME = SystemRuntime()
LONG_AGO_NS = 1_700_000_000 * NS_PER_S
HOUR_NS = 3600 * NS_PER_S
ODD_KEYS = ["a b", "a+b%2B", "ü€😀", "a//b/", "<&>\"'", "%2e%2e"]


async def test_a_service_that_lists_one_object_at_a_time_hides_no_deadline_and_no_owner(moto_url: str, name: str) -> None:
    async with FaultyProxy(moto_url).serve() as proxy, new_bucket(proxy.url, RUNTIME, whole_checksums=False) as blobs:
        await store(blobs, name, b"x", Metadata(TimeToIdle(ns=1), time_expires_ns=LONG_AGO_NS))
        later_ns = RUNTIME.wall_ns() // NS_PER_S * NS_PER_S + HOUR_NS
        await blobs._mark(name, later_ns)  # as a touch leaves both, if it may not remove the first
        for prefix in ("a/", "b/"):
            metadata, text = encode_marker("s3://bucket", prefix, f"store {prefix}")
            await blobs.client.call(
                "put_object", "giving it", effect=True, body=text, ContentLength=len(text), Key=marker_name(prefix), Metadata=dict(metadata)
            )
        proxy.page_max = 1
        head = await blobs.head(name)
        assert head is not None and head.metadata.time_expires_ns == later_ns
        assert await blobs.collect(100) == 0, "it lives"
        assert await read(blobs, name) == b"x"
        assert [each.prefix for each in await blobs.owners()] == ["a/", "b/"]


async def test_where_versions_are_kept_a_blob_of_any_name_is_deleted_with_all_of_them(moto_url: str) -> None:
    async with FaultyProxy(moto_url).serve() as proxy, new_bucket(proxy.url, RUNTIME, versions=True, whole_checksums=False) as blobs:
        proxy.encodes = True
        names = [blob_name(f"u/objects/{key}", ChangeId.new(RUNTIME)) for key in ODD_KEYS]
        for each in names:
            await store(blobs, each)
        assert [each.name for each in (await blobs.list("", None, 100)).blobs] == sorted(names, key=str.encode)
        for each in names[1:]:
            await blobs.delete(each)
        kept = await blobs.client.call("list_object_versions", "listing versions")
        assert not isinstance(kept, tuple)
        assert [each["Key"] for each in kept.get("Versions", ())] == names[:1] and not kept.get("DeleteMarkers")


@pytest.mark.usefixtures("tried")
async def test_to_check_a_bucket_that_keeps_versions_leaves_none(versitygw_url: str) -> None:
    async with new_bucket(versitygw_url, RUNTIME, versions=True) as blobs:
        at = S3Settings(bucket=blobs.client.bucket, endpoint=versitygw_url, region=REGION, addressing_style="path")
        await inspect_bucket(at, RUNTIME, None)
        kept = await blobs.client.call("list_object_versions", "listing versions")
        assert not isinstance(kept, tuple)
        left = [each["Key"] for key in ("Versions", "DeleteMarkers") for each in kept.get(key, ())]
        # versitygw tells other names of these than they have, so nobody finds their versions
        assert [each for each in left if not each.endswith(("\ufffd/x", "names/x", "slashes/x"))] == []


async def test_what_a_check_that_was_killed_left_behind_is_collected_a_day_later(
    blobs: S3Blobs, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store(blobs, name)
    for key in ("whole", "parts"):
        await blobs.client.call("put_object", "as a check does", effect=True, body=b"x", ContentLength=1, Key=f"{PROBES}{name[-36:]}/{key}")
    assert await blobs.collect(100) == 0, "a check may be under way"
    now_ns = await blobs.now_ns()
    monkeypatch.setattr(blobs, "now_ns", AsyncMock(return_value=now_ns + 25 * HOUR_NS))
    assert await blobs.collect(100) == 2
    assert [each["Key"] for each in await blobs._all_below("listing everything", "")] == [name]


@pytest.mark.parametrize(("status", "code", "kind"), [
    (400, "ExpiredToken", UnavailableError), (403, "RequestTimeTooSkewed", UnavailableError), (403, "InvalidAccessKeyId", UnavailableError),
    (403, "AccessDenied", ConfigurationError),
])  # fmt: skip
async def test_what_a_head_cannot_say_is_asked_by_a_get(
    failing: S3Blobs, proxy: FaultyProxy, name: str, status: int, code: str, kind: type[Exception]
) -> None:
    await store(failing, name)
    refused = ServiceFault("HEAD", FaultKind.BEFORE, status)
    proxy.faults += [*[refused] * (1 + (status == 400)), ServiceFault("GET", FaultKind.BEFORE, status, code)]
    with pytest.raises(kind, match=code):
        await failing.head(name)
    assert not proxy.faults


async def test_a_stream_of_the_longest_name_is_read_back_and_what_comes_last_is_refused(moto_url: str) -> None:
    name = blob_name("u/objects/" + "k" * (1024 - 37 - 10), ChangeId.new(RUNTIME))
    async with FaultyProxy(moto_url).serve() as proxy, new_bucket(proxy.url, RUNTIME, whole_checksums=False) as blobs:
        await store(blobs, name, b"payload")
        assert await read(blobs, name) == b"payload" and (await blobs.head(name)) is not None
        upload = await begin(blobs, f"{name[:-1]}0", b"payload")
        upload.amend(Metadata(custom={"last": "word"}))
        with pytest.raises(InvalidRequestError, match="by 20 bytes"):
            await upload.finalise()
        names = [unquote(urlsplit(each.partition(" ")[2]).path).partition("/")[2].partition("/")[2] for each in proxy.seen]
        assert max(len(each.encode()) for each in names) == len(name) == 1024, "S3 refuses longer names, and this emulator does not"


async def test_a_rule_that_moves_blobs_to_an_archive_is_a_problem_and_such_a_blob_says_so(moto_url: str, name: str) -> None:
    async with FaultyProxy(moto_url).serve() as proxy, new_bucket(proxy.url, RUNTIME, whole_checksums=False) as blobs:
        for storage, expected in (("GLACIER_IR", []), ("DEEP_ARCHIVE", ["moves blobs to DEEP_ARCHIVE"])):
            rule = {
                "ID": "cold", "Status": "Enabled", "Filter": {"Prefix": "u/"}, "Transitions": [{"Days": 30, "StorageClass": storage}],
            }  # fmt: skip
            await blobs.client.call(
                "put_bucket_lifecycle_configuration", "adding a rule", effect=True, LifecycleConfiguration={"Rules": [rule]},
                ChecksumAlgorithm="CRC32",
            )  # fmt: skip
            found = problems(await inspect_bucket(settings_of(blobs, proxy), RUNTIME, None))
            assert len(found) == len(expected) and all(part in each for part, each in zip(expected, found, strict=True))
        await store(blobs, name)
        proxy.faults.append(ServiceFault("GET", FaultKind.BEFORE, 403, "InvalidObjectState"))
        with pytest.raises(ConfigurationError, match="archive"):
            await read(blobs, name)


async def test_credentials_that_have_expired_are_no_missing_bucket_and_no_broken_rule(moto_url: str) -> None:
    async with FaultyProxy(moto_url).serve() as proxy, new_bucket(proxy.url, RUNTIME) as blobs:
        proxy.faults += [ServiceFault(method, FaultKind.BEFORE, 400, "ExpiredToken") for method in ("HEAD", "HEAD", "GET")]
        [problem] = problems(await inspect_bucket(settings_of(blobs, proxy), RUNTIME, None))
        assert "the credentials have expired" in problem


def settings_of(blobs: S3Blobs, proxy: FaultyProxy) -> S3Settings:
    return S3Settings(bucket=blobs.client.bucket, endpoint=proxy.url, region=REGION, addressing_style="path", whole_checksums=False)


# --- names that a service changes

async def put_without_a_name(blobs: S3Blobs, name: str) -> None:
    """As an earlier release did."""
    await blobs.client.call("put_object", "putting a blob", effect=True, Key=name, body=b"payload", ContentLength=7)


@pytest.mark.parametrize("put", [store, put_without_a_name])
async def test_a_service_that_lists_a_blob_under_another_name_and_finds_it_so_never_loses_it(
    versitygw_url: str, put: Callable[[S3Blobs, str], Awaitable[None]]
) -> None:
    true = blob_name("u/objects/a//b", ChangeId.new(RUNTIME))
    async with new_bucket(versitygw_url, RUNTIME) as blobs:
        await put(blobs, true)
        [listed] = (await blobs.list("", None, 10)).blobs
        assert listed.name == true.replace("//", "/") and await blobs.head(listed.name) is not None, "this service does so"
        with pytest.raises(ConfigurationError, match="under another name"):
            await blobs.delete_generation(listed.name, listed.generation)
        assert await read(blobs, true) is not None
        honest = blob_name("u/objects/k", ChangeId.new(RUNTIME))
        await store(blobs, honest)
        head = await blobs.head(honest)
        assert head is not None and await blobs.delete_generation(honest, head.generation) is Removal.DELETED


# --- what somebody else deleted

SERVICES = pytest.mark.parametrize("service", ["moto", "versitygw"])


@SERVICES
async def test_where_versions_are_kept_what_was_deleted_by_hand_is_restored_whole(
    service: str, request: pytest.FixtureRequest, name: str
) -> None:
    url = request.getfixturevalue(f"{service}_url")
    metadata = Metadata(TimeToIdle(ns=HOUR_NS), time_expires_ns=RUNTIME.wall_ns() + HOUR_NS, custom={"a": "b"})
    async with new_bucket(url, RUNTIME, versions=True, whole_checksums=service != "moto") as blobs:
        upload = await blobs.open_upload(name, metadata, None)
        await upload.write(b"payload")
        upload.amend(metadata.with_facts(filename="known at the end"))
        await upload.finalise()
        before = await blobs.head(name)
        assert before is not None and before.metadata.filename == "known at the end"
        assert await blobs.deleted_generations(name) == []
        assert await blobs.restore(name, before.generation) is None, "it is there"
        for each in (await blobs._page("listing everything", "")).items:
            for _ in range(2):  # the second deletion puts one more marker there
                delete_by_hand(blobs, each["Key"])
        assert await blobs.head(name) is None and not (await blobs._page("listing everything", "")).items
        [kept] = await blobs.deleted_generations(name)
        # Of a version, versitygw tells the second in which it was deleted: one second later, the generation is another.
        assert service == "versitygw" or kept.generation == before.generation
        assert kept.generation.partition("@")[0] == before.generation.partition("@")[0]
        assert (kept.size, kept.kept_until_ns) == (7, None)
        assert await blobs.restore(name, f"{kept.generation}1") is None and await blobs.head(name) is None
        restored, after = await blobs.restore(name, kept.generation), await blobs.head(name)
        assert after is not None and restored == after.generation and await read(blobs, name) == b"payload"
        assert (after.size, after.checksum) == (7, before.checksum)
        assert after.metadata == before.metadata.with_facts(time_created_ns=after.metadata.time_created_ns)
        assert await blobs.restore(name, kept.generation) is None and await blobs.deleted_generations(name) == []
        await blobs.delete(name)
        assert await blobs.deleted_generations(name) == [], "this store deletes all versions"
        assert await blobs.restore(name, kept.generation) is None


@SERVICES
async def test_what_has_the_name_by_now_is_not_restored_over(service: str, request: pytest.FixtureRequest, name: str) -> None:
    url = request.getfixturevalue(f"{service}_url")
    async with new_bucket(url, RUNTIME, versions=True, whole_checksums=service != "moto") as blobs:
        await store(blobs, name, b"first")
        delete_by_hand(blobs, name)
        [kept] = await blobs.deleted_generations(name)
        await put_without_a_name(blobs, name)
        assert await blobs.deleted_generations(name) == [] and await blobs.restore(name, kept.generation) is None
        assert await read(blobs, name) == b"payload"
