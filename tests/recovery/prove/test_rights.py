"""Rights that are too many are told where a service tells them. Nothing is tried for it. And what stands in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path

import pytest
from google.iam.v1.iam_policy_pb2 import TestIamPermissionsResponse as IamPermissions  # type: ignore[import-untyped]

from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.postgres.server import SAFE, PostgresServer, server_directory
from recovery.prove.hiding import hidden
from recovery.prove.report import Line
from recovery.prove.run import rights_of, told_by
from tests.conftest import postgres_or_skip
from tests.given.fresh_schema import ask, made_schema
from tests.given.s3_buckets import let_everybody_in, new_bucket
from tests.tiered.provision.test_scripted_answers import ALL, Scripted, admin, answering, threads_ended
from tiered.kinds.bucket import between
from tiered.provision.bucket import EXCESS, excess_of, open_client
from tiered.provision.probes import Result
from tiered.provision.tables import EXCESS as TABLE_EXCESS
from tiered.provision.tables import excess_of as excess_of_table
from tiered.settings import GcsSettings, S3Settings, Settings

__all__ = ["admin"]  # a fixture
pytestmark = pytest.mark.anyio
RUNTIME = SystemRuntime()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def rows_line(postgres: PostgresServer, role: str, schema: str) -> Line:
    dsn = postgres.dsn().replace("tiered@", f"{role}@")
    settings = Settings.model_validate({"postgres": {"dsn": dsn, "schema_name": schema}, "directory": "/nowhere"})
    [line] = await rights_of(settings, RUNTIME)
    assert (line.about, line.name, line.is_limit) == ("rights", "rows", True)
    return line


@pytest.mark.slow
@pytest.mark.parametrize(("may", "said"), [
    (["LOGIN"], ""),
    (["LOGIN CREATEDB CREATEROLE"], "this identity may make roles, and give them rights, may make databases"),
    (["LOGIN", "GRANT pg_write_all_data TO {role}"], "this identity may write all tables"),
    (["LOGIN NOINHERIT", "GRANT pg_write_all_data TO {role}"], ""),
    (["LOGIN", "ALTER SCHEMA {schema} OWNER TO {role}"], "this identity owns the schema of the store, so it may drop its tables"),
    (["LOGIN SUPERUSER CREATEDB"], "this identity is a superuser, who may do all on this server"),
], ids=["writer", "roles", "all-tables", "not-inherited", "owner", "superuser"])  # fmt: skip
async def test_what_a_role_may_do_beyond_a_store_is_told(postgres: PostgresServer, may: Sequence[str], said: str) -> None:
    schema = await made_schema(postgres)
    role = f"r_{schema[-20:]}"
    for statement in (f"CREATE ROLE {{role}} {may[0]}", *may[1:]):
        await ask(postgres, statement.format(role=role, schema=schema))
    line = await rows_line(postgres, role, schema)
    assert (line.result, line.said) == (Result.BROKEN if said else Result.HELD, said)
    assert hidden(line.said, Settings(directory=Path("/nowhere"))) == line.said, "a report may repeat it"


@pytest.mark.slow
async def test_a_server_that_is_away_tells_no_rights() -> None:
    settings = Settings.model_validate({"postgres": {"dsn": "postgresql://nobody@127.0.0.1:1/none"}, "directory": "/nowhere"})
    [line] = await rights_of(settings, RUNTIME)
    assert line.result is Result.UNTRIED and "127.0.0.1" in line.said


async def test_a_directory_has_no_rights_to_tell(tmp_path: Path) -> None:
    assert await rights_of(Settings(directory=tmp_path), RUNTIME) == []


@pytest.mark.parametrize(("held", "said"), [(ALL, []), ([*ALL, *EXCESS], list(EXCESS.values())), (["storage.buckets.delete"], [
    "may delete the bucket",
])], ids=["writer", "admin", "one"])  # fmt: skip
def test_permissions_on_a_bucket_that_are_too_many(held: list[str], said: list[str]) -> None:
    with answering(200, {"permissions": held}) as endpoint, threads_ended():
        gcs = GcsSettings(bucket="b-1", endpoint=endpoint)
        with open_client(gcs, "project") as client:
            assert excess_of(client, gcs) == said
    with answering(403, {"error": {"code": 403, "message": "no"}}) as endpoint, threads_ended():
        gcs = GcsSettings(bucket="b-1", endpoint=endpoint)
        with open_client(gcs, "project") as client, pytest.raises(UnavailableError):
            excess_of(client, gcs)


def test_permissions_on_a_table_that_are_too_many(admin: Scripted) -> None:
    server, at = admin
    server.answers["TestIamPermissions"] = IamPermissions(permissions=["bigtable.tables.update"]).SerializeToString()
    assert excess_of_table(at) == [TABLE_EXCESS["bigtable.tables.update"]]
    server.answers.pop("TestIamPermissions")
    with pytest.raises(UnavailableError):
        excess_of_table(at)


async def test_emulators_of_google_tell_no_rights_and_are_not_asked() -> None:
    settings = Settings.model_validate({
        "bigtable": {"project": "my-project", "instance": "main", "emulator_host": "127.0.0.1:1"},
        "gcs": {"bucket": "my-blobs", "endpoint": "http://127.0.0.1:1"},
    })
    assert {line.name: (line.result, line.said) for line in await rights_of(settings, RUNTIME)} == dict.fromkeys(
        ("rows", "blobs"), (Result.UNTRIED, "only Google's service tells what an identity may do")
    )


@pytest.mark.slow
async def test_s3_tells_whether_everybody_may_come_in_and_no_more(moto_url: str) -> None:
    async with new_bucket(moto_url, RUNTIME, whole_checksums=False) as blobs:
        bucket = blobs.client.bucket
        s3 = S3Settings(bucket=bucket, endpoint=moto_url, region="us-east-1", addressing_style="path")
        settings = Settings.model_validate({"s3": s3, "postgres": {"dsn": "postgresql://nobody@127.0.0.1:1/none"}})
        _, line = await rights_of(settings, RUNTIME)
        assert line.result is Result.UNTRIED and "tells no identity what it may do" in line.said
        let_everybody_in(moto_url, bucket)
        _, line = await rights_of(settings, RUNTIME)
        assert (line.result, line.said) == (Result.BROKEN, "this identity shares the bucket with everybody: its policy is public")


# --- in between ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("headers", "told"), [
    ({"server": "AmazonS3"}, {}), ({}, {}), ({"server": "cloudflare"}, {}), ({"server": "nginx/1.2 (acme)"}, {"in between": "nginx"}),
    ({"server": "AmazonS3", "via": "1.1 cache.acme.example (Acme)"}, {"in between": "a proxy"}),
    ({"server": "MinIO", "x-cache": "Miss from acme"}, {"in between": "a proxy"}), ({"via": ""}, {}),
])  # fmt: skip
def test_what_stands_before_a_bucket_is_told_by_its_headers_without_their_words(headers: dict[str, str], told: dict[str, str]) -> None:
    assert between(headers) == told


@asynccontextmanager
async def balanced(*ports: int) -> AsyncIterator[int]:
    """The port of something that leads each connection to the next server."""
    turn, tasks = cycle(ports), set[asyncio.Task[object]]()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(65_536):
                writer.write(chunk)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", next(turn))
        await asyncio.gather(copy(reader, up_writer), copy(up_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
async def test_several_servers_behind_one_address_and_a_standby_among_them_are_told() -> None:
    with postgres_or_skip(SAFE) as primary, server_directory() as directory:
        standby = primary.standby_in(directory)
        standby.start()
        try:
            for ports, told in (((primary.port,), "1"), ((primary.port, primary.port, standby.port), "2, 1 of them standbys")):
                async with balanced(*ports) as port:
                    dsn = primary.dsn(host_port=f"127.0.0.1:{port}")
                    settings = Settings.model_validate({"postgres": {"dsn": dsn}, "directory": "/nowhere"})
                    assert (await told_by(settings, RUNTIME))["rows"]["servers"] == told
        finally:
            standby.stop()
