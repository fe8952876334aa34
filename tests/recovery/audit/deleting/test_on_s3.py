"""An audit of PostgreSQL and S3, whose run is in another bucket of S3: run, shown, orphans deleted by a process that is
killed, and restored. Nothing of it names a service of Google."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.postgres.server import PostgresServer
from tests.given.command_line import Command
from tests.given.deleted_store import OBJECTS, ORPHANS, blobs, plant_orphans, readable
from tests.given.deletion_process import start
from tests.given.s3_buckets import FeedBucket, make_bucket, new_feed_bucket
from tiered.kinds.chosen import provision
from tiered.open import open_backends
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
        async with open_backends(settings, SystemRuntime()) as backends:
            newest_ns = max(blob.created_ns for blob in (await backends.tiers.long_term.list("", None, 1000)).blobs)
            while await backends.tiers.long_term.now_ns() <= newest_ns:  # noqa: ASYNC110 - no event tells of a server's time
                await anyio.sleep(0.05)  # it is told in whole seconds, and what is not older is not judged

    anyio.run(made)
    return settings


@pytest.fixture
def audits(moto_url: str) -> FeedBucket:
    return new_feed_bucket(moto_url)


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
