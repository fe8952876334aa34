"""A Bigtable that only reads: `python -m benchmarks.audit_bigtable` says its address and serves until stdin ends.

    ReadRows        of table `names-{n}`: the tombstones of a world of n names, 100 rows a message;
                    of `log-{n}`: a few entries
    SampleRowKeys   a key for every 100,000 rows

Each row comes as the one cell that names its blob, whatever the filter says, because all clients ask for that. Messages
are answered as bytes and never built from objects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import cache
from typing import Any

import anyio
import grpc
import grpc.aio
import numpy as np
from google.cloud.bigtable_v2.types import bigtable

from benchmarks.audit_world import ROWS_PER_MESSAGE, AuditWorld, blocks, path, row_messages, rows_among, rows_message
from benchmarks.servers import left_alone
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId, Entry, encode

SERVICE = "google.bigtable.v2.Bigtable"
SAMPLE_EVERY = 100_000
BYTES_PER_ROW = 250
ENTRIES = 4


async def read_rows(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
    kind, _, names = request.table_name.rpartition("/")[2].partition("-")
    if kind == "log":
        yield rows_message(cell for cell in entries() if _holds(request.rows, cell[0]))
        return
    world, left = AuditWorld(int(names)), request.rows_limit or int(names)
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
    for number in range(SAMPLE_EVERY, names, SAMPLE_EVERY):
        yield _sample(path(number), number * BYTES_PER_ROW)
    yield _sample(b"", names * BYTES_PER_ROW)


def _sample(key: bytes, offset: int) -> bytes:
    return bytes(bigtable.SampleRowKeysResponse.pb()(row_key=key, offset_bytes=offset).SerializeToString())


# --- the changelog ---------------------------------------------------------------------------------


@cache
def entries() -> list[tuple[bytes, str, bytes, int, bytes]]:
    """Returns entries of changes that began when this server did, and never end."""
    runtime, found = SystemRuntime(), []
    for _ in range(ENTRIES):
        change, of = ChangeId.new(runtime), "attachments/org.999/project.999/objects/busy"
        entry = Entry(Change(change, of, f"{of}/{change}", None, None), change.row_key(), "bench")
        found.append((entry.key.encode(), "fc", b"c", runtime.wall_ns() // 1_000_000 * 1000, encode(entry)))
    return sorted(found)


def _holds(rows: Any, key: bytes) -> bool:
    spans = ((span.start_key_closed or span.start_key_open, span.end_key_open or span.end_key_closed) for span in rows.row_ranges)
    return key in rows.row_keys or any(start <= key and (not end or key < end) for start, end in spans)


# --- the server ------------------------------------------------------------------------------------


async def ping(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    return b""


METHODS = {
    "ReadRows": grpc.unary_stream_rpc_method_handler(read_rows, bigtable.ReadRowsRequest.pb().FromString, None),
    "SampleRowKeys": grpc.unary_stream_rpc_method_handler(sample_row_keys, bigtable.SampleRowKeysRequest.pb().FromString, None),
    "PingAndWarm": grpc.unary_unary_rpc_method_handler(ping, bigtable.PingAndWarmRequest.pb().FromString, None),
}


async def serve() -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, METHODS),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await left_alone()
    await server.stop(grace=None)


if __name__ == "__main__":
    anyio.run(serve)
