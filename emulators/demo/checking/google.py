"""Reads what Bigtable and GCS hold, for the demo's check. It knows the stored formats and runs no code of the store.

    rows, changelog    with `google.cloud.bigtable.data`, Google's own client
    blobs              with GET requests of the JSON API

It connects to the emulators directly and not through the relays, so it is not cut off. A call to a frozen emulator
waits.
"""

from __future__ import annotations

import base64
import json
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from http.client import HTTPConnection
from types import TracebackType
from typing import Self
from unittest.mock import patch
from urllib.parse import quote, urlencode

import google_crc32c
from google.auth.credentials import AnonymousCredentials
from google.cloud.bigtable.data import BigtableDataClient, ReadRowsQuery, RowRange
from google.cloud.bigtable.data.row_filters import (
    CellsColumnLimitFilter,
    ColumnQualifierRegexFilter,
    FamilyNameRegexFilter,
    RowFilter,
    RowFilterChain,
)

from emulators.bigtable.emulator import HOST_VARIABLE
from emulators.demo.checking.check import StoredRow, content_of
from emulators.demo.players.load import digest
from recovery.prove.judge import Content
from tiered.buckets.owners import OWNERS

CALL_S = 20.0
NEWEST = CellsColumnLimitFilter(1)
STATE = RowFilterChain([FamilyNameRegexFilter("f[gm]"), NEWEST])
WON = RowFilterChain([FamilyNameRegexFilter("ff"), ColumnQualifierRegexFilter("w:.*")])
OPERATION = "x-snme-operation"


class StoredInGoogle(AbstractContextManager["StoredInGoogle"]):
    """Implements `Stored`. A place is a blob's name. `bigtable` and `gcs`: host:port of the emulators themselves."""

    def __init__(self, bigtable: str, gcs: str, names: Mapping[str, str], bucket: str, late_s: float) -> None:
        self.late_s = late_s
        self.gcs = gcs
        self._bucket = bucket
        # Google's client learns of an emulator in no other way.
        with patch.dict(os.environ, {HOST_VARIABLE: bigtable}), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the client warns that it connects to an emulator
            self._client = BigtableDataClient(project=names["project"], credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
        self.tables = tuple(self._client.get_table(names["instance"], names[table]) for table in ("table", "changelog_table"))
        """The table of the rows, and the table of the changelog."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def rows(self) -> Iterator[StoredRow]:
        for path, cells in self._read(STATE):
            family = {family for family, _ in cells}
            columns = {column: value for (_, column), value in cells.items()}
            match len(family), columns.get(b"r"), columns.get(b"m"), columns.get(b"p"):
                case 1, bytes(target), None, None:
                    yield StoredRow(path, target.decode())
                case 1, None, bytes(metadata), bytes(payload):
                    yield StoredRow(path, None, content_of(payload, metadata))
                case _:
                    yield StoredRow(path, None)

    def targets(self) -> dict[str, str]:
        return {row.path: row.target for row in self.rows() if row.target is not None}

    def absent(self, names: Collection[str]) -> set[str]:
        return set(names) - set(self.places())

    def place(self, name: str) -> str:
        return name

    def places(self) -> list[str]:
        names: list[str] = []
        query = {"fields": "items(name),nextPageToken"}
        while True:
            page = json.loads(self._get(f"/o?{urlencode(query)}"))
            names += [item["name"] for item in page.get("items", []) if not item["name"].startswith(OWNERS)]
            if "nextPageToken" not in page:
                return names
            query["pageToken"] = page["nextPageToken"]

    def blob(self, place: str) -> Content | None:
        path = f"/o/{quote(place, safe='')}"
        resource, payload = json.loads(self._get(path)), self._get(f"{path}?alt=media")
        if base64.b64decode(resource["crc32c"]) != google_crc32c.value(payload).to_bytes(4, "big"):
            return None
        return Content(digest(payload), resource.get("metadata", {}).get(OPERATION))

    def won(self) -> set[str]:
        return {column.decode()[2:] for _, cells in self._read(WON) for _, column in cells}

    def uploads(self) -> tuple[()]:
        """Returns nothing. An open session that no entry names is invisible and costs nothing; GCS ends it in a week.
        """
        return ()

    def entries(self) -> list[tuple[str, str | None]]:
        found = self.tables[1].read_rows(
            ReadRowsQuery(row_ranges=RowRange("~changelog/", "~changelog0"), row_filter=NEWEST), operation_timeout=CALL_S
        )
        states = ((row.row_key, [cell.value for cell in row if cell.qualifier == b"s"]) for row in found)
        return [(key.decode(), state[0].decode() if state else None) for key, state in states]

    def _read(self, wanted: RowFilter) -> Iterator[tuple[str, dict[tuple[str, bytes], bytes]]]:
        for row in self.tables[0].read_rows(ReadRowsQuery(row_filter=wanted), operation_timeout=CALL_S):
            yield row.row_key.decode(), {(cell.family, cell.qualifier): cell.value for cell in row}

    def _get(self, path: str) -> bytes:
        with closing(HTTPConnection(self.gcs, timeout=CALL_S)) as connection:
            connection.request("GET", f"/storage/v1/b/{self._bucket}{path}")
            answer = connection.getresponse()
            body = answer.read()
        if answer.status != 200:
            raise OSError(f"the GCS emulator answered {path} with {answer.status}: {body[:300]!r}")
        return body
