"""The last log lines of recovery, in memory, for the status page: what was decided, and why.

A line that says the same as the one before it is counted and not kept again, so that an outage does not push out
everything else.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from changelog.base.runtime import Runtime
from recovery.redaction import redact_names
from tiered.metadata import NS_PER_MS

KEPT_MAX = 100
TEXT_MAX = 1000

_EVENT = re.compile(r"([a-z]+(?:_[a-z]+)*)(?: |:|$)")


@dataclass(frozen=True, slots=True)
class Decision:
    """`at`: `Runtime.monotonic` of the last time; `wall_ms`: that in Unix ms. `names`: objects that `text` may name."""

    at: float
    wall_ms: int
    level: str
    event: str
    text: str
    names: tuple[str, ...] = ()
    times: int = 1

    def shown(self, now: float, *, names_of_objects: bool, known: Iterable[str | None] = ()) -> dict[str, object]:
        """Returns it as JSON. `known`: names of objects, besides its own, that its text may hold."""
        text = self.text if names_of_objects else redact_names(self.text, (*self.names, *known))
        return {
            "at_ms": self.wall_ms, "age_s": round(max(0.0, now - self.at), 1), "level": self.level, "event": self.event, "text": text,
            "times": self.times,
        }


class Decisions(logging.Handler):
    """Keeps the last `KEPT_MAX` lines of the logger that it is added to. Never raises, and never waits."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(logging.INFO)
        self._runtime = runtime
        self._kept: deque[Decision] = deque(maxlen=KEPT_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            decision = self._decision(record)
        except Exception:  # noqa: BLE001 - a record whose arguments do not fit its text is shown by the other handlers
            return
        last = self._kept[-1] if self._kept else None
        if last is not None and (last.event, last.text) == (decision.event, decision.text):
            self._kept[-1] = replace(decision, times=last.times + 1)
        else:
            self._kept.append(decision)

    def _decision(self, record: logging.LogRecord) -> Decision:
        text = record.getMessage()
        event = _EVENT.match(text)
        return Decision(
            self._runtime.monotonic(), self._runtime.wall_ns() // NS_PER_MS, record.levelname.lower(), event[1] if event else "",
            (text[event.end() :] if event else text).strip()[:TEXT_MAX], _names(record),
        )

    def newest_first(self) -> Sequence[Decision]:
        return tuple(reversed(self._kept))


def _names(record: logging.LogRecord) -> tuple[str, ...]:
    """The names of objects and blobs that the record carries: in its `fields`, or as the argument of `object=%s`."""
    fields = getattr(record, "fields", {})
    names = [str(fields[name]) for name in ("object", "blob", "path", "name") if fields.get(name)]
    template, arguments = str(record.msg), record.args
    before, named, _ = template.partition("object=%s")
    if named and isinstance(arguments, tuple) and before.count("%") < len(arguments):
        names.append(str(arguments[before.count("%")]))
    return tuple(names)
