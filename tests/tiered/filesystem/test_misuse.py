"""The file system in hands that make mistakes or have bad luck: nothing half-written is stored, nothing is lost."""

from __future__ import annotations

import gc
import gzip
import io
import json
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.fs
import pyarrow.parquet
import pytest
from fsspec.core import OpenFile

from tiered import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    Metadata,
    ObjectId,
    OutcomeUnknownError,
    Settings,
    UnavailableError,
)
from tiered.filesystem import implementation
from tiered.filesystem.implementation import TieredFileSystem
from tiered.testing import BlockingMemoryStorage

KEY = "notes/objects/key"
LARGE = bytes(range(256)) * 40_000  # more than is kept in memory


# --- nothing half-written ----------------------------------------------------------------------------


def _text(fs: TieredFileSystem) -> None:
    with fs.open(KEY, "w") as file:
        file.write("half")
        raise KeyError


def _packed(fs: TieredFileSystem) -> None:
    with fs.open(KEY, "wb", compression="gzip") as file:
        file.write(b"half")
        raise KeyError


def _packed_text(fs: TieredFileSystem) -> None:
    with fs.open(KEY, "wt", compression="bz2") as file:
        file.write("half")
        raise KeyError


def _by_fsspec(mode: str, compression: str | None) -> Callable[[TieredFileSystem], None]:
    def write(fs: TieredFileSystem) -> None:
        with OpenFile(fs, KEY, mode, compression=compression) as file:
            file.write("half" if "t" in mode else b"half")
            raise KeyError

    return write


def _in_a_stack(fs: TieredFileSystem) -> None:
    with ExitStack() as stack:
        file = fs.open(KEY, "wb")
        stack.callback(file.close)
        file.write(LARGE)
        raise KeyError


def _by_pandas(fs: TieredFileSystem) -> None:
    pandas = pytest.importorskip("pandas")  # the extra `test` is without it
    class RefusingPayload:
        def __str__(self) -> str:
            raise KeyError

    fsspec.register_implementation("tiered", TieredFileSystem, clobber=True)
    frame = pandas.DataFrame({"text": ["good"] * 1000 + [RefusingPayload()]})
    frame.to_csv(f"tiered://{KEY}", storage_options={"storage": fs.storage}, chunksize=100)


def _by_pyarrow(fs: TieredFileSystem) -> None:
    table = pyarrow.table({"number": [1, 2, 3]})
    with pyarrow.parquet.ParquetWriter(KEY, table.schema, filesystem=fs) as writer:
        writer.write_table(table)
        raise KeyError


def _by_a_stream_of_pyarrow(fs: TieredFileSystem) -> None:
    with pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs)).open_output_stream(KEY) as stream:
        stream.write(b"half")
        raise KeyError


def _by_gzip(fs: TieredFileSystem) -> None:
    with fs.open(KEY, "wb") as file, gzip.GzipFile(fileobj=file, mode="wb") as packed:
        packed.write(b"half")
        raise KeyError


def _in_a_generator(fs: TieredFileSystem) -> None:
    @contextmanager
    def opened() -> Iterator[Any]:
        file = fs.open(KEY, "wb")
        try:
            yield file
        finally:
            file.close()

    with opened() as file:
        file.write(b"half")
        raise KeyError


def _forgotten_text(fs: TieredFileSystem) -> None:
    file = fs.open(KEY, "w")
    file.write("half")
    raise KeyError


WRITERS = {
    "text": _text, "gzip": _packed, "text in bz2": _packed_text, "fsspec": _by_fsspec("wb", None), "fsspec, text": _by_fsspec("wt", None),
    "fsspec, gzip": _by_fsspec("wb", "gzip"), "a stack": _in_a_stack, "pandas": _by_pandas, "pyarrow": _by_pyarrow,
    "forgotten": _forgotten_text, "a stream of pyarrow": _by_a_stream_of_pyarrow, "GzipFile": _by_gzip, "a generator": _in_a_generator,
}


