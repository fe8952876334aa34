"""What a run leaves in its directory: whole files or none, and a range is done iff its file is there."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileInfo, FileSelector
from pyarrow.parquet import ParquetFile

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError
from recovery.audit.files.ledger import ROW_GROUP, SCHEMA, RunDirectory, summary_from_json, summary_to_json
from recovery.audit.finding import Summary, Tally
from recovery.audit.finding_classes import FindingClass
from recovery.audit.running.plan import check_unowned
from tests.given.findings import RUN, SUMMARY, as_older_software_wrote, finding, manifest, partition, write
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT
from tiered.buckets.owners import marker_name


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    opened = RunDirectory.open(str(tmp_path / "run"))
    opened.begin(manifest())
    return opened


def summary_of(directory: RunDirectory, number: int) -> Summary | None:
    header = directory.done_part(RUN, partition(number))
    return None if header is None else header.summary


def left_over(directory: RunDirectory) -> list[str]:
    return [path.name for path in Path(directory.uri).rglob("_*")]


@pytest.mark.parametrize(("given", "mode"), [(None, 0o700), (0o755, 0o755)])
def test_names_of_objects_in_a_run_could_be_read_by_every_user(tmp_path: Path, given: int | None, mode: int) -> None:
    """A directory that was there keeps its mode: executors may run as another user."""
    before = os.umask(0o022)
    try:
        if given is not None:
            (tmp_path / "runs" / "1").mkdir(given, parents=True)
        RunDirectory.open(str(tmp_path / "runs" / "1")).begin(manifest())
        assert (tmp_path / "runs" / "1").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


# --- ranges ----------------------------------------------------------------------------------------


def test_findings_and_summary_come_back_as_they_were_written(directory: RunDirectory) -> None:
    told = [
        finding(), finding(FindingClass.DANGLING, "ä/ü\U0001f600", object=None, revision=None, size=None, created_ns=None, generation=None),
        finding(FindingClass.FOREIGN, deadline_ns=253_402_300_799_000_000_000, confirmed_ns=-62_135_596_800_000_000),
    ]  # fmt: skip
    write(directory, 17, *told)
    assert list(directory.findings(RUN)) == told
    assert list(directory.findings(RUN, {FindingClass.DANGLING})) == told[1:2]
    assert {key: header.summary for key, header in directory.done(RUN)} == {"000017": SUMMARY}
    assert summary_of(directory, 17) == SUMMARY and summary_of(directory, 16) is None


def test_files_without_findings_of_a_kind_are_not_read_for_them(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    write(directory, 0, finding())
    write(directory, 1, finding(FindingClass.UNLISTED), summary=Summary(counts={"media": {FindingClass.UNLISTED: Tally(1, 0)}}))
    opened: list[str] = []

    def open_file(path: str, **options: Any) -> Any:
        opened.append(path)
        return ParquetFile(path, **options)

    monkeypatch.setattr(pq, "ParquetFile", open_file)
    assert list(directory.findings(RUN, {FindingClass.UNLISTED, FindingClass.MISDIRECTED})) == [finding(FindingClass.UNLISTED)]
    assert len(opened) == 1


def test_file_says_what_each_column_is_without_this_software(directory: RunDirectory) -> None:
    path = write(directory, 3, finding(), finding(name="no usecase"))
    rows = pads.dataset(path.parent).to_table()
    assert rows.schema.equals(SCHEMA)
    assert rows["usecase"].to_pylist() == ["media", "(none)"]
    assert set(rows["range"].to_pylist()) == {3} and set(rows["run"].to_pylist()) == {RUN}
    assert rows["created"].to_pylist()[0].isoformat() == "2026-09-21T14:13:20.123456+00:00"


def test_summary_survives_json() -> None:
    assert summary_from_json(summary_to_json(SUMMARY)) == SUMMARY
    assert summary_from_json(summary_to_json(Summary())) == Summary()


def test_range_without_findings_has_a_file_too(directory: RunDirectory) -> None:
    path = write(directory, 0)
    assert pq.read_table(path).num_rows == 0
    assert [key for key, _ in directory.done(RUN)] == ["000000"] and list(directory.findings(RUN)) == []


def test_writer_keeps_no_more_than_one_group_of_rows(directory: RunDirectory) -> None:
    with directory.writer(RUN, partition(0)) as file:
        for number in range(2 * ROW_GROUP + 5):
            file.add([finding(name=f"media/objects/{number}")])
            assert len(file._rows) < ROW_GROUP
        file.commit(SUMMARY)
    footer = pq.read_metadata(Path(directory.uri) / "findings" / "range-000000.parquet")
    assert [footer.row_group(group).num_rows for group in range(footer.num_row_groups)] == [ROW_GROUP, ROW_GROUP, 5]
    assert sum(1 for _ in directory.findings(RUN)) == 2 * ROW_GROUP + 5


def test_file_that_was_not_committed_never_appears_and_leaves_nothing(directory: RunDirectory) -> None:
    with directory.writer(RUN, partition(0)) as file:
        file.add([finding()])
        assert list(directory.done(RUN)) == [] and left_over(directory) != []
    assert list(directory.done(RUN)) == [] and left_over(directory) == []


def test_file_written_twice_says_the_same_twice(directory: RunDirectory) -> None:
    with directory.writer(RUN, partition(0)) as first, directory.writer(RUN, partition(0)) as second:
        for file in (first, second):
            file.add([finding()])
        first.commit(SUMMARY)
        before = (Path(directory.uri) / "findings" / "range-000000.parquet").read_bytes()
        second.commit(SUMMARY)
    assert (Path(directory.uri) / "findings" / "range-000000.parquet").read_bytes() == before
    assert list(directory.findings(RUN)) == [finding()]


def test_only_new_files_are_looked_at_again(directory: RunDirectory) -> None:
    write(directory, 0)
    write(directory, 5)
    assert [key for key, _ in directory.done(RUN, {"000000"})] == ["000005"]


@pytest.mark.parametrize(("spoil", "why"), [
    (lambda path: path.write_bytes(path.read_bytes()[:-9]), "cut off"),
    (lambda path: path.write_bytes(b""), "cut off"),
    (lambda path: path.rename(path.with_name("range-000008.parquet")), "another run or range"),
    (lambda path: pq.write_table(pq.read_table(path).replace_schema_metadata({}), path), "schema version none"),
])  # fmt: skip
def test_file_that_is_not_whole_or_not_its_own_counts_as_missing(
    directory: RunDirectory, spoil: Callable[[Path], object], why: str
) -> None:
    spoil(write(directory, 7, finding()))
    write(directory, 9)
    assert [key for key, _ in directory.done(RUN)] == ["000009"]
    [said] = directory.faults.values()
    assert why in said and "findings/range-00000" in said
    assert list(directory.findings(RUN)) == []
    write(directory, int(next(iter(directory.faults))), finding())
    assert len(list(directory.done(RUN))) == 2 and directory.faults == {}


def test_a_file_of_version_2_is_read_with_its_generations_as_text(directory: RunDirectory) -> None:
    told = [finding(), finding(FindingClass.DANGLING, generation=None)]
    path = write(directory, 0, *told)
    as_older_software_wrote(path, 2, "generation")
    write(directory, 1, finding(name="media/objects/b/r"))
    assert pq.read_schema(path).field("generation").type == pa.int64()
    assert [key for key, _ in directory.done(RUN)] == ["000000", "000001"] and directory.faults == {}
    assert list(directory.findings(RUN)) == [*told, finding(name="media/objects/b/r")]
    assert {rows.schema.field("generation").type for rows in directory.batches(RUN, columns=("class", "generation"))} == {pa.string()}


def test_a_file_of_a_version_that_is_not_read_any_more_counts_as_missing(directory: RunDirectory) -> None:
    as_older_software_wrote(write(directory, 0, finding()), 1)
    assert list(directory.done(RUN)) == [] and list(directory.findings(RUN)) == []
    assert directory.faults == {"000000": "findings/range-000000.parquet has schema version 1, and this software reads 2 and 3"}


def test_a_file_of_newer_software_is_refused_because_its_range_would_be_audited_over_it(directory: RunDirectory) -> None:
    as_older_software_wrote(write(directory, 0, finding()), 4)
    with pytest.raises(ConfigurationError, match=r"newer .*range-000000\.parquet, in version 4, and this one reads schemas 2 and 3"):
        list(directory.done(RUN))


def test_range_of_another_run_counts_as_missing(directory: RunDirectory) -> None:
    write(directory, 0, finding(), run="another")
    assert list(directory.done(RUN)) == [] and summary_of(directory, 0) is None
    assert directory.faults == {"000000": "findings/range-000000.parquet is of another run or range"}


# --- the run ---------------------------------------------------------------------------------------


def test_copy_of_a_file_under_another_name_counts_nothing_twice(directory: RunDirectory) -> None:
    path = write(directory, 0, finding())
    for name in ("range-0000000.parquet", "range-000001.parquet", "range-000000.parquet.bak"):
        (path.parent / name).write_bytes(path.read_bytes())
    assert [key for key, _ in directory.done(RUN)] == ["000000"]
    assert list(directory.findings(RUN)) == [finding()]


def test_of_two_who_begin_at_once_one_goes_on_with_the_others_run(tmp_path: Path) -> None:
    first, second = RunDirectory.open(str(tmp_path / "run")), RunDirectory.open(f"file://{tmp_path}/run")
    assert first.read_manifest() is None
    assert first.begin(manifest()).run == RUN
    assert second.begin(manifest(run="another")).run == RUN
    second.write_manifest(manifest(complete=True))
    assert first.read_manifest() == manifest(complete=True)
    assert left_over(first) == []


def test_a_directory_that_another_process_makes_while_it_is_listed_has_nothing_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory.open(str(tmp_path / "run"))

    class LocalFiles:
        """As Arrow does if the directory is made after it was listed, and before it looks whether it exists."""

        type_name = "local"

        def get_file_info(self, selector: FileSelector) -> list[FileInfo]:
            raise FileNotFoundError(errno.ENOENT, "Cannot list directory", selector.base_dir)

    with monkeypatch.context() as at_that_moment:
        at_that_moment.setattr(directory.files, "filesystem", LocalFiles())
        assert directory.files.list() == []
    assert directory.begin(manifest()) == directory.read_manifest()


def test_directory_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").touch()
    with pytest.raises(ConfigurationError, match=r"holds 'precious\.txt' and no run of an audit"):
        RunDirectory.open(str(tmp_path)).begin(manifest())
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_directory_where_only_its_beginning_was_made_is_a_run_of_nothing_yet(tmp_path: Path) -> None:
    (tmp_path / "findings").mkdir()
    (tmp_path / "_manifest.json.0000.tmp").touch()
    assert RunDirectory.open(str(tmp_path)).begin(manifest()) == manifest()


@pytest.mark.parametrize(("version", "told"), [
    (3, "is of version 3, and this software reads 2: update it"), (1, "is of version 1, of older software, .*: run the audit anew"),
])  # fmt: skip
def test_manifest_of_newer_or_older_software_is_refused(directory: RunDirectory, version: int, told: str) -> None:
    (Path(directory.uri) / "manifest.json").write_text(f'{{"version": {version}, "sheep": []}}')
    with pytest.raises(ConfigurationError, match=rf"manifest\.json {told}"):
        directory.read_manifest()


def test_manifest_of_0_1_0_is_read_unless_its_blobs_are_from_an_inventory_report(directory: RunDirectory) -> None:
    path = Path(directory.uri) / "manifest.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"inventory": None}))
    assert directory.read_manifest() == manifest()
    path.write_text(json.dumps(fields | {"inventory": {"report": "r", "snapshot_ns": 0, "records": 3}}))
    with pytest.raises(ConfigurationError, match=r"manifest\.json took its blobs from an inventory report, .*: run the audit anew"):
        directory.read_manifest()
    path.write_text(json.dumps(fields | {"run": "\ud800"}))  # it was read, and could not be written again
    with pytest.raises(CorruptRecordError, match=r"manifest.json is no manifest of an audit"):
        directory.read_manifest()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', "\xff", "[" * 100_000])
def test_manifest_that_is_none_says_so(directory: RunDirectory, text: str) -> None:
    (Path(directory.uri) / "manifest.json").write_text(text, "latin-1")
    with pytest.raises(CorruptRecordError, match=r"manifest.json is no manifest of an audit"):
        directory.read_manifest()


def test_what_killed_writers_left_is_removed_and_nothing_else(directory: RunDirectory) -> None:
    path = write(directory, 0)
    (path.parent / "_range-000001.parquet.0123456789abcdef.tmp").touch()
    (path.parent / "_SUCCESS").touch()
    (path.parent / "mine.tmp").touch()
    (path.parent.parent / "_manifest.json.0123456789abcdef.tmp").touch()  # of another driver, which is about to publish it
    directory.tidy()
    assert sorted(left_over(directory)) == ["_SUCCESS", "_manifest.json.0123456789abcdef.tmp"]
    assert len(list(directory.done(RUN))) == 1 and (path.parent / "mine.tmp").exists()


# --- what fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "why"),
    [("ftp://host/x", "ftp://host/x cannot be opened: give a path, or a URI such as gs://"), ("gs://", "gs:// ")],
)
def test_place_that_cannot_be_opened_is_named(where: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RunDirectory.open(where)
    assert why in str(refused.value) and "\n" not in str(refused.value)


def test_directory_that_may_not_be_written_is_said_in_a_sentence(unprivileged: Path) -> None:
    (unprivileged / "shut").mkdir(mode=0o500)
    with pytest.raises(ConfigurationError, match=r"shut/run cannot be made: this process may not; give another"):
        RunDirectory.open(str(unprivileged / "shut" / "run")).begin(manifest())


def test_file_in_the_way_of_the_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="a file is in the way"):
        RunDirectory.open(str(tmp_path / "file")).begin(manifest())


FULL = """
import os, resource, sys
from changelog.base.errors import UnavailableError
from recovery.audit.files.ledger import RunDirectory
from tests.given.findings import RUN, SUMMARY, finding, manifest, partition
directory = RunDirectory.open(sys.argv[1])
directory.begin(manifest())
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with directory.writer(RUN, partition(0)) as file:
        for number in range(100_000):
            file.add([finding(name=os.urandom(16).hex())])
        file.commit(SUMMARY)
