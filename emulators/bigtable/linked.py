"""`LinkedChannel`: one process's connection to a `MemoryBigtable`, on which every message is a call of its `Link`.

A message has the name of the protocol's call that sends it, so one plan serves both stacks. A call of several messages
has several points (a compare-and-swap that fails reads: "log.read"). The error of a fault is translated to what gRPC
would have said, and the adapter judges by that.
"""

from __future__ import annotations

import json
from typing import Any

import grpc

from changelog.base.errors import ConfigurationError, UnavailableError, UnconfirmedError
from changelog.bigtable.channel import Message
from changelog.bigtable.log import CLOCK_KEY
from changelog.change import DAEMON_PREFIX, DONE, LOG_PREFIX, NOTE_PREFIX, VALUE_PREFIX
from emulators.bigtable.faulty_channel import rpc_error
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from emulators.world.faults import Process
from emulators.world.runtime import now_s

CONNECTION_LIVES_S = 3600.0
"""In seconds. A message may be given to gRPC and not leave, because its process stands still.

After this long it is lost with its connection.

The protocol depends on this: a swap's deadline is checked just before the message is given to gRPC (docs/protocol.md,
assumptions).
"""


class LinkedChannel(MemoryChannel):
    """One process's connection. Every message on it is a call of the process's link."""

    def __init__(self, server: MemoryBigtable, process: Process) -> None:
        super().__init__(server)
        self._process = process

    async def send(self, method: str, request: Message) -> list[Message]:
        """Sends a message. An error of the server or of the link is raised as gRPC's own error."""
        given_at = now_s()

        async def asked() -> Any:
            if now_s() - given_at > CONNECTION_LIVES_S:
                return rpc_error(grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer (it was idle for too long)")
            return await self._asked(method, request)

        try:
            outcome = await self._process.link.call(call_name(method, request), asked)
        except UnconfirmedError as error:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, f"recvmsg:Connection reset by peer ({error})") from error
        except UnavailableError as error:
            raise rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, f"Quota exceeded ({error})") from error
        except ConfigurationError as error:
            raise rpc_error(grpc.StatusCode.PERMISSION_DENIED, f"Access denied ({error})") from error
        if isinstance(outcome, grpc.aio.AioRpcError):
            raise outcome
        messages: list[Message] = outcome
        return messages

    async def _asked(self, method: str, request: Message) -> Any:
        """Asks the server. Its refusal is returned as an answer, so it reaches only a caller that still waits."""
        try:
            return await super().send(method, request)
        except grpc.aio.AioRpcError as refused:
            return refused


# --- what a message is called ------------------------------------------------------------------------


def call_name(method: str, request: Message) -> str:
    """Returns the call of `HighVolumeBackend` or `ChangeLog` that sends such a message, such as `rows.swap`."""
    match method:
        case "SampleRowKeys":
            return "rows.boundaries"
        case "ReadRows" if request.rows.row_keys and request.filter.WhichOneof("filter") == "interleave":
            return "rows.redirects_at"
        case "ReadRows" if request.rows.row_keys:
            key = request.rows.row_keys[0]
            return "log.read_note" if is_note(key) else "log.read_values" if is_value(key) else f"{service_of(key)}.read"
        case "ReadRows":
            return _scan_name(request)
        case "ReadModifyWriteRow":
            return "log.now_ms" if request.row_key == CLOCK_KEY else "log.announce"
        case "MutateRows":
            return write_name(request.entries[0])
        case _:
            return write_name(request)


def _scan_name(request: Message) -> str:
    start = request.rows.row_ranges[0].start_key_closed
    if request.filter.WhichOneof("filter") == "interleave":
        return "rows.redirects"
    if not start.startswith(LOG_PREFIX.encode()):
        by_age = any(each.HasField("timestamp_range_filter") for each in request.filter.chain.filters)
        if is_value(start):
            return "log.collect" if by_age else "log.scan_values"
        if not start.startswith(DAEMON_PREFIX.encode()):
            return "rows.scan"
        return "log.collect" if by_age else "log.presences"
    if request.filter.WhichOneof("filter") == "cells_per_column_limit_filter":
        return "log.entries"
    return "log.kept" if request.filter.chain.filters[0].HasField("column_range_filter") else "log.stale"


def write_name(row: Message) -> str:
    """Names a request that writes a row, or an entry of MutateRows, by what it would write."""
    service = service_of(row.row_key)
    if service == "rows":
        return f"rows.{_row_write(row)}"
    return f"log.{_log_write(row)}"


def _row_write(row: Message) -> str:
    if not hasattr(row, "predicate_filter"):
        return "plant"  # no adapter writes without a predicate
    columns = [each.set_cell.column_qualifier[:2] for each in (*row.true_mutations, *row.false_mutations) if each.HasField("set_cell")]
    if b"w:" in columns:
        return "swap"
    if b"x" in columns:
        return "reserve"
    if row.true_mutations:
        return "touch"
    if b"r:" in columns:
        return "settle"
    return "put_inline" if columns else "delete_inline"


def _log_write(row: Message) -> str:
    if is_note(row.row_key):
        return "swap_note"
    if is_value(row.row_key):
        return _value_write(row)
    mutations = row.true_mutations or row.false_mutations if hasattr(row, "predicate_filter") else row.mutations
    set_columns = {each.set_cell.column_qualifier: each.set_cell.value for each in mutations if each.HasField("set_cell")}
    if not set_columns:
        return "collect" if row.row_key.startswith(DAEMON_PREFIX.encode()) else "forget"
    is_assembling = b"c" in set_columns and "assembling" in json.loads(set_columns[b"c"])
    if not hasattr(row, "predicate_filter") or row.false_mutations:
        return "open" if is_assembling else "record"
    if b"s" in set_columns:
        return "keep" if set_columns[b"s"] == DONE.encode() else "park"
    if any(each.delete_from_column.column_qualifier == b"s" for each in mutations if each.HasField("delete_from_column")):
        return "retry"
    if is_assembling:
        return "amend"
    if not json.loads(set_columns[b"c"])["owner"]:
        return "release"
    seen = row.predicate_filter.chain.filters[-1].value_range_filter.start_value_closed
    return "renew" if set_columns[b"c"] == seen else "claim"


def _value_write(row: Message) -> str:
    if hasattr(row, "predicate_filter"):
        return "collect"
    return "write_values" if row.mutations[0].HasField("set_cell") else "erase_values"


def is_note(key: bytes) -> bool:
    return key.startswith(NOTE_PREFIX.encode())


def is_value(key: bytes) -> bool:
    return key.startswith(VALUE_PREFIX.encode())


def service_of(key: bytes) -> str:
    return "log" if key.startswith(b"~") else "rows"
