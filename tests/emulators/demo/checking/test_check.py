"""The demo's independent check can fail: each flaw, planted into a store that has none, is found, and nothing else."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.sqlite.database import Database
from emulators.demo.checking.check import FLAWS, check, dangling, read_calls, unfinished
from emulators.demo.checking.stored_files import StoredFiles, blob_path
from emulators.demo.checking.told import WRITTEN_BY_NOBODY, history
from emulators.demo.players.journal import DIRECTOR, JournaledAnswer, OperationJournal, OperationKind, Tail, process_ends
from emulators.demo.players.load import INLINE_BYTES_MAX, LoadStep, object_ids, payload, steps
from emulators.demo.players.object_writer import LastRead, perform
from emulators.demo.players.unfenced import without_fence
from recovery.prove.judge import ABSENT, CallAnswer, Content, JournaledCall, JournaledKind
from tiered.embedded.file import path_of
from tiered.embedded.rows import SqliteRows
from tiered.object_id import blob_name
from tiered.open import open_storage
from tiered.services.backends import HighVolumeBackend, Tombstone
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


def acknowledge_a_condition_that_was_false(run: CheckedRun) -> None:
    run.edit_journal(lambda text: text.replace('"begin":"w0.0-0-2",', f'"begin":"w0.0-0-2","condition":"{ABSENT}",'))


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
        (acknowledge_a_condition_that_was_false, "lost", 1),
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
    for at, operation, kind, given in ((3.0, "put", "put", "o"), (5.0, "get", "get", None), (7.0, "delete", "delete", None)):
        other.write(at=at, begin=operation, object="o", kind=kind, size=1, digest=given)
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


# --- the journal and the load --------------------------------------------------------------------


def test_a_line_that_a_kill_cut_short_counts_as_not_written(tmp_path: Path) -> None:
    journal = tmp_path / "w0.0.jsonl"
    begin = '{"at":1.0,"begin":"w0.0-0-1","object":"o","kind":"put","size":1,"digest":"a"}\n'
    journal.write_text(begin + '{"at":2.0,"end":"w0.0-0-1","ans')
    events = ('{"at":1.5,"process":"w0.0","event":"stopped"}', '{"at":3.0,"process":"w0.0","event":"killed"}', "")
    (tmp_path / DIRECTOR).write_text("\n".join(events))
    (call,) = read_calls(tmp_path)
    assert (call.answer, call.ended) == (CallAnswer.NONE, 3.0)
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


def test_a_write_over_what_was_read_follows_its_read_of_the_same_object() -> None:
    done = list(islice(steps(1, "w0.0", 0, object_ids(50)), 500))
    pairs = [(before, each) for before, each in pairwise(done) if each.over_read]
    assert len(pairs) > 20 and {each.kind for _, each in pairs} == {OperationKind.PUT, OperationKind.DELETE}
    assert all((before.kind, before.object_id) == (OperationKind.GET, each.object_id) for before, each in pairs)


def test_a_write_over_what_was_read_is_told_when_another_has_replaced_it(tmp_path: Path) -> None:
    number = iter(range(100))

    def step(kind: OperationKind, over_read: bool = False) -> LoadStep:
        operation = f"w0.0-0-{next(number)}"
        return LoadStep(operation, kind, SMALL, operation.encode() if kind is OperationKind.PUT else b"", over_read=over_read)

    put, get, delete = OperationKind.PUT, OperationKind.GET, OperationKind.DELETE
    mine = [step(get), step(put, True), step(put, True), step(get), step(put, True), step(get), step(delete, True), step(delete, True)]
    told = [JournaledAnswer.FAILED if number in (2, 7) else JournaledAnswer.OK for number in range(8)]

    async def work() -> list[JournaledAnswer]:
        runtime, journal, read = SystemRuntime(), OperationJournal(tmp_path / "w0.0.jsonl"), LastRead()
        async with open_storage(Settings(directory=tmp_path / "store", changelog="sqlite"), runtime) as storage:
            return [await perform(storage, journal, runtime, each, read) for each in mine]

    assert anyio.run(work) == told
    calls = read_calls(tmp_path)
    assert [each.condition == ABSENT for each in calls] == [number in (1, 2) for number in range(8)]
    assert [each.wanted for each in calls] == [mine[1].id if number == 4 else mine[4].id if number > 5 else None for number in range(8)]
    assert len({each.condition for each in calls if each.wanted}) == 2


def put(name: str, began: float, answer: CallAnswer = CallAnswer.OK) -> JournaledCall:
    return JournaledCall(name, "o", JournaledKind.PUT, f"bytes of {name}", began, began + 1, answer)


def test_a_history_says_what_each_caller_was_told_and_what_is_stored_in_the_end() -> None:
    told = [
        replace(put("w0.0-1-1", 1), condition=ABSENT), put("b", 3, CallAnswer.NO), put("c", 5, CallAnswer.SETTLED),
        replace(put("d", 7, CallAnswer.FAILED), condition="r", wanted="w0.0-1-1"), JournaledCall("e", "o", JournaledKind.DELETE, None, 9),
        replace(put("f", 9), condition="s", wanted="what nobody began"),
    ]  # fmt: skip
    calls = list(history(told, {"stored": Content("x", "y"), "broken": None}, looked=10))
    first = "bytes of w0.0-1-1"
    assert [(each.value, each.answer, each.over, each.ended_s) for each in calls] == [
        (first, "ok", "", 2), ("bytes of b", "no", None, 4), ("bytes of c", "unknown", None, 6), ("bytes of d", "failed", first, 8),
        ("", "unknown", None, math.inf), ("bytes of f", "ok", WRITTEN_BY_NOBODY, 10), ("", "ok", None, 10), ("x", "ok", None, 10),
    ]  # fmt: skip
    assert [(each.process, each.object) for each in (calls[0], *calls[-2:])] == [("w0.0", "o"), ("check", "o"), ("check", "stored")]
    assert json.loads(calls[4].line()) == {
        "process": "e", "object": "o", "operation": "delete", "value": "", "over": None, "call": 9_000_000_000, "return": None,
        "answer": "unknown",
    }  # fmt: skip


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
