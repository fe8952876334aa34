"""Columns of Arrow from Python values, for processes that do without pandas.

`pyarrow.array` imports pandas, if it is installed, only to see whether its values are of pandas. That takes 40 MB in
each worker, and a fifth of a second.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

_CODES = {4: "i", 8: "q"}
"""By the bytes of a number: its code in the module `array`."""

_GENERATIONS = frozenset({"generation", "aside_generation", "restored"})


def arrow_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Returns these values as a column of text, or of whole numbers or times (a number in the unit of `kind`).

    None: there is no value. A text that is no UTF-8 raises `UnicodeEncodeError`, and a number that is too large
    `OverflowError`.
    """
    missing = sum(value is None for value in values)
    present = None
    if missing:
        bits = "".join("0" if value is None else "1" for value in reversed(values))
        present = pa.py_buffer(int(bits, 2).to_bytes(-(-len(values) // 8), "little"))
    if pa.types.is_string(kind):
        texts = [b"" if value is None else value.encode() for value in values]
        offsets = array("i", accumulate(map(len, texts), initial=0))
        return pa.Array.from_buffers(kind, len(values), [present, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))], missing)
    numbers = array(_CODES[kind.bit_width // 8], [0 if value is None else value for value in values])
    return pa.Array.from_buffers(kind, len(values), [present, pa.py_buffer(numbers)], missing)


def with_text_generations(rows: Any) -> Any:
    """Returns a batch or a table with the generations of blobs as text. Older software wrote numbers."""
    schema = text_generations(rows.schema)
    return rows if schema.equals(rows.schema) else rows.cast(schema)


def text_generations(schema: pa.Schema) -> pa.Schema:
    """Returns the schema that such rows have."""
    texts = [field.with_type(pa.string()) if field.name in _GENERATIONS and field.type == pa.int64() else field for field in schema]
    return pa.schema(texts, schema.metadata)


def line_batch(name: str, line: str) -> pa.RecordBatch:
    """Returns a batch of one column, of this name, with one line of text."""
    return pa.RecordBatch.from_arrays([arrow_column([line], pa.string())], [name])
