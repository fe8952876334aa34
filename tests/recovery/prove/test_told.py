"""What services tell of themselves: a version, a region, what stands in between; and nothing that a user has named."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from emulators.postgres.server import PostgresServer
from emulators.prove import SERVICES
from recovery.prove.probes.bench import Sizes
from recovery.prove.report import ProveVerdict
from recovery.prove.run import initial, prove, told_by
from recovery.prove.trial import begin, trial_kinds
from tiered.kinds.chosen import provision
from tiered.kinds.s3 import server_of
from tiered.provision.probes import Result
from tiered.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("header", "told"), [
    ("AmazonS3", "AmazonS3"), ("VERSITYGW", "VERSITYGW"), ("MinIO/2025.1", "MinIO 2025.1"),
    ("Werkzeug/3.1.3 Python/3.12.1", "Werkzeug 3.1.3"),
    ("nginx/acme-17", "nginx"), ("amazon.com", "of an unknown server"), ("gw1.acme.example", "of an unknown server"),
    ("", "of an unknown server"), ("acme", "of an unknown server"),
])  # fmt: skip
def test_only_servers_that_others_know_are_named(header: str, told: str) -> None:
    assert server_of(header) == told


TOLD = {
    "directory": ("rows", {"kind": "directory", "system": "Linux"}, "SQLite 3."),
    "postgres": ("rows", {"kind": "postgres", "pooler": "no", "servers": "1", "fsync": "on", "synchronous standbys": "no"}, "PostgreSQL 1"),
    "pgbouncer": (
        "rows",
        {"kind": "postgres", "pooler": "yes, without prepared statements", "servers": "1", "fsync": "on", "synchronous standbys": "no"},
        "PostgreSQL 1",
    ),
    "versitygw": ("blobs", {"kind": "s3", "region": "us-east-1"}, "VERSITYGW"),
    "moto": ("blobs", {"kind": "s3", "region": "us-east-1"}, "of an unknown server"),
    "gcs-emulator": ("blobs", {"kind": "gcs", "region": "US"}, "another server of its API"),
    "bigtable-emulator": ("rows", {"kind": "bigtable"}, "an emulator"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.night] if name == "moto" else []) for name in TOLD])
async def test_services_tell_what_they_are_and_no_missing_bucket_is_made(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulators.prove.postgres_server", lambda _: nullcontext(request.getfixturevalue("durable_postgres")))
    tier, told, begins = TOLD[name]
    try:
        async with SERVICES[name].start(tmp_path) as settings:
            await provision(settings)
            found = (await told_by(settings, SystemRuntime()))[tier]
            if tier == "blobs":
                await no_missing_bucket_is_made(settings)
    except Exception as error:
        if type(error).__name__.endswith("NotFoundError"):
            pytest.skip(str(error))
        raise
    assert found.pop("version").startswith(begins)
    assert found == told


async def no_missing_bucket_is_made(settings: Settings) -> None:
    for section in ("s3", "gcs"):
        if (at := getattr(settings, section)) is not None:
            settings = settings.model_copy(update={section: at.model_copy(update={"bucket": "not-there"})})
    report = initial(settings, "0.1.0", "2026-11-30")
    with pytest.raises(ConfigurationError, match="not-there"):
        await prove(settings, SystemRuntime(), report, Sizes(racers=4, rounds=2, rounds_min=1, calm=1), lambda _: None, ["promises"])
    with pytest.raises(ConfigurationError, match="not-there"):
        await trial_kinds(settings)[1].trials(settings, SystemRuntime())
    assert report.verdict is ProveVerdict.UNKNOWN


@pytest.mark.slow
async def test_a_service_that_is_away_tells_nothing_but_its_kind() -> None:
    settings = Settings.model_validate({"postgres": {"dsn": "postgresql://nobody@127.0.0.1:1/none"}, "directory": "/nowhere"})
    assert (await told_by(settings, SystemRuntime()))["rows"] == {"kind": "postgres"}


@pytest.mark.slow
async def test_what_provisioning_calls_a_problem_is_a_line_and_the_rest_is_tried(postgres: PostgresServer, tmp_path: Path) -> None:
    """A server that loses commits in a crash keeps every promise until then."""
    settings = Settings.model_validate({"directory": tmp_path / "store", "postgres": {"dsn": postgres.dsn()}})
    report = initial(settings, "0.1.0", "2026-11-30")
    await prove(settings, SystemRuntime(), report, Sizes(racers=4, rounds=2, rounds_min=1, calm=1), lambda _: None, ["promises"])
    broken = [each for each in report.lines if each.result is Result.BROKEN]
    assert {each.about for each in broken if not each.is_limit} == {"settings"}
    assert any("fsync is off" in each.said for each in broken)
    assert report.verdict is ProveVerdict.MUST_NOT
    assert {each.result for each in report.lines if each.about == "rows"} == {Result.HELD}


async def test_a_directory_whose_parent_is_missing_may_hold_a_store(tmp_path: Path) -> None:
    settings = Settings(directory=tmp_path / "not" / "there")
    async with begin(settings, SystemRuntime()) as tried:
        assert tried.wrong == []
    assert tried.left == [] and list(tmp_path.glob("*/*")) == []
