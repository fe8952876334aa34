"""Rows from the chunks of ReadRows: whole ones, split ones, reset ones, and streams that break the rules.

The emulator sends one row per message and never splits a cell, so these messages are made here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from google.cloud.bigtable_v2.types import ReadRowsResponse
from hypothesis import given
from hypothesis import strategies as st

from changelog.base.errors import UnavailableError
from changelog.bigtable.channel import after_prefix
from changelog.bigtable.column_scan import ColumnScan
from changelog.bigtable.row_merge import Cell, CellRow, RowMerge
from changelog.bigtable.row_scan import RowScan, ScannedCell

CHUNK = ReadRowsResponse.CellChunk.pb()


def chunk(
    key: bytes = b"", family: str | None = None, column: bytes | None = None, value: bytes = b"", at_us: int = 0, *,
    size: int = 0, commit: bool = False, reset: bool = False,
) -> Any:  # fmt: skip
    made = CHUNK(row_key=key, value=value, timestamp_micros=at_us, value_size=size)
    if family is not None:
        made.family_name.value = family
    if column is not None:
        made.qualifier.value = column
    if commit:
        made.commit_row = True
    if reset:
        made.reset_row = True
    return made


def merged(*messages: list[Any]) -> list[CellRow]:
    merge = RowMerge()
    rows = [row for message in messages for row in merge.add(ReadRowsResponse.pb()(chunks=message).chunks)]
    merge.end()
    assert scanned(*messages) == [(row.key, cell.family, cell.column, cell.timestamp_us, cell.value) for row in rows for cell in row.cells]
    return rows


def scanned(*messages: list[Any]) -> list[ScannedCell]:
    """The same in bulk."""
    scan = RowScan()
    for message in messages:
        scan.add(ReadRowsResponse.pb()(chunks=message).SerializeToString())
    scan.end()
    assert scan.rows == sum(chunk.commit_row for message in messages for chunk in message)
    assert in_columns(*messages) == sorted(map(_without_server_time, scan.cells))
    return scan.cells


def in_columns(*messages: list[Any]) -> list[ScannedCell]:
    """The same with the cells of `r` in columns, as far as they can be. A timestamp in `fm` is not told."""
    scan = ColumnScan(b"r", "fm", "fg")
    for message in messages:
        scan.add(ReadRowsResponse.pb()(chunks=message).SerializeToString())
    scan.end()
    assert scan.rows == sum(chunk.commit_row for message in messages for chunk in message)
    assert scan.stamps.keys() <= set(scan.keys) and scan.keys == sorted(scan.keys)
    columns = [
        (key.encode(), "fg" if key in scan.stamps else "fm", b"r", scan.stamps.get(key, 0), value.encode())
        for key, value in zip(scan.keys, scan.values, strict=True)
    ]
    return sorted([*columns, *map(_without_server_time, scan.cells)])


def _without_server_time(cell: ScannedCell) -> ScannedCell:
    key, family, column, at_us, value = cell
    return key, family, column, 0 if (family, column) == ("fm", b"r") else at_us, value


def test_a_row_of_one_cell_is_read() -> None:
    assert merged([chunk(b"k", "fg", b"p", b"value", 5000, commit=True)]) == [CellRow(b"k", (Cell("fg", b"p", 5000, b"value"),))]


def test_no_messages_are_no_rows() -> None:
    assert merged() == merged([]) == []


def test_what_did_not_change_is_left_out_of_a_chunk() -> None:
    rows = merged([
        chunk(b"k", "fg", b"m", b"1", 2000), chunk(value=b"0", at_us=1000), chunk(column=b"p", value=b"2", at_us=2000),
        chunk(family="fm", column=b"", value=b"3", at_us=3000, commit=True),
    ])
    cells = (Cell("fg", b"m", 2000, b"1"), Cell("fg", b"m", 1000, b"0"), Cell("fg", b"p", 2000, b"2"), Cell("fm", b"", 3000, b"3"))
    assert rows == [CellRow(b"k", cells)]


def test_one_message_holds_many_rows_and_a_row_spans_messages() -> None:
    a, b = chunk(b"a", "f", b"1", b"x", commit=True), chunk(b"b", "f", b"1", b"y")
    rows = merged([a, b], [chunk(column=b"2", value=b"z", commit=True)], [chunk(b"c", "f", b"1", commit=True)])
    assert [(row.key, len(row.cells)) for row in rows] == [(b"a", 1), (b"b", 2), (b"c", 1)]


def test_a_row_counts_only_when_it_is_committed() -> None:
    merge = RowMerge()
    assert list(merge.add([chunk(b"k", "f", b"c", b"x")])) == []
    assert len(list(merge.add([chunk(column=b"d", commit=True)]))) == 1
    merge.end()


@pytest.mark.parametrize("messages", [1, 3])
def test_a_split_cell_is_put_together(messages: int) -> None:
    pieces = [chunk(b"k", "f", b"c", b"one", 7000, size=9), chunk(value=b"two", size=9), chunk(value=b"six")]
    last = chunk(column=b"d", value=b"after", at_us=8000, commit=True)
    rows = merged(*([[*pieces, last]] if messages == 1 else [[pieces[0]], [pieces[1]], [pieces[2], last]]))
    assert rows == [CellRow(b"k", (Cell("f", b"c", 7000, b"onetwosix"), Cell("f", b"d", 8000, b"after")))]


def test_a_split_cell_may_end_its_row() -> None:
    [row] = merged([chunk(b"k", "f", b"c", b"one", size=6)], [chunk(value=b"two", commit=True)])
    assert row.cells[0].value == b"onetwo"


@pytest.mark.parametrize("size", [0, 9], ids=["whole cell", "split cell"])
def test_a_row_that_is_reset_begins_again(size: int) -> None:
    begun = [chunk(b"a", "f", b"c", b"kept", commit=True), chunk(b"k", "f", b"c", b"lost", size=size), chunk(reset=True)]
    rows = merged(begun, [chunk(b"k", "g", b"d", b"said", 1000, commit=True)])
    assert rows[1:] == [CellRow(b"k", (Cell("g", b"d", 1000, b"said"),))]


BROKEN = {
    "ends in the middle of a row": [chunk(b"k", "f", b"c")],
    "ends in the middle of a cell": [chunk(b"k", "f", b"c", b"x", size=5)],
    "begins without a key": [chunk(b"", "f", b"c", commit=True)],
    "begins without a family": [chunk(b"k", commit=True)],
    "begins a family without a column": [chunk(b"k", "f", commit=True)],
    "keys out of order": [chunk(b"b", "f", b"c", commit=True), chunk(b"a", "f", b"c", commit=True)],
    "the same row twice": [chunk(b"b", "f", b"c", commit=True), chunk(b"b", "f", b"c", commit=True)],
    "another row in the middle of one": [chunk(b"a", "f", b"c"), chunk(b"b", "f", b"c", commit=True)],
    "another cell in the middle of one": [chunk(b"a", "f", b"c", b"x", size=5), chunk(column=b"d", commit=True)],
    "another row in the middle of a cell": [chunk(b"a", "f", b"c", b"x", size=5), chunk(b"b", value=b"y", commit=True)],
    "a commit in the middle of a cell": [chunk(b"a", "f", b"c", b"x", size=5, commit=True)],
    "a reset of nothing": [chunk(reset=True)],
    "a reset that carries a value": [chunk(b"a", "f", b"c"), chunk(value=b"x", reset=True)],
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_stream_that_breaks_the_rules_is_unavailable_and_yields_no_half_row(fault: str) -> None:
    with pytest.raises(UnavailableError, match="ReadRows"):
        merged(BROKEN[fault])
    for messages in ([BROKEN[fault]], [[each] for each in BROKEN[fault]]):
        with pytest.raises(UnavailableError, match="ReadRows"):
            scanned(*messages)
        with pytest.raises(UnavailableError, match="ReadRows"):
            in_columns(*messages)


# Mostly the cells that go into columns.
cells = st.tuples(
    st.sampled_from(["fm", "fm", "fg", "ff"]), st.sampled_from([b"r", b"r", b"r", b"m", b""]),
    st.sampled_from([b"value", "né".encode(), b"value", b"", b"\xff"]),
)


@given(st.lists(st.lists(cells, min_size=1, max_size=2), max_size=9), st.sampled_from([b"%02d", b"\xc3\xa9%02d", b"\xff%02d"]), st.data())
def test_rows_of_one_chunk_and_others_in_any_messages_are_the_same_in_bulk(
    rows: list[list[tuple[str, bytes, bytes]]], keys: bytes, data: st.DataObject
) -> None:
    chunks = []
    for number, cells in enumerate(rows):
        for last, (family, column, value) in enumerate(cells, 1 - len(cells)):
            chunks.append(chunk(keys % number, family, column, value, 1000 * number, commit=last == 0))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(chunks)), max_size=4)))
    messages = [chunks[first:last] for first, last in pairwise([0, *cuts, len(chunks)])]
    assert [len(row.cells) for row in merged(*messages)] == [len(cells) for cells in rows]


def test_rows_of_one_cell_are_put_into_columns() -> None:
    scan = ColumnScan(b"r", "fm", "fg")
    made = [chunk(b"a", "fm", b"r", b"x", 7000, commit=True), chunk(b"b", "fg", b"r", b"y", 8000, commit=True)]
    scan.add(ReadRowsResponse.pb()(chunks=made).SerializeToString())
    assert (scan.keys, scan.values, scan.stamps, scan.cells, scan.rows, scan.last_key) == (["a", "b"], ["x", "y"], {"b": 8000}, [], 2, b"b")


def test_chunks_that_leave_out_as_many_keys_as_others_leave_out_values_are_not_taken_for_whole_ones() -> None:
    """Two chunks make one row. Each column has one entry fewer than there are chunks."""
    scan = ColumnScan(b"r", "fm", "fg")
    scan.add(ReadRowsResponse.pb()(chunks=[chunk(b"a", "fm", b"r", b"x", 7000), chunk(commit=True)]).SerializeToString())
    assert (scan.keys, scan.rows) == ([], 1)
    assert scan.cells == [(b"a", "fm", b"r", 7000, b"x"), (b"a", "fm", b"r", 0, b"")]


def test_a_scan_in_bulk_tells_how_far_it_has_come() -> None:
    scan = RowScan()
    assert scan.last_key == b""
    scan.add(ReadRowsResponse.pb()(chunks=[chunk(b"b", "f", b"c", commit=True)]).SerializeToString())
    assert scan.last_key == b"b"
    scan.add(ReadRowsResponse.pb()(chunks=[chunk(b"d", "f", b"c")]).SerializeToString())
    assert scan.last_key == b"b"
    scan.add(ReadRowsResponse.pb()(chunks=[chunk(column=b"d", commit=True)]).SerializeToString())
    assert scan.last_key == b"d"
    scan.add(ReadRowsResponse.pb()(last_scanned_row_key=b"x").SerializeToString())
    assert scan.last_key == b"x"


@given(values=st.lists(st.binary(max_size=40), min_size=1, max_size=6), cut=st.integers(1, 7), messages=st.integers(1, 5))
def test_however_a_row_is_cut_it_is_the_same(values: list[bytes], cut: int, messages: int) -> None:
    chunks = []
    for number, value in enumerate(values):
        pieces = [value[at : at + cut] for at in range(0, len(value), cut)] or [b""]
        chunks += [chunk(value=piece, size=len(value)) for piece in pieces]
        chunks[-1].value_size = 0
        first = chunks[-len(pieces)]
        first.qualifier.value = b"%d" % number
        first.timestamp_micros = 1000 * number
    chunks[0].row_key, chunks[0].family_name.value, chunks[-1].commit_row = b"k", "f", True
    rows = merged(*(chunks[at : at + messages] for at in range(0, len(chunks), messages)))
    assert rows == [CellRow(b"k", tuple(Cell("f", b"%d" % number, 1000 * number, value) for number, value in enumerate(values)))]


@pytest.mark.parametrize(("prefix", "after"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", b""), (b"", b""), (b"~daemon/", b"~daemon0")])
def test_the_first_bytes_after_a_prefix(prefix: bytes, after: bytes) -> None:
    assert after_prefix(prefix) == after
