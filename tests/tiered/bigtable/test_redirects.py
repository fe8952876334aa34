"""Tombstones of Bigtable in bulk, cell by cell: what older software wrote, what is corrupt, and what does not travel.

On Google's emulator, and on `MemoryBigtable` with its answers cut into small chunks and into few large ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.cloud.bigtable_v2.types import ReadRowsResponse

from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, set_cell
from emulators.bigtable.faulty_channel import rpc_error
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from tiered.bigtable.cells import LEGACY_FAMILIES
from tiered.bigtable.redirects import KEYS_BYTES_MAX
from tiered.bigtable.rows import BigtableRows
from tiered.provision.schema import FAMILIES
from tiered.services.capabilities import RedirectColumns
from tiered.services.scans import Redirect, RedirectPage

pytestmark = pytest.mark.anyio

RUNTIME = SystemRuntime()
PAST_US = 1_700_000_000_000_000
LEGACY = b'{"is_redirect_tombstone":true,"expiration_policy":{"TimeToLive":{"secs":3600,"nanos":0}}}'
PLAIN = b'{"content_type":"application/octet-stream","size":5}'
Cell = tuple[str, bytes, bytes]


class NotedChannel(MemoryChannel):
    """Keeps what went each way."""

    def __init__(self, server: MemoryBigtable) -> None:
        super().__init__(server)
        self.requests: list[Any] = []
        self.answered: list[bytes] = []

    async def send(self, method: str, request: Any) -> list[Any]:
        self.requests.append(request)
        messages = await super().send(method, request)
        self.answered += [message.SerializeToString() for message in messages]
        return messages


def memory(**cut: int) -> tuple[BigtableTable, NotedChannel]:
    channel = NotedChannel(MemoryBigtable(RUNTIME, {"table": {**FAMILIES, **dict.fromkeys(LEGACY_FAMILIES, FAMILIES["fm"])}}, **cut))
    return BigtableTable(channel, "table"), channel


@pytest.fixture(params=["emulator", "memory", "memory in chunks"])
async def table(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[BigtableTable]:
    async with AsyncExitStack() as stack:
        match request.param:
            case "emulator":
                yield await stack.enter_async_context(request.getfixturevalue("fresh_table")())
            case "memory":
                yield memory()[0]
            case _:
                yield memory(piece_bytes=3, message_chunks=2)[0]


async def plant(table: BigtableTable, key: bytes, *cells: Cell, at_us: int = PAST_US) -> None:
    await table.mutate(key, *(set_cell(family, column, value, at_us) for family, column, value in cells))


async def both_ways(table: BigtableTable, *keys: bytes) -> RedirectPage:
    """A scan of everything, the same in columns, and a reading of these keys agree."""
    rows = BigtableRows(table, RUNTIME)
    page = await rows.redirects(b"", None, 1000)
    assert await rows.redirects_at(keys) == page
    assert in_order(whole(await rows.redirect_columns(b"", None, 1000))) == in_order(page)
    return page


def whole(columns: RedirectColumns) -> RedirectPage:
    """The page with the rows of the columns after the others."""
    rows = [Redirect(path, target, columns.deadlines_ns.get(path)) for path, target in zip(columns.paths, columns.targets, strict=True)]
    assert columns.deadlines_ns.keys() <= set(columns.paths)
    return replace(columns.others, redirects=[*columns.others.redirects, *rows])


def in_order(page: RedirectPage) -> RedirectPage:
    return replace(page, redirects=sorted(page.redirects, key=lambda each: (each.path, each.target)))


async def test_the_usual_rows_are_in_the_columns_and_the_rest_is_not() -> None:
    table, _ = memory()
    await plant(table, b"a", ("fm", b"r", b"a/1"))
    columns = await BigtableRows(table, RUNTIME).redirect_columns(b"", None, 10)
    assert columns == RedirectColumns(["a"], ["a/1"], {}, RedirectPage([], [], None))
    of_notes = await BigtableRows(table, RUNTIME).redirect_columns(b"~notes/", b"~notes/z", 10)
    assert of_notes == RedirectColumns([], [], {}, RedirectPage([], [], None))


async def test_both_families_are_read_and_the_deadline_is_that_of_the_cell_expired_or_not(table: BigtableTable) -> None:
    await plant(table, b"a", ("fg", b"r", b"a/1"), ("fg", b"t", b"{}"), ("fg", b"v", b"token"), ("ff", b"w:x", b""))
    await plant(table, b"b", ("fm", b"r", b"b/1"))
    assert await both_ways(table, b"b", b"a") == RedirectPage([Redirect("a", "a/1", PAST_US * 1000), Redirect("b", "b/1", None)], [], None)


async def test_of_a_column_only_its_newest_cell_counts(table: BigtableTable) -> None:
    await plant(table, b"a", ("fg", b"r", b"a/old"))
    await plant(table, b"a", ("fg", b"r", b"a/new"), at_us=PAST_US + 1000)
    await plant(table, b"b", ("fm", b"m", LEGACY))
    await plant(table, b"b", ("fm", b"m", PLAIN), ("fm", b"p", b"hello"), at_us=PAST_US + 1000)
    assert await both_ways(table, b"a", b"b") == RedirectPage([Redirect("a", "a/new", (PAST_US + 1000) * 1000)], [], None)


async def test_legacy_tombstones_mean_the_blob_named_by_the_path(table: BigtableTable) -> None:
    await plant(table, b"a", ("fm", b"r", b""))
    await plant(table, b"b", ("fm", b"m", LEGACY), ("fm", b"p", b""))
    await plant(table, b"c", ("fg", b"m", LEGACY))
    await plant(table, b"d", ("fg", b"r", b""))
    deadline_ns = PAST_US * 1000
    assert list((await both_ways(table, b"a", b"b", b"c", b"d")).redirects) == [
        Redirect("a", "a", None), Redirect("b", "b", None), Redirect("c", "c", deadline_ns), Redirect("d", "d", deadline_ns)
    ]


@pytest.mark.parametrize("payload", ["fm", "fpm"])
async def test_metadata_that_begin_as_a_legacy_tombstones_beside_a_payload_are_an_inline_objects(
    table: BigtableTable, payload: str
) -> None:
    await plant(table, b"a", ("fm", b"m", LEGACY))
    await plant(table, b"b", ("fm", b"m", LEGACY), (payload, b"p", b"hello"))
    await plant(table, b"c", ("fm", b"m", PLAIN), ("fm", b"p", b"hello"))
    assert await both_ways(table, b"a", b"b", b"c") == RedirectPage([Redirect("a", "a", None)], [], None)


async def test_a_row_that_may_mean_two_blobs_yields_both_and_is_corrupt(table: BigtableTable) -> None:
    await plant(table, b"a", ("fg", b"r", b"a/1"), ("fm", b"r", b"a/2"))
    await plant(table, b"b", ("fm", b"r", b"b/1"), ("fm", b"m", LEGACY))
    await plant(table, b"c", ("fm", b"r", b"c/1"))
    page = await both_ways(table, b"a", b"b", b"c")
    assert {*page.redirects} == {
        Redirect("a", "a/1", PAST_US * 1000), Redirect("a", "a/2", None), Redirect("b", "b/1", None), Redirect("b", "b", None),
        Redirect("c", "c/1", None),
    }  # fmt: skip
    assert [(row.path, "2 ways" in row.fault) for row in page.corrupt] == [("a", True), ("b", True)]


async def test_what_is_no_text_is_corrupt_with_its_bytes_escaped_and_costs_no_other(table: BigtableTable) -> None:
    await plant(table, b"a\xff", ("fm", b"r", b"a/1"))
    await plant(table, b"b", ("fm", b"r", b"b/\xfe"))
    await plant(table, b"c", ("fm", b"r", b"c/1"))
    page = await both_ways(table, b"a\xff", b"b", b"c")
    assert list(page.redirects) == [Redirect("c", "c/1", None)]
    assert [(row.path, "key" in row.fault, "target" in row.fault) for row in page.corrupt] == [("a\\xff", True, False), ("b", False, True)]


OWN = (b"~changelog/00/x", b"~changelog/objects/x", b"~daemon/me", b"~notes/n", b"~values/v")


async def test_the_stores_own_keys_are_no_objects_and_uploads_and_others_with_a_tilde_are_read(table: BigtableTable) -> None:
    for key in (b"a/uploads/x", b"}", b"~", *OWN, b"~theirs/objects/x", b"\x7f", b"\xc3\xa9"):
        await plant(table, key, ("fm", b"r", b"target"))
    rows = BigtableRows(table, RUNTIME)
    expected = ["a/uploads/x", "}", "~", "~theirs/objects/x", "\x7f", "é"]
    assert [each.path for each in (await rows.redirects(b"", None, 1000)).redirects] == expected
    at = await rows.redirects_at([*(key.encode() for key in expected), *OWN])
    assert [each.path for each in at.redirects] == expected
    for start, end, found in (
        (b"}", b"~a", ["}", "~"]), (b"~a", b"~e", []), (b"~changelog/", b"\x80", expected[3:5]), (b"~", None, expected[2:]),
    ):
        assert [each.path for each in (await rows.redirects(start, end, 1000)).redirects] == found
    paged, start = [], b""
    while True:
        page = await rows.redirects(start, None, 1)
        assert whole(await rows.redirect_columns(start, None, 1)) == page
        paged += [each.path for each in page.redirects]
        if page.next_start is None:
            break
        assert start < page.next_start
        start = page.next_start
    assert paged == expected


async def test_boundaries_are_samples_that_are_text_and_no_part_is_the_changelog(table: BigtableTable) -> None:
    for number in range(200):
        await plant(table, b"a/%03d\xff" % number, ("fm", b"p", b"x" * 1000))
        await plant(table, b"~changelog/%03d" % number, ("fc", b"c", b"x" * 1000))
    points = await BigtableRows(table, RUNTIME).boundaries(10)
    assert len(points) < 10 and list(points) == sorted(set(points))
    assert all(point.startswith("a/") and point.isascii() for point in points)


async def test_no_payload_travels() -> None:
    table, channel = memory()
    await plant(table, b"a", ("fm", b"m", PLAIN), ("fm", b"p", b"secret" * 1000))
    await plant(table, b"b", ("fm", b"m", LEGACY), ("fm", b"p", b"secret" * 1000))
    await plant(table, b"c", ("fm", b"m", LEGACY))
    await plant(table, b"d", ("fm", b"r", b"d/1"))
    channel.answered.clear()
    await both_ways(table, b"a", b"b", b"c", b"d")
    assert channel.answered and b"secret" not in b"".join(channel.answered) and b"is_redirect" not in b"".join(channel.answered)


async def test_a_page_is_one_request_and_more_keys_than_a_request_may_have_are_several() -> None:
    table, channel = memory()
    rows = BigtableRows(table, RUNTIME)
    keys = [b"k%06d" % number + b"x" * 900 for number in range(1000)]
    await plant(table, keys[0], ("fm", b"r", b"first"))
    await plant(table, keys[-1], ("fm", b"r", b"last"))
    channel.requests.clear()
    assert [each.target for each in (await rows.redirects(b"", None, 1000)).redirects] == ["first", "last"]
    assert len(channel.requests) == 1
    assert [each.target for each in (await rows.redirects_at(keys)).redirects] == ["first", "last"]
    assert len(channel.requests) == 4
    assert all(request.ByteSize() < KEYS_BYTES_MAX * 1.1 for request in channel.requests)
    assert [key for request in channel.requests[1:] for key in request.rows.row_keys] == keys


class Endless(MemoryChannel):
    """Its time is up after the first messages of a scan."""

    def __init__(self, server: MemoryBigtable, messages: list[Any]) -> None:
        super().__init__(server)
        self.messages = messages

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        messages = self.messages

        class RedirectStream:
            def __init__(self, *arguments: Any, **options: Any) -> None:
                pass

            async def __aiter__(self) -> AsyncIterator[bytes]:
                for message in messages:
                    yield message.SerializeToString()
                raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

            def cancel(self) -> None:
                pass

        return RedirectStream


def row(key: bytes, target: bytes) -> Any:
    message = ReadRowsResponse.pb()()
    chunk = message.chunks.add(row_key=key, value=target, commit_row=True)
    chunk.family_name.value, chunk.qualifier.value = "fm", b"r"
    return message


async def test_a_page_whose_time_is_up_ends_where_the_service_had_come_to() -> None:
    def rows_of(*messages: Any) -> BigtableRows:
        return BigtableRows(BigtableTable(Endless(MemoryBigtable(RUNTIME, {}), list(messages)), "table"), RUNTIME)

    passed = ReadRowsResponse.pb()(last_scanned_row_key=b"m")
    page = await rows_of(row(b"a", b"a/1"), row(b"b", b"b/1")).redirects(b"", None, 1000)
    assert page == RedirectPage([Redirect("a", "a/1", None), Redirect("b", "b/1", None)], [], b"b\0")
    assert whole(await rows_of(row(b"a", b"a/1"), row(b"b", b"b/1")).redirect_columns(b"", None, 1000)) == page
    assert await rows_of(row(b"a", b"a/1"), passed).redirects(b"", None, 1000) == RedirectPage([Redirect("a", "a/1", None)], [], b"m\0")
    assert await rows_of(passed).redirects(b"", None, 1000) == RedirectPage([], [], b"m\0")
    with pytest.raises(UnavailableError, match="DEADLINE_EXCEEDED"):
        await rows_of().redirects(b"", None, 1000)
    with pytest.raises(UnavailableError, match="in time"):
        await rows_of(row(b"a", b"a/1")).redirects_at([b"a", b"b"])
