"""The golden forms of `golden.json`: one row and its blobs each, and what a reader must say of them.

key, cells       of the row: family, column, timestamp (microseconds), value
blobs            as the service tells them
says             null: absent. "lost", "corrupt", or the metadata, and the payload or the name of the blob
renewed          the cells, and the blobs' custom times, after a read; it is left out where a read changes nothing
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

_GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text("utf-8"))
NOW_US: int = _GOLDEN["now_us"]
FORMS: dict[str, dict[str, Any]] = _GOLDEN["forms"]


def now_us(form: dict[str, Any]) -> int:
    return int(form.get("now_us", NOW_US))


def bytes_of(value: str | dict[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else b64decode(value["base64"])


def value_of(raw: bytes) -> str | dict[str, str]:
    """As the file has it."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(raw).decode()}
