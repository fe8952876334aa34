"""One call of a history, and how a history is written (the form is in this folder's `__init__.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from pathlib import Path

NOTHING = ""
"""The value of an object that is not there."""


class HistoryAnswer(StrEnum):
    OK = "ok"
    NO = "no"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class HistoryCall:
    """A line. `began_s`, `ended_s`: when it was called, and until when it may have its effect."""

    process: str
    object: str
    operation: str
    value: str
    began_s: float
    ended_s: float
    answer: HistoryAnswer
    over: str | None = None

    def line(self) -> str:
        return json.dumps({
            "process": self.process, "object": self.object, "operation": self.operation, "value": self.value, "over": self.over,
            "call": _ns(self.began_s), "return": None if self.ended_s == inf else _ns(self.ended_s), "answer": self.answer,
        })  # fmt: skip


def write_history(path: Path, calls: Iterable[HistoryCall]) -> None:
    path.write_text("".join(f"{call.line()}\n" for call in calls), "utf-8")


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
