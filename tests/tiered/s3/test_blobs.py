"""What S3 has of its own: deadlines beside the blobs, versions, amendments, the copies of an audit."""

from __future__ import annotations

from datetime import timedelta

import pytest

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime
from tests.given.s3_buckets import new_bucket
from tiered.metadata import NS_PER_S, Metadata, TimeToIdle, TimeToLive
from tiered.s3.blobs import S3Blobs
from tiered.services.scans import NotCopied, Removal
from tiered.testing.contracts.whole_blobs import begin, read, store

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
LONG_AGO_NS = 1_700_000_000 * NS_PER_S
HOUR_NS = 3600 * NS_PER_S
RUNTIME = SystemRuntime()


async def put_whole(blobs: S3Blobs, name: str, payload: bytes, metadata: Metadata) -> None:
    upload = await blobs.open_upload(name, metadata, len(payload))
    await upload.write(payload)
    await upload.finalise()


async def keys(blobs: S3Blobs) -> list[str]:
    """All objects of the bucket, also those that are hidden."""
    page = await blobs._page("listing everything", "")
    return [each["Key"] for each in page.items]


async def test_what_expired_an_hour_ago_is_collected_with_its_deadlines_and_nothing_else(blobs: S3Blobs, name: str) -> None:
    now_ns = RUNTIME.wall_ns()
    deadlines = {"long": LONG_AGO_NS, "just": now_ns - HOUR_NS // 2, "later": now_ns + HOUR_NS}
    for key, deadline_ns in deadlines.items():
        await put_whole(blobs, f"{name}-{key}", b"x", Metadata(TimeToLive(ns=1), time_expires_ns=deadline_ns))
    await store(blobs, f"{name}-touched", b"x", Metadata(TimeToIdle(ns=1), time_expires_ns=LONG_AGO_NS))
    await blobs.touch(f"{name}-touched", now_ns + HOUR_NS)
    await store(blobs, f"{name}-never")
    assert await blobs.collect(1000) == 2
    assert [each.name for each in (await blobs.list("", None, 10)).blobs] == [
        f"{name}-{key}" for key in ("just", "later", "never", "touched")
    ]
    assert not any("-long" in each for each in await keys(blobs))
    assert await blobs.collect(1000) == 0


async def test_a_deadline_without_a_blob_is_collected_and_a_late_blob_gets_its_own_again(blobs: S3Blobs, name: str) -> None:
    session = await blobs.begin_parts(name, Metadata(TimeToLive(ns=1), time_expires_ns=LONG_AGO_NS))
    assert len(await keys(blobs)) == 1
    await blobs.collect(1000)
    assert await keys(blobs) == []
    part = await blobs.put_part(name, session, 1, [b"late"])
    await blobs.complete_parts(name, session, [part])
    assert [each.deadline_ns for each in (await blobs.list("", None, 10)).blobs] == [LONG_AGO_NS]
    await blobs.collect(1000)
    assert await keys(blobs) == [], "it does not stay for ever"


async def test_touches_leave_one_deadline_and_the_latest_counts(blobs: S3Blobs, name: str) -> None:
    idle = Metadata(TimeToIdle(timedelta(days=1)), time_expires_ns=LONG_AGO_NS)
    await store(blobs, name, b"x", idle)
    for hours in (1, 3, 2):
        assert await blobs.touch(name, LONG_AGO_NS + hours * HOUR_NS)
    head = await blobs.head(name)
    assert head is not None and head.metadata.time_expires_ns == LONG_AGO_NS + 3 * HOUR_NS
    assert len(await keys(blobs)) == 2


async def test_an_amendment_goes_with_its_blob(blobs: S3Blobs, name: str) -> None:
    upload = await begin(blobs, name, b"payload")
    upload.amend(Metadata(custom={"last": "ü"}))
    await upload.finalise()
    head = await blobs.head(name)
    assert head is not None and head.metadata.custom == {"last": "ü"}
    assert len(await keys(blobs)) == 2 and [each.name for each in (await blobs.list("", None, 10)).blobs] == [name]
    copy = await blobs.open_copy(name, head.generation, f"{name}-copy", Metadata(custom=head.metadata.custom))
    await copy.finalise()
    copied = await blobs.head(f"{name}-copy")
    assert copied is not None and copied.metadata.custom == {"last": "ü"}


@pytest.mark.parametrize("size", [0, 7, 6 << 20])
@pytest.mark.parametrize("whole", [True, False], ids=["put whole", "in parts"])
async def test_a_blob_that_is_brought_back_in_the_same_second_is_another_generation(
    blobs: S3Blobs, name: str, size: int, whole: bool
) -> None:
    payload = bytes(size)
    await (put_whole(blobs, name, payload, Metadata()) if whole else store(blobs, name, payload))
    first = await blobs.head(name)
    assert first is not None
    copy = await blobs.set_aside(name, first.generation, "~quarantine/x")
    assert not isinstance(copy, NotCopied)
    assert await blobs.delete_generation(name, first.generation) is Removal.DELETED
    back = await blobs.bring_back("~quarantine/x", copy, name, 0)
    assert not isinstance(back, NotCopied) and back.partition("@")[0] != first.generation.partition("@")[0]
    assert await blobs.delete_generation(name, first.generation) is Removal.REPLACED
    assert await read(blobs, name) == payload


async def test_metadata_that_are_too_much_are_refused_before_anything_is_sent(blobs: S3Blobs, name: str) -> None:
    noise = Metadata(custom={"key": "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(2000))})
    for size in (5, None):
        with pytest.raises(InvalidRequestError, match="2048"):
            await blobs.open_upload(name, noise, size)


@pytest.mark.parametrize("server", ["moto", "versitygw"])
async def test_where_versions_are_kept_a_deletion_leaves_none_and_no_marker(
    request: pytest.FixtureRequest, server: str, name: str
) -> None:
    url, is_moto = request.getfixturevalue(f"{server}_url"), server == "moto"
    async with new_bucket(url, RUNTIME, versions=True, whole_checksums=not is_moto) as blobs:
        for each in (name, f"{name}-longer"):
            await put_whole(blobs, each, b"payload", Metadata())
        await blobs.delete(name)
        await blobs.delete(name)
        assert await blobs.open(name) is None and await read(blobs, f"{name}-longer") == b"payload"
        kept = await blobs.client.call("list_object_versions", "listing versions", Prefix=name)
        assert not isinstance(kept, tuple)
        assert [each["Key"] for each in kept.get("Versions", ())] == [f"{name}-longer"] and not kept.get("DeleteMarkers")
        head = await blobs.head(f"{name}-longer")
        assert head is not None and await blobs.delete_generation(f"{name}-longer", head.generation) is Removal.DELETED
        kept = await blobs.client.call("list_object_versions", "listing versions", Prefix=name)
        assert not isinstance(kept, tuple) and not kept.get("Versions") and not kept.get("DeleteMarkers")


async def test_sessions_of_one_name_are_on_one_page_and_pages_end_between_names(versitygw_url: str, name: str) -> None:
    async with new_bucket(versitygw_url, RUNTIME) as blobs:
        begun = [await blobs.begin_parts(f"{name}{at}", Metadata()) for at in (1, 2, 2, 3, 3, 4)]
        later_ns, after, pages = RUNTIME.wall_ns() + HOUR_NS, "", list[list[str]]()
        while len(pages) < 10:
            page = await blobs.open_sessions(later_ns, after, 3)
            pages.append([each.session for each in page.sessions])
            if page.next_after is None:
                break
            after = page.next_after
        assert [len(page) for page in pages] == [1, 2, 3] and sorted(each for page in pages for each in page) == sorted(begun)
