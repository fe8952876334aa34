"""Each mix of services: made, checked, used by the library and by every command, killed and recovered."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from emulators.gcs.server import GcsEmulator
from tests.given.command_line import Command
from tests.given.s3_buckets import make_bucket, untried
from tests.suites import share
from tiered import ConditionFailedError, ConfigurationError, ListEntry, Metadata, ObjectId, ObjectPrefix, Settings, open_storage
from tiered.kinds.chosen import inspect, provision
from tiered.object_id import blob_name
from tiered.open import open_backends
from tiered.provision.findings import Notice, NoticeKind

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MIXES = ("postgres+s3", "postgres+gcs", "postgres+directory", "bigtable+s3")
SMALL, LARGE, LARGER = b"small", b"large" * 100, b"larger" * 1000
CAT = ObjectId.create("photos", "2026/cat.jpg", {"org": "17"})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=share(MIXES, 4))
def values(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The settings of a new store, as a file would have them. Nothing is provisioned but the bucket of S3."""
    rows, _, blobs = request.param.partition("+")
    name = f"t{ChangeId.new(SystemRuntime()).replace('-', '')}"
    found: dict[str, Any] = {"inline_bytes_max": 100, "changelog": rows}
    with ExitStack() as stack:
        if rows == "postgres":
            found["postgres"] = {"dsn": request.getfixturevalue("durable_postgres").dsn(), "schema_name": name}
        else:
            host = request.getfixturevalue("bigtable_host")
            found["bigtable"] = {"project": "project", "instance": "instance", "table": name, "changelog_table": f"{name}-log"}
            found["bigtable"]["emulator_host"] = host
        if blobs == "s3":
            url = request.getfixturevalue("versitygw_url")
            anyio.run(make_bucket, url, name)
            found["s3"] = {"bucket": name, "endpoint": url, "region": "us-east-1", "addressing_style": "path"}
        elif blobs == "gcs":
            portal = stack.enter_context(start_blocking_portal())
            found["gcs"] = {"bucket": "blobs", "endpoint": stack.enter_context(portal.wrap_async_context_manager(emulated_gcs())).url}
        else:
            found["directory"] = str(tmp_path / "store")
        yield found


@asynccontextmanager
async def emulated_gcs() -> AsyncIterator[GcsEmulator]:
    async with GcsEmulator() as server:
        yield server


async def made(values: dict[str, Any]) -> Settings:
    settings = Settings(**values)
    with untried():
        assert problems(await provision(settings)) == []
    return settings


def problems(found: list[Notice]) -> list[str]:
    return [each.sentence for each in found if each.kind is NoticeKind.PROBLEM]


async def blobs_of(settings: Settings) -> list[str]:
    async with open_backends(settings, SystemRuntime(), writes=False) as backends:
        return [blob.name for blob in (await backends.tiers.long_term.list("", None, 100)).blobs]


async def test_what_is_missing_is_named_then_made_once_and_then_all_is_well(values: dict[str, Any]) -> None:
    settings = Settings(**values)
    with untried():
        if settings.rows_kind != "directory":
            assert "run 'tiered provision'" in " ".join(problems(await inspect(settings)))
            with pytest.raises(ConfigurationError, match="tiered provision"):
                async with open_storage(settings):
                    pass
        planned = await provision(settings, dry_run=True)
        assert any(each.kind is NoticeKind.PLANNED for each in planned) and problems(planned) == []
        assert any(each.kind is NoticeKind.DONE for each in await provision(settings))
        assert not [each for each in await provision(settings) if each.kind in (NoticeKind.DONE, NoticeKind.PROBLEM)]
    assert problems(await inspect(settings)) == []


async def test_the_whole_life_of_an_object(values: dict[str, Any]) -> None:
    settings = await made(values)
    async with open_storage(settings) as store:
        for payload in (SMALL, LARGE, LARGER, SMALL, LARGE):
            await store.put(CAT, payload, Metadata(content_type="image/jpeg", custom={"who": "me"}))
            found = await store.get(CAT)
            assert found is not None and await found.read() == payload and found.metadata.custom == {"who": "me"}
        with pytest.raises(ConditionFailedError):
            await store.put(CAT, LARGER, if_absent=True)
        head = await store.head(CAT)
        assert head is not None and head.revision is not None
        await store.put(CAT, LARGER, if_revision=head.revision)
        copy = ObjectId.create("photos", "copy")
        await store.copy(CAT, copy)
        await store.set_expiry(copy, from_creation=timedelta(hours=1))
        assert {each.object_id async for each in store.list(ObjectPrefix.parse("photos/")) if isinstance(each, ListEntry)} == {copy, CAT}
        copied = await store.get(copy)
        assert copied is not None and await copied.read() == LARGER and copied.metadata.time_expires_ns is not None
    assert len(await blobs_of(settings)) == 2, "what was replaced is gone once the store is closed"
    async with open_storage(settings) as store:
        await store.delete(CAT)
        await store.delete(copy)
    assert await blobs_of(settings) == []


@pytest.mark.night
def test_every_command_and_what_a_dead_writer_left(values: dict[str, Any], tmp_path: Path) -> None:
    settings = Settings(**values)
    (tmp_path / "t.yaml").write_text(json.dumps(values))
    (tmp_path / "cat").write_bytes(LARGE)
    tiered = Command(tmp_path, store=False)
    tiered.environment |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}

    def run(*words: str, code: int = 0) -> str:
        return tiered("-c", str(tmp_path / "t.yaml"), *words, code=code)

    run("provision")
    run("check")
    run("put", str(CAT), str(tmp_path / "cat"))
    run("get", str(CAT), "-o", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == LARGE and str(CAT) in run("ls", "photos")
    dead = anyio.run(leave_behind, settings)
    assert dead in anyio.run(blobs_of, settings)
    report = tmp_path / "before"
    run("audit", "run", "--engine", "local", "--to", str(report))
    assert json.loads((report / "manifest.json").read_text())["inputs"]["changelog"] not in ("noop", "")
    run("recover", "--once")
    [left] = anyio.run(blobs_of, settings)
    assert left.startswith(str(CAT)) and left != dead
    status = json.loads(run("status", "--json", code=range(5)))  # type: ignore[arg-type]
    assert status["store"]["kind"] == f"{settings.rows_kind}+{settings.blobs_kind}" and status["stuck"]["count"] == 0
    secrets = ("testing-testing",)
    assert not any(secret in json.dumps(status) for secret in secrets)
    assert run("log", "list").count("\n") <= 2
    run("rm", str(CAT))
    assert anyio.run(blobs_of, settings) == []


async def leave_behind(settings: Settings) -> str:
    """What a writer leaves that died between its upload and its swap. Returns the name of its blob."""
    async with open_backends(settings, runtime := SystemRuntime()) as backends:
        token = ChangeId.new(runtime)
        name = blob_name(CAT.path, token)
        upload = await backends.tiers.long_term.open_upload(name, Metadata(), len(LARGER))
        entry = await backends.log.record(Change(token, CAT.path, name, None, upload.session), "dead")
        await upload.write(LARGER)
        await upload.finalise()
        assert await backends.log.release(entry), "as if its lease had ended"
        return name