except UnavailableError as error:
    print(error)
"""


@pytest.mark.slow
def test_disk_that_is_full_is_said_in_a_sentence_and_nothing_is_left(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "run")], capture_output=True, text=True, cwd=ROOT, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ran.stdout == (
        f"{tmp_path}/run/findings/range-000000.parquet cannot be written:"
        " a file would be larger than is allowed; free space and run it again\n"
    )
    assert ran.stderr == "" and left_over(RunDirectory.open(str(tmp_path / "run"))) == []


# --- an object store ---------------------------------------------------------------------------------

EMULATOR = """
import anyio
from emulators.gcs.server import GcsEmulator
async def main():
    async with GcsEmulator() as server:
        server.create_bucket("audits")
        print(server.url, flush=True)
        await anyio.to_thread.run_sync(input)
anyio.run(main)
"""


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """In a process of its own: Arrow's client holds the interpreter's lock while it waits."""
    with StartedProcess(
        [sys.executable, "-c", EMULATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as server:  # fmt: skip
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        yield url
        server.kill()


def test_run_lives_in_a_bucket_as_it_does_in_a_directory(gcs: str) -> None:
    directory = RunDirectory.open("gs://audits/2026/november")
    assert directory.files.bucket == "audits" and directory.files.local is None
    assert directory.read_manifest() is None
    assert directory.begin(manifest()).run == RUN
    write(directory, 17, finding(), finding(FindingClass.DANGLING))
    write(directory, 17, finding(), finding(FindingClass.DANGLING))
    with directory.writer(RUN, partition(18)) as file:
        file.add([finding()])
    directory.write_report("<p>")
    elsewhere = RunDirectory.open(directory.uri)
    assert [*dict(elsewhere.done(RUN))] == ["000017"] and summary_of(elsewhere, 17) == SUMMARY and summary_of(elsewhere, 18) is None
    assert list(elsewhere.findings(RUN, {FindingClass.DANGLING})) == [finding(FindingClass.DANGLING)]
    elsewhere.tidy()
    assert elsewhere.begin(manifest(run="another")).run == RUN


def test_run_in_what_a_store_owns_is_refused(gcs: str) -> None:
    for owned, run, refused in [("a/", "a/2026", True), ("a/b/", "a", True), ("a/", "b", False), ("", "2026", True)]:
        files = RunDirectory.open(f"gs://audits/{run}").files
        marker = f"audits/{marker_name(owned)}"
        with files.filesystem.open_output_stream(marker) as stream:
            stream.write(b"x")
        told = r"the run directory cannot be there: gs://audits/.* belongs to a store"
        with pytest.raises(ConfigurationError, match=told) if refused else nullcontext():
            check_unowned(files)
        files.filesystem.delete_file(marker)


def test_bucket_that_is_not_there_is_said_in_a_sentence(gcs: str) -> None:
    with pytest.raises((ConfigurationError, UnavailableError), match="gs://nowhere/run cannot"):
        RunDirectory.open("gs://nowhere/run").begin(manifest())
