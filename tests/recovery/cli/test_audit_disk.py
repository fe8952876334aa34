"""What the commands of an audit say when the system refuses: a full disk, a vanished directory, closed streams."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from recovery.audit.deleting import journal as journals
from recovery.audit.deleting.journal import DeletionJournal
from recovery.audit.files.directory import DirectoryFiles
from recovery.cli.audit.console import showing
from tests.given.command_line import Command, shell, unwritable
from tests.given.deleted_store import OBJECTS, ORPHANS, blobs, embedded_with_orphans
from tests.given.deletion_process import settings_of

pytestmark = pytest.mark.slow

LIMITS = resource.getrlimit(resource.RLIMIT_FSIZE)
AT_MOST = ("--class", "orphan", "--at-most", "25")


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    anyio.run(embedded_with_orphans, tmp_path)
    return Command(tmp_path)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system lets no file of this process grow beyond so many bytes, as a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, LIMITS[1]))
    try:
        yield
    finally:  # two threads may be here at once, so what the limit was before says nothing
        resource.setrlimit(resource.RLIMIT_FSIZE, LIMITS)


def left(tiered: Command) -> list[str]:
    return sorted(name for name in anyio.run(blobs, settings_of(tiered.store)) if not name.startswith("~"))


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_file_that_does_not_fit_was_an_error_without_a_name(tmp_path: Path, size: int) -> None:
    files = DirectoryFiles.at(str(tmp_path), SystemRuntime())
    for write in (files.write, files.create):
        with files_of_at_most(50), pytest.raises(UnavailableError, match=r"/a\.parquet cannot be written: a file would be larger"):
            write("a.parquet", bytes(size))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("quarantine", [(), ("--quarantine", "november")])
def test_a_deletion_on_a_full_disk_ended_without_a_word(
    tiered: Command, monkeypatch: pytest.MonkeyPatch, quarantine: tuple[str, ...]
) -> None:
    """The disk is full when the second batch of five is noted. The same command goes on, and nothing is lost."""
    monkeypatch.setattr(journals, "BATCH", 5)
    write = DeletionJournal.write
    noted: list[int] = []

    def write_on_a_full_disk(journal: DeletionJournal, batch: int, entries: Any) -> None:
        if not noted:
            write(journal, batch, entries)
            noted.append(batch)
            return
        with files_of_at_most(100):
            write(journal, batch, entries)

    before = left(tiered)
    with monkeypatch.context() as full:
        full.setattr(DeletionJournal, "write", write_on_a_full_disk)
        tiered("audit", "delete", "run", *AT_MOST, *quarantine, "--yes", code=2)
    assert "parquet cannot be written: a file would be larger than is allowed; free space and run it again" in tiered.errors
    assert "of 25 candidates are done, and " in tiered.errors and "the same command goes on from there" in tiered.errors
    out = tiered("audit", "delete", "run", *AT_MOST, *quarantine, "--yes")
    assert "deleted" in out and "gone" in out and len(left(tiered)) == OBJECTS
    if quarantine:
        assert f"restored   {ORPHANS} blobs" in tiered("audit", "restore", "run", "--yes")
        assert left(tiered) == before


@pytest.mark.parametrize("command", [
    ("delete", "run", *AT_MOST), ("restore", "run"), ("show", "media/objects/00", "--from", "run"),
])  # fmt: skip
def test_a_run_that_cannot_be_read_is_told_with_its_path(tiered: Command, command: tuple[str, ...]) -> None:
    manifest = tiered.directory / "run" / "manifest.json"
    manifest.unlink()
    manifest.mkdir()
    tiered("audit", *command, code=2)
    assert str(manifest) in tiered.errors


def test_a_run_whose_directory_vanished_is_told_with_its_path(tiered: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = DeletionJournal.begin

    def vanish(journal: DeletionJournal, order: Any, candidates: Any) -> Any:
        found = begin(journal, order, candidates)
        shutil.rmtree(tiered.directory / "run")
        return found

    monkeypatch.setattr(DeletionJournal, "begin", vanish)
    tiered("audit", "delete", "run", *AT_MOST, "--yes", code=2)
    assert f"{tiered.directory}/run/deleted/" in tiered.errors and "is gone" in tiered.errors


@pytest.mark.parametrize(("how", "sentence"), [
    ("full", "the output cannot be written: No space left on device"), ("closed", "nobody read the output to its end"),
])  # fmt: skip
def test_an_output_that_cannot_be_written_ended_without_a_word(tiered: Command, how: str, sentence: str) -> None:
    with unwritable(how) as stdout:
        tiered("audit", "delete", "run", *AT_MOST, code=2, stdout=stdout)
        assert sentence in tiered.errors


def test_a_directory_that_is_gone_ended_without_a_word(tiered: Command) -> None:
    gone = tiered.directory / "gone"
    gone.mkdir()
    tiered.environment["PYTHONPATH"] = os.getcwd()
    done = shell(tiered, f"cd {gone}; rmdir {gone}; tiered audit delete run --class orphan")
    assert done.returncode == 2 and b"Traceback" not in done.stderr and done.stderr.startswith(b"tiered: ")


@pytest.mark.parametrize("how", ["full", "closed"])
def test_a_progress_that_nobody_reads_ended_the_deletion(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with unwritable(how) as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        with showing("orphans", lambda _: (1, 2, 31.0), lambda _: "") as show:
            show(None)
        with suppress(OSError):
            stderr.close()
