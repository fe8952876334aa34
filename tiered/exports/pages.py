"""How many bytes the columns of a Parquet file become, by the headers of its pages: known before one is decompressed.

A part of an export comes from anywhere. Its footer may lie, so only what the decoder itself goes by counts: a page has
as many bytes as its header says, or its decompression fails. Beyond that, texts grow only by a dictionary, which
`manifest.py` counts, and by deltas, which are refused. Pure. The headers are Thrift's compact protocol.
"""

from __future__ import annotations

from typing import Any

Fields = dict[int, Any]

_UNCOMPRESSED, _COMPRESSED, _DATA, _DATA_V2 = 2, 3, 5, 8
_ENCODING, _ENCODING_V2 = 2, 4
_ENCODINGS = {0, 2, 3, 4, 8}
"""Plain values, runs and indexes into a dictionary."""
_DEPTH_MAX = 8


def bytes_of_column(content: bytes, column: Any) -> int:
    """The bytes of all pages of a column chunk, as pyarrow describes it. `ValueError`: they are none that we write."""
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < (column.dictionary_page_offset or 0) < start:
        start = column.dictionary_page_offset
    total, at, end = 0, start, start + column.total_compressed_size
    try:
        while at < end:
            fields, at = _struct(content, at, 0)
            encoding = fields.get(_DATA, {}).get(_ENCODING, fields.get(_DATA_V2, {}).get(_ENCODING_V2, 0))
            if min(fields[_UNCOMPRESSED], fields[_COMPRESSED], start) < 0 or encoding not in _ENCODINGS:
                raise ValueError(f"it has a page of the encoding {encoding}")
            total += fields[_UNCOMPRESSED]
            at += fields[_COMPRESSED]
    except (IndexError, KeyError, TypeError, AttributeError):
        raise ValueError("the header of a page cannot be read") from None
    return total


def _struct(data: bytes, at: int, depth: int) -> tuple[Fields, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("the header of a page is nested too deeply")
    fields, number = Fields(), 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(data, at, head & 15, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2:  # the kind is the truth value
            return kind == 1, at
        case 3:
            return data[at], at + 1
        case 4 | 5 | 6:
            return _integer(data, at)
        case 7:
            return None, at + 8
        case 8:
            size, at = _varint(data, at)
            return None, at + size
        case 12:
            return _struct(data, at, depth + 1)
    raise ValueError(f"the header of a page has a field of kind {kind}")  # a header has no lists


def _integer(data: bytes, at: int) -> tuple[int, int]:
    raw, at = _varint(data, at)
    return (raw >> 1) ^ -(raw & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("the header of a page has a number of more than 64 bits")
