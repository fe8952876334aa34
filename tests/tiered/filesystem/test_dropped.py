"""A file that nobody closes: it is stored when it is dropped, unless an error ended the code that wrote it."""

from __future__ import annotations

import gc
import gzip
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.given.repository import ROOT
from tiered import UnavailableError
from tiered.filesystem.implementation import TieredFileSystem
from tiered.testing import BlockingMemoryStorage

KEY = "notes/objects/key"
LARGE = bytes(range(256)) * 40_000  # more than is kept in memory


# --- stored ------------------------------------------------------------------------------------------


def _at_once(fs: TieredFileSystem) -> None:
    fs.open(KEY, "wb").write(LARGE)


def _at_the_end_of_a_function(fs: TieredFileSystem) -> None:
    file = fs.open(KEY, "wb")
    for start in range(0, len(LARGE), 1 << 20):
        file.write(LARGE[start : start + (1 << 20)])


def _by_another_value(fs: TieredFileSystem) -> None:
    file: Any = fs.open(KEY, "wb")
    file.write(LARGE)
    with suppress(ValueError):
        int("an error of something else, before")
    file = None
    assert file is None and fs.exists(KEY)


def _after_an_except(fs: TieredFileSystem) -> None:
    file: Any = fs.open(KEY, "wb")
    file.write(LARGE)
    try:  # noqa: SIM105 - this is what ends otherwise
        int("an error of something else, before")
    except ValueError:
        pass
    file = None
    assert file is None and fs.exists(KEY)


def _in_an_except(fs: TieredFileSystem) -> None:
    try:
        int("an error that this report is about")
    except ValueError:
        fs.open(KEY, "wb").write(LARGE)
        assert fs.exists(KEY)


def _in_a_cycle(fs: TieredFileSystem) -> None:
    holder: list[Any] = [fs.open(KEY, "wb")]
    holder[0].write(LARGE)
    holder.append(holder)
    del holder
    gc.collect()


def _as_text(fs: TieredFileSystem) -> None:
    fs.open(KEY, "w", encoding="latin-1", newline="").write(LARGE.decode("latin-1"))


def _packed(fs: TieredFileSystem) -> None:
    fs.open(KEY, "wb", compression="gzip").write(LARGE)


def _by_a_thread(fs: TieredFileSystem) -> None:
    thread = threading.Thread(target=_at_once, args=(fs,))
    thread.start()
    thread.join()


def _in_the_thread_of_the_shared_loop(fs: TieredFileSystem) -> None:
    """As its garbage collection may drop a file."""
    files = [fs.open(KEY, "wb")]
    files[0].write(LARGE)
    before = set(threading.enumerate())
    dropped = threading.Event()

    def drop() -> None:
        files.clear()
        dropped.set()

    fs.storage._loop.soon(drop)
    assert dropped.wait(20)
    for thread in set(threading.enumerate()) - before:
        thread.join(20)


DROPPED: dict[str, Callable[[TieredFileSystem], None]] = {
    "at once": _at_once, "at the end of a function": _at_the_end_of_a_function, "by another value": _by_another_value,
    "after an except": _after_an_except, "in an except": _in_an_except, "in a cycle": _in_a_cycle, "as text": _as_text, "packed": _packed,
    "by a thread": _by_a_thread, "in the thread of the shared loop": _in_the_thread_of_the_shared_loop,
}  # fmt: skip


@pytest.mark.parametrize("name", DROPPED)
def test_a_file_that_nobody_closes_is_stored_when_it_is_dropped(fs: TieredFileSystem, name: str) -> None:
    fs.pipe_file(KEY, b"old")
    DROPPED[name](fs)
    payload = fs.cat_file(KEY)
    assert (gzip.decompress(payload) if name == "packed" else payload) == LARGE


