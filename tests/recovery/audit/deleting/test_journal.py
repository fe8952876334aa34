"""The journal: what is intended is written before, what became of it after, and a file that is broken is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from recovery.audit.deleting.candidates import Candidate, DeleteOutcome
from recovery.audit.deleting.journal import BATCH, SCHEMA, Copy, DeletionJournal, DeletionPlan, JournalEntry
from recovery.audit.files.directory import DirectoryFiles
from tests.given.findings import as_older_software_wrote

RUN = "0190aaaa-0000-7000-8000-000000000001"
PLAN = DeletionPlan(RUN, 0, 0, 0, None, 1)


@pytest.fixture
def journal(tmp_path: Path) -> DeletionJournal:
    return DeletionJournal(DirectoryFiles.at(str(tmp_path), SystemRuntime()), RUN)


def candidates(number: int) -> list[Candidate]:
    runtime = SystemRuntime()
    ids = [ChangeId.new(runtime) for _ in range(number)]
    return [Candidate(f"media/objects/k/{each}", "media/objects/k", each, str(1 << 60), 10) for each in ids]


def test_all_candidates_are_intended_before_the_order_is_written(journal: DeletionJournal) -> None:
    found = candidates(2 * BATCH + 1)
    assert journal.plan() is None
    plan = journal.begin(PLAN, found)
    assert (plan.number, plan.size, plan.batches) == (2 * BATCH + 1, 10 * (2 * BATCH + 1), 3)
    assert journal.plan() == plan
    read = [entry for batch in range(3) for entry in journal.read(batch)]
    assert read == [JournalEntry(each) for each in found]
    assert [journal.sums(batch) for batch in range(3)] == [None, None, None]


def test_a_batch_is_done_when_every_candidate_has_a_fate(journal: DeletionJournal) -> None:
    first, second = candidates(2)
    journal.begin(PLAN, [first, second])
    journal.write(0, [JournalEntry(first, DeleteOutcome.DELETED, Copy(f"~quarantine/a/{first.name}", "7")), JournalEntry(second)])
    assert journal.sums(0) is None
    deleted = JournalEntry(first, DeleteOutcome.DELETED, Copy(f"~quarantine/a/{first.name}", "7"))
    journal.write(0, entries := [deleted, JournalEntry(second, DeleteOutcome.NAMED)])
    sums = journal.sums(0)
    assert sums is not None and (dict(sums.numbers), dict(sums.sizes)) == (
        {DeleteOutcome.DELETED: 1, DeleteOutcome.NAMED: 1}, {DeleteOutcome.DELETED: 10, DeleteOutcome.NAMED: 10}
    )  # fmt: skip
    assert journal.read(0) == entries


def test_a_run_without_orphans_has_an_order_and_no_batch(journal: DeletionJournal) -> None:
    assert journal.begin(PLAN, []).batches == 0


def test_beginning_twice_gives_the_same_and_takes_away_nothing_that_was_done(journal: DeletionJournal) -> None:
    found = candidates(3)
    plan = journal.begin(PLAN, found)
    done = [JournalEntry(each, DeleteOutcome.DELETED) for each in found]
    journal.write(0, done)
    assert journal.begin(PLAN, found) == plan and plan.number == 3
    assert journal.read(0) == done


def test_the_files_can_be_read_by_anything_that_reads_parquet(journal: DeletionJournal, tmp_path: Path) -> None:
    journal.begin(PLAN, candidates(3))
    table = pq.read_table(tmp_path / "deleted" / "range-000000.parquet")
    assert table.column("fate").to_pylist() == ["intended"] * 3 and table.column("run").to_pylist() == [RUN] * 3


def test_a_file_that_is_gone_cut_off_or_another_runs_is_refused(journal: DeletionJournal, tmp_path: Path) -> None:
    journal.begin(PLAN, candidates(3))
    file = tmp_path / "deleted" / "range-000000.parquet"
    with pytest.raises(CorruptRecordError, match="of another run, batch or version"):
        DeletionJournal(DirectoryFiles.at(str(tmp_path), SystemRuntime()), "another").read(0)
    with pytest.raises(CorruptRecordError, match="of another run than the manifest"):
        DeletionJournal(DirectoryFiles.at(str(tmp_path), SystemRuntime()), "another").plan()
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CorruptRecordError, match="cut off, or no Parquet file"):
        journal.read(0)
    file.unlink()
    with pytest.raises(CorruptRecordError, match="is gone: what was intended"):
        journal.sums(0)


def test_the_journal_of_older_software_is_read_and_goes_on(journal: DeletionJournal, tmp_path: Path) -> None:
    first, second = candidates(2)
    plan = journal.begin(PLAN, [first, second])
    entries = [JournalEntry(first, DeleteOutcome.DELETED, Copy(f"~quarantine/a/{first.name}", "7")), JournalEntry(second)]
    journal.write(0, entries)
    of_order, file = (tmp_path / "deleted" / name for name in ("deletion.json", "range-000000.parquet"))
    of_order.write_text(json.dumps({**json.loads(of_order.read_text()), "version": 1}))
    as_older_software_wrote(file, 1, "generation", "aside_generation")
    assert pq.read_schema(file).field("aside_generation").type == pa.int64()
    assert journal.plan() == plan and list(journal.entries(plan)) == [(0, entries)]
    assert journal.begin(PLAN, [first, second]) == plan and journal.read(0) == entries, "what was noted is left as it is"
    journal.write(0, [replace(each, outcome=DeleteOutcome.DELETED) for each in entries])
    assert pq.read_schema(file).field("aside_generation").type == pa.string() and journal.sums(0) is not None
    journal.write(0, [JournalEntry(first, DeleteOutcome.DELETED, Copy(f"~quarantine/a/{first.name}", ""))])
    with pytest.raises(CorruptRecordError, match="is no copy of"):
        journal.read(0)
    as_older_software_wrote(file, 3)
    with pytest.raises(ConfigurationError, match=r"newer .*parquet, in version 3, and this one reads versions 1 and 2"):
        journal.read(0)
    of_order.write_text(json.dumps({**json.loads(of_order.read_text()), "version": 3}))
    with pytest.raises(ConfigurationError, match=r"newer .*deletion\.json, in version 3, and this one reads versions 1 and 2"):
        journal.plan()


@pytest.mark.parametrize(("column", "value"), [
    ("object", "media/objects/other"), ("revision", "01a10000-0000-7000-8000-000000000000"), ("name", "media/objects/k"), ("fate", "eaten"),
    ("name", None), ("generation", None), ("generation", ""), ("size", None), ("size", -1), ("run", "another"), ("fate", None),
    ("aside", "media/objects/k/01a10000-0000-7000-8000-000000000000"), ("aside", "~quarantine/a/b"), ("aside", ""),
])  # fmt: skip
def test_a_row_that_was_edited_is_refused(journal: DeletionJournal, tmp_path: Path, column: str, value: object) -> None:
    """The settle protects the row of the object that is named. It must be that of the blob.

    A restoration deletes the copy that is named. It must be in the quarantine.
    """
    journal.begin(PLAN, candidates(3))
    file = tmp_path / "deleted" / "range-000000.parquet"
    table = pq.read_table(file)
    edited = table.set_column(table.schema.get_field_index(column), column, pa.array([value] * 3, SCHEMA.field(column).type))
    pq.write_table(edited.replace_schema_metadata(table.schema.metadata), file)
    with pytest.raises(CorruptRecordError, match="breaks the format"):
        journal.read(0)


@pytest.mark.parametrize("text", [
    "", "[]", "[" * 100_000, "{}", '{"version": 1}', '{"version": 2}', '{"version": 0}', '{"version": 2, "run": "x", "more": 1}',
])  # fmt: skip
def test_an_order_that_breaks_the_format_is_refused(journal: DeletionJournal, tmp_path: Path, text: str) -> None:
    (tmp_path / "deleted").mkdir()
    (tmp_path / "deleted" / "deletion.json").write_text(text)
    with pytest.raises(CorruptRecordError):
        journal.plan()


@pytest.mark.parametrize(("key", "value"), [
    ("batches", "1"), ("batches", None), ("batches", -1), ("batches", 0), ("batches", True), ("number", 1.5), ("number", 4),
    ("size", None), ("began_ns", "x"), ("quarantine", 5),
])  # fmt: skip
def test_an_order_that_cannot_be_true_is_refused(journal: DeletionJournal, tmp_path: Path, key: str, value: object) -> None:
    journal.begin(PLAN, candidates(3))
    file = tmp_path / "deleted" / "deletion.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))

    def read() -> None:
        plan = journal.plan()
        assert plan is not None
        list(journal.entries(plan))

    with pytest.raises(CorruptRecordError, match="breaks the format"):
        read()


def test_a_name_that_is_there_twice_is_refused(journal: DeletionJournal) -> None:
    [candidate] = candidates(1)
    journal.begin(PLAN, [candidate])
    journal.write(0, [JournalEntry(candidate), JournalEntry(candidate)])
    with pytest.raises(CorruptRecordError, match="a name is there twice"):
        journal.read(0)


def test_beginning_again_takes_no_note_away(journal: DeletionJournal, tmp_path: Path) -> None:
    """Two processes may begin at once, and one may be at work when the other one begins."""
    found = candidates(2)
    journal.begin(PLAN, found)
    noted = [JournalEntry(found[0], DeleteOutcome.DELETED, Copy(f"~quarantine/a/{found[0].name}", "7")), JournalEntry(found[1])]
    journal.write(0, noted)
    journal.begin(PLAN, found)
    assert journal.read(0) == noted
    (tmp_path / "deleted" / "deletion.json").unlink()
    with pytest.raises(CorruptRecordError, match=r"deletion\.json is gone, and .* was carried out"):
        journal.begin(PLAN, found)
    assert journal.read(0) == noted
