"""A GCS that only lists and describes, and a Bigtable that only reads: both say what a made-up world has.

`python -m benchmarks.audit_servers` says the URL of the one and the address of the other, and serves until stdin ends.

    GET …/b/names-{n}          the bucket: a world of n names
    GET …/b/names-{n}/o        a page of at most 1,000 from `startOffset` or `pageToken` to `endOffset`, or below
                               `prefix`, with the `fields` asked for, which may have no items; no deleted blobs
                               (`softDeleted`); and the marker of the bucket's owner
    GET …/b/names-{n}/o/{name} one blob, or 404
    POST /batch/storage/v1     many of these in one request
    ReadRows                   of table `names-{n}`: the tombstones, 100 rows a message; any other table is empty
    SampleRowKeys              a key for every 100,000 rows

HTTP/1.1 is spoken as far as the benchmarks' clients need it: each request in chunks or whole, one after the other on a
connection. Each row comes as the one cell that names its blob, whatever the filter says, because all clients ask for
that. Answers are copies of bytes: a page takes a tenth of a millisecond, and its reader at least ten times as long.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import anyio
import grpc
import grpc.aio
import numpy as np
from google.cloud.bigtable_v2.types import bigtable

from benchmarks.audit_world import PAGE_MAX, ROWS_PER_MESSAGE, AuditWorld, Items, blobs_among, blocks, name, path, row_messages, rows_among
from benchmarks.servers import INSTANCE, PROJECT, left_alone
from tiered.buckets.owners import OWNERS, encode_marker, marker_name

ROUTE = re.compile(r"/storage/v1/b/names-(\d+)(?:/o(?:/([^/]+))?)?")
JSON = "application/json; charset=UTF-8"
BOUNDARY = "answers"
MANY = f"multipart/mixed; boundary={BOUNDARY}"
CALL = re.compile(rb"<call\+(\d+)>\r\n\r\nGET (\S+)")
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
SAMPLE_EVERY, BYTES_PER_ROW = 100_000, 250


# --- blobs ---------------------------------------------------------------------------------------


def answer(target: str) -> tuple[str, bytes]:
    """Returns status and body."""
    parts = urlsplit(target)
    found = ROUTE.fullmatch(parts.path)
    if found is None:
        return "404 Not Found", b'{"error":{"code":404,"message":"Not Found"}}'
    world, query = AuditWorld(int(found[1])), {key: values[0] for key, values in parse_qs(parts.query).items()}
    fields = frozenset(re.findall(r"\w+", query["fields"])) if "fields" in query else None
    items = Items.of(fields)
    if found[2] is not None:
        return _blob(world, unquote(found[2]), items)
    if parts.path.endswith("/o"):
        if query.get("prefix") == OWNERS:
            return "200 OK", _marker(world)
        is_empty = query.get("softDeleted") == "true" or "items" not in (fields or {"items"})
        return "200 OK", _page(AuditWorld(0) if is_empty else world, query, items)
    return "200 OK", b'{"kind":"storage#bucket","name":"names-%s","location":"EU"}' % found[1].encode()


def answers(calls: bytes) -> bytes:
    """Returns the body that answers a batch."""
    parts = []
    for number, target in CALL.findall(calls):
        status, body = answer(target.decode())
        head = f"--{BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <response-call+{number.decode()}>\r\n\r\n"
        parts.append(f"{head}HTTP/1.1 {status}\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n")
    return b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])


def _blob(world: AuditWorld, wanted: str, items: Items) -> tuple[str, bytes]:
    number = world.first_name(wanted.encode())
    if number == world.names or name(number) != wanted.encode() or not len(blobs := blobs_among(np.array([number]))):
        return "404 Not Found", b'{"error":{"code":404,"message":"No such object: %s","errors":[{"reason":"notFound"}]}}' % wanted.encode()
    return "200 OK", items.text(blobs)


def _marker(world: AuditWorld) -> bytes:
    """Returns the page of the markers of owners: the store of the table that has the world's rows owns all names."""
    owner = f"projects/{PROJECT}/instances/{INSTANCE}/tables/names-{world.names}"
    told = {"name": marker_name(""), "generation": "1", "metadata": encode_marker("", "", owner)[0]}
    return json.dumps({"kind": "storage#objects", "items": [told]}).encode()


