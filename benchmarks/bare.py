"""The same work by bare calls: protobuf messages over `grpc.aio`, JSON over aiohttp, and no line more.

Rows: the requests of `tiered.bigtable.rows`, byte for byte (a test compares them). They are built for each call, except
for the parts that never change. Blobs: the calls that the store makes, in its order. No error is translated, no
deadline kept, no answer verified.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import grpc.aio
from google.cloud.bigtable_v2.types import bigtable, data

TIMEOUT_S = 10.0
CHUNK_BYTES = 256 * 1024
FIELDS = "name,size,generation,metageneration,timeCreated,customTime,contentType,contentEncoding,crc32c,metadata"
SERVICE = "/google.bigtable.v2.Bigtable/"

_Filter, _Range, _Values, _Mutation = data.RowFilter.pb(), data.ColumnRange.pb(), data.ValueRange.pb(), data.Mutation.pb()
_CheckAndMutate, _Mutate, _Read = bigtable.CheckAndMutateRowRequest.pb(), bigtable.MutateRowRequest.pb(), bigtable.ReadRowsRequest.pb()
_RowSet = data.RowSet.pb()

LEGACY = b'{"is_redirect_tombstone":true'
FAMILIES = ("fg", "fm")


def _column(family: str, column: bytes) -> Any:
    return _Filter(column_range_filter=_Range(family_name=family, start_qualifier_closed=column, end_qualifier_closed=column))


def _either(filters: list[Any]) -> Any:
    return _Filter(interleave=_Filter.Interleave(filters=filters))


def _chain(filters: list[Any]) -> Any:
    return _Filter(chain=_Filter.Chain(filters=filters))


def _set(family: str, column: bytes, value: bytes) -> Any:
    return _Mutation(set_cell=_Mutation.SetCell(family_name=family, column_qualifier=column, timestamp_micros=-1, value=value))


_TARGETS = [_column(family, b"r") for family in FAMILIES]
_LEGACY = [
    _chain([_column(family, b"m"), _Filter(value_range_filter=_Values(start_value_closed=LEGACY, end_value_open=LEGACY[:-1] + b"f"))])
    for family in FAMILIES
]
_CLEAR = [
    _Mutation(delete_from_column=_Mutation.DeleteFromColumn(family_name="ff", column_qualifier=b"x")),
    *(_Mutation(delete_from_family=_Mutation.DeleteFromFamily(family_name=family)) for family in FAMILIES),
]
"""A write of content also ends a reservation."""
_NEWEST = _Filter(cells_per_column_limit_filter=1)
_STATE = _chain([_either([_Filter(column_range_filter=_Range(family_name=family)) for family in FAMILIES]), _NEWEST])
_DELETE_ROW = _Mutation(delete_from_row=_Mutation.DeleteFromRow())


def _conflict(token: str) -> Any:
    marks = [_column("ff", f"{verdict}{token}".encode()) for verdict in ("w:", "r:")]
    return _either([*marks, *_TARGETS, *_LEGACY])


class BareRows:
    """The rows, over one connection."""

    def __init__(self, channel: grpc.aio.Channel, table: str) -> None:
        self._table = table
        self._metadata = (("x-goog-request-params", f"table_name={table}"),)
        self._check_and_mutate = channel.unary_unary(
            f"{SERVICE}CheckAndMutateRow", _CheckAndMutate.SerializeToString, bigtable.CheckAndMutateRowResponse.pb().FromString
        )
        self._mutate = channel.unary_unary(f"{SERVICE}MutateRow", _Mutate.SerializeToString, bigtable.MutateRowResponse.pb().FromString)
        self._read = channel.unary_stream(f"{SERVICE}ReadRows", _Read.SerializeToString, bigtable.ReadRowsResponse.pb().FromString)

    @classmethod
    @asynccontextmanager
    async def connect(cls, host: str, table: str) -> AsyncIterator[Self]:
        async with grpc.aio.insecure_channel(host) as channel:
            yield cls(channel, table)

    async def put(self, path: str, token: str, payload: bytes) -> None:
        metadata = f'{{"content_type":"application/octet-stream","size":{len(payload)}}}'.encode()
        await self._replace(path, token, [_set("fm", b"p", payload), _set("fm", b"m", metadata), _set("fm", b"v", token.encode())])

    async def delete(self, path: str, token: str) -> None:
        await self._replace(path, token, [])

    async def ask_to_delete(self, path: str, token: str) -> bool:
        """Deletes an inline object. Returns whether there was no tombstone."""
        return not await self._conflicts(path.encode(), _conflict(token), _CLEAR)

    async def get(self, path: str) -> bytes | None:
        return await self._value(path, b"p")

    async def target(self, path: str) -> str | None:
        value = await self._value(path, b"r")
        return None if value is None else value.decode()

    async def record(self, path: str, token: str, new: str | None, old: str | None) -> None:
        """Writes an entry of the changelog. Its id is new, so nobody else has one."""
        value = (
            f'{{"v":1,"id":"{path}","new":{_quoted(new)},"old":{_quoted(old)},"upload":null,"owner":"bare","attempt":0,'
            '"cleanup_after":null,"trace":null}'
        ).encode()
        await self._blind(_entry_key(token), _set("fc", b"c", value))

    async def forget(self, token: str) -> None:
        await self._blind(_entry_key(token), _DELETE_ROW)

    async def swap(self, path: str, token: str, expected: str | None, new: str | None) -> None:
        marks, conflict = [_column("ff", f"{verdict}{token}".encode()) for verdict in ("w:", "r:")], [*_TARGETS, *_LEGACY]
        if expected is not None:
            value = expected.encode()
            ends = ({"end_value_open": value}, {"start_value_open": value})
            another = _either([_Filter(value_range_filter=_Values(**end)) for end in ends])
            conflict = [*(_chain([target, another]) for target in _TARGETS), *_LEGACY]
        state = [] if new is None else [_set("fm", b"r", new.encode()), _set("fm", b"t", b"{}"), _set("fm", b"v", token.encode())]
        await self._write(path.encode(), _either([*marks, *conflict]), [*_CLEAR, *state, _set("ff", f"w:{token}".encode(), b"")])

    async def settle(self, path: str, token: str) -> None:
        values = ((b"r", f"{path}/{token}".encode()), (b"v", token.encode()))
        live = _either([
            _chain([_column(family, column), _Filter(value_range_filter=_Values(start_value_closed=value, end_value_closed=value))])
            for family in FAMILIES for column, value in values
        ])  # fmt: skip
        await self._write(path.encode(), live, [_set("ff", f"r:{token}".encode(), b"")])

    async def _replace(self, path: str, token: str, state: list[Any]) -> None:
        await self._write(path.encode(), _conflict(token), [*_CLEAR, *state])

    async def _write(self, key: bytes, predicate: Any, otherwise: list[Any]) -> None:
        if await self._conflicts(key, predicate, otherwise):
            raise AssertionError(f"{key!r} could not be written")

    async def _conflicts(self, key: bytes, predicate: Any, otherwise: list[Any]) -> bool:
        request = _CheckAndMutate(table_name=self._table, row_key=key, predicate_filter=predicate, false_mutations=otherwise)
        response = await self._check_and_mutate(request, timeout=TIMEOUT_S, metadata=self._metadata)
        return bool(response.predicate_matched)

    async def _blind(self, key: bytes, mutation: Any) -> None:
        request = _Mutate(table_name=self._table, row_key=key, mutations=[mutation])
        await self._mutate(request, timeout=TIMEOUT_S, metadata=self._metadata)

    async def _value(self, path: str, wanted: bytes) -> bytes | None:
        """Returns the value of the only cell of that column, if it came in one chunk."""
        request = _Read(table_name=self._table, rows=_RowSet(row_keys=[path.encode()]), filter=_STATE, rows_limit=1)
        found: bytes | None = None
        async for response in self._read(request, timeout=TIMEOUT_S, metadata=self._metadata):
            for chunk in response.chunks:
                if chunk.qualifier.value == wanted:
                    found = chunk.value
        return found


def _entry_key(token: str) -> bytes:
    return f"~changelog/{int(token[-2:], 16) % 16:02x}/{token}".encode()


def _quoted(text: str | None) -> str:
    return "null" if text is None else f'"{text}"'


class BareBlobs:
    """Large objects: the calls that the store makes (`benchmarks.calls`), several at once where the store does so."""

    def __init__(self, rows: BareRows, http: aiohttp.ClientSession, url: str, bucket: str) -> None:
        self._rows = rows
        self._http = http
        self._objects = f"{url}/storage/v1/b/{bucket}/o"
        self._uploads = f"{url}/upload/storage/v1/b/{bucket}/o?uploadType=multipart&ifGenerationMatch=0&fields=crc32c"

    @classmethod
    @asynccontextmanager
    async def connect(cls, rows: BareRows, url: str, bucket: str) -> AsyncIterator[Self]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256)) as http:
            yield cls(rows, http, url, bucket)

    async def put(self, path: str, token: str, payload: bytes) -> None:
        name = f"{path}/{token}"
        old = await self._rows.target(path)
        await asyncio.gather(self._rows.record(path, token, name, old), self.upload(name, payload))
        await self._rows.swap(path, token, old, name)
        await self._rows.forget(token)

    async def get(self, path: str) -> bytes | None:
        name = await self._rows.target(path)
        return None if name is None else await self.read(name)

    async def read(self, name: str) -> bytes:
        address = f"{self._objects}/{quote(name, safe='')}"
        _, payload = await asyncio.gather(self._described(address), self._media(address))
        return payload

    async def delete(self, path: str, token: str) -> None:
        if await self._rows.ask_to_delete(path, token):
            raise AssertionError(f"{path} was not large")
        old = await self._rows.target(path)
        assert old is not None, "put before"
        await self._rows.record(path, token, None, old)
        await self._rows.swap(path, token, old, None)
        await self._rows.settle(path, old.rpartition("/")[2])
        async with self._http.delete(f"{self._objects}/{quote(old, safe='')}") as answer:
            answer.raise_for_status()
        await self._rows.forget(token)

    async def _described(self, address: str) -> bytes:
        async with self._http.get(f"{address}?fields={FIELDS}") as answer:
            return await answer.read()

    async def _media(self, address: str) -> bytes:
        async with self._http.get(f"{address}?alt=media") as answer:
            return b"".join([chunk async for chunk in answer.content.iter_any()])

    async def upload(self, name: str, payload: bytes) -> None:
        before = (
            b"--b0undary\r\nContent-Type: application/json\r\n\r\n" + f'{{"name":"{name}"}}'.encode()
            + b"\r\n--b0undary\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        after = b"\r\n--b0undary--\r\n"

        async def body() -> AsyncIterator[bytes]:
            yield before
            view = memoryview(payload)
            for start in range(0, len(payload), CHUNK_BYTES):
                yield bytes(view[start : start + CHUNK_BYTES])
            yield after

        headers = {
            "Content-Type": "multipart/related; boundary=b0undary", "Content-Length": str(len(before) + len(payload) + len(after))
        }
        async with self._http.post(self._uploads, data=body(), headers=headers) as answer:
            answer.raise_for_status()
            await answer.read()