def test_duckdb_exports_a_database_as_a_whole_and_imports_it(fs: TieredFileSystem) -> None:
    """It never closes `schema.sql` and `load.sql`."""
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register_filesystem(fs)
    connection.execute("CREATE TABLE numbers AS SELECT range i FROM range(1000)")
    for _ in range(2):
        connection.execute("EXPORT DATABASE 'tiered://notes/objects/a[1]' (FORMAT parquet)")
        assert [name[19:] for name in fs.find("notes")] == ["load.sql", "numbers.parquet", "schema.sql"]
    other = duckdb.connect()
    other.register_filesystem(fs)
    connection.execute("COPY numbers TO 'tiered://notes/objects/copy.csv'")
    assert len(fs.cat("notes/objects/copy.csv").splitlines()) == 1001
    fs.mv("notes/objects/a[1]", "notes/objects/moved", recursive=True)
    fs.pipe("notes/objects/moved/load.sql", fs.cat("notes/objects/moved/load.sql").replace(b"a[1]", b"moved"))
    other.execute("IMPORT DATABASE 'tiered://notes/objects/moved'")
    assert other.execute("SELECT sum(i) FROM numbers").fetchall() == [(499_500,)]


@pytest.mark.parametrize("files", ["PARTITION_BY (p)", "PER_THREAD_OUTPUT", "FILE_SIZE_BYTES '1kB'"])
@pytest.mark.parametrize("option", ["OVERWRITE_OR_IGNORE", "APPEND"])
def test_duckdb_writes_several_files_to_a_new_directory_with_the_options_of_the_page(fs: TieredFileSystem, files: str, option: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register_filesystem(fs)
    place = "tiered://notes/objects/table"
    connection.execute(f"COPY (SELECT range i, range % 4 p FROM range(1000)) TO '{place}' (FORMAT parquet, {files}, {option})")
    assert connection.execute(f"SELECT count(*), sum(i) FROM '{place}/**/*.parquet'").fetchall() == [(1000, 499_500)]


def test_what_duckdb_does_with_a_file_is_stored_also_without_it(fs: TieredFileSystem) -> None:
    """It opens, writes once, and lets go; what is empty is written, too."""
    for path, payload in (("notes/objects/schema.sql", b"CREATE TABLE t(i BIGINT);"), ("notes/objects/load.sql", b"")):
        file = fs.open(f"tiered://{path}", "wb")
        file.write(payload)
        del file
        assert fs.cat_file(path) == payload


# --- not stored --------------------------------------------------------------------------------------


def _write_half(fs: TieredFileSystem, mode: str = "wb", **options: Any) -> None:
    file = fs.open(KEY, mode, **options)
    file.write("half" if mode == "w" else LARGE)
    raise KeyError


def _bare(fs: TieredFileSystem) -> None:
    try:  # noqa: SIM105 - this is what ends otherwise
        _write_half(fs)
    except KeyError:
        pass
    assert fs.cat_file(KEY) == b"old"


def _named(fs: TieredFileSystem) -> None:
    try:
        _write_half(fs, "w")
    except KeyError as error:
        assert error.args == ()  # noqa: PT017 - this is what ends otherwise
    assert fs.cat_file(KEY) == b"old"


def _returned(fs: TieredFileSystem) -> None:
    def attempt() -> str:
        try:
            _write_half(fs, "wb", compression="gzip")
        except KeyError as error:
            return repr(error)
        return ""

    assert attempt()


def _suppressed(fs: TieredFileSystem) -> None:
    with suppress(KeyError):
        _write_half(fs)
    assert fs.cat_file(KEY) == b"old"


def _raised(fs: TieredFileSystem) -> None:
    with pytest.raises(KeyError):
        _write_half(fs)


def _in_a_stack(fs: TieredFileSystem) -> None:
    with ExitStack() as stack:
        stack.enter_context(suppress(KeyError))
        _write_half(fs)


def _as_the_cause(fs: TieredFileSystem) -> None:
    try:
        try:
            _write_half(fs)
        except KeyError as error:
            raise RuntimeError from error
    except RuntimeError:
        pass


def _in_a_finally(fs: TieredFileSystem) -> None:
    file: Any = fs.open(KEY, "wb")
    with suppress(KeyError):
        try:
            file.write(LARGE)
            raise KeyError
        finally:
            file = None
    assert file is None


def _in_a_handler(fs: TieredFileSystem) -> None:
    file: Any = fs.open(KEY, "wb")
    try:
        file.write(LARGE)
        raise KeyError
    except KeyError:
        file = None
    assert file is None


def _in_a_thread(fs: TieredFileSystem) -> None:
    def run() -> None:
        with suppress(KeyError):
            _write_half(fs)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def _torn(fs: TieredFileSystem) -> None:
    file = fs.open(KEY, "wb")
    file.write(LARGE)
    with suppress(TypeError):
        file._written.write(None)
    file._is_torn = True


def _only_opened(fs: TieredFileSystem) -> None:
    for mode in ("wb", "w", "ab"):
        fs.open(KEY, mode)
    fs.open(KEY, "wb", compression="gzip")


FAILED: dict[str, Callable[[TieredFileSystem], None]] = {
    "except": _bare, "except, named": _named, "except, and return": _returned, "suppress": _suppressed, "pytest.raises": _raised,
    "a stack": _in_a_stack, "as the cause": _as_the_cause, "in a finally": _in_a_finally, "in a handler": _in_a_handler,
    "in a thread": _in_a_thread, "torn": _torn, "only opened": _only_opened,
}  # fmt: skip


@pytest.mark.parametrize("name", FAILED)
def test_a_file_whose_writer_an_error_ended_is_not_stored(fs: TieredFileSystem, name: str) -> None:
    fs.pipe_file(KEY, b"old")
    FAILED[name](fs)
    assert fs.cat_file(KEY) == b"old"


def test_a_dropped_file_that_cannot_be_stored_is_told(
    fs: TieredFileSystem, storage: BlockingMemoryStorage, caplog: pytest.LogCaptureFixture
) -> None:
    storage.faults.fail("put", UnavailableError)
    with caplog.at_level(logging.WARNING, logger="tiered"):
        fs.open(KEY, "wb").write(LARGE)
        with suppress(KeyError):
            _write_half(fs)
    assert [(record.levelname, record.event) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("ERROR", "file_lost"), ("WARNING", "file_discarded"),
    ]  # fmt: skip
    assert not fs.exists(KEY)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_file_of_the_parent_is_not_stored_by_a_forked_child(tmp_path: Path) -> None:
    fs = TieredFileSystem({"directory": str(tmp_path)})
    file = fs.open(KEY, "wb")
    file.write(LARGE)
    if (child := os.fork()) == 0:
        del file
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not fs.exists(KEY)
    del file
    assert fs.cat_file(KEY) == LARGE
    fs.close()


@pytest.mark.slow
@pytest.mark.parametrize(("last_line", "stored"), [("pass", True), ("raise KeyError", False)])
def test_what_is_open_at_exit_is_stored_unless_the_program_failed(tmp_path: Path, last_line: str, stored: bool) -> None:
    program = f"""
        from tiered.filesystem.implementation import TieredFileSystem
        fs = TieredFileSystem({{"directory": {str(tmp_path)!r}}})
        fs.pipe_file({KEY!r}, b"old")
        files = [fs.open({KEY!r}, "w"), fs.open("notes/objects/untouched", "wb")]
        files[0].write("new")
        {last_line}
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode == 0) is stored, done.stderr
    assert ("file_discarded path=notes/objects/key" in done.stderr) is not stored
    fs = TieredFileSystem({"directory": str(tmp_path)})
    assert {name: fs.cat_file(name) for name in fs.find("notes")} == {KEY: b"new" if stored else b"old"}
    fs.close()