@pytest.mark.parametrize("name", WRITERS)
def test_whoever_writes_and_fails_half_way_stores_nothing(fs: TieredFileSystem, name: str) -> None:
    fs.pipe_file(KEY, b"old")
    with pytest.raises(KeyError):
        WRITERS[name](fs)
    assert fs.cat_file(KEY) == b"old"


def test_a_file_that_is_closed_while_an_older_error_is_handled_is_stored(fs: TieredFileSystem) -> None:
    class Report:
        """Stores a report about the error that ends the block."""

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            with OpenFile(fs, KEY, "wt") as file:
                file.write(f"failed with {error[1]!r}")

    with pytest.raises(KeyError), Report():
        raise KeyError(1)
    assert fs.cat_file(KEY) == b"failed with KeyError(1)"

    class Noisy:
        """Ends a loop by an error while it cleans up after another one."""

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            file = fs.open("notes/objects/other", "wb")
            try:
                file.write(b"all of it")
                raise StopIteration
            except StopIteration:
                file.close()  # the caller says so

    with pytest.raises(KeyError), Noisy():
        raise KeyError
    assert fs.cat_file("notes/objects/other") == b"all of it"


def test_compressed_and_text_files_are_stored_when_they_are_closed(fs: TieredFileSystem) -> None:
    for compression in ("gzip", "bz2", "xz"):
        for mode, payload in (("wb", b"bytes" * 9999), ("wt", "text\n" * 9999)):
            with fs.open(KEY, mode, compression=compression) as file:
                file.write(payload)
            with fs.open(KEY, mode.replace("w", "r"), compression=compression) as file:
                assert file.read() == payload
    file = fs.open(KEY, "w", encoding="utf-16")
    file.write("ü")
    file.close()
    file.close()
    assert fs.cat_file(KEY).decode("utf-16") == "ü" and file.closed
    file = fs.open(KEY, "w")
    file.write("text")
    below = file.detach()
    del file
    below.close()
    assert fs.cat_file(KEY) == b"text"


