"""The requests to Bigtable, byte for byte: what changes on the wire is seen, and is meant.

`requests.txt` holds each request as text, for the reader, and as hex. To write it anew after a change that is meant,
and then to read the difference: `PYTHONPATH=. python tests/tiered/bigtable/test_requests.py`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from google.cloud.bigtable_v2.types import CheckAndMutateRowResponse

from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable
from changelog.bigtable.log import BigtableChangeLog
from changelog.change import Change, ChangeId, Entry
from tiered.bigtable.cells import LEGACY_FAMILIES
from tiered.bigtable.rows import BigtableRows
from tiered.metadata import NS_PER_S, Metadata, TimeToIdle, TimeToLive
from tiered.services.backends import Inline, Tombstone

GOLDEN = Path(__file__).parent / "requests.txt"
NAME = "projects/p/instances/i/tables/t"
PATH = "attachments/org.17/project.42/objects/abc123"
TOKEN, OTHER = ChangeId("018bcfe5-6800-7000-8000-000000000001"), ChangeId("018bcfe5-6800-7000-8000-000000000002")
BLOB, OLD = f"{PATH}/{TOKEN}", f"{PATH}/{OTHER}"
DEADLINE_NS = 4_000_000_000 * NS_PER_S
HOUR, IDLE = TimeToLive(ns=3600 * NS_PER_S), TimeToIdle(ns=3600 * NS_PER_S)
INLINE = Inline(Metadata(size=5), b"hello")
EXPIRING = Inline(Metadata(IDLE, time_expires_ns=DEADLINE_NS, size=5), b"hello", OTHER)
CHANGE = Change(TOKEN, PATH, BLOB, OLD, "session/1", "00-4bf9-00f0-01")
HELD = Entry(CHANGE, TOKEN.row_key(), "writer-1")
RUNTIME = SystemRuntime()
FAR = 1e12


async def repeated_record(log: BigtableChangeLog) -> None:
    log._sent.add(CHANGE)
    await log.record(CHANGE, "writer-1")


ROWS: dict[str, Callable[[BigtableRows], Awaitable[Any]]] = {
    "read": lambda rows: rows.read(PATH),
    "read with marks": lambda rows: rows.read(PATH, marks=True),
    "swap nothing for a tombstone": lambda rows: rows.swap(PATH, TOKEN, None, Tombstone(BLOB), FAR),
    "swap a tombstone for one that expires": lambda rows: rows.swap(PATH, TOKEN, OLD, Tombstone(BLOB, HOUR, DEADLINE_NS), FAR),
    "swap a legacy tombstone for an inline object": lambda rows: rows.swap(PATH, TOKEN, PATH, INLINE, FAR),
    "swap a tombstone for nothing": lambda rows: rows.swap(PATH, TOKEN, OLD, None, FAR),
    "settle": lambda rows: rows.settle(PATH, TOKEN),
    "put inline": lambda rows: rows.put_inline(PATH, TOKEN, INLINE),
    "put inline what expires": lambda rows: rows.put_inline(PATH, TOKEN, EXPIRING),
    "delete inline": lambda rows: rows.delete_inline(PATH, TOKEN),
    "put inline where payloads may be apart": lambda rows: (
        BigtableRows(rows._table, RUNTIME, LEGACY_FAMILIES).put_inline(PATH, TOKEN, INLINE)
    ),
    "touch": lambda rows: rows.touch(PATH, EXPIRING, DEADLINE_NS + NS_PER_S),
    "redirects": lambda rows: rows.redirects(b"a/", b"b/", 100_000),
    "redirects of the whole table": lambda rows: rows.redirects(b"", None, 7),
    "redirects at keys": lambda rows: rows.redirects_at([PATH.encode(), b"a", b"~changelog/", b""]),
    "boundaries": lambda rows: rows.boundaries(8),
}
LOG: dict[str, Callable[[BigtableChangeLog], Awaitable[Any]]] = {
    "record": lambda log: log.record(replace(CHANGE), "writer-1"),
    "record again": repeated_record,
    "renew": lambda log: log.renew([HELD]),
    "claim": lambda log: log.claim(HELD, "recovery-1"),
    "claim what was released": lambda log: log.claim(HELD.released(7), "recovery-1"),
    "release": lambda log: log.release(HELD, 1_700_000_900_000),
    "forget": lambda log: log.forget(HELD),
}
OPERATIONS = [*ROWS, *LOG]


class KeptWire:
    """Keeps the one request that is sent, and answers that the predicate matched."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        async def call(request: Any, **options: Any) -> Any:
            self.sent.append((method, request))
            # A repeated record must not be told that another value is there.
            return CheckAndMutateRowResponse.pb()(predicate_matched=not request.false_mutations)

        async def other(request: Any, **options: Any) -> Any:
            self.sent.append((method, request))
            return response_deserializer(b"")

        return call if method.endswith("CheckAndMutateRow") else other

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        wire = self

        class RequestStream:
            def __init__(self, request: Any, **options: Any) -> None:
                wire.sent.append((method, request))

            async def __aiter__(self) -> AsyncIterator[Any]:
                return
                yield

            def cancel(self) -> None:
                pass

        return RequestStream


async def sent(operation: str) -> str:
    """What the operation sends, as it stands in the file."""
    wire = KeptWire()
    table = BigtableTable(wire, NAME, "one-cluster")
    if operation in ROWS:
        await ROWS[operation](BigtableRows(table, RUNTIME))
    else:
        await LOG[operation](BigtableChangeLog(table, RUNTIME))
    [(method, request)] = wire.sent
    lines = re.sub("(.{120})", "\\1\n", request.SerializeToString(deterministic=True).hex())
    return f"== {operation}: {method}\n\n{request}\n{lines.strip()}\n"


@pytest.mark.anyio
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_request_has_exactly_these_bytes(operation: str) -> None:
    golden = {section.partition(":")[0]: section for section in GOLDEN.read_text().split("== ")[1:]}
    request = await sent(operation)
    # Only the bytes count: how protobuf spells text may change.
    assert hexed(request) == hexed(golden[operation]), request


def hexed(section: str) -> str:
    return section.strip().rpartition("\n\n")[2]


def test_the_file_holds_each_operation_once() -> None:
    assert re.findall("^== (.*?):", GOLDEN.read_text(), re.MULTILINE) == OPERATIONS


if __name__ == "__main__":
    async def write() -> None:
        GOLDEN.write_text("\n".join([await sent(operation) for operation in OPERATIONS]))

    anyio.run(write)
