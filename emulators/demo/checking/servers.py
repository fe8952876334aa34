"""Reads what PostgreSQL and S3 hold, for the demo's check. It knows the stored formats and runs no code of the store.

    rows, changelog    with asyncpg, each question over a connection of its own
    blobs              with botocore, Amazon's own client

It connects to the servers directly and not through the relays, so it is not cut off. A question to a server that is
frozen, or killed and not back yet, waits.

What lies beside the blobs is looked at, too (`uploads`). A blob whose row expires has a marker of a deadline that is
not before its row's: without one nobody would ever remove it. And a marker or an amendment in another form than that
which the collection knows would stay for ever. That of a blob that is gone is no flaw: the collection removes it later.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import anyio
import asyncpg
import botocore.session
import google_crc32c
from anyio.from_thread import BlockingPortal
from botocore.config import Config

from emulators.demo.checking.check import StoredRow, content_of
from emulators.demo.players.load import digest
from recovery.prove.judge import Content
from tiered.buckets.owners import OWNERS

CALL_S, AGAIN_S = 20.0, 0.05
OPERATION = "x-snme-operation"
BESIDE = ("~t/", "~m/")
MARKER = re.compile(r"~t/(.+)/([0-9a-f]{12})", re.DOTALL)
AMENDMENT = re.compile(r"~m/(.+)/[0-9a-f]{16}", re.DOTALL)
_SESSION = re.compile(r"parts:[^/]+/[^?]+\?uploadId=([^&]+)")


class StoredInServers:
    """Implements `BackendContent`. A place is a blob's name. `dsn`, `s3`: of the servers themselves."""

    def __init__(
        self, portal: BlockingPortal, dsn: str, schema: str, s3: str, credentials: Mapping[str, str], bucket: str, late_s: float
    ) -> None:
        self.late_s = late_s
        self.bucket = bucket
        self.s3 = botocore.session.get_session().create_client(
            "s3", endpoint_url=s3, region_name=credentials["AWS_DEFAULT_REGION"], aws_access_key_id=credentials["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=credentials["AWS_SECRET_ACCESS_KEY"],
            config=Config(s3={"addressing_style": "path"}, connect_timeout=CALL_S, read_timeout=CALL_S, retries={"total_max_attempts": 2}),
        )  # fmt: skip
        self._portal = portal
        self._dsn = dsn
        self._schema = schema
        self._recorded: set[str] = set()

    def rows(self) -> Iterator[StoredRow]:
        for path, target, metadata, payload in self.ask("SELECT path, target, metadata, payload FROM {schema}.rows"):
            match target, metadata, payload:
                case bytes(), None, None:
                    yield StoredRow(path.decode(), target.decode())
                case None, bytes(), bytes():
                    yield StoredRow(path.decode(), None, content_of(payload, metadata))
                case _:
                    yield StoredRow(path.decode(), None)

    def targets(self) -> dict[str, str]:
        found = self.ask("SELECT path, target FROM {schema}.rows WHERE target IS NOT NULL")
        return {path.decode(): target.decode() for path, target in found}

    def absent(self, names: Collection[str]) -> set[str]:
        return set(names) - set(self.places())

    def place(self, name: str) -> str:
        return name

    def places(self) -> list[str]:
        return [name for name in self._names() if not name.startswith((*BESIDE, OWNERS))]

    def blob(self, place: str) -> Content | None:
        answer = self.s3.get_object(Bucket=self.bucket, Key=place, ChecksumMode="ENABLED")
        payload = answer["Body"].read()
        crc = base64.b64encode(google_crc32c.value(payload).to_bytes(4, "big")).decode()
        return Content(digest(payload), answer["Metadata"].get(OPERATION)) if answer.get("ChecksumCRC32C") == crc else None

    def won(self) -> set[str]:
        return {str(token) for (token,) in self.ask("SELECT token FROM {schema}.marks WHERE won")}

    def uploads(self) -> list[str]:
        """Returns what recovery should have ended, or could never remove.

        A session that no entry names is not among it: its writer died before it could write one. The bucket's rule ends
        it (docs/production.md).
        """
        open_ones = [each["UploadId"] for each in self._sessions()]
        expiring = self.ask("SELECT target, deadline_ms FROM {schema}.rows WHERE target IS NOT NULL AND deadline_ms IS NOT NULL")
        deadlines, odd = dict[str, int](), list[str]()
        for name in self._names():
            if (marker := MARKER.fullmatch(name)) is not None:
                deadlines[marker[1]] = max(int(marker[2], 16), deadlines.get(marker[1], 0))
            elif name.startswith(BESIDE) and not AMENDMENT.fullmatch(name):
                odd.append(f"nothing knows {name}")
        unmarked = (target.decode() for target, deadline_ms in expiring if deadlines.get(target.decode(), 0) < deadline_ms)
        return [each for each in open_ones if each in self._recorded] + odd + [f"nothing will remove {name} in time" for name in unmarked]

    def entries(self) -> list[tuple[str, str | None]]:
        found = self.ask("SELECT key, value, state FROM {schema}.entries")
        for _, value, _ in found:
            upload = json.loads(value).get("upload") if value.startswith(b'{"v":1') else None
            if upload and (session := _SESSION.fullmatch(upload)):
                self._recorded.add(unquote(session[1]))
        return [(key.decode(), state) for key, _, state in found]

    def ask(self, statement: str, *values: object) -> list[Any]:
        """Returns the rows of a statement. `{schema}` stands for the store's."""
        return self._portal.call(self._ask, statement.replace("{schema}", f'"{self._schema}"'), *values)

    async def _ask(self, statement: str, *values: object) -> list[Any]:
        give_up_at = anyio.current_time() + CALL_S
        while True:
            try:
                return await self._ask_once(statement, *values)
            except (OSError, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError):
                if anyio.current_time() > give_up_at:
                    raise
            await anyio.sleep(AGAIN_S)

    async def _ask_once(self, statement: str, *values: object) -> list[Any]:
        connection = await asyncpg.connect(self._dsn, timeout=CALL_S, command_timeout=CALL_S)
        try:
            return list(await connection.fetch(statement, *values))
        finally:
            await connection.close()

    def _names(self) -> Iterator[str]:
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket):
            yield from (each["Key"] for each in page.get("Contents", ()))

    def _sessions(self) -> Iterator[Mapping[str, Any]]:
        for page in self.s3.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket):
            yield from page.get("Uploads", ())
