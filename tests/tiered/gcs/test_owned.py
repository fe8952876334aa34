"""The blobs of one store in a bucket that others use, too: names, owners, and what is refused before it is sent."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from changelog.base.errors import ConfigurationError, InvalidRequestError, UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from tests.given.owned_bucket import OTHER, OWNER, give, owned_blobs
from tiered.buckets.owners import Marker, conflict, decode_markers, encode_marker, marker_name
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.owned import OwnedBlobs
from tiered.metadata import Metadata
from tiered.services.capabilities import Ownership
from tiered.services.scans import BlobPage, ListedBlob, NotCopied, Oddity

pytestmark = pytest.mark.anyio

RUNTIME = SystemRuntime()


async def store(blobs: OwnedBlobs, name: str, payload: bytes = b"payload") -> None:
    upload = await blobs.open_upload(name, Metadata(), len(payload))
    await upload.write(payload)
    await upload.finalise()


def names(server: GcsEmulator) -> list[str]:
    return sorted(server.buckets["blobs"].objects)


# --- owners --------------------------------------------------------------------------------------


def changes(blobs: OwnedBlobs) -> list[Callable[[], Awaitable[object]]]:
    return [
        partial(store, blobs, "p/objects/k/new"), partial(blobs.delete, "p/objects/k/1"),
        partial(blobs.delete_generation, "p/objects/k/1", "1"), partial(blobs.delete_generations, [("p/objects/k/1", "1")]),
        partial(blobs.set_aside, "p/objects/k/1", "1", "~quarantine/x"),
        partial(blobs.bring_back, "~quarantine/x", "1", "p/objects/k/1", 0),
        partial(blobs.open_copy, "p/objects/k/1", "1", "p/objects/k/2", Metadata()), partial(blobs.touch, "p/objects/k/1", 5),
        partial(blobs.restore, "p/objects/k/1", "1"),
    ]  # fmt: skip


@pytest.mark.parametrize("owner", [None, OTHER])
async def test_a_store_changed_and_deleted_blobs_that_were_not_its_own(server: GcsEmulator, owner: str | None) -> None:
    server.buckets["blobs"].insert("p/objects/k/1", b"theirs", {}, {}, (), 1)
    if owner is not None:
        give(server, owner=owner)
    before = names(server)
    async with owned_blobs(server, RUNTIME) as blobs:
        for change in changes(blobs):
            server.calls.clear()
            with pytest.raises(ConfigurationError, match="no store owns gs://blobs/ yet" if owner is None else f"belongs to .*{OTHER}"):
                await change()
            assert server.calls == ["object.list"], "nothing else was sent"
        assert await blobs.head("p/objects/k/1") is not None, "reading needs no owner"
    assert names(server) == before


async def test_a_blob_of_a_usecase_that_is_called_as_markers_are_was_not_listed(server: GcsEmulator) -> None:
    give(server)
    theirs = "~owners/org.1/objects/k/019a0000-0000-7000-8000-000000000001"
    server.buckets["blobs"].insert(theirs, b"theirs", {}, {}, (), 1)
    async with owned_blobs(server, RUNTIME) as blobs:
        assert [blob.name for blob in (await blobs.list("", None, 10)).blobs] == [theirs]


async def test_the_owner_is_asked_for_once(server: GcsEmulator) -> None:
    give(server)
    async with owned_blobs(server, RUNTIME) as blobs:
        assert isinstance(blobs, Ownership) and await blobs.check_owner() is None
        server.calls.clear()
        await store(blobs, "a/objects/k/1")
        await blobs.delete("a/objects/k/1")
    assert "object.list" not in server.calls


async def test_an_owner_that_cannot_be_asked_for_is_asked_for_again_by_the_next_change(server: GcsEmulator) -> None:
    give(server)
    async with owned_blobs(server, RUNTIME) as blobs:
        server.faults.append(GcsFault(FaultMode.STATUS, "object.list", status=503))
        with pytest.raises(UnavailableError):
            await store(blobs, "a/objects/k/1")
        server.faults.clear()
        await store(blobs, "a/objects/k/1")
    assert "a/objects/k/1" in names(server)


@pytest.mark.parametrize(
    ("theirs", "ours", "said"),
    [
        ("", "a/", "gs://blobs/a/ lies in gs://blobs/, which belongs to"), ("a/", "", "gs://blobs/ holds gs://blobs/a/, which belongs to"),
        ("a/", "a/b/c/", "gs://blobs/a/b/c/ lies in gs://blobs/a/"), ("a/b/c/", "a/", "gs://blobs/a/ holds gs://blobs/a/b/c/"),
        ("a/", "a/", "gs://blobs/a/ belongs to"), ("", "", "gs://blobs/ belongs to"), ("a/", "b/", None), ("a/", "aa/", None),
        ("a/b/", "a/c/", None),
    ],
)  # fmt: skip
async def test_prefixes_of_two_stores_must_not_lie_in_each_other(server: GcsEmulator, theirs: str, ours: str, said: str | None) -> None:
    give(server, theirs, OTHER)
    if theirs != ours:
        give(server, ours)
    async with owned_blobs(server, RUNTIME, ours) as blobs:
        if said is None:
            assert await blobs.check_owner() is None
            return
        with pytest.raises(ConfigurationError, match=said) as refused:
            await blobs.check_owner()
        assert OTHER in str(refused.value)


def test_a_store_that_changes_its_prefix_must_not_lie_in_its_own_old_one() -> None:
    assert "lies in" in str(conflict([Marker("", OWNER, 1), Marker("a/", OWNER, 2)], "b", "a/", OWNER))


def test_a_marker_that_cannot_be_read_is_nobodys() -> None:
    metadata, _ = encode_marker("b", "", OWNER)
    odd: list[dict[str, Any]] = [
        {}, {"metadata": {}}, {"metadata": "x"}, {"metadata": {**metadata, "tiered-marker": "2"}}, {"metadata": {"tiered-marker": "1"}},
    ]  # fmt: skip
    for item in odd:
        markers = decode_markers([{"name": marker_name(""), **item}])
        assert markers == [Marker("", None, 0)]
        assert "nobody can tell who owns gs://b/: gs://b/~owners/owner is of newer software" in str(conflict(markers, "b", "a/", OWNER))
        assert conflict([Marker("z/", None, 0)], "b", "a/", OWNER) is None, "it concerns others"
    strange = ["~owners/", "~owners/x", "~owners/xowner", "~owners/a/", "~owners/a/owner/x"]
    assert decode_markers([{"name": name, "metadata": dict(metadata)} for name in strange]) == []


# --- names ---------------------------------------------------------------------------------------


def test_everything_that_the_bucket_can_do_is_given_its_prefix() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, inspect.iscoroutinefunction) if not name.startswith("_")}

    assert calls(GcsBlobs) - calls(OwnedBlobs) == {"owners", "entries", "names_below", "headers"}, "the rest is of a whole bucket"


async def test_markers_are_listed_as_no_blobs(server: GcsEmulator) -> None:
    for prefix in ("", "a/"):
        give(server, prefix)
    for name in ("a/objects/k", "~quarantine/x", "é/objects/k"):
        server.buckets["blobs"].insert(name, b"x", {}, {}, (), 1)
    server.buckets["blobs"].insert("~owners", b"x", {}, {}, (), 1)
    async with owned_blobs(server, RUNTIME) as blobs:
        for start, end, limit in (("", None, 1000), ("a", None, 1), ("~", "~~", 1000), ("~owners/", None, 1000), ("~p", None, 1000)):
            found, begin = list[str](), start
            while True:
                page = await blobs.list(begin, end, limit)
                found += [blob.name for blob in page.blobs]
                if page.next_start is None:
                    break
                begin = page.next_start
            every = ["a/objects/k", "~owners", "~quarantine/x", "é/objects/k"]
            assert found == [name for name in every if name >= start and (end is None or name < end)]


async def test_a_blob_whose_copy_in_quarantine_would_have_too_long_a_name_ended_every_deletion_with_an_error(server: GcsEmulator) -> None:
    give(server, "a/")
    async with owned_blobs(server, RUNTIME, "a/") as blobs:
        await store(blobs, "media/objects/k/1")
        head = await blobs.head("media/objects/k/1")
        assert head is not None
        before = names(server)
        fits, too_long = (f"~quarantine/{'l' * (1024 - len('a/~quarantine/') + more)}" for more in (0, 1))
        server.calls.clear()
        assert await blobs.set_aside("media/objects/k/1", head.generation, too_long) is NotCopied.TOO_LONG
        assert await blobs.head(too_long) is None and names(server) == before
        assert server.calls == [], "the service was not asked about a name that it never takes"
        assert isinstance(await blobs.set_aside("media/objects/k/1", head.generation, fits), str)


async def test_a_blob_that_cannot_be_read_is_named_without_the_prefix(server: GcsEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    async def odd(self: GcsBlobs, start: str, end: str | None, limit: int) -> BlobPage:
        assert (start, end) == ("a/", "a0")
        listed = ListedBlob("a/media/objects/k/2", 1, 2, None, "3")
        oddities = [Oddity("a/media/objects/k/1", "broken", is_blob=True), Oddity("{'odd': 1}", "no name", is_blob=False)]
        return BlobPage([listed], oddities, "a/media/objects/k/2\0")

    give(server, "a/")
    monkeypatch.setattr(GcsBlobs, "list", odd)
    async with owned_blobs(server, RUNTIME, "a/") as blobs:
        page = await blobs.list("", None, 10)
    assert [odd.name for odd in page.oddities] == ["media/objects/k/1", "{'odd': 1}"]
    assert page.blobs == [ListedBlob("media/objects/k/2", 1, 2, None, "3")] and page.next_start == "media/objects/k/2\0"


async def test_a_name_that_is_too_long_with_its_prefix_was_sent_and_refused_by_the_service(server: GcsEmulator) -> None:
    prefix = "p" * 99 + "/"
    give(server, prefix)
    async with owned_blobs(server, RUNTIME, prefix) as blobs:
        await store(blobs, "k" * 924)
        server.calls.clear()
        with pytest.raises(InvalidRequestError, match="1025 bytes, and GCS takes 1024: shorten the key or the scopes by 1"):
            await store(blobs, "é" * 462 + "k")
    assert server.calls == []
