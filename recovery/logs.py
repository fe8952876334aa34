"""The two forms of the log on stderr: lines of text for people, and one JSON object a line for programs.

    2026-11-22T07:41:16.123+00:00 INFO recovered id=… object=… attempt=1 verdict=cleaned: done: …
    {"time": "2026-11-22T07:41:16.123+00:00", "level": "INFO", "event": "recovered", "id": "…", …, "why": "done: …"}

Times are RFC 3339 in this machine's zone, with the offset. docs/logs.md lists the events. A line of another library has
the event `other_log`, its logger's name and its message.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from changelog.base.events import printable, text_of

OTHER_LOG = "other_log"

TEXT, JSON = "text", "json"


class _Formatter(logging.Formatter):
    """What both forms share: the time of a record."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds")

    def traceback_of(self, record: logging.LogRecord) -> str | None:
        return self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None


class TextFormatter(_Formatter):
    """One line of text, and below it the traceback, if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} {record.levelname} {printable(record.getMessage())}"
        traceback = self.traceback_of(record)
        return line if traceback is None else "\n".join([line, *map(printable, traceback.split("\n"))])


class JsonFormatter(_Formatter):
    """One JSON object in a line of ASCII: other characters are escaped, also those that control a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": self.formatTime(record), "level": record.levelname}
        event, fields = getattr(record, "event", None), getattr(record, "fields", None)
        if isinstance(event, str) and isinstance(fields, Mapping):
            line |= {"event": event, **fields, "why": getattr(record, "why", None)}
        else:
            line |= {"event": OTHER_LOG, "logger": record.name, "message": record.getMessage()}
        if (traceback := self.traceback_of(record)) is not None:
            line["traceback"] = traceback
        return json.dumps(line, default=text_of)


FORMATTERS: Mapping[str, type[logging.Formatter]] = {TEXT: TextFormatter, JSON: JsonFormatter}


def write_to_stderr() -> None:
    """Writes warnings and errors of all loggers to stderr, as text. Does nothing if the application has handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def use_format(name: str) -> None:
    """Changes the form of what `write_to_stderr` writes: `text` or `json`."""
    for handler in logging.root.handlers:
        if isinstance(handler.formatter, tuple(FORMATTERS.values())):
            handler.setFormatter(FORMATTERS[name]())


def is_json() -> bool:
    """Whether stderr has JSON lines, so that everything on it should be one."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.root.handlers)
