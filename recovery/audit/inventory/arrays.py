"""Columns of reports and exports as text and numbers, with Arrow. What cannot be read is null, and no error."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_NUMBER = re.compile(r"[0-9]{1,18}")


def texts(values: Any) -> Any:
    """Returns these values as text. What is no text is null. Arrow does not check the text that it reads."""
    values = pc.cast(values, pa.binary())
    try:
        return pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        return pa.array([decoded(value) for value in values.to_pylist()], pa.string())


def numbers(values: Any) -> Any:
    """Returns the numbers of a column of numbers or text. What is no number is null."""
    try:
        return pc.cast(values, pa.int64())
    except pa.ArrowInvalid:
        told = pc.cast(values, pa.string()).to_pylist()
        return pa.array([int(text) if text is not None and _NUMBER.fullmatch(text) else None for text in told], pa.int64())


def decoded(name: bytes | None) -> str | None:
    try:
        return None if name is None else name.decode()
    except UnicodeDecodeError:
        return None