def _page(world: AuditWorld, query: dict[str, str], items: Items) -> bytes:
    """Returns a page of as many names as were asked for.

    It is shorter if tombstones among them are dangling: those have no blob.
    """
    prefix = query.get("prefix", "").encode()
    start = int(query["pageToken"]) if "pageToken" in query else world.first_name(query.get("startOffset", "").encode() or prefix)
    end = world.first_name(query["endOffset"].encode() if "endOffset" in query else prefix + b"\xff")
    stop = min(end, start + min(int(query.get("maxResults", PAGE_MAX)), PAGE_MAX))
    texts = b",".join(map(items.text, blocks(blobs_among(np.arange(start, stop)))))
    return b'{"kind":"storage#objects",%s"items":[%s]}' % (b'"nextPageToken":"%d",' % stop if stop < end else b"", texts)


class BareConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._received, 0, end + 2)
            after = end + 4 + (int(length[1]) if length else 0)
            if len(self._received) < after:
                return
            request, self._received = self._received[:after], self._received[after:]
            is_batch = request.startswith(b"POST /batch/")
            status, body = ("200 OK", answers(request[end:])) if is_batch else answer(request.split(b" ", 2)[1].decode())
            kind = MANY if is_batch else JSON
            head = f"HTTP/1.1 {status}\r\nDate: {formatdate(usegmt=True)}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            self._transport.writelines([head.encode(), body])


# --- rows ----------------------------------------------------------------------------------------


async def read_rows(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
    kind, _, names = request.table_name.rpartition("/")[2].partition("-")
    world, left = AuditWorld(int(names) if kind == "names" else 0), request.rows_limit or int(names)
    for start, end in _numbers(world, request.rows):
        for begin in range(start, end, 100 * ROWS_PER_MESSAGE):
            numbers = rows_among(np.arange(begin, min(end, begin + 100 * ROWS_PER_MESSAGE)))[:left]
            for block in blocks(numbers):
                for message in row_messages(block):
                    yield message
            left -= len(numbers)
            if not left:
                return


def _numbers(world: AuditWorld, rows: Any) -> Iterable[tuple[int, int]]:
    """Yields the ranges of row numbers that a row set asks for: keys first, each as a range of its own.

    If it asks for none, all rows.
    """
    found = []
    for key in rows.row_keys:
        number = world.first_path(key)
        if number < world.names and path(number) == key:
            found.append((number, number + 1))
    for span in rows.row_ranges:
        start = world.first_path(span.start_key_open + b"\0" if span.start_key_open else span.start_key_closed)
        end = span.end_key_closed + b"\0" if span.end_key_closed else span.end_key_open
        found.append((start, world.first_path(end) if end else world.names))
    return sorted(found) if rows.row_keys or rows.row_ranges else [(0, world.names)]


async def sample_row_keys(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
    names = int(request.table_name.rpartition("-")[2])
    for key, number in [*((path(number), number) for number in range(SAMPLE_EVERY, names, SAMPLE_EVERY)), (b"", names)]:
        yield bytes(bigtable.SampleRowKeysResponse.pb()(row_key=key, offset_bytes=number * BYTES_PER_ROW).SerializeToString())


async def ping(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    return b""


METHODS = {
    "ReadRows": grpc.unary_stream_rpc_method_handler(read_rows, bigtable.ReadRowsRequest.pb().FromString, None),
    "SampleRowKeys": grpc.unary_stream_rpc_method_handler(sample_row_keys, bigtable.SampleRowKeysRequest.pb().FromString, None),
    "PingAndWarm": grpc.unary_unary_rpc_method_handler(ping, bigtable.PingAndWarmRequest.pb().FromString, None),
}


async def serve() -> None:
    blobs = await asyncio.get_running_loop().create_server(BareConnection, "127.0.0.1", 0)
    rows = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    rows.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("google.bigtable.v2.Bigtable", METHODS),))
    port = rows.add_insecure_port("127.0.0.1:0")
    await rows.start()
    print(f"http://127.0.0.1:{blobs.sockets[0].getsockname()[1]} 127.0.0.1:{port}", flush=True)
    await left_alone()
    blobs.close()
    await rows.stop(grace=None)


if __name__ == "__main__":
    anyio.run(serve)
