"""The policies in `deploy/iam/s3-*.json`: each identity can do its work with its actions, and not with fewer.

The blobs are in moto's server. What an action does not allow is refused where `S3Client` sends it, as AWS would refuse
it. Which action a request needs is AWS's documentation; nothing here was ever granted on AWS.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from changelog.sqlite.database import Database
from changelog.sqlite.log import SqliteChangeLog
from tests.deploy.test_rights_suffice import LARGE, OBJECT, plant_what_dead_writers_leave, recovered, settings, write_and_read
from tests.given.repository import ROOT
from tests.given.s3_buckets import delete_by_hand, new_bucket
from tiered import Metadata, Settings, TieredStorage
from tiered.embedded.rows import SqliteRows
from tiered.exports import export_objects, exporting
from tiered.exports.places import PrefixPlace
from tiered.open import Backends
from tiered.s3.blobs import S3Blobs
from tiered.s3.errors import Refusal
from tiered.services.backends import Tiers
from tiered.services.scans import Removal
from tiered.testing import memory_storage

__all__ = ["settings"]  # a fixture
pytestmark = [pytest.mark.anyio, pytest.mark.slow]
RUNTIME = SystemRuntime()

OF_OBJECTS = {
    "put_object": {"PutObject"}, "get_object": {"GetObject"}, "head_object": {"GetObject"}, "create_multipart_upload": {"PutObject"},
    "upload_part": {"PutObject"}, "upload_part_copy": {"PutObject", "GetObject"}, "complete_multipart_upload": {"PutObject"},
    "list_parts": {"ListMultipartUploadParts"}, "abort_multipart_upload": {"AbortMultipartUpload"}, "delete_object": {"DeleteObject"},
}  # fmt: skip
OF_BUCKETS = {
    "list_objects_v2": {"ListBucket"}, "list_object_versions": {"ListBucketVersions"},
    "list_multipart_uploads": {"ListBucketMultipartUploads"},
}  # fmt: skip
"""The actions that each request of `tiered/s3` needs, on the objects and on the bucket."""

OF_A_VERSION = {"delete_object": {"DeleteObjectVersion"}, "get_object": {"GetObjectVersion"}}
"""What a request needs that names a version."""

BUCKETS = set[str]().union(*OF_BUCKETS.values())
WANTED = {
    "reader": {"GetObject", "ListBucket", "ListBucketVersions"},
    "writer": set[str]().union(*OF_OBJECTS.values(), *OF_A_VERSION.values()) | BUCKETS,
    "sweeper": {"GetObject", "DeleteObject", "AbortMultipartUpload"} | OF_A_VERSION["delete_object"] | BUCKETS,
}


def granted(role: str) -> set[str]:
    return {action.removeprefix("s3:") for each in policy(role)["Statement"] for action in each["Action"]}


def policy(role: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"deploy/iam/s3-{role}.json").read_text())
    return found


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def blobs(anyio_backend: str, moto_url: str) -> AsyncIterator[S3Blobs]:
    async with new_bucket(moto_url, RUNTIME, versions=True, whole_checksums=False) as blobs:
        yield blobs


@pytest.fixture
async def backends(blobs: S3Blobs, tmp_path: Path) -> AsyncIterator[Backends]:
    async with Database.open(tmp_path / "rows.db", RUNTIME) as database:
        yield Backends(Tiers(SqliteRows(database, RUNTIME), blobs), SqliteChangeLog(database, RUNTIME))


@contextmanager
def only(blobs: S3Blobs, actions: Iterable[str]) -> Any:
    """What these actions do not allow is refused in the block. Yields the actions that were needed."""
    client, allowed, needed = blobs.client, set(actions), set[str]()
    call, open_body = client.call, client.open_body

    def refused(operation: str, named: dict[str, Any]) -> bool:
        wanted = (OF_OBJECTS | OF_BUCKETS)[operation] if "VersionId" not in named else OF_A_VERSION[operation]
        needed.update(wanted)
        return not wanted <= allowed

    async def limited(operation: str, doing: str, *, effect: bool = False, accept: Any = (), **named: Any) -> Any:
        if refused(operation, named):
            return await client._expected(Refusal(403, "AccessDenied", ""), doing, accept, named, effect=effect)
        return await call(operation, doing, effect=effect, accept=accept, **named)

    async def limited_body(doing: str, *, accept: Any = (), **named: Any) -> Any:
        if refused("get_object", named):
            return await client._expected(Refusal(403, "AccessDenied", ""), doing, accept, named, effect=False)
        return await open_body(doing, accept=accept, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "call", limited)
        patch.setattr(client, "open_body", limited_body)
        yield needed


def test_every_request_of_the_adapter_is_known_and_its_actions_are_granted_and_no_others() -> None:
    text = "\n".join(path.read_text() for path in sorted((ROOT / "tiered/s3").glob("*.py")))
    asked = set(re.findall(r'\.(?:call|sign)\(\s*"(\w+)"', text)) | ({"get_object"} if ".open_body(" in text else set())
    assert asked == {*OF_OBJECTS, *OF_BUCKETS}
    assert {path.stem.removeprefix("s3-") for path in (ROOT / "deploy/iam").glob("s3-*.json")} == set(WANTED)
    assert {role: granted(role) for role in WANTED} == WANTED
    assert not granted("sweeper") & {"PutObject"} and not any(action.startswith("Delete") for action in granted("reader"))


@pytest.mark.parametrize("role", WANTED)
def test_an_action_is_granted_on_what_it_is_about(role: str) -> None:
    found = policy(role)
    assert set(found) == {"Version", "Statement"} and found["Version"] == "2012-10-17"
    for each in found["Statement"]:
        assert each["Effect"] == "Allow" and each["Action"] == sorted(each["Action"])
        is_about_the_bucket = {action.removeprefix("s3:") for action in each["Action"]} <= BUCKETS
        assert each["Resource"] == ("arn:aws:s3:::my-blobs" if is_about_the_bucket else "arn:aws:s3:::my-blobs/*")


async def test_a_writer_needs_no_more_than_its_policy(blobs: S3Blobs, backends: Backends, settings: Settings) -> None:
    with only(blobs, granted("writer")) as needed:
        await write_and_read(backends, settings)
        session = await blobs.begin_parts("cat", Metadata())
        await blobs.put_part("cat", session, 1, [LARGE])
        await blobs.complete_parts("cat", session, await blobs.parts("cat", session))
        await blobs.cancel(await blobs.begin_parts("dog", Metadata()))
        await blobs.open_sessions(0, "", 10)
        assert await blobs.owners() == []
        delete_by_hand(blobs, "cat")
        [kept] = await blobs.deleted_generations("cat")
        assert await blobs.restore("cat", kept.generation) == kept.generation
    assert needed == granted("writer")
    for action in ("PutObject", "GetObject"):
        with only(blobs, granted("writer") - {action}), pytest.raises(ConfigurationError, match="s3:PutObject"):
            await write_and_read(backends, settings)


async def test_a_reader_and_an_audit_only_look(blobs: S3Blobs, backends: Backends, settings: Settings) -> None:
    async with TieredStorage(backends.tiers, backends.log, RUNTIME, settings) as storage:
        await storage.put(OBJECT, LARGE)
        with only(blobs, granted("reader")) as needed:
            stored = await storage.get(OBJECT)
            assert stored is not None and await stored.read() == LARGE
            [blob] = (await blobs.list("", None, 10)).blobs
            assert await blobs.head(blob.name) is not None and await blobs.head(f"{blob.name}x") is None
            assert await blobs.owners() == [] and await blobs.deleted_generations(blob.name) == []
            with pytest.raises(ConfigurationError, match="s3:DeleteObject"):
                await blobs.delete(blob.name)
    assert needed == granted("reader") | {"DeleteObject"}


async def test_who_deletes_after_an_audit_sets_aside_and_brings_back_as_a_writer(blobs: S3Blobs) -> None:
    upload = await blobs.open_upload("cat", Metadata(), len(LARGE))
    await upload.write(LARGE)
    await upload.finalise()
    found = await blobs.head("cat")
    assert found is not None
    with only(blobs, granted("writer")):
        copied = await blobs.set_aside("cat", found.generation, "~quarantine/cat")
        assert isinstance(copied, str) and await blobs.delete_generation("cat", found.generation) is Removal.DELETED
        assert isinstance(await blobs.bring_back("~quarantine/cat", copied, "cat", 0), str)


async def test_the_daemon_cleans_up_with_the_policy_of_a_sweeper(blobs: S3Blobs, backends: Backends, settings: Settings) -> None:
    await plant_what_dead_writers_leave(backends)
    with only(blobs, granted("sweeper")) as needed:
        assert await recovered(backends, settings, within_s=60)
        await blobs.collect(100)
        assert not (await blobs.list("", None, 10)).blobs
    assert needed <= granted("sweeper")


async def test_an_export_needs_the_actions_that_the_guide_names(
    moto_url: str, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = {"PutObject", "GetObject", "DeleteObject", "ListBucket"}
    async with new_bucket(moto_url, RUNTIME, whole_checksums=False) as blobs, memory_storage(settings) as storage:
        @asynccontextmanager
        async def place(*_: object, **__: object) -> AsyncIterator[PrefixPlace]:
            yield PrefixPlace(blobs, "s3://exports/e", "e/", RUNTIME)

        monkeypatch.setattr(exporting, "open_place", place)
        await storage.put(OBJECT, LARGE)
        with only(blobs, to) as needed:
            for _ in range(2):
                assert (await export_objects(storage, "s3://exports/e", update=True)).complete
        assert needed == to
        for action in to:
            with only(blobs, to - {action}), pytest.raises(ConfigurationError, match=action):
                await export_objects(storage, "s3://exports/e", update=True)
    guide = (ROOT / "docs/guides/migrate.md").read_text()
    assert "`s3:PutObject`, `GetObject`,\n  `DeleteObject`" in guide and "`s3:ListBucket`" in guide
