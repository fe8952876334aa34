"""The position of a sink: its note, and that it only goes forward."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from changelog.base.errors import CorruptRecordError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.key_values import NOTE_BYTES_MAX
from recovery.feed.writer.positions import ERROR_MAX, Position, advance, note_name, positions, read, sink_name
from tiered.settings import FeedSettings, Settings
from tiered.testing.log import MemoryChangeLog

pytestmark = pytest.mark.anyio

SINK = "/var/feed"
AT = Position(SINK, generation=5, acknowledged=900, records=7)
STORED = b'{"sink":"/var/feed","generation":5,"acknowledged":900,"records":7,"failing_since":null,"error":null}'


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


class LossyLog(MemoryChangeLog):
    """Loses the answers to the first `lost` swaps. Before each of the first swaps it lets another process write."""

    def __init__(self) -> None:
        super().__init__(SystemRuntime())
        self.lost = 0
        self.first: list[Position] = []

    async def swap_note(self, name: str, expected: bytes | None, value: bytes) -> bool:
        if self.first:
            self.notes[name] = self.first.pop(0).to_bytes()
        swapped = await super().swap_note(name, expected, value)
        if self.lost:
            self.lost -= 1
            raise UnconfirmedError("no answer")
        return swapped


@pytest.fixture
def log() -> LossyLog:
    return LossyLog()


async def test_the_stored_form_is_pinned_and_is_read_back(log: LossyLog) -> None:
    assert await read(log, [SINK]) == {}
    assert await advance(log, AT) == AT
    assert log.notes == {note_name(SINK): STORED}
    assert note_name(SINK) == "feed-sink-a916d6c7d69c8b31"
    assert await read(log, [SINK, "another"]) == {SINK: AT}


async def test_the_positions_are_those_of_the_sinks_in_the_settings(log: LossyLog) -> None:
    named = Position("https://host:8443/in%40box", 5)
    for position in (AT, named, Position("gs://bucket/of-another-feed", 5)):
        await advance(log, position)
    settings = Settings(directory="/nowhere", feed=FeedSettings(to=(SINK, "https://me:secret@host:8443/in%40box", "gs://not-yet/")))
    assert await positions(log, settings) == {SINK: AT, named.sink: named}


@pytest.mark.parametrize(("to", "name"), [
    ("/var/a@b", "/var/a@b"), ("kafka://host:9092/topic", "kafka://host:9092/topic"), ("http://u:p@h", "http://h"),
    ("HTTP://u:p%40w@h/x/", "http://h/x"), ("kafka://h:1/t?sasl.password=p", "kafka://h:1/t"),
])  # fmt: skip
def test_the_name_of_a_sink_has_no_password(to: str, name: str) -> None:
    assert sink_name(to) == name


@pytest.mark.parametrize(("late", "stored"), [
    (replace(AT, acknowledged=800, records=5), AT),
    (replace(AT, acknowledged=None, records=0, error="down"), AT),
    (replace(AT, generation=4, acknowledged=2000, records=90), AT),
    (replace(AT, acknowledged=900, records=7, failing_since=1, error="down"), replace(AT, failing_since=1, error="down")),
    (replace(AT, acknowledged=901, records=8), replace(AT, acknowledged=901, records=8)),
    (Position(SINK, 6), Position(SINK, 6)),
])  # fmt: skip
async def test_a_position_never_goes_back_within_a_generation(log: LossyLog, late: Position, stored: Position) -> None:
    await advance(log, AT)
    assert await advance(log, late) == stored
    assert await read(log, [SINK]) == {SINK: stored}


async def test_another_writer_that_was_faster_is_heeded(log: LossyLog) -> None:
    await advance(log, AT)
    log.first = [replace(AT, acknowledged=950, records=9)]
    assert await advance(log, replace(AT, acknowledged=910, records=8)) == replace(AT, acknowledged=950, records=9)
    log.first = [replace(AT, acknowledged=950 + step, records=9) for step in range(1, 100)]
    with pytest.raises(UnavailableError, match="others were faster"):
        await advance(log, replace(AT, acknowledged=2000, records=10))


async def test_a_lost_answer_is_asked_for_again(log: LossyLog) -> None:
    log.lost = 2
    assert await advance(log, AT) == AT
    log.lost = 100
    with pytest.raises(UnconfirmedError):
        await advance(log, replace(AT, acknowledged=901))
    log.lost = 0
    assert await read(log, [SINK]) == {SINK: replace(AT, acknowledged=901)}


def test_an_error_is_cut_and_fits_into_a_note() -> None:
    longest = Position("\x01" * 2000, 2**63 - 1, 2**63 - 1, 2**63 - 1, 2**63 - 1, "\x01" * 5000)
    assert len(longest.to_bytes()) <= NOTE_BYTES_MAX
    found = Position.from_bytes(longest.to_bytes(), longest.sink)
    assert found.error is not None
    assert (len(found.error), found.error[-1]) == (ERROR_MAX, "…")
    assert Position.from_bytes(Position("s", 1, error="no file \udcff").to_bytes(), "s").error == "no file ?"


def changed(**values: Any) -> bytes:
    """Returns the stored form with other values. A value of ... takes the key out."""
    return json.dumps({name: value for name, value in {**json.loads(STORED), **values}.items() if value is not ...}).encode()


@pytest.mark.parametrize(("raw", "says"), [
    (b"{", "not JSON"),
    (b"null", "not a JSON object"),
    (changed(records=...), "records is missing"),
    (changed(shard=1), "does not know the key 'shard'"),
    (changed(acknowledged=-1), "acknowledged is -1"),
    (changed(generation=None), "generation is None"),
    (changed(error=5), "error is 5"),
    (changed(sink="/var/other"), "it is about the sink '/var/other'"),
    (changed(acknowledged=None), "nothing is acknowledged, and records is 7"),
])  # fmt: skip
async def test_a_damaged_position_is_named_and_stays_as_it_is(log: LossyLog, raw: bytes, says: str) -> None:
    log.notes[note_name(SINK)] = raw
    for call in (read(log, [SINK]), advance(log, AT)):
        with pytest.raises(CorruptRecordError) as caught:
            await call
        assert str(caught.value).startswith(f"the note {note_name(SINK)} (the position of the sink {SINK}) is damaged: ")
        assert says in str(caught.value)
    assert log.notes == {note_name(SINK): raw}
