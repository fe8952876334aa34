"""A store on PostgreSQL and on S3, as lines and back. The server of PostgreSQL is real; the bucket is in memory.

The lines begin with the statements that made the schema. They are run again as they are, and then `tiered provision` of
today makes what it makes of such a schema. Rows are lines of JSON that PostgreSQL itself writes and reads, so no
version of `pg_dump` matters. The server's clock is that of the store: it stands still until `tell_the_time`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import asyncpg

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from changelog.postgres.log import PostgresChangeLog
from emulators.postgres.server import PostgresServer
from emulators.s3.memory import MemoryS3, S3Object, S3Upload, memory_blobs
from tests.golden.clock import GoldenRuntime
from tests.golden.contents import INLINE_BYTES_MAX
from tests.golden.stored import GoldenError
from tiered import Settings, TieredStorage
from tiered.buckets.owners import encode_marker, marker_name
from tiered.metadata import NS_PER_MS
from tiered.open import Backends
from tiered.postgres.open import checked_version, connect
from tiered.postgres.rows import PostgresRows
from tiered.postgres.schema import MIGRATIONS, TABLES, in_schema, quoted_schema
from tiered.provision.findings import problems
from tiered.provision.postgres import provision_postgres
from tiered.s3.owned import OwnedS3Blobs
from tiered.services.backends import Tiers
from tiered.settings import PostgresSettings
from tiered.transfer.upload_lanes import UploadLanes

BUCKET, PREFIX = "golden", "part/"
STORE = "018bcfe5-6800-7000-8000-000000000001"
OWNER = f"postgresql/{STORE}/1/golden"
"""The owner of the blobs. On a real bucket the cluster and the database of the rows are in it."""

LANES = UploadLanes(2, from_bytes=500_000, part_bytes=200_000)
"""So that one of the blobs goes up in parts."""

_CLOCK = "CREATE OR REPLACE FUNCTION {schema}.clock_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS $$ SELECT %s::bigint $$"

_INSERT = "INSERT INTO {schema}.{table} SELECT * FROM jsonb_populate_record(NULL::{schema}.{table}, $1::jsonb)"


@dataclass(frozen=True)
class PostgresAndS3:
    storage: TieredStorage
    backends: Backends
    settings: Settings
    runtime: GoldenRuntime
    bucket: MemoryS3
    server: PostgresServer
    schema: str

    async def lines(self) -> list[dict[str, Any]]:
        """The statements of the schema, all rows of its tables, then all that is in the bucket."""
        made = [{"ddl": statement} for migration in MIGRATIONS for statement in migration]
        rows = [
            {"table": table, "row": json.loads(row)} for table in TABLES
            for row, in await _ask(self.server, f"SELECT to_jsonb(t)::text FROM {{schema}}.{table} t ORDER BY t::text", self.schema)
        ]
        objects = [{"object": name, "stored": _stored(each)} for name, each in sorted(self.bucket.objects.items())]
        uploads = [
            {"upload": each, "begun": {**asdict(upload), "parts": {str(number): _stored(part) for number, part in upload.parts.items()}}}
            for each, upload in sorted(self.bucket.uploads.items())
        ]
        return [*made, *rows, *objects, *uploads, {"uploads": self.bucket._names}]

    async def tell_the_time(self) -> None:
        """Sets the server's clock to that of the store."""
        await _ask(self.server, _CLOCK % (self.runtime.wall_ns() // NS_PER_MS), self.schema)


@asynccontextmanager
async def postgres_and_s3(
    server: PostgresServer, runtime: GoldenRuntime, lines: Sequence[dict[str, Any]] = ()
) -> AsyncIterator[PostgresAndS3]:
    """Opens a store in a schema of its own, which is removed at the end. `lines`: what is in it."""
    schema = "golden" + ChangeId.new(SystemRuntime()).replace("-", "")
    at = PostgresSettings.model_validate({"dsn": server.dsn(), "schema_name": schema})
    bucket = MemoryS3(runtime, BUCKET, part_bytes_min=0)
    try:
        await load(lines, server, schema, bucket)
        if wrong := [each for each in problems(await provision_postgres(at, SystemRuntime())) if schema in each]:
            raise GoldenError(f"this schema cannot be provisioned: {wrong[0]}")
        if not lines:
            await _ask(server, "UPDATE {schema}.schema_version SET store = $1", schema, STORE)
            metadata, raw = encode_marker(f"s3://{BUCKET}", PREFIX, OWNER)
            bucket.put(marker_name(PREFIX), raw, {"Metadata": metadata})
        settings = Settings(postgres=at, s3={"bucket": BUCKET, "prefix": PREFIX}, inline_bytes_max=INLINE_BYTES_MAX)
        async with connect(at, writes=True) as pool, memory_blobs(bucket, runtime, prefix=PREFIX, lanes=LANES) as blobs:
            if not (await checked_version(pool, at)).startswith(STORE):
                raise GoldenError("the store has another id")
            owned = OwnedS3Blobs(blobs, BUCKET, PREFIX, OWNER)
            backends = Backends(Tiers(PostgresRows(pool, schema, runtime, OWNER), owned), PostgresChangeLog(pool, quoted_schema(schema)))
            async with TieredStorage(backends.tiers, backends.log, runtime, settings) as storage:
                opened = PostgresAndS3(storage, backends, settings, runtime, bucket, server, schema)
                await opened.tell_the_time()
                yield opened
    finally:
        await _ask(server, "DROP SCHEMA IF EXISTS {schema} CASCADE", schema)


async def _ask(server: PostgresServer, statement: str, schema: str, *values: object) -> Any:
    connection = await asyncpg.connect(server.dsn())
    try:
        return await connection.fetch(in_schema(statement, schema), *values)
    finally:
        await connection.close()


async def load(lines: Sequence[dict[str, Any]], server: PostgresServer, schema: str, bucket: MemoryS3) -> None:
    """Puts into a new schema and a bucket what a release had in its own."""
    connection = await asyncpg.connect(server.dsn())
    try:
        if lines:
            await connection.execute(in_schema("CREATE SCHEMA {schema}", schema))
        for line in lines:
            if "ddl" in line:
                await connection.execute(in_schema(line["ddl"], schema))
            elif "table" in line:
                if line["table"] == "schema_version":
                    await connection.execute(in_schema("DELETE FROM {schema}.schema_version", schema))
                await connection.execute(in_schema(_INSERT.replace("{table}", line["table"]), schema), json.dumps(line["row"]))
            else:
                _load_bucket(line, bucket)
    finally:
        await connection.close()


def _load_bucket(line: dict[str, Any], bucket: MemoryS3) -> None:
    match line:
        case {"object": name, "stored": stored}:
            bucket.objects[name] = _object(stored)
        case {"upload": upload, "begun": begun}:
            parts = {int(number): _object(part) for number, part in begun["parts"].items()}
            bucket.uploads[upload] = S3Upload(**{**begun, "parts": parts})
        case {"uploads": names}:
            bucket._names.update(names)
        case _:
            raise GoldenError(f"there is no such line: {line}")


def _stored(found: S3Object) -> dict[str, Any]:
    return {**asdict(found), "body": b64encode(found.body).decode()}


def _object(stored: dict[str, Any]) -> S3Object:
    return S3Object(**{**stored, "body": b64decode(stored["body"])})
