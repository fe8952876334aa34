"""An audit of PostgreSQL and S3, whose run is in another bucket of S3: run, shown, orphans deleted by a process that is
killed, and restored. Nothing of it names a service of Google."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.postgres.server import PostgresServer
from tests.given.command_line import Command
from tests.given.deleted_store import OBJECTS, ORPHANS, blobs, plant_orphans, readable, wait_until_judged
from tests.given.deletion_process import start
from tests.given.s3_buckets import FeedBucket, delete_object, make_bucket, new_feed_bucket
from tiered import ObjectId, open_storage
from tiered.kinds.chosen import provision
from tiered.provision.findings import NoticeKind
from tiered.settings import Settings

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(moto_url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A store with objects and orphans. Arrow finds the service by AWS's variable, the store by its settings."""
    name = f"t{ChangeId.new(SystemRuntime()).replace('-', '')}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    at = {"bucket": name, "endpoint": moto_url, "region": "us-east-1", "addressing_style": "path", "whole_checksums": False}
    settings = Settings(postgres={"dsn": postgres.dsn(), "schema_name": name}, s3=at, inline_bytes_max=1)

    async def made() -> None:
        await make_bucket(moto_url, name)
        assert [each for each in await provision(settings) if each.kind is NoticeKind.DONE]
        await plant_orphans(settings)
        await wait_until_judged(settings)

    anyio.run(made)
    return settings


@pytest.fixture
def audits(moto_url: str) -> FeedBucket:
    return new_feed_bucket(moto_url)


@pytest.mark.night
def test_a_run_in_a_bucket_of_s3_is_made_shown_carried_out_and_undone(settings: Settings, audits: FeedBucket, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(settings.packed())
    command = Command(tmp_path, store=False)
    assert settings.s3 is not None
    run = f"s3://{audits.settings.bucket}/2026/november"

    def tiered(*words: str, code: int = 0) -> str:
        return command("-c", str(tmp_path / "t.yaml"), "audit", *words, code=code)

    begin = ("run", "--engine", "local", "--parallel", "2", "--grace", "0s", "--insist")
    tiered(*begin, "--to", f"s3://{settings.s3.bucket}/audit", code=2)
    assert "is in the bucket that is audited" in command.errors
    tiered(*begin, "--to", run, code=1)
    assert tiered(*begin, "--to", run, code=1) != "", "a run that has ended is only checked"
    manifest = json.loads(audits.objects()["2026/november/manifest.json"])
    assert manifest["totals"]["orphan"]["number"] == ORPHANS
    assert "report.html" in " ".join(audits.names()) and "testing-testing" not in str(audits.objects())
    assert f"media/objects/{OBJECTS - 1:02}" in tiered("show", f"media/objects/{OBJECTS - 1:02}", "--from", run, code=1)

    for point in ("copied", "deleted"):
        with start(settings, run, point) as deletion:
            _, errors = deletion.communicate()
        assert deletion.returncode == -signal.SIGKILL, errors.decode()
    assert "2026/november/manifest.json" in audits.names()
    tiered("delete", run, "--class", "orphan", "--at-most", str(ORPHANS), "--yes", "--quarantine", "test")
    left = anyio.run(blobs, settings)
    assert sum(name.startswith("~quarantine/test/") for name in left) == ORPHANS and len(left) == ORPHANS + OBJECTS
    assert anyio.run(readable, settings) == OBJECTS
    assert f"restored   {ORPHANS} blobs" in tiered("restore", run, "--yes")
    left = anyio.run(blobs, settings)
    assert not any(name.startswith("~") for name in left) and len(left) == OBJECTS + ORPHANS
    assert "STORAGE_EMULATOR_HOST" not in os.environ


@pytest.fixture
def tiered_at(postgres: PostgresServer, tmp_path: Path) -> Callable[..., tuple[Settings, Callable[..., str]]]:
    """A store that is made at a service, and the command for its audits."""

    def at(url: str, *, versions: bool = False, **more: object) -> tuple[Settings, Callable[..., str]]:
        name = f"t{ChangeId.new(SystemRuntime()).replace('-', '')}"
        s3 = {"bucket": name, "endpoint": url, "region": "us-east-1", "addressing_style": "path", **more}
        settings = Settings(postgres={"dsn": postgres.dsn(), "schema_name": name}, s3=s3, inline_bytes_max=1)
        anyio.run(partial(make_bucket, url, name, versions=versions))
        anyio.run(provision, settings)
        (tmp_path / "t.yaml").write_text(settings.packed())
        command = Command(tmp_path, store=False)

        def tiered(*words: str, code: int = 0) -> str:
            return f"{command('-c', str(tmp_path / 't.yaml'), 'audit', *words, code=code)}\n{command.errors}"

        return settings, tiered

    return at


RUN = ("run", "--engine", "local", "--parallel", "1", "--grace", "0s", "--insist", "--to")


async def put_and_wait(settings: Settings, *keys: str) -> list[str]:
    """Puts objects, and waits until the audit may judge them. The names of their blobs."""
    async with open_storage(settings) as storage:
        for key in keys:
            await storage.put(ObjectId("media", (), key), b"payload")
    return await wait_until_judged(settings)


async def read_all(settings: Settings, *keys: str) -> list[bytes]:
    async with open_storage(settings) as storage:
        return [await stored.read() for key in keys if (stored := await storage.get(ObjectId("media", (), key))) is not None]


@pytest.mark.usefixtures("without_workers")
@pytest.mark.parametrize("scope", [(), pytest.param(("--prefix", "media/objects/a/b"), marks=pytest.mark.night)])
def test_no_live_blob_is_deleted_where_the_service_lists_it_under_another_name(
    versitygw_url: str, tiered_at: Callable[..., tuple[Settings, Callable[..., str]]], tmp_path: Path, scope: tuple[str, ...]
) -> None:
    settings, tiered = tiered_at(versitygw_url)
    listed, _ = anyio.run(put_and_wait, settings, "a//b", "a/b-honest")
    assert listed.startswith("media/objects/a/b"), "this service changes names"
    run = str(tmp_path / "run")
    told = tiered(*RUN, run, *scope, code=1 if scope else 2)
    assert scope or "the listing that should hold it does not" in told
    told = tiered("delete", run, "--class", "orphan", "--at-most", "1", "--yes", code=2)
    assert ("under another name" if scope else "the evidence is doubtful") in told
    assert anyio.run(read_all, settings, "a//b", "a/b-honest") == [b"payload"] * 2


@pytest.mark.night
def test_what_was_deleted_by_hand_from_a_bucket_with_versions_is_shown_and_restored(
    moto_url: str, tiered_at: Callable[..., tuple[Settings, Callable[..., str]]], tmp_path: Path
) -> None:
    settings, tiered = tiered_at(moto_url, versions=True, whole_checksums=False)
    names, run = anyio.run(put_and_wait, settings, "lost", "there"), str(tmp_path / "run")
    assert settings.s3 is not None
    delete_object(moto_url, settings.s3.bucket, names[0])
    assert "aws s3api delete-object --bucket" in tiered("show", "media/objects/lost", code=1)
    tiered(*RUN, run, code=1)
    assert "restorable 1 blob" in tiered("restore", run, "--class", "dangling")
    assert "restored   1 blob" in tiered("restore", run, "--class", "dangling", "--yes")
    assert anyio.run(read_all, settings, "lost", "there") == [b"payload"] * 2
