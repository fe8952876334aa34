"""`RowScan`: the cells of Bigtable's ReadRows in bulk, from the bytes of its messages. No I/O.

    message of rows of one chunk each      decoded by a message type with few fields; no object for a row or a cell
    any other                              `RowMerge`, at three times the cost

*Failure*: as in `RowMerge`.
"""

from __future__ import annotations

from typing import Any

from google.cloud.bigtable_v2.types import bigtable
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from changelog.bigtable.row_merge import RowMerge

ScannedCell = tuple[bytes, str, bytes, int, bytes]
"""Key of the row, family, column, timestamp (microseconds since 1970, in whole milliseconds), value."""

_Response = bigtable.ReadRowsResponse.pb()


class RowScan:
    """`cells`: the cells of all complete rows, row by row. `rows`: the number of these rows."""

    def __init__(self) -> None:
        self.cells: list[ScannedCell] = []
        self.rows = 0
        self._merge = RowMerge()
        self._passed = b""

    @property
    def last_key(self) -> bytes:
        """How far the scan has come. All rows up to this key are complete, or the filter yields nothing of them."""
        return max(self._merge.last_key, self._passed)

    @property
    def committed_key(self) -> bytes:
        """The key of the last row that is complete."""
        return self._merge.last_key

    @property
    def is_between_rows(self) -> bool:
        return self._merge.is_between_rows

    def pass_to(self, committed: bytes, scanned: bytes) -> None:
        """Notes the last row that was added, and the key that the message says was scanned (empty: it says none)."""
        self._merge.last_key, self._passed = committed, scanned

    def add(self, raw: bytes) -> None:
        """Takes the next message, in order, as the bytes that came."""
        if self.is_between_rows and self._add_rows_of_one_chunk(raw):
            return
        response = _Response.FromString(raw)
        for row in self._merge.add(response.chunks):
            self.cells += [(row.key, cell.family, cell.column, cell.timestamp_us, cell.value) for cell in row.cells]
            self.rows += 1
        self._passed = response.last_scanned_row_key

    def end(self) -> None:
        """Tells that the stream has ended. Raises as `RowMerge.end`."""
        self._merge.end()

    def _add_rows_of_one_chunk(self, raw: bytes) -> bool:
        """Adds the message if all its rows are of one chunk.

        False: it holds something else or breaks a rule; nothing was added.
        """
        message, last = _Rows.FromString(raw), self._merge.last_key
        found: list[ScannedCell] = []
        keep, family, column = found.append, "", b""
        at: bytes | None = None
        column_at: bytes | None = None
        for chunk in message.chunks:
            key = chunk.row_key
            if chunk.family_name != at or chunk.qualifier != column_at:
                at, column_at = chunk.family_name, chunk.qualifier
                if not at or not column_at:
                    return False
                family, column = _Wrapped.FromString(at).value.decode(), _Wrapped.FromString(column_at).value
            if key <= last or not chunk.commit_row or chunk.value_size:
                return False
            keep((key, family, column, chunk.timestamp_micros, chunk.value))
            last = key
        self.cells += found
        self.rows += len(found)
        self.pass_to(last, message.last_scanned_row_key)
        return True


def _message_types() -> tuple[Any, Any]:
    """Message types as in Bigtable's API, without the fields that are not read. Family and column stay bytes."""
    field = FieldDescriptorProto
    file = FileDescriptorProto(name="tiered/row_scan.proto", package="tiered", syntax="proto3")
    chunk, rows, wrapped = (file.message_type.add(name=name) for name in ("Chunk", "Rows", "Wrapped"))
    for name, number, kind in (
        ("row_key", 1, field.TYPE_BYTES), ("family_name", 2, field.TYPE_BYTES), ("qualifier", 3, field.TYPE_BYTES),
        ("timestamp_micros", 4, field.TYPE_INT64), ("value", 6, field.TYPE_BYTES), ("value_size", 7, field.TYPE_INT32),
        ("commit_row", 9, field.TYPE_BOOL),
    ):  # fmt: skip
        chunk.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    rows.field.add(name="chunks", number=1, type=field.TYPE_MESSAGE, type_name=".tiered.Chunk", label=field.LABEL_REPEATED)
    rows.field.add(name="last_scanned_row_key", number=2, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    wrapped.field.add(name="value", number=1, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    pool = DescriptorPool()
    pool.Add(file)
    rows_type, wrapped_type = (GetMessageClass(pool.FindMessageTypeByName(f"tiered.{name}")) for name in ("Rows", "Wrapped"))
    return rows_type, wrapped_type


_Rows, _Wrapped = _message_types()
