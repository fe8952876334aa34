"""The same work by Google's clients: the async `data` client for rows, google-cloud-storage in threads for blobs.

Rows: the predicates and mutations of `tiered.bigtable.rows`, made with that client. What never changes is built once,
as there. Blobs: what a user would write himself. There is no changelog and no fence. So a kill or a lost answer leaves
garbage, and two writers or one late request leave a row whose blob is gone. It does less than the store, and it is what
a user would compare with.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import requests.adapters
from anyio import CapacityLimiter, to_thread
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.bigtable.data import BigtableDataClientAsync, DeleteAllFromFamily, SetCell
from google.cloud.bigtable.data.row_filters import (
    CellsColumnLimitFilter,
    ColumnRangeFilter,
    RowFilter,
    RowFilterChain,
    RowFilterUnion,
    ValueRangeFilter,
)

SERVER_TIME = -1
LEGACY = b'{"is_redirect_tombstone":true'


def _column(family: str, column: bytes) -> RowFilter:
    return ColumnRangeFilter(family, column, column)


_TOMBSTONES = [
    *(_column(family, b"r") for family in ("fg", "fm")),
    *(
        RowFilterChain([_column(family, b"m"), ValueRangeFilter(LEGACY, LEGACY[:-1] + b"f", inclusive_end=False)])
        for family in ("fg", "fm")
    ),
]
_STATE = RowFilterChain([RowFilterUnion([ColumnRangeFilter("fg"), ColumnRangeFilter("fm")]), CellsColumnLimitFilter(1)])
_CLEAR = [DeleteAllFromFamily("fg"), DeleteAllFromFamily("fm")]


class OfficialRows:
    """The rows. `connect` uses the server that BIGTABLE_EMULATOR_HOST names."""

    def __init__(self, table: Any) -> None:
        self.table = table

    @classmethod
    @asynccontextmanager
    async def connect(cls, project: str, instance: str, table: str) -> AsyncIterator[Self]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # it warns that it uses an emulator
            client = BigtableDataClientAsync(project=project)
        async with client, client.get_table(instance, table) as opened:
            yield cls(opened)

    async def put(self, path: str, token: str, payload: bytes) -> None:
        metadata = f'{{"content_type":"application/octet-stream","size":{len(payload)}}}'.encode()
        cells = {b"p": payload, b"m": metadata, b"v": token.encode()}
        writes = [*_CLEAR, *(SetCell("fm", column, value, SERVER_TIME) for column, value in cells.items())]
        if await self.table.check_and_mutate_row(path, _conflict(token), false_case_mutations=writes):
            raise AssertionError(f"{path} could not be put")

    async def get(self, path: str) -> bytes | None:
        row = await self.table.read_row(path, row_filter=_STATE)
        if row is None:
            return None
        json.loads(row.get_cells("fm", b"m")[0].value)
        payload: bytes = row.get_cells("fm", b"p")[0].value
        return payload

    async def delete(self, path: str, token: str) -> None:
        if await self.table.check_and_mutate_row(path, _conflict(token), false_case_mutations=_CLEAR):
            raise AssertionError(f"{path} could not be deleted")


def _conflict(token: str) -> RowFilter:
    marks = [_column("ff", f"{verdict}{token}".encode()) for verdict in ("w:", "r:")]
    return RowFilterUnion([*marks, *_TOMBSTONES])


class OfficialBlobs:
    """A row that names a blob, and the blob. `threads`: how many calls of google-cloud-storage run at once."""

    def __init__(self, rows: OfficialRows, bucket: Any, threads: int) -> None:
        self._table = rows.table
        self._bucket = bucket
        self._threads = CapacityLimiter(threads)

    @classmethod
    @asynccontextmanager
    async def connect(cls, rows: OfficialRows, url: str, bucket: str, threads: int) -> AsyncIterator[Self]:
        client = storage.Client("bench", AnonymousCredentials(), client_options={"api_endpoint": url})  # type: ignore[no-untyped-call]
        # Its pool of 10 would open and drop hundreds of connections.
        client._http.mount("http://", requests.adapters.HTTPAdapter(pool_connections=1, pool_maxsize=threads))
        try:
            yield cls(rows, client.bucket(bucket), threads)
        finally:
            client.close()

    async def put(self, path: str, token: str, payload: bytes) -> None:
        name = f"{path}/{token}"
        await self._in_thread(lambda: self._bucket.blob(name).upload_from_string(payload, if_generation_match=0))
        cells = {b"r": name.encode(), b"t": b"{}"}
        await self._table.mutate_row(path, [*_CLEAR, *(SetCell("fm", column, value, SERVER_TIME) for column, value in cells.items())])

    async def get(self, path: str) -> bytes | None:
        name = await self._target(path)
        if name is None:
            return None
        payload: bytes = await self._in_thread(lambda: self._bucket.blob(name).download_as_bytes())
        return payload

    async def delete(self, path: str, token: str) -> None:
        name = await self._target(path)
        await self._table.mutate_row(path, _CLEAR)
        await self._in_thread(lambda: self._bucket.blob(name).delete())

    async def _target(self, path: str) -> str | None:
        row = await self._table.read_row(path, row_filter=_STATE)
        return None if row is None else row.get_cells("fm", b"r")[0].value.decode()

    async def _in_thread(self, work: Any) -> Any:
        return await to_thread.run_sync(work, limiter=self._threads)
