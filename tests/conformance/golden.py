"""The golden forms of `golden.json`: one row and its blobs each, and what a reader must say of them at `NOW_US`.

key, cells       of the row: family, column, timestamp (microseconds), value
blobs            as the service tells them
says             null: absent. "lost", "corrupt", or the metadata, and the payload or the name of the blob
renewed          the cells, and the blobs' custom times, after a read; it is left out where a read changes nothing
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text("utf-8"))
NOW_US: int = _GOLDEN["now_us"]
FORMS: dict[str, dict[str, Any]] = _GOLDEN["forms"]
