"""Whatever cells a row has: our store and the reader of `docs/format.md` make the same of it."""

from __future__ import annotations

import json
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.base.errors import CorruptRecordError
from changelog.bigtable.channel import BigtableTable
from changelog.bigtable.row_merge import Cell
from emulators.bigtable.filters import place
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from tests.conformance import reader
from tests.given.stored_bytes import MAY_HAVE, TABLE, TimeOfDay
from tiered.bigtable.cells import DATA_FAMILIES, LEGACY_FAMILIES
from tiered.bigtable.rows import BigtableRows
from tiered.metadata import encode_metadata, encode_policy, is_expired
from tiered.services.backends import Inline, RowState

EXAMPLES, ROWS = 30, 12
NOW_US = 1_700_000_000_000_000
PATH = "attachments/org.17/project.42/objects/abc123"
TOKEN = "018bcfe5-6800-7000-8000-000000000001"
BLOB = f"{PATH}/{TOKEN}"
POLICY = b'{"expiration_policy":{"TimeToIdle":{"secs":3600,"nanos":0}}}'
TIMES_US = [NOW_US + seconds * 1_000_000 for seconds in (-1000, 0, 300, 1200)]
VALUES = {
    "p": [b"", b"hello"], "r": [b"", BLOB.encode()], "t": [b"{}", POLICY, b"[]", b'{"expiration_policy":null}'], "v": [TOKEN.encode()],
    "c": [b""], "m": [
        b"{}", b"{", POLICY, b'{"size":5}', b'{"size":0,"content_type":""}', b'{"is_redirect_tombstone":true}', b'{"size":"5"}',
        b'{"is_redirect_tombstone":true,"expiration_policy":{"TimeToLive":{"secs":3600,"nanos":0}}}', b'{"time_expires":null,"newer":null}',
    ],
}  # fmt: skip
ODD = st.tuples(st.sampled_from([*DATA_FAMILIES, *LEGACY_FAMILIES]), st.sampled_from("pmrtv"), st.sampled_from(TIMES_US))
RESOURCE = {"name": "", "size": "3", "timeCreated": "2023-11-14T22:13:20.500Z"}


@st.composite
def rows(draw: st.DrawFn) -> tuple[Cell, ...]:
    """Cells as some software may have left them: mostly of one family and of one time."""
    family, at_us = draw(st.sampled_from(["fg", "fg", "fm"])), draw(st.sampled_from(TIMES_US))
    found = {}
    for column in draw(st.sets(st.sampled_from("pmrtvc"), max_size=5)):
        cell = Cell(family, column.encode(), at_us, draw(st.sampled_from(VALUES[column])))
        found[place(cell)] = cell
    for odd_family, column, odd_at_us in draw(st.lists(ODD, max_size=2)):
        named = "p" if odd_family in LEGACY_FAMILIES else column
        cell = Cell(odd_family, named.encode(), odd_at_us, draw(st.sampled_from(VALUES[named])))
        found[place(cell)] = cell
    return tuple(found[at] for at in sorted(found))


async def told_by_store(drawn: list[tuple[Cell, ...]]) -> list[Any]:
    runtime = TimeOfDay(NOW_US * 1000)
    server = MemoryBigtable(runtime, {TABLE: MAY_HAVE})
    rows = BigtableRows(BigtableTable(MemoryChannel(server), TABLE), runtime)
    said: list[Any] = []
    for cells in drawn:
        server.tables[TABLE].put(PATH.encode(), cells)
        try:
            said.append(shown((await rows.read(PATH)).state))
        except CorruptRecordError:
            said.append("corrupt")
    return said


def shown(state: RowState) -> Any:
    if state is None or is_expired(state.deadline_ns, NOW_US * 1000):
        return None
    if isinstance(state, Inline):
        return json.loads(encode_metadata(state.metadata)), state.payload
    return state.target, encode_policy(state.expiration), state.deadline_ns and state.deadline_ns // 1000


def told_by_reader(cells: tuple[Cell, ...]) -> Any:
    try:
        found = reader.read(
            PATH.encode(), [reader.ReadCell(cell.family, cell.column.decode(), cell.timestamp_us, cell.value) for cell in cells],
            lambda name: RESOURCE, NOW_US,
        )  # fmt: skip
    except reader.BreaksFormatError:
        return "corrupt"
    if found is None or found.blob is None:
        return found and (found.metadata, found.payload)
    return found.blob, found.policy, next(iter(found.deadlines_us), None)


@settings(max_examples=EXAMPLES)
@given(st.lists(rows(), min_size=1, max_size=ROWS))
def test_our_store_and_the_reader_of_the_page_say_the_same_of_any_cells(drawn: list[tuple[Cell, ...]]) -> None:
    for cells, said in zip(drawn, anyio.run(told_by_store, drawn), strict=True):
        assert said == told_by_reader(cells), cells
