"""Killed writers on PostgreSQL and S3, in a trial as `tiered prove` makes it: real servers hold, nothing is left."""

from __future__ import annotations

import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.postgres.server import PostgresServer
from emulators.s3.servers import REGION
from recovery.prove import trial
from recovery.prove.kills import kill_writers
from tests.given.s3_buckets import make_bucket
from tiered.kinds.chosen import provision
from tiered.provision.findings import problems
from tiered.provision.probes import Result
from tiered.settings import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECONDS = 8.0


async def test_postgres_and_versitygw_hold_while_writers_are_killed(durable_postgres: PostgresServer, versitygw_url: str) -> None:
    runtime = SystemRuntime()
    name = f"kills-{ChangeId.new(runtime)}"
    await make_bucket(versitygw_url, name)
    settings = Settings.model_validate({
        "postgres": {"dsn": durable_postgres.dsn(), "schema_name": name.replace("-", "_")},
        "s3": {"bucket": name, "endpoint": versitygw_url, "region": REGION, "addressing_style": "path"},
    })  # fmt: skip
    assert not problems(await provision(settings, runtime=runtime))
    async with trial.begin(settings, runtime) as tried:
        lines = await kill_writers(tried, SECONDS, lambda _: None)
    assert [(line.name, line.result) for line in lines if line.result is not Result.HELD] == [], lines[0].said
    assert tried.left == []