def test_a_file_whose_write_failed_is_never_stored(fs: TieredFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    file = fs.open(KEY, "wb")
    file.write(b"begin")

    def full(chunk: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(file._written, "write", full)
        with pytest.raises(OSError, match="No space"):
            file.write(b"lost")
    with pytest.raises(OSError, match="a write to notes/objects/key failed, so nothing of it was stored"):
        file.close()
    assert not fs.exists(KEY)


# --- appending ---------------------------------------------------------------------------------------


def test_an_append_never_replaces_what_somebody_else_appended(fs: TieredFileSystem) -> None:
    for before in (None, b"old"):
        if before is not None:
            fs.pipe_file(KEY, before)
        first, second = fs.open(KEY, "ab"), fs.open(KEY, "ab")
        first.write(b"1")
        second.write(b"2")
        first.close()
        with pytest.raises(OSError, match="was written by somebody since it was opened for appending"):
            second.close()
        assert fs.cat_file(KEY) == (before or b"") + b"1"
        fs.rm_file(KEY)


def test_an_append_keeps_the_metadata_and_an_interrupted_one_keeps_the_bytes(
    fs: TieredFileSystem, storage: BlockingMemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_id = ObjectId.parse(KEY)
    storage.put(object_id, b"old", Metadata(content_type="text/plain", custom={"a": "b"}))
    with fs.open(KEY, "ab") as file:
        assert file.tell() == 3
        file.write(b" new")
    head = storage.head(object_id)
    assert head is not None and (head.size, head.metadata.content_type, dict(head.metadata.custom)) == (7, "text/plain", {"a": "b"})

    def interrupted(*_: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(storage, "get", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fs.open(KEY, "ab")
    assert fs.cat_file(KEY) == b"old new"


# --- transactions ------------------------------------------------------------------------------------


def test_a_transaction_stores_what_was_closed_in_it_and_nothing_if_it_fails(fs: TieredFileSystem, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"local")

    def write() -> None:
        fs.pipe_file("notes/objects/piped", b"piped")
        fs.put_file(str(tmp_path / "local"), "notes/objects/put")
        fs.touch("notes/objects/touched")
        with suppress(KeyError), fs.open("notes/objects/half", "wb") as file:
            file.write(LARGE)
            raise KeyError
        assert fs.find("notes") == []

    with suppress(ConnectionError), fs.transaction:
        write()
        raise ConnectionError
    assert fs.find("notes") == []
    with fs.transaction:
        write()
    assert {name: fs.cat_file(name) for name in fs.find("notes")} == {
        "notes/objects/piped": b"piped", "notes/objects/put": b"local", "notes/objects/touched": b"",
    }


def test_a_file_that_is_still_open_at_the_end_of_its_transaction_is_an_error(fs: TieredFileSystem) -> None:
    transaction = fs.transaction
    transaction.__enter__()
    file = fs.open(KEY, "wb")
    file.write(LARGE)
    with pytest.raises(OSError, match="was still open at the end of its transaction"):
        transaction.__exit__(None, None, None)
    assert not fs.exists(KEY)
    fs.pipe_file(KEY, b"after")
    assert fs.cat_file(KEY) == b"after"


# --- a store that is away for a moment ---------------------------------------------------------------


def test_an_error_is_never_taken_for_an_object_that_is_not_there(fs: TieredFileSystem, storage: BlockingMemoryStorage) -> None:
    fs.pipe_file(KEY, b"data")
    for look in (fs.exists, fs.isfile, fs.isdir, fs.lexists):
        storage.faults.fail("list", UnavailableError)
        with pytest.raises(UnavailableError):
            look(KEY)
    storage.faults.fail("list", UnavailableError)
    fs.touch(KEY, truncate=False)
    fs.touch("notes/objects/new", truncate=False)
    assert fs.cat_file(KEY) == b"data" and fs.cat_file("notes/objects/new") == b""


def test_a_local_copy_is_whole_or_not_there(fs: TieredFileSystem, storage: BlockingMemoryStorage, tmp_path: Path) -> None:
    fs.pipe_file(KEY, LARGE)
    local = tmp_path / "sub" / "local"
    for before in (None, b"precious"):
        if before is not None:
            local.write_bytes(before)
        storage.faults.fail("read")
        with pytest.raises(UnavailableError):
            fs.get_file(KEY, str(local))
        assert [path.read_bytes() for path in local.parent.iterdir()] == ([] if before is None else [before])
    fs.get_file(KEY, str(local))
    into = io.BytesIO()
    fs.get_file(KEY, into)
    assert local.read_bytes() == into.getvalue() == LARGE
    fs.get_file(KEY, "/dev/null")


# --- moving and removing -----------------------------------------------------------------------------


def test_a_move_deletes_only_what_it_has_copied(fs: TieredFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("d/1", "d/2/3"):
        fs.pipe_file(f"notes/objects/{key}", key.encode())
    fs.mv("notes/objects/d", "notes/objects/e/", recursive=True, maxdepth=1)
    assert fs.find("notes") == ["notes/objects/d/2/3", "notes/objects/e/1"]

    renamed = fs.cp_file

    def while_somebody_writes(source: str, target: str, **options: Any) -> None:
        renamed(source, target, **options)
        fs.pipe_file("notes/objects/d/late", b"late")

    monkeypatch.setattr(fs, "cp_file", while_somebody_writes)
    fs.mv("notes/objects/d", "notes/objects/f", recursive=True)
    assert fs.find("notes") == ["notes/objects/d/late", "notes/objects/e/1", "notes/objects/f/2/3"]


def test_an_object_whose_key_ends_with_a_slash_is_copied_and_never_left_out_without_a_word(
    fs: TieredFileSystem, storage: BlockingMemoryStorage, tmp_path: Path
) -> None:
    for key in ("d/marker/", "d/data/", "d/file"):
        storage.put(ObjectId.create("notes", key), b"" if "marker" in key else b"x")
    fs.copy("notes/objects/d", "notes/objects/e", recursive=True)
    assert [name[14:] for name in fs.find("notes/objects/e")] == ["e/data/", "e/file", "e/marker/"]
    with pytest.raises(IsADirectoryError, match="no local file can have its name"):
        fs.get("notes/objects/d", str(tmp_path / "d"), recursive=True)
    fs.mv("notes/objects/d", "notes/objects/f", recursive=True)
    fs.rm("notes/objects/f/data", recursive=True)
    fs.get("notes/objects/f", str(tmp_path / "f"), recursive=True)
    assert sorted(path.name for path in (tmp_path / "f").iterdir()) == ["file", "marker"]
    assert [name[14:] for name in fs.find("notes")] == ["e/data/", "e/file", "e/marker/", "f/file", "f/marker/"]


def test_removing_one_file_takes_its_name_as_it_is(fs: TieredFileSystem) -> None:
    for key in ("a1", "a[1]", "*"):
        fs.pipe_file(f"notes/objects/{key}", b"")
    fs.rm_file("notes/objects/a[1]")
    fs.rm_file("tiered://notes/objects/*")
    assert fs.find("notes") == ["notes/objects/a1"]
    for path, error in (("notes/objects", IsADirectoryError), ("notes/objects/none", FileNotFoundError), ("nothing", FileNotFoundError)):
        with pytest.raises(error):
            fs.rm_file(path)


def test_an_object_that_cannot_be_deleted_does_not_end_the_rest(fs: TieredFileSystem, storage: BlockingMemoryStorage) -> None:
    for number in range(5):
        fs.pipe_file(f"notes/objects/{number}", b"")
    storage.faults.fail("delete", UnavailableError)
    storage.faults.fail("delete", OutcomeUnknownError)
    with pytest.raises((UnavailableError, OutcomeUnknownError)) as failed:
        fs.rm("notes/objects", recursive=True)
    assert failed.value.__notes__[0].startswith("2 objects failed")
    assert len(fs.find("notes")) == 2


def test_an_object_that_cannot_be_moved_does_not_end_the_rest(fs: TieredFileSystem, storage: BlockingMemoryStorage) -> None:
    for number in range(5):
        fs.pipe_file(f"notes/objects/d/{number}", b"")
    storage.faults.fail("rename", CorruptRecordError, calls=3)  # the first is for an object beside the directory
    with pytest.raises(CorruptRecordError) as failed:
        fs.mv("notes/objects/d", "notes/objects/e", recursive=True)
    assert failed.value.__notes__[0].startswith("3 objects failed")
    assert len(fs.find("notes/objects/d")) == 2 and len(fs.find("notes/objects/e")) == 3
    storage.faults.fail("copy", CorruptRecordError)
    with pytest.raises(CorruptRecordError):
        fs.cp_file("notes/objects/e/4", "notes/objects/f")


# --- opening -----------------------------------------------------------------------------------------


def test_what_cannot_be_opened_says_why(fs: TieredFileSystem) -> None:
    fs.pipe_file("notes/objects/d/x", b"x")
    with pytest.raises(IsADirectoryError):
        fs.open("notes/objects/d")
    with pytest.raises(IsADirectoryError):
        fs.read_text("notes/objects")
    wrong: list[Any] = [None, 5, b"notes/objects/key"]
    for path in wrong:
        with pytest.raises(InvalidRequestError, match="a path of tiered:// is text"):
            fs.cat_file(path)
    with pytest.raises(InvalidRequestError, match="mode is text"):
        fs.open(KEY, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="pass settings"):
        pickle.dumps(fs)
    with pytest.raises(ConfigurationError, match="open_storage gives, not 5"):
        TieredFileSystem(storage=5, skip_instance_cache=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("cache", ["all", "none", "bytes", "readahead", "first", "blockcache", "background"])
def test_every_cache_of_fsspec_reads_what_was_stored(fs: TieredFileSystem, cache: str) -> None:
    fs.pipe_file(KEY, LARGE)
    with fs.open(KEY, block_size=1 << 20, cache_type=cache) as file:
        for start, count in ((0, 10), (5_000_000, 3_000_000), (len(LARGE) - 5, 100), (17, 2_000_000)):
            file.seek(start)
            assert file.read(count) == LARGE[start : start + count]


CACHES: dict[str, tuple[dict[str, Any], bytes]] = {
    "filecache": ({"check_files": True}, b"new"), "filecache, unchecked": ({}, b"old"), "simplecache": ({}, b"old"),
    "blockcache": ({"check_files": True}, b"new"), "blockcache, unchecked": ({}, b"old"),
}  # fmt: skip


@contextmanager
def _blocks_left_open() -> Iterator[None]:
    """fsspec leaves the files of its blocks to garbage collection."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_of_fsspec_notices_a_write_if_it_checks_files(fs: TieredFileSystem, tmp_path: Path, name: str) -> None:
    """docs/reference/filesystem.md says which one to use."""
    options, found = CACHES[name]
    cache = fsspec.filesystem(name.partition(",")[0], fs=fs, cache_storage=str(tmp_path), skip_instance_cache=True, **options)
    with _blocks_left_open():
        for payload in (b"old", b"new"):
            fs.pipe_file(KEY, payload)
            with cache.open(KEY) as file:
                last = file.read()
        del file
    assert last == found


def test_a_cache_of_files_never_mixes_two_writes(fs: TieredFileSystem, tmp_path: Path) -> None:
    """A cache of blocks may: newer fsspec asks for its ranges by the name of the object, and not by the open file."""
    fs.pipe_file(KEY, b"1" * 1000)
    cache = fsspec.filesystem("filecache", fs=fs, cache_storage=str(tmp_path), check_files=True, skip_instance_cache=True)
    with cache.open(KEY, block_size=100) as file:
        first = file.read(100)
        fs.pipe_file(KEY, b"2" * 1000)
        assert first + file.read() == b"1" * 1000


def test_an_open_file_that_was_pickled_goes_on_with_the_same_revision_only(tmp_path: Path) -> None:
    fs = TieredFileSystem({"directory": str(tmp_path)}, skip_instance_cache=True)
    fs.pipe_file(KEY, b"0123456789")
    with fs.open(KEY) as file:
        file.read(3)
        pickled = pickle.dumps(file)
    assert pickle.loads(pickled).read() == b"3456789"
    fs.pipe_file(KEY, b"abcdefghij")
    with pytest.raises(OSError, match="since the file was pickled"):
        pickle.loads(pickled)
    fs.close()


def test_threads_share_one_store_and_the_environment_names_the_store_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("tiered", TieredFileSystem, clobber=True)
    found: list[Any] = []

    def open_it() -> None:
        found.append(fsspec.filesystem("tiered", settings={"directory": str(tmp_path / "shared")}).storage)

    for _ in range(3):
        thread = threading.Thread(target=open_it)
        thread.start()
        thread.join()
    assert len({id(storage) for storage in found}) == 1
    TieredFileSystem({"directory": str(tmp_path / "shared")}).close()
    assert not found[0]._usable

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tiered.yaml").write_text(f"directory: {tmp_path / name / 'store'}\n")
        monkeypatch.setenv("TIERED_CONFIG", str(tmp_path / name / "tiered.yaml"))
        fsspec.filesystem("tiered").pipe_file(f"notes/objects/{name}", b"")
    for name in ("first", "second"):
        monkeypatch.setenv("TIERED_CONFIG", str(tmp_path / name / "tiered.yaml"))
        assert fsspec.filesystem("tiered").find("notes") == [f"notes/objects/{name}"]
        fsspec.filesystem("tiered").close()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_while_another_thread_opens_a_store_does_not_hang(tmp_path: Path) -> None:
    fs = TieredFileSystem({"directory": str(tmp_path)}, skip_instance_cache=True)
    with implementation._opening:
        if (child := os.fork()) == 0:
            fs.pipe_file(KEY, b"of the child")
            os._exit(0)
    deadline = threading.Timer(20, os.kill, (child, 9))
    deadline.start()
    assert os.waitpid(child, 0)[1] == 0
    deadline.cancel()
    assert fs.cat_file(KEY) == b"of the child"
    fs.close()


@pytest.mark.parametrize("closed", [False, True])
def test_a_child_may_open_a_directory_only_if_its_parent_had_closed_it(tmp_path: Path, closed: bool) -> None:
    fs = TieredFileSystem({"directory": str(tmp_path)}, skip_instance_cache=True)
    fs.pipe_file(KEY, b"of the parent")
    if closed:
        fs.close()
    if (child := os.fork()) == 0:
        try:
            os._exit(0 if fs.cat_file(KEY) == b"of the parent" else 1)
        except ConfigurationError as error:
            os._exit(3 if "open the store in each process after the fork" in str(error) else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if closed else 3)
    fs.close()


# --- what a file system is known by ------------------------------------------------------------------


def test_a_file_system_goes_through_json_whatever_its_settings_are(tmp_path: Path) -> None:
    file = tmp_path / "tiered.yaml"
    file.write_text(f"directory: {tmp_path / 'store'}\ninline_bytes_max: 4\n")
    mapping: Any = {"directory": tmp_path / "store", "inline_bytes_max": 4}
    ways: list[Any] = [str(file), file, mapping, Settings(**mapping)]
    for number, settings in enumerate(ways):
        fs = TieredFileSystem(settings=settings)
        fs.pipe_file(f"notes/objects/{number}", b"payload")
        for again in (TieredFileSystem.from_json(fs.to_json()), TieredFileSystem.from_dict(fs.to_dict())):
            assert isinstance(again, TieredFileSystem) and again.cat_file(f"notes/objects/{number}") == b"payload"
            assert again.storage is fs.storage
        fs.close()
    assert TieredFileSystem.from_json(TieredFileSystem(Settings(**mapping)).to_json()).to_dict() == TieredFileSystem(mapping).to_dict()
    assert TieredFileSystem(settings=None).to_dict().keys() == {"cls", "protocol", "args"}


def test_json_has_the_secrets_of_the_settings_unless_it_is_to_have_none(tmp_path: Path, fs: TieredFileSystem) -> None:
    secret = "hush-9f8e7d6c5b4a39281706f5e4d3c2b1a0"
    settings = Settings(directory=tmp_path, links={"base_url": "https://files.example.com", "keys": [secret]})
    for given in (settings, settings.model_dump(exclude_unset=True)):
        files = TieredFileSystem(given)
        assert json.loads(files.to_json())["settings"]["links"]["keys"] == [secret]
        assert TieredFileSystem.from_json(files.to_json())._settings == settings
        assert secret not in files.to_json(include_password=False) and str(tmp_path) in files.to_json(include_password=False)
    with pytest.raises(InvalidRequestError, match="pass settings"):
        fs.to_json()


def test_two_stores_whose_settings_differ_by_a_secret_are_two() -> None:
    """One was taken for the other: both print the same, with `**********` for the address of the database."""
    ours, theirs = (
        fsspec.filesystem("tiered", settings=Settings(postgres={"dsn": f"postgresql://host/{name}"}, s3={"bucket": "blobs"}))
        for name in ("ours", "theirs")
    )
    assert repr(ours._settings) == repr(theirs._settings)
    assert ours is not theirs and ours != theirs and ours._source != theirs._source
    assert ours == TieredFileSystem.from_json(ours.to_json()) and hash(ours) != hash(theirs)
