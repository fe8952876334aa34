"""`ColumnScan`: rows of one cell each, as columns of text, from the bytes of Bigtable's ReadRows. No I/O.

    message of rows of one chunk each, all with the wanted column      `keys`, `values`; `stamps` of the timed family
    any other                                                          `RowScan`, at three times the cost

A message type of our own says that a response has *one* chunk, whose fields are all repeated. The parser then does what
protobuf prescribes for a message that comes several times: it appends the fields of each to those before. So one call
of the parser, in C, makes lists of all keys and of all values, and no Python object for a chunk. A second parse counts
the chunks. If each list is as long as that, no chunk left a field out, and the lists fit each other. (A field that
stands twice in one chunk would deceive this. No serializer writes that.)

*Failure*: as in `RowScan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import lt
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from changelog.bigtable.row_scan import RowScan


class ColumnScan(RowScan):
    """A `RowScan` that puts rows into columns where it can. What it cannot put there is in `cells`.

    `column`: that of the rows' one cell. `family`: rows of this family have no entry in `stamps`. `timed`: those of
    this one have.

    `keys` and `values` are of equal length, in the order of the keys; no value is empty. `stamps`: the timestamps
    (microseconds since 1970) of the rows with a cell in the family `timed`, by key. `rows` counts all rows.
    """

    def __init__(self, column: bytes, family: str, timed: str) -> None:
        super().__init__()
        self.keys: list[str] = []
        self.values: list[str] = []
        self.stamps: dict[str, int] = {}
        self._column = _wrapped(column)
        self._family, self._timed = _wrapped(family.encode()), _wrapped(timed.encode())

    def add(self, raw: bytes) -> None:
        if not (self.is_between_rows and self._add_columns(raw)):
            super().add(raw)

    def _add_columns(self, raw: bytes) -> bool:
        """Adds the message if it is nothing but wanted rows. False: it is not, and nothing was added."""
        try:
            message = _Columns.FromString(raw)
        except DecodeError:  # a key or a value is no UTF-8
            return False
        chunks = message.chunks
        keys, values = chunks.row_key[:], chunks.value[:]
        number = len(_Counted.FromString(raw).chunks)
        if not (len(keys) == len(values) == len(chunks.commit_row) == len(chunks.family_name) == number > 0):
            return False
        if chunks.value_size or chunks.reset_row or not all(chunks.commit_row) or not all(values):
            return False
        if chunks.qualifier[:].count(self._column) != number or not self._are_in_order(keys):
            return False
        families = chunks.family_name[:]
        if families.count(self._family) != number:
            stamps = chunks.timestamp_micros[:]
            if len(stamps) != number or families.count(self._family) + families.count(self._timed) != number:
                return False
            self.stamps.update((key, stamp) for key, family, stamp in zip(keys, families, stamps, strict=True) if family == self._timed)
        self.keys += keys
        self.values += values
        self.rows += number
        self.pass_to(keys[-1].encode(), message.last_scanned_row_key)
        return True

    def _are_in_order(self, keys: Sequence[str]) -> bool:
        """Whether each key comes after the one before it. Text is compared as its UTF-8 would be."""
        return keys[0].encode() > self.committed_key and all(map(lt, keys, islice(keys, 1, None)))


def _message_types() -> tuple[Any, Any, Any]:
    """Message types as in Bigtable's API, but for what is repeated. Family and column stay bytes."""
    field = FieldDescriptorProto
    file = FileDescriptorProto(name="tiered/column_scan.proto", package="tiered.columns", syntax="proto3")
    chunk, columns, counted, wrapped = (file.message_type.add(name=name) for name in ("Chunk", "Columns", "Counted", "Wrapped"))
    for name, number, kind in (
        ("row_key", 1, field.TYPE_STRING), ("family_name", 2, field.TYPE_BYTES), ("qualifier", 3, field.TYPE_BYTES),
        ("timestamp_micros", 4, field.TYPE_INT64), ("value", 6, field.TYPE_STRING), ("value_size", 7, field.TYPE_INT32),
        ("reset_row", 8, field.TYPE_BOOL), ("commit_row", 9, field.TYPE_BOOL),
    ):  # fmt: skip
        chunk.field.add(name=name, number=number, type=kind, label=field.LABEL_REPEATED)
    columns.field.add(name="chunks", number=1, type=field.TYPE_MESSAGE, type_name=".tiered.columns.Chunk", label=field.LABEL_OPTIONAL)
    columns.field.add(name="last_scanned_row_key", number=2, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    counted.field.add(name="chunks", number=1, type=field.TYPE_BYTES, label=field.LABEL_REPEATED)
    wrapped.field.add(name="value", number=1, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    pool = DescriptorPool()
    pool.Add(file)
    of_columns, of_counted, of_wrapped = (
        GetMessageClass(pool.FindMessageTypeByName(f"tiered.columns.{name}")) for name in ("Columns", "Counted", "Wrapped")
    )
    return of_columns, of_counted, of_wrapped


_Columns, _Counted, _Wrapped = _message_types()


def _wrapped(text: bytes) -> bytes:
    """Returns a family or a column as it stands in a chunk: a message with one field."""
    return bytes(_Wrapped(value=text).SerializeToString())
