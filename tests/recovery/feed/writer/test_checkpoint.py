"""The checkpoint of the feed: its bytes, and what is refused when it is read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from changelog.base.errors import CorruptRecordError
from changelog.key_values import NOTE_BYTES_MAX
from recovery.feed.writer.checkpoint import BINDINGS_MAX, CURSOR_BYTES_MAX, NOTE, TEXT_BYTES_MAX, Checkpoint, Pass, Staged
from tiered.notes.note_fields import NUMBER_MAX

FULL = Checkpoint(
    timestamp=900, num_records=3, next=901, lower=901, epoch=2, seq=17, generation=500,
    staged=Staged("feed/500/staged/900/2-16/", "ab" * 32, 3, 321, 1), bindings=((700, 4), (900, 7)), store="the store é", live=5,
    scan=Pass(b"row\x00\x7f", 10, 40, estimated=True, withheld=False, began=800, scanned=9), passed=650, gap=False, closed=False,
    writer="feed-1",
)  # fmt: skip
STORED = (
    '{"progress":{"timestamp":900,"num_records":3},"next":901,"lower":901,"epoch":2,"seq":17,"generation":500,'
    '"staged":{"object":"feed/500/staged/900/2-16/","sha256":"' + "ab" * 32 + '","count":3,"bytes":321,"parts":1},'
    '"bindings":[[700,{"records":4}],[900,{"records":7}]],"store":"the store é","live":5,'
    '"pass":{"cursor":"726f77007f","read":10,"known":40,"estimated":true,"withheld":false,"began":800,"scanned":9},'
    '"passed":650,"gap":false,"closed":false,"writer":"feed-1"}'
)


def test_the_stored_form_is_pinned_and_is_read_back() -> None:
    assert FULL.to_bytes() == STORED.encode()
    assert Checkpoint.from_bytes(STORED.encode()) == FULL


def test_a_new_generation_begins_with_nothing_and_its_form_is_read_back() -> None:
    begun = Checkpoint.begin(500, "s", "feed-1")
    assert Checkpoint.from_bytes(begun.to_bytes()) == begun
    assert (begun.records, begun.frontier, begun.next, begun.epoch) == (0, 0, 0, 1)


def test_each_step_raises_seq_and_opening_raises_the_epoch() -> None:
    assert (FULL.opened("feed-2").epoch, FULL.opened("feed-2").seq, replace(FULL, closed=True).opened("feed-2").closed) == (3, 18, False)
    assert FULL.opened("feed-2") != FULL.opened("feed-3"), "two that open it at once do not write the same bytes"
    assert (FULL.with_gap().seq, FULL.with_gap().gap, FULL.with_gap().withheld) == (18, True, True)
    assert FULL.with_gap().scan is None, "it may be past the rows that the gap is about"
    assert (FULL.ended().seq, FULL.ended().closed) == (18, True)


def test_records_are_all_that_were_committed() -> None:
    assert FULL.records == 7
    assert replace(FULL, bindings=()).records == 3


def test_the_oldest_bindings_give_way() -> None:
    found = FULL
    for time in range(901, 901 + 2 * BINDINGS_MAX):
        found = replace(found, timestamp=time, next=time + 1, bindings=found.bound(time, time))
    assert len(found.bindings) == BINDINGS_MAX
    assert found.records == 900 + 2 * BINDINGS_MAX


def test_the_largest_checkpoint_fits_into_a_note() -> None:
    most = NUMBER_MAX
    times = range(most - BINDINGS_MAX, most)
    largest = Checkpoint(
        most - 1, most, most, most, most, most, most, Staged("é" * (TEXT_BYTES_MAX // 2 - 1), "ab" * 32, most, most, most),
        tuple((time, most) for time in times), '"' * (TEXT_BYTES_MAX // 2 - 1), most,
        Pass(b"\x7f" * CURSOR_BYTES_MAX, most, most, False, False, most, most), most, False, False, "w" * (TEXT_BYTES_MAX - 2),
    )  # fmt: skip
    assert len(largest.to_bytes()) <= NOTE_BYTES_MAX
    assert Checkpoint.from_bytes(largest.to_bytes()) == largest


def changed(**values: Any) -> bytes:
    """Returns the stored form with other values. A value of ... takes the key out."""
    stored = {**json.loads(STORED), **values}
    kept = {name: value for name, value in stored.items() if value is not ...}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize(("raw", "says"), [
    (b"", "not JSON"),
    (STORED.encode()[:-1], "not JSON"),
    (b"[1]", "not a JSON object"),
    (b'{"progress":"\\ud800"}', "not JSON"),
    (changed(gap=...), "gap is missing"),
    (changed(shards=4), "does not know the key 'shards'"),
    (changed(progress={"timestamp": 900}), "progress.num_records is missing"),
    (changed(epoch=0), "epoch is 0"),
    (changed(seq=1.0), "seq is 1.0"),
    (changed(seq=True), "seq is True"),
    (changed(live=2**63), "live is 9223372036854775808"),
    (changed(closed=0), "closed is 0"),
    (changed(store=7), "store is 7"),
    (changed(next=900), "next is 900"),
    (changed(lower=902), "lower is 902"),
    (changed(staged={"object": "o"}), "staged.sha256 is missing"),
    (changed(bindings=[[900, {"records": 7}], [700, {"records": 4}]]), "bindings goes back"),
    (changed(bindings=[[901, {"records": 7}]]), "bindings goes back, or beyond"),
    (changed(bindings=[[900, 7]]), "bindings is 7"),
    (changed(bindings=[900]), "an item of bindings"),
    (changed(**{"pass": {**json.loads(STORED)["pass"], "cursor": "xyz"}}), "pass.cursor is 'xyz'"),
    (changed(**{"pass": {**json.loads(STORED)["pass"], "cursor": "ff"}}), "cursor is no text"),
    (changed(**{"pass": 3}), "pass is 3"),
    (STORED.replace('"gap":false', '"gap": false').encode(), "not spelled"),
    (STORED.replace('"live":5', '"live":6,"live":5').encode(), "not spelled"),
])  # fmt: skip
def test_a_damaged_checkpoint_is_named_with_what_is_wrong_and_what_to_do(raw: bytes, says: str) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        Checkpoint.from_bytes(raw)
    assert str(caught.value).startswith(f"the note {NOTE} is damaged: ")
    assert says in str(caught.value)
    assert "begin a new generation" in str(caught.value)


def test_figures_that_cannot_be_true_are_not_written_either() -> None:
    with pytest.raises(ValueError, match="next is 905"):
        replace(FULL, next=905)
    with pytest.raises(ValueError, match="store has"):
        replace(FULL, store="s" * TEXT_BYTES_MAX)
