"""A clock of a bucket's service that is far from this machine's is a finding of `tiered check`."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import SecretStr

from emulators.gcs.server import GcsEmulator
from tests.given.s3_buckets import make_bucket, untried
from tiered.kinds import chosen
from tiered.kinds.gcs import BLOBS
from tiered.settings import GcsSettings, PostgresSettings, S3Settings, Settings
from tiered.testing.clock import Clock

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
NOWHERE = PostgresSettings(dsn=SecretStr("postgresql://nobody@127.0.0.1:9/none"))
"""The rows, which are not looked at."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def said_of_clocks(settings: Settings, ahead: timedelta) -> list[str]:
    clock = Clock()
    clock.advance(ahead)
    found = await chosen.blobs_kind(settings).inspect(settings, clock, None)
    return [each.sentence for each in found if each.sentence.startswith("the clock of")]


async def test_a_bucket_of_gcs_whose_clock_is_an_hour_behind_is_noted() -> None:
    async with GcsEmulator() as server:
        server.create_bucket("blobs")
        settings = Settings(postgres=NOWHERE, gcs=GcsSettings(bucket="blobs", endpoint=server.url))
        assert await said_of_clocks(settings, timedelta()) == []
        [sentence] = await said_of_clocks(settings, timedelta(hours=1))
        assert "the clock of bucket blobs and that of this machine are 36" in sentence


async def test_a_bucket_of_s3_whose_clock_is_an_hour_behind_is_noted(versitygw_url: str) -> None:
    await make_bucket(versitygw_url, "clocks")
    settings = Settings(postgres=NOWHERE, s3=S3Settings(bucket="clocks", endpoint=versitygw_url, addressing_style="path"))
    with untried():
        assert await said_of_clocks(settings, timedelta()) == []
        [sentence] = await said_of_clocks(settings, timedelta(hours=1))
    assert "the clock of bucket clocks and that of this machine are 36" in sentence


async def test_a_service_that_does_not_answer_has_no_clock() -> None:
    settings = Settings(postgres=NOWHERE, gcs=GcsSettings(bucket="blobs", endpoint="http://127.0.0.1:9"))
    assert await BLOBS.clock(settings, Clock()) == []
