"""One line of the log: what a record has, and how it looks as text and as JSON."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from io import StringIO
from typing import Any

import pytest

from changelog.base.events import Events
from recovery.logs import JsonFormatter, TextFormatter, use_format

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d")
ESC, OVERRIDE = "\x1b[2J", "\u202e"


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def events(kept: Kept) -> Iterator[Events]:
    logger = logging.getLogger("tests.events")
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    yield Events(logger)
    logger.removeHandler(kept)


def text_of(record: logging.LogRecord) -> str:
    return TextFormatter().format(record)


def json_of(record: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(record)
    assert line.isascii() and "\n" not in line
    value = json.loads(line)
    assert isinstance(value, dict)
    return value


def test_a_record_has_its_event_fields_and_why_beside_the_text(events: Events, kept: Kept) -> None:
    events.warning("touch_failed", ValueError("no 100%"), object="a/b", attempt=2, key=None)
    [record] = kept.records
    assert record.getMessage() == "touch_failed object=a/b attempt=2: no 100%"
    assert (record.event, record.why) == ("touch_failed", "no 100%")  # type: ignore[attr-defined]
    assert record.fields == {"object": "a/b", "attempt": 2, "key": None}  # type: ignore[attr-defined]
    assert record.filename == "test_log_lines.py", "the line that logged, not the one that helped"


def test_the_template_is_the_same_for_all_values(events: Events, kept: Kept) -> None:
    events.info("gone", "a", count=1)
    events.info("gone", "b", count=2)
    assert {record.msg for record in kept.records} == {"gone count=%(count)s: %(why)s"}


def test_an_event_alone_and_an_error_without_a_text_have_a_line(events: Events, kept: Kept) -> None:
    events.info("work_beside_failed")
    events.info("work_beside_failed", KeyError())
    assert [record.getMessage() for record in kept.records] == ["work_beside_failed", "work_beside_failed: KeyError"]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot say why")


def test_an_error_that_cannot_say_why_is_named_and_nothing_raises(events: Events, kept: Kept) -> None:
    try:
        raise Mute
    except Mute as error:
        events.warning("recovery_failed", error, exc_info=error, object=Mute())  # type: ignore[arg-type]
    [record] = kept.records
    assert record.getMessage() == "recovery_failed object=Mute: Mute"
    assert json_of(record)["why"] == json_of(record)["object"] == "Mute" and "Mute" in json_of(record)["traceback"]


def test_a_level_that_is_off_costs_no_text(events: Events, kept: Kept) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("nobody asked")

    events.debug("pass_done", Costly())
    assert kept.records == []


def test_both_forms_have_the_time_with_its_zone_the_level_and_all_fields(events: Events, kept: Kept) -> None:
    events.error("entry_parked", "it is damaged", key="~changelog/00/x", object=None, duration_s=0.25)
    [record] = kept.records
    time, level, rest = text_of(record).split(" ", 2)
    assert TIME.fullmatch(time) and level == "ERROR"
    assert rest == "entry_parked key=~changelog/00/x duration_s=0.25: it is damaged"
    assert json_of(record) == {
        "time": time, "level": "ERROR", "event": "entry_parked", "key": "~changelog/00/x", "object": None,
        "duration_s": 0.25, "why": "it is damaged",
    }
    assert datetime.fromisoformat(time).timestamp() == pytest.approx(record.created, abs=0.001)


@pytest.mark.parametrize(("zone", "offset"), [("UTC", "+00:00"), ("Asia/Kolkata", "+05:30"), ("America/New_York", "-0")])
def test_the_time_follows_the_machines_zone(zone: str, offset: str, events: Events, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        events.info("gone")
        said = json_of(kept.records[0])["time"]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert TIME.fullmatch(said) and offset in said
    assert datetime.fromisoformat(said).timestamp() == pytest.approx(kept.records[0].created, abs=0.001)


@pytest.mark.parametrize("value", [f"a{ESC}b", f"a{OVERRIDE}b", "a\nINFO forged id=1: done", "a\r", "a\x00", "\udcff", "a\u2028b"])
def test_nothing_in_a_line_can_control_a_terminal_or_forge_another_line(value: str, events: Events, kept: Kept) -> None:
    events.warning("touch_failed", f"why {value}", object=value)
    [record] = kept.records
    text = text_of(record)
    assert text.isprintable() and "\n" not in text
    assert json_of(record)["object"] == value and json_of(record)["why"] == f"why {value}"


@pytest.mark.parametrize("value", ["a b", "a=b", "it's", 'a"b', ""])
def test_a_value_that_could_be_taken_for_more_is_quoted(value: str, events: Events, kept: Kept) -> None:
    events.warning("touch_failed", object=value, id="x")
    assert kept.records[0].getMessage() == f"touch_failed object={value!r} id=x"


def test_a_traceback_follows_as_text_and_is_a_field_in_json(events: Events, kept: Kept) -> None:
    try:
        raise RuntimeError(f"bug {ESC}")
    except RuntimeError as error:
        events.error("change_failed", error, exc_info=error, id="x")
    [record] = kept.records
    lines = text_of(record).split("\n")
    assert lines[0].endswith(r"id=x: bug \x1b[2J") and lines[1].startswith("Traceback") and all(line.isprintable() for line in lines)
    assert "RuntimeError" in json_of(record)["traceback"]


def test_a_line_of_another_library_is_json_too(kept: Kept) -> None:
    record = logging.LogRecord("asyncio", logging.ERROR, __file__, 1, "task %s\nfailed", ("x",), None)
    value = json_of(record)
    del value["time"]
    assert value == {"level": "ERROR", "event": "other_log", "logger": "asyncio", "message": "task x\nfailed"}
    assert text_of(record).endswith(r"ERROR task x\nfailed")


def test_the_form_is_changed_for_our_own_handler_and_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = logging.StreamHandler(StringIO()), logging.StreamHandler(sys.stderr)
    ours.setFormatter(TextFormatter())
    theirs.setFormatter(logging.Formatter("%(message)s"))
    monkeypatch.setattr(logging.root, "handlers", [ours, theirs])
    use_format("json")
    assert isinstance(ours.formatter, JsonFormatter) and type(theirs.formatter) is logging.Formatter
    use_format("text")
    assert isinstance(ours.formatter, TextFormatter)
