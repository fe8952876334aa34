"""The demo's independent check can fail: each flaw, planted into a store that has none, is found, and nothing else."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.sqlite.database import Database
from emulators.demo.checking.check import FLAWS, Content, ObjectHistory, check, dangling, unfinished
from emulators.demo.checking.stored_files import StoredFiles, blob_path
from emulators.demo.players.journal import (
    DIRECTOR,
    JournaledAnswer,
    JournaledOperation,
    OperationJournal,
    OperationKind,
    Tail,
    process_ends,
    read_operations,
)
from emulators.demo.players.load import INLINE_BYTES_MAX, LoadStep, object_ids, payload, steps
from emulators.demo.players.object_writer import perform
from emulators.demo.players.unfenced import without_fence
from tiered.embedded.file import path_of
from tiered.embedded.rows import SqliteRows
from tiered.object_id import blob_name
from tiered.open import open_storage
from tiered.protocol.backends import HighVolumeBackend, Tombstone
from tiered.settings import Settings

SMALL, LARGE, GONE = object_ids(3)


@dataclass(frozen=True)
class CheckedRun:
    """A store that nothing is wrong with, and the journal of its only writer."""

    store: Path
    journal: Path

    @property
    def stored(self) -> StoredFiles:
        return StoredFiles(self.store)

    def flaws(self) -> dict[str, int]:
        return dict(check(self.stored, self.journal).flaws)

    def sql(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.store / "tiered.db")) as connection, connection:
            assert connection.execute(statement, values).rowcount == 1

    def blob(self) -> Path:
        (file,) = [path for path in (self.store / "blobs").rglob("*") if path.is_file()]
        return file

    def edit_journal(self, edit: Callable[[str], str]) -> None:
        file = self.journal / "w0.0.jsonl"
        edited = edit(file.read_text())
        assert edited != file.read_text()
        file.write_text(edited)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CheckedRun:
    run = CheckedRun(tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("journal"))
    anyio.run(_write, run)
    return run


@pytest.fixture
def run(made: CheckedRun, tmp_path: Path) -> CheckedRun:
    copy = CheckedRun(tmp_path / "store", tmp_path / "journal")
    shutil.copytree(made.store, copy.store)
    shutil.copytree(made.journal, copy.journal)
    return copy


async def _write(run: CheckedRun) -> None:
    """Leaves SMALL inline, LARGE in a blob, and GONE deleted; each was overwritten."""
    runtime, journal = SystemRuntime(), OperationJournal(run.journal / "w0.0.jsonl")
    todo = [
        LoadStep("w0.0-0-1", OperationKind.PUT, SMALL, payload(1, "w0.0-0-1", INLINE_BYTES_MAX + 1)),
        LoadStep("w0.0-0-2", OperationKind.PUT, SMALL, b"the second"),
        LoadStep("w0.0-0-3", OperationKind.PUT, LARGE, b"the third"),
        LoadStep("w0.0-0-4", OperationKind.PUT, LARGE, payload(1, "w0.0-0-4", 2 * INLINE_BYTES_MAX)),
        LoadStep("w0.0-0-5", OperationKind.PUT, GONE, b"the fifth"),
        LoadStep("w0.0-0-6", OperationKind.DELETE, GONE, b""),
        *(LoadStep(f"w0.0-1-{number}", OperationKind.GET, object_id, b"") for number, object_id in enumerate((SMALL, LARGE, GONE))),
    ]
    async with open_storage(Settings(directory=run.store, changelog="sqlite", inline_bytes_max=INLINE_BYTES_MAX), runtime) as storage:
        assert [await perform(storage, journal, runtime, step) for step in todo] == [JournaledAnswer.OK] * len(todo)
    journal.close()


# --- planted -------------------------------------------------------------------------------------


def unlink_a_blob(run: CheckedRun) -> None:
    run.blob().unlink()


def copy_a_blob_under_another_name(run: CheckedRun) -> None:
    shutil.copy(run.blob(), run.blob().with_name("0"))


def leave_an_upload(run: CheckedRun) -> None:
    (run.store / "uploads" / "01a1fcbc-5bcb-7f2a-9c51-154fdcde1963").write_bytes(b"half of it")


def leave_an_entry(run: CheckedRun) -> None:
    run.sql("INSERT INTO changes VALUES ('~changelog/00/x', '{}', 0, NULL)")


def park_an_entry(run: CheckedRun) -> None:
    run.sql("INSERT INTO changes VALUES ('~changelog/00/x', '{}', 0, ?)", '{"state":"stuck","error":"…","at":0}')


def remove_a_row_that_was_acknowledged(run: CheckedRun) -> None:
    run.sql("DELETE FROM rows WHERE path = ?", SMALL.path)


def bring_an_older_write_back(run: CheckedRun) -> None:
    metadata = json.dumps({"custom": {"operation": "w0.0-0-1"}})
    run.sql("UPDATE rows SET payload = ?, metadata = ? WHERE path = ?", payload(1, "w0.0-0-1", INLINE_BYTES_MAX + 1), metadata, SMALL.path)


def bring_a_deleted_object_back(run: CheckedRun) -> None:
    metadata = json.dumps({"custom": {"operation": "w0.0-0-5"}})
    run.sql("INSERT INTO rows (path, payload, metadata) VALUES (?, ?, ?)", GONE.path, b"the fifth", metadata)


def tell_the_caller_of_what_is_stored_no(run: CheckedRun) -> None:
    run.edit_journal(lambda text: text.replace('"end":"w0.0-0-2","answer":"ok"', '"end":"w0.0-0-2","answer":"no"'))


def tell_the_caller_of_the_delete_no(run: CheckedRun) -> None:
    run.edit_journal(lambda text: text.replace('"end":"w0.0-0-6","answer":"ok"', '"end":"w0.0-0-6","answer":"no"'))


def have_a_reader_find_nothing(run: CheckedRun) -> None:
    def edit(text: str) -> str:
        head, end, tail = text.partition('"end":"w0.0-1-0","answer":"ok"')
        return head + end + "}\n" + tail.partition("\n")[2]

    run.edit_journal(edit)


def change_a_byte_of_an_inline_payload(run: CheckedRun) -> None:
    run.sql("UPDATE rows SET payload = ? WHERE path = ?", b"the sEcond", SMALL.path)


def change_a_byte_of_a_blob(run: CheckedRun) -> None:
    with run.blob().open("r+b") as file:
        file.write(b"!")


def name_another_writer_in_the_metadata(run: CheckedRun) -> None:
    run.sql("UPDATE rows SET metadata = ? WHERE path = ?", json.dumps({"custom": {"operation": "w0.0-0-1"}}), SMALL.path)


def store_what_nobody_wrote(run: CheckedRun) -> None:
    run.sql("INSERT INTO rows (path, payload, metadata) VALUES ('u/objects/k', x'00', '{}')")


def answer_with_an_error(run: CheckedRun) -> None:
    run.edit_journal(lambda text: text.replace('"end":"w0.0-0-3","answer":"ok"', '"end":"w0.0-0-3","answer":"error","detail":"it broke"'))


@pytest.mark.parametrize(
    ("plant", "flaw", "count"),
    [
        (unlink_a_blob, "dangling", 1),
        (copy_a_blob_under_another_name, "orphans", 1),
        (leave_an_upload, "uploads", 1),
        (leave_an_entry, "entries", 1),
        (park_an_entry, "parked", 1),
        (remove_a_row_that_was_acknowledged, "lost", 1),
        (bring_an_older_write_back, "lost", 1),
        (bring_a_deleted_object_back, "lost", 1),
        (tell_the_caller_of_what_is_stored_no, "false_no", 2),  # it is stored, and was read
        (tell_the_caller_of_the_delete_no, "false_no", 2),
        (have_a_reader_find_nothing, "lost", 1),
        (change_a_byte_of_an_inline_payload, "mixed_up", 1),
        (change_a_byte_of_a_blob, "mixed_up", 1),
        (name_another_writer_in_the_metadata, "mixed_up", 1),
        (store_what_nobody_wrote, "mixed_up", 1),
        (answer_with_an_error, "errors", 1),
    ],
)
def test_a_planted_flaw_is_counted_and_nothing_else(run: CheckedRun, plant: Callable[[CheckedRun], None], flaw: str, count: int) -> None:
    assert run.flaws() == {}
    plant(run)
    assert flaw in FLAWS
    assert run.flaws() == {flaw: count}


def test_the_check_counts_what_is_stored(run: CheckedRun) -> None:
    found = check(run.stored, run.journal)
    assert (found.objects, found.inline, found.blobs) == (2, 1, 1)


def test_a_tombstone_without_its_blob_is_seen_while_others_write(run: CheckedRun) -> None:
    assert dangling(run.stored) == set()
    unlink_a_blob(run)
    (name,) = dangling(run.stored)
    assert name.startswith(LARGE.path)


def test_what_dangled_for_a_while_is_counted_although_it_is_gone(run: CheckedRun) -> None:
    assert check(run.stored, run.journal, {"u/objects/k/revision"}).flaws == {"dangling": 1}


@pytest.mark.parametrize(("late_s", "flaws"), [(0.0, {"lost": 1}), (4.0, {})])
def test_what_a_dead_process_sent_may_take_effect_for_as_long_as_the_backend_says(
    late_s: float, flaws: dict[str, int], run: CheckedRun
) -> None:
    dead, other, director = (OperationJournal(run.journal / name) for name in ("w1.0.jsonl", "w2.0.jsonl", DIRECTOR))
    dead.write(at=1.0, begin="dead", object="o", kind="put", size=1, digest="d")
    director.write(at=2.0, process="w1.0", event="killed")
    for at, operation, kind, digest in ((3.0, "put", "put", "o"), (5.0, "get", "get", None), (7.0, "delete", "delete", None)):
        other.write(at=at, begin=operation, object="o", kind=kind, size=1, digest=digest)
        other.write(at=at + 1, end=operation, answer="ok", digest="d", by="dead")
    for journal in (dead, other, director):
        journal.close()
    stored = run.stored
    stored.late_s = late_s
    assert check(stored, run.journal).flaws == flaws


def test_what_is_unfinished_is_counted(run: CheckedRun) -> None:
    assert unfinished(run.stored) == (0, 0)
    leave_an_upload(run)
    leave_an_entry(run)
    assert unfinished(run.stored) == (1, 1)


@pytest.mark.parametrize("object_id", object_ids(10), ids=lambda object_id: object_id.key[:20])
def test_names_become_the_paths_that_the_store_uses(object_id: object) -> None:
    assert blob_path(f"{object_id}/01a1fcbc-5bcb-7f2a-9c51-154fdcde1963") == path_of(f"{object_id}/01a1fcbc-5bcb-7f2a-9c51-154fdcde1963")


# --- what may be seen ----------------------------------------------------------------------------


def put(name: str, began: float, ended: float = math.inf, answer: JournaledAnswer = JournaledAnswer.OK) -> JournaledOperation:
    return JournaledOperation(name, "o", OperationKind.PUT, name, began, ended, answer)


def delete(began: float, ended: float = math.inf, answer: JournaledAnswer = JournaledAnswer.OK) -> JournaledOperation:
    return JournaledOperation("d", "o", OperationKind.DELETE, None, began, ended, answer)


def seen(name: str) -> Content:
    return Content(name, name)


@pytest.mark.parametrize(
    ("operations", "found", "flaw"),
    [
        ([], None, None),
        ([put("a", 1, 2)], seen("a"), None),
        ([put("a", 1, 2)], None, "lost"),
        ([put("a", 1, 2), put("b", 3, 4)], seen("b"), None),
        ([put("a", 1, 2), put("b", 3, 4)], seen("a"), "lost"),
        ([put("a", 1, 3), put("b", 2, 4)], seen("a"), None),  # they overlap: either may be the last
        ([put("a", 1, 2, JournaledAnswer.NONE), put("b", 3, 4)], seen("a"), "lost"),
        ([put("a", 1, 3, JournaledAnswer.NONE), put("b", 2, 4)], seen("a"), None),  # killed, after it had taken effect
        ([put("a", 1, 2), put("b", 3, 4, JournaledAnswer.NO)], seen("a"), None),
        ([put("a", 1, 2), put("b", 3, 4, JournaledAnswer.NO)], seen("b"), "false_no"),
        ([put("a", 1, 2, JournaledAnswer.SETTLED), put("b", 3, 4)], seen("a"), "lost"),
        ([put("a", 1, math.inf, JournaledAnswer.UNKNOWN), put("b", 3, 4)], seen("a"), None),  # it may still have landed
        ([put("a", 1, 2)], seen("z"), "mixed_up"),
        ([put("a", 1, 2), delete(3, 4)], None, None),
        ([put("a", 1, 2), delete(3, 4)], seen("a"), "lost"),
        ([delete(1, 2), put("a", 3, 4)], None, "lost"),
        ([delete(1, 4), put("a", 2, 3)], None, None),
        ([put("a", 1, 2), delete(3, 4, JournaledAnswer.NONE)], None, None),
        ([put("a", 1, 2), delete(3, 4, JournaledAnswer.NO)], None, "false_no"),
        ([put("a", 1, 2, JournaledAnswer.NONE)], None, None),
    ],
)
def test_what_is_stored_is_judged_by_what_callers_were_told(
    operations: list[JournaledOperation], found: Content | None, flaw: str | None
) -> None:
    assert ObjectHistory(operations).flaw(found) == flaw


@pytest.mark.parametrize(
    ("looked", "until", "found", "flaw"),
    [
        (0, 0.5, None, None),
        (0, 0.5, seen("a"), "mixed_up"),  # it had not begun
        (1, 2, None, None),
        (1, 2, seen("a"), None),
        (3, 4, None, "lost"),
        (3, 6, seen("a"), None),
        (3, 6, seen("b"), None),
        (9, 10, seen("a"), "lost"),
        (9, 10, seen("b"), None),
    ],
)
def test_what_a_reader_saw_is_judged_by_when_it_looked(looked: float, until: float, found: Content | None, flaw: str | None) -> None:
    assert ObjectHistory([put("a", 1, 2), put("b", 5, 8)]).flaw(found, looked, until) == flaw


# --- the journal and the load --------------------------------------------------------------------


def test_a_line_that_a_kill_cut_short_counts_as_not_written(tmp_path: Path) -> None:
    journal = tmp_path / "w0.0.jsonl"
    begin = '{"at":1.0,"begin":"w0.0-0-1","object":"o","kind":"put","size":1,"digest":"a"}\n'
    journal.write_text(begin + '{"at":2.0,"end":"w0.0-0-1","ans')
    events = ('{"at":1.5,"process":"w0.0","event":"stopped"}', '{"at":3.0,"process":"w0.0","event":"killed"}', "")
    (tmp_path / DIRECTOR).write_text("\n".join(events))
    (operation,) = read_operations(tmp_path)
    assert (operation.answer, operation.ended) == (JournaledAnswer.NONE, 3.0)
    assert process_ends(tmp_path) == {"w0.0": 3.0}
    tail = Tail(tmp_path, "w*.jsonl")
    assert list(tail.lines()) == [begin.rstrip().encode()]
    journal.write_text(begin + begin)
    assert list(tail.lines()) == [begin.rstrip().encode()]


def test_the_same_seed_gives_the_same_operations_and_another_seed_others() -> None:
    def first(seed: int) -> list[LoadStep]:
        return list(islice(steps(seed, "w0.0", 0, object_ids(50)), 200))

    assert first(1) == first(1)
    assert first(1) != first(2)
    assert {step.kind for step in first(1)} == set(OperationKind)
    assert len({step.payload for step in first(1) if step.kind is OperationKind.PUT}) == sum(
        step.kind is OperationKind.PUT for step in first(1)
    )


# --- the published protocol --------------------------------------------------------------------------


@pytest.mark.parametrize("unfenced", [False, True])
def test_only_without_the_fence_does_a_swap_take_effect_that_recovery_gave_up(unfenced: bool, tmp_path: Path) -> None:
    async def give_up_and_swap() -> bool:
        runtime = SystemRuntime()
        async with Database.open(tmp_path / "tiered.db", runtime) as database:
            backend: HighVolumeBackend = SqliteRows(database, runtime)
            if unfenced:
                backend = without_fence(backend, runtime)
            change = Change(ChangeId.new(runtime), SMALL.path)
            new = blob_name(change.object, change.id)
            assert not await backend.settle(change.object, change.id)
            return await backend.swap(change.object, change.id, None, Tombstone(new, token=change.id), runtime.boot_time() + 5)

    assert anyio.run(give_up_and_swap) is unfenced
