"""The file system beyond fsspec's own tests: what a write shows and when, what a reader gets, who opens the store."""

from __future__ import annotations

import os
import pickle
import tomllib
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from tests.given.repository import ROOT
from tiered import ConfigurationError, InvalidRequestError, Metadata, ObjectId, Settings, TimeToLive
from tiered.filesystem.implementation import TieredFileSystem
from tiered.testing.blobs import MemoryBlobs

LARGE = bytes(range(256)) * 100_000  # more than is kept in memory, and more than fsspec reads at once
KEYS = ["a", "a/1", "a/b/2", "a/b/3", "c"]


@pytest.fixture
def tree(fs: TieredFileSystem) -> TieredFileSystem:
    for key in KEYS:
        fs.pipe_file(f"notes/objects/{key}", key.encode())
    return fs


def test_looking_at_files_asks_no_blob(fs: TieredFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked(*args: object) -> None:
        raise AssertionError("a blob was asked")

    fs.pipe_file("notes/objects/large.txt", LARGE)
    head = fs.storage.head(ObjectId.parse("notes/objects/large.txt"))
    assert head is not None
    created = head.metadata.time_created
    for call in ("head", "open"):
        monkeypatch.setattr(MemoryBlobs, call, asked)
    [listed] = fs.ls("notes/objects")
    assert (listed["size"], listed["created"], listed["content_type"]) == (len(LARGE), created, "application/octet-stream")
    assert fs.info("notes/objects/large.txt") == listed == fs.find("notes", detail=True)["notes/objects/large.txt"]


# --- writing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_a_write_is_visible_after_close_and_not_before(fs: TieredFileSystem, payload: bytes) -> None:
    with fs.open("tiered://notes/objects/key", "wb") as file:
        file.write(payload)
        file.flush()
        assert not fs.exists("notes/objects/key")
    assert fs.cat("notes/objects/key") == payload
    with fs.open("notes/objects/key", "rb") as file:
        assert file.read() == payload


def test_an_error_within_the_block_discards_what_was_written(fs: TieredFileSystem) -> None:
    fs.pipe_file("notes/objects/key", b"old")

    def fail() -> None:
        with fs.open("notes/objects/key", "wb") as file:
            file.write(LARGE)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail()
    with fs.transaction, fs.open("notes/objects/other", "wb") as file:
        file.write(b"later")
        file.close()
        assert not fs.exists("notes/objects/other")
    assert fs.cat("notes/objects/key") == b"old" and fs.cat("notes/objects/other") == b"later"


def test_append_and_exclusive_modes(fs: TieredFileSystem) -> None:
    for _ in range(2):
        with fs.open("notes/objects/log", "ab") as file:
            file.write(b"line\n")
    assert fs.cat("notes/objects/log") == b"line\nline\n"
    first, second = fs.open("notes/objects/once", "xb"), fs.open("notes/objects/once", "xb")
    first.write(b"1")
    first.close()
    second.write(b"2")
    with pytest.raises(FileExistsError):
        second.close()
    assert fs.cat("notes/objects/once") == b"1"


def test_a_path_that_no_object_can_have_is_refused_when_it_is_written_and_not_found_when_it_is_read(fs: TieredFileSystem) -> None:
    for path in ("notes", "notes/key", "~x/objects/k"):
        with pytest.raises(InvalidRequestError):
            fs.pipe_file(path, b"")
        with pytest.raises((FileNotFoundError, InvalidRequestError)):
            fs.cat_file(path)
    with pytest.raises(InvalidRequestError):
        fs.open("notes/key", "wb")


# --- reading -----------------------------------------------------------------------------------------


def test_ranges_are_those_of_a_file(fs: TieredFileSystem) -> None:
    fs.pipe_file("notes/objects/key", LARGE)
    for start, end in ((0, 10), (5, None), (-7, None), (5, -5), (None, 3), (len(LARGE), None), (len(LARGE) + 5, None), (7, 7), (9, 3)):
        assert fs.cat_file("notes/objects/key", start, end) == LARGE[start:end]
    with pytest.raises(FileNotFoundError):
        fs.cat_file("notes/objects/other", 9, 3)
    with fs.open("notes/objects/key") as file:
        file.seek(-300, os.SEEK_END)
        assert file.read(5) == LARGE[-300:-295] and file.seek(10) == 10 and file.read(5) == LARGE[10:15]


def test_a_read_that_the_service_denies_is_an_error_and_no_empty_range(fs: TieredFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    fs.pipe_file("notes/objects/key", LARGE)

    def denied(*_: Any, **options: Any) -> None:
        raise ConfigurationError("grant this process the permission")

    monkeypatch.setattr(fs.storage, "get", denied)
    with pytest.raises(ConfigurationError, match="permission"):
        fs.cat_file("notes/objects/key", 5, 10)


def test_a_file_that_is_replaced_while_it_is_read_is_an_error_and_never_a_mixture(fs: TieredFileSystem) -> None:
    fs.pipe_file("notes/objects/key", LARGE)
    with fs.open("notes/objects/key", block_size=1000, cache_type="none") as file:
        assert file.read(10) == LARGE[:10]
        fs.pipe_file("notes/objects/key", LARGE[::-1])
        with pytest.raises(OSError, match="was written by somebody while it was read"):
            file.read(10)


def test_pandas_and_pyarrow_write_and_read_parquet(fs: TieredFileSystem) -> None:
    pandas = pytest.importorskip("pandas")  # the extra `test` is without it
    table = pyarrow.table({"number": list(range(1000)), "text": [str(number) * 50 for number in range(1000)]})
    pyarrow.parquet.write_table(table, "notes/objects/t.parquet", filesystem=fs, row_group_size=100)
    assert pyarrow.parquet.read_table("notes/objects/t.parquet", filesystem=fs) == table
    frame = pandas.DataFrame({"number": [1, 2], "text": ["a", "b"]})
    with fs.open("notes/objects/f.csv", "w") as file:
        frame.to_csv(file, index=False)
    with fs.open("notes/objects/f.csv") as file:
        assert pandas.read_csv(file).equals(frame)


# --- looking, copying, removing ----------------------------------------------------------------------


def test_directories_are_what_objects_are_below(tree: TieredFileSystem) -> None:
    assert tree.ls("") == [{"name": "notes", "size": 0, "type": "directory", "created": None, "revision": None}]
    assert tree.ls("notes/objects", detail=False) == ["notes/objects/a", "notes/objects/c"]
    assert {(each["name"][14:], each["type"]) for each in tree.ls("notes/objects")} == {("a", "file"), ("a", "directory"), ("c", "file")}
    assert tree.ls("notes/objects/a/b/", detail=False) == ["notes/objects/a/b/2", "notes/objects/a/b/3"]
    assert tree.isfile("notes/objects/a") and tree.isdir("notes/objects/a/b") and not tree.exists("notes/objects/a/x")
    assert [name[14:] for name in tree.find("notes/objects")] == KEYS
    assert [name[14:] for name in tree.find("notes/objects", maxdepth=1)] == ["a", "c"]
    assert [name[14:] for name in tree.glob("notes/objects/**/[23]")] == ["a/b/2", "a/b/3"]
    assert tree.find("notes/objects/c", detail=True)["notes/objects/c"]["size"] == 1
    tree.mkdir("notes/objects/empty")
    assert not tree.exists("notes/objects/empty")
    for call in (tree.ls, tree.info, tree.rmdir, tree.rm):
        with pytest.raises(FileNotFoundError):
            call("notes/objects/none")
    with pytest.raises(OSError, match="it ends with the last of them"):
        tree.rmdir("notes/objects/a/b")


def test_a_copy_keeps_metadata_and_a_removal_needs_to_be_recursive_for_a_directory(tree: TieredFileSystem) -> None:
    source, target = ObjectId.create("notes", "typed"), ObjectId.create("notes", "moved/typed")
    tree.storage.put(source, b"x", Metadata(content_type="text/plain", expiration=TimeToLive(timedelta(days=1))))
    tree.mv("notes/objects/typed", "notes/objects/moved/typed")
    head = tree.storage.head(target)
    assert head is not None and head.metadata.content_type == "text/plain" and head.metadata.time_expires_ns is not None
    assert tree.storage.head(source) is None and tree.info("notes/objects/moved/typed")["content_type"] == "text/plain"
    with pytest.raises(IsADirectoryError):
        tree.rm("notes/objects/a/b")
    tree.rm("notes/objects/a/b", recursive=True)
    tree.rm("notes/objects/c")
    assert [name[14:] for name in tree.find("notes")] == ["a", "a/1", "moved/typed"]


# --- opening -----------------------------------------------------------------------------------------


def test_it_opens_the_store_that_its_settings_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("tiered", TieredFileSystem, clobber=True)
    file = tmp_path / "tiered.yaml"
    file.write_text(f"directory: {tmp_path / 'store'}\n")
    ways: list[Any] = [str(file), file, {"directory": str(tmp_path / "store")}, Settings(directory=tmp_path / "store")]
    for number, settings in enumerate(ways):
        fs = fsspec.filesystem("tiered", settings=settings, skip_instance_cache=True)
        fs.pipe_file(f"notes/objects/{number}", b"x")
        assert len(fs.ls("notes/objects")) == number + 1
        assert not isinstance(settings, str) or len(pickle.loads(pickle.dumps(fs)).ls("notes/objects")) == 1
        fs.close()
        assert fs.exists("notes/objects/0")  # opened again
        fs.close()
    monkeypatch.setenv("TIERED_CONFIG", str(file))
    with fsspec.open("tiered://notes/objects/0") as opened:
        assert opened.read() == b"x"
    monkeypatch.delenv("TIERED_CONFIG")
    wrong_settings: list[Any] = [None, 7]
    for wrong in wrong_settings:
        with pytest.raises(ConfigurationError):
            TieredFileSystem(settings=wrong, skip_instance_cache=True).ls("")


def test_it_works_where_an_event_loop_runs(tmp_path: Path) -> None:
    async def in_a_notebook() -> None:
        fs = TieredFileSystem({"directory": str(tmp_path)}, skip_instance_cache=True)
        fs.pipe_file("notes/objects/key", b"x")
        assert fs.cat("notes/objects/key") == b"x"
        fs.close()

    anyio.run(in_a_notebook)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_the_store_anew(tmp_path: Path) -> None:
    fs = TieredFileSystem({"directory": str(tmp_path)}, skip_instance_cache=True)
    fs.pipe_file("notes/objects/key", b"x")
    reading, writing = os.pipe()
    for _ in range(2):
        if (child := os.fork()) == 0:
            try:
                os.write(writing, fs.cat("notes/objects/key") + b"\n")
            except ConfigurationError as error:
                os.write(writing, f"{error}\n".encode())
            os._exit(0)
        os.waitpid(child, 0)
        fs.close()
    os.close(writing)
    with open(reading) as told:
        while_open, after = told.read().splitlines()
    assert "open the store in each process after the fork" in while_open and after == "x"


def test_the_entry_point_names_the_class() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["fsspec.specs"]["tiered"].partition(":")
    assert getattr(import_module(module), name) is TieredFileSystem


def test_a_file_of_a_compressed_object_has_the_bytes_that_are_stored(tree: TieredFileSystem, tmp_path: Path) -> None:
    """Its size and its ranges are of these. What was appended to them would be no part of what is decompressed."""
    key, payload = "notes/objects/compressed", b"words, " * 10_000
    tree.storage.put(ObjectId.parse(key), payload, compress="zstd")
    stored = tree.cat_file(key)
    info = tree.info(key)
    assert (info["size"], info["compression"], tree.cat_file(key, 1, 5)) == (len(stored), "Zstd", stored[1:5])
    assert len(stored) < len(payload)
    with tree.open(key) as file, tree.open(key, compression="zstd") as decompressed:
        assert (file.read(), decompressed.read()) == (stored, payload)
    tree.get_file(key, str(tmp_path / "local"))
    assert (tmp_path / "local").read_bytes() == stored
    with pytest.raises(InvalidRequestError, match="is compressed, and what is appended would not be"):
        tree.open(key, "ab")
    tree.pipe_file("notes/objects/plain", b"x")
    assert tree.info("notes/objects/plain")["compression"] is None
