"""The model of a feed's writer (emulators/feed): schedules reach what they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from emulators.feed.__main__ import main
from emulators.feed.reference import ReferenceReader
from emulators.feed.table import TableVerdict, judged, lines, mangled, put_into, recorded, table, wrong
from emulators.feed.transactions import CommitOrder, ModelCheckpoint, ModelWriter, run
from recovery.feed.messages import Update
from recovery.feed.reader import CdcReader
from recovery.feed.rollback import RollbackReader

SEEDS = range(1, 101)


def test_a_mangled_channel_loses_nothing_and_adds_nothing() -> None:
    messages = run(7, CommitOrder.COMMIT_FIRST).messages
    told = [each for message in mangled(messages, Random(7)) for each in getattr(message, "updates", (message,))]
    assert set(map(repr, told)) == {repr(each) for message in messages for each in getattr(message, "updates", (message,))}


def test_schedules_have_transactions_that_failed_after_they_sent_something() -> None:
    """At the same time, the retry sends something else. Without such schedules the table would prove nothing."""
    failed = 0
    for seed in SEEDS:
        history = run(seed, CommitOrder.PUBLISHED)
        sent = {(update.time, repr(update)) for message in history.messages for update in getattr(message, "updates", ())}
        kept = {(time, repr(update)) for time, updates in history.committed.items() for update in updates}
        failed += bool(sent - kept)
    assert failed > len(SEEDS) / 2


def test_without_the_bootstrap_progress_the_first_failed_transaction_leaks_on_an_ordered_channel_too() -> None:
    """A roll-back reader discards updates when it gets a progress again. Before the first one, there is none."""
    verdicts = {bootstrap: Counter(
        judged(history, history.messages, RollbackReader()) for seed in SEEDS
        for history in [run(seed, CommitOrder.PUBLISHED, bootstrap=bootstrap)]
    ) for bootstrap in (True, False)}  # fmt: skip
    assert set(verdicts[True]) == {TableVerdict.RIGHT}
    assert verdicts[False].total() > verdicts[False][TableVerdict.RIGHT]


def test_if_the_first_act_after_opening_were_left_out_readers_would_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a dead writer had committed would never be sent as a whole. A reader waits, and shows nothing wrong."""
    opened: list[ModelWriter] = []
    acknowledge = ModelWriter._acknowledge

    def not_at_first(writer: ModelWriter, mine: ModelCheckpoint) -> Iterator[bool]:
        first = not any(each is writer for each in opened)
        opened.append(writer)
        if not first or mine.time == 0:
            yield from acknowledge(writer, mine)

    monkeypatch.setattr(ModelWriter, "_acknowledge", not_at_first)
    verdicts = Counter(
        judged(history, history.messages, CdcReader()) for seed in SEEDS for history in [run(seed, CommitOrder.COMMIT_FIRST)]
    )
    assert set(verdicts) == {TableVerdict.RIGHT, TableVerdict.STUCK} and verdicts[TableVerdict.STUCK] > 10


def test_if_what_was_committed_were_made_again_from_what_is_live_it_would_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The intent must be in the checkpoint, so that it is sent again byte for byte."""
    send = ModelWriter._send

    def made_again(writer: ModelWriter, updates: tuple[Update, ...]) -> Iterator[bool]:
        names = sorted(writer.live)[: len(updates)]
        again = tuple(Update({"object": name, "blob": writer.live[name]}, updates[0].time, 1) for name in names)
        yield from send(writer, again if len(again) == len(updates) else updates)

    monkeypatch.setattr(ModelWriter, "_send", made_again)
    verdicts = Counter(
        judged(history, history.messages, ReferenceReader()) for seed in SEEDS for history in [run(seed, CommitOrder.COMMIT_FIRST)]
    )
    assert verdicts[TableVerdict.LEAKED] > 10


def test_the_command_prints_the_table_puts_it_into_a_page_and_judges_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- failed transactions -->\n<!-- end of failed transactions -->\nbelow\n")
    monkeypatch.setattr("sys.argv", ["feed", "--schedules", "20", "--docs", str(page)])
    assert main() == 0
    assert capsys.readouterr().out.splitlines() == recorded(page) == lines(table(20))
    assert page.read_text().startswith("above\n") and page.read_text().endswith("\nbelow\n")
    put_into(page, table(3))
    assert recorded(page) == lines(table(3))
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="must hold"):
        put_into(page, table(1))


def test_a_table_that_is_not_that_of_the_page_is_found() -> None:
    cells = table(20)
    assert wrong(cells) == []
    cells[CommitOrder.COMMIT_FIRST, "mangled", "CDC v2"][TableVerdict.LEAKED] += 1
    cells[CommitOrder.PUBLISHED, "ordered", "CDC v2"] = Counter({TableVerdict.RIGHT: 20})
    assert wrong(cells) == [
        "published, ordered channel, CDC v2 reader: nothing went wrong, but something must",
        "published, ordered channel, CDC v2 reader: nothing leaked, but something must",
        "commit-first, mangled channel, CDC v2 reader: 1 leaked, but none may be",
    ]
