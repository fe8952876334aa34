"""Each call that takes a path, with each odd name: a name that exists is what is meant, and nothing beside it.

Beside each odd name is a decoy: the object that fsspec's own rules would take in its place.
"""

from __future__ import annotations

import glob
import inspect
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec import AbstractFileSystem

from tests.given.tables import in_turn
from tiered import InvalidRequestError, ObjectId
from tiered.filesystem.implementation import TieredFileSystem

TOP = "notes/objects/"
ODD, DECOY, NEW = b"odd", b"decoy", b"new one"
TARGET = f"{TOP}target"

NAMES = {  # the odd name, and its decoy
    "a[1].txt": "a1.txt", "[!a]": "b", "a?.txt": "ab.txt", "a*": "a1", "**": "z", "d[1]/x": "d1/x", "d*/x?": "d1/xy",
    "a//b": "a/b", "/a": "a", "a///b": "a//b", "k/": "k", "k//": "k", "d/k/": "d/k", "k[1]/": "k1",
    "a#b": "a", "a%2Fb": "a/b", "a::b": "a", "a b": "ab", "a\\b": "a/b", "grün": "gru\N{COMBINING DIAERESIS}n",
    "猫\N{ZERO WIDTH SPACE}": "猫",
}  # fmt: skip


def stored(fs: TieredFileSystem) -> dict[str, bytes]:
    """What is in the store, asked without the file system."""
    found: dict[str, bytes] = {}
    for entry in fs.storage.list():
        with fs.storage.get(entry.object_id) or io.BytesIO() as file:
            found[entry.object_id.path] = file.read()
    return found


def plant(fs: TieredFileSystem, name: str) -> tuple[str, str]:
    for key, payload in ((name, ODD), (NAMES[name], DECOY)):
        fs.storage.put(ObjectId.create("notes", key), payload)
    return f"{TOP}{name}", f"{TOP}{NAMES[name]}"


# --- reading -----------------------------------------------------------------------------------------


def _got(fetch: Callable[[str], object], local: Path) -> bytes:
    fetch(str(local))
    return local.read_bytes()


def _opened(fs: TieredFileSystem, path: str, mode: str) -> Any:
    with fs.open(path, mode) as file:
        return file.read()


READING: dict[str, Callable[[TieredFileSystem, str, Path], object]] = {
    "cat": lambda fs, path, _: fs.cat(path),
    "cat, a list": lambda fs, path, _: fs.cat([path])[path],
    "cat_file": lambda fs, path, _: fs.cat_file(path),
    "cat_ranges": lambda fs, path, _: fs.cat_ranges([path], 0, 3)[0],
    "read_bytes": lambda fs, path, _: fs.read_bytes(path),
    "read_text": lambda fs, path, _: fs.read_text(path).encode(),
    "read_block": lambda fs, path, _: fs.read_block(path, 0, 3),
    "head": lambda fs, path, _: fs.head(path),
    "tail": lambda fs, path, _: fs.tail(path),
    "open": lambda fs, path, _: _opened(fs, path, "rb"),
    "open, as text": lambda fs, path, _: _opened(fs, path, "r").encode(),
    "get": lambda fs, path, local: _got(lambda to: fs.get(path, to), local),
    "get, by lists": lambda fs, path, local: _got(lambda to: fs.get([path], [to]), local),
    "get_file": lambda fs, path, local: _got(lambda to: fs.get_file(path, to), local),
    "download": lambda fs, path, local: _got(lambda to: fs.download(path, to), local),
    "mapper": lambda fs, path, _: fs.get_mapper(TOP)[path.removeprefix(TOP)],
    "mapper, several": lambda fs, path, _: fs.get_mapper("notes").getitems([path.removeprefix("notes/")])[path.removeprefix("notes/")],
    "info": lambda fs, path, _: ODD if (fs.info(path)["name"], fs.info(path)["size"]) == (path, 3) else fs.info(path),
    "stat": lambda fs, path, _: ODD if fs.stat(path)["size"] == 3 else None,
    "size": lambda fs, path, _: ODD if fs.size(path) == 3 else None,
    "sizes": lambda fs, path, _: ODD if fs.sizes([path]) == [3] else None,
    "exists": lambda fs, path, _: ODD if fs.exists(path) and fs.lexists(path) else None,
    "isfile": lambda fs, path, _: ODD if fs.isfile(path) and not fs.isdir(path) else None,
    "find": lambda fs, path, _: ODD if fs.find(path) == [path] else fs.find(path),
    "ls": lambda fs, path, _: ODD if fs.ls(path, detail=False) == fs.listdir(path, detail=False) == [path] else fs.ls(path),
    "walk": lambda fs, path, _: ODD if path in {f"{at}/{name}" for at, _, names in fs.walk("notes") for name in names} else None,
    "glob": lambda fs, path, _: ODD if path in fs.glob(f"{TOP}**") else fs.glob(f"{TOP}**"),
    "glob, escaped": lambda fs, path, _: ODD if path.endswith("/") or fs.glob(glob.escape(path)) == [path] else fs.glob(glob.escape(path)),
    "expand_path": lambda fs, path, _: ODD if fs.expand_path(path) == [path] else fs.expand_path(path),
    "du": lambda fs, path, _: ODD if fs.du(path) == fs.disk_usage(path) == 3 else None,
    "ukey": lambda fs, path, _: ODD if fs.ukey(path) == str(_revision(fs, path)) and fs.checksum(path) else None,
    "created": lambda fs, path, _: ODD if fs.created(path) and fs.modified(path) else None,
}


def _revision(fs: TieredFileSystem, path: str) -> object:
    head = fs.storage.head(ObjectId.parse(path))
    return head and head.revision


@pytest.mark.parametrize("name", NAMES)
def test_what_exists_by_an_odd_name_is_what_is_read(fs: TieredFileSystem, tmp_path: Path, name: str) -> None:
    path, _ = plant(fs, name)
    wrong = {}
    for number, (call, read) in enumerate(READING.items()):
        if call.startswith("mapper") and path.endswith("/"):
            continue  # fsspec's mapper cuts its keys itself
        try:
            found = read(fs, path, tmp_path / str(number))
        except Exception as error:  # noqa: BLE001 - all of them are shown together
            found = error
        if found != ODD:
            wrong[call] = found
    assert not wrong
    assert fs.cat(f"tiered://{path}") == fs.cat_file(f"tiered://{path}") == _opened(fs, f"tiered://{path}", "rb") == ODD
    assert stored(fs) == {path: ODD, f"{TOP}{NAMES[name]}": DECOY}


# --- removing, moving, copying, writing --------------------------------------------------------------


def _unlink(fs: TieredFileSystem, path: str) -> None:
    """As `UPath.unlink` does it."""
    if not fs.exists(path):
        raise FileNotFoundError(path)
    fs.rm(path, recursive=False)


def _delete_item(fs: TieredFileSystem, path: str) -> None:
    del fs.get_mapper(TOP)[path.removeprefix(TOP)]


def _set_item(fs: TieredFileSystem, path: str) -> None:
    fs.get_mapper(TOP)[path.removeprefix(TOP)] = NEW


def _write(fs: TieredFileSystem, path: str, mode: str = "wb") -> None:
    with fs.open(path, mode) as file:
        file.write(NEW if "b" in mode else NEW.decode())


def _touch(fs: TieredFileSystem, path: str) -> None:
    fs.touch(path)
    assert stored(fs)[path] == b""
    fs.pipe_file(path, NEW)


def _drop(fs: TieredFileSystem, path: str) -> None:
    fs.open(path, "wb").write(NEW)


REMOVING: dict[str, Callable[[TieredFileSystem, str], object]] = {
    "rm": lambda fs, path: fs.rm(path),
    "rm, a list": lambda fs, path: fs.rm([path]),
    "rm, recursive": lambda fs, path: fs.rm(path, recursive=True),
    "rm_file": lambda fs, path: fs.rm_file(path),
    "_rm": lambda fs, path: fs._rm(path),
    "delete": lambda fs, path: fs.delete(path),
    "unlink of UPath": _unlink,
    "del mapper[…]": _delete_item,
    "mapper.delitems": lambda fs, path: fs.get_mapper(TOP).delitems([path.removeprefix(TOP)]),
    "mapper.pop": lambda fs, path: fs.get_mapper(TOP).pop(path.removeprefix(TOP)),
}
MOVING: dict[str, Callable[[TieredFileSystem, str], object]] = {
    "mv": lambda fs, path: fs.mv(path, TARGET),
    "move": lambda fs, path: fs.move(path, TARGET),
    "rename": lambda fs, path: fs.rename(path, TARGET),
    "mv, by lists": lambda fs, path: fs.mv([path], [TARGET]),
    "cp_file, which moves": lambda fs, path: fs.cp_file(path, TARGET, move=True),
}
COPYING: dict[str, Callable[[TieredFileSystem, str], object]] = {
    "copy": lambda fs, path: fs.copy(path, TARGET),
    "cp": lambda fs, path: fs.cp(path, TARGET),
    "cp_file": lambda fs, path: fs.cp_file(path, TARGET),
}
WRITING: dict[str, Callable[[TieredFileSystem, str], object]] = {
    "pipe": lambda fs, path: fs.pipe(path, NEW),
    "pipe, a mapping": lambda fs, path: fs.pipe({path: NEW}),
    "pipe_file": lambda fs, path: fs.pipe_file(path, NEW),
    "write_bytes": lambda fs, path: fs.write_bytes(path, NEW),
    "write_text": lambda fs, path: fs.write_text(path, NEW.decode()),
    "open": lambda fs, path: _write(fs, path),
    "open, as text": lambda fs, path: _write(fs, path, "w"),
    "open, and dropped": _drop,
    "mapper[…] =": _set_item,
    "touch": _touch,
}
CHANGES = {"remove": REMOVING, "move": MOVING, "copy": COPYING, "write": WRITING}


@pytest.mark.parametrize(("name", "kind"), in_turn(NAMES, CHANGES))
def test_what_exists_by_an_odd_name_is_what_is_changed(fs: TieredFileSystem, kind: str, name: str) -> None:
    wrong = {}
    for call, change in CHANGES[kind].items():
        if "mapper" in call and name.endswith("/"):
            continue  # fsspec's mapper cuts its keys itself
        for path in stored(fs):
            fs.storage.delete(ObjectId.parse(path))
        path, decoy = plant(fs, name)
        expected = {
            "remove": {decoy: DECOY}, "move": {decoy: DECOY, TARGET: ODD}, "copy": {decoy: DECOY, path: ODD, TARGET: ODD},
            "write": {decoy: DECOY, path: NEW},
        }[kind]  # fmt: skip
        try:
            change(fs, path)
            found: object = stored(fs)
        except Exception as error:  # noqa: BLE001 - all of them are shown together
            found = error
        if found != expected:
            wrong[call] = found
    assert not wrong


PUTTING: dict[str, Callable[[TieredFileSystem, str, str], object]] = {
    "put": lambda fs, local, path: fs.put(local, path),
    "put, by lists": lambda fs, local, path: fs.put([local], [path]),
    "put_file": lambda fs, local, path: fs.put_file(local, path),
    "upload": lambda fs, local, path: fs.upload(local, path),
}


@pytest.mark.parametrize("call", PUTTING)
def test_a_local_file_of_an_odd_name_is_what_is_stored(fs: TieredFileSystem, tmp_path: Path, call: str) -> None:
    for name in [name for name in NAMES if "/" not in name + NAMES[name]]:
        (tmp_path / NAMES[name]).write_bytes(DECOY)
        (tmp_path / name).write_bytes(ODD)
        PUTTING[call](fs, str(tmp_path / name), f"{TOP}{name}")
        assert stored(fs)[f"{TOP}{name}"] == ODD, name
        (tmp_path / name).unlink()
    (tmp_path / "d[1]").mkdir()
    (tmp_path / "d1").mkdir()
    (tmp_path / "d[1]" / "x").write_bytes(ODD)
    (tmp_path / "d1" / "x").write_bytes(DECOY)
    fs.put(str(tmp_path / "d[1]"), f"{TOP}put", recursive=True)
    assert fs.cat(f"{TOP}put/x") == ODD


OTHERWISE = {
    "close": "of the store", "clear_instance_cache": "no path", "current": "no path", "end_transaction": "no path",
    "from_dict": "no path", "from_json": "no path", "start_transaction": "no path", "to_dict": "no path", "to_json": "no path",
    "invalidate_cache": "nothing is kept", "mkdir": "does nothing", "mkdirs": "does nothing", "makedir": "does nothing",
    "makedirs": "does nothing", "rmdir": "always refuses", "sign": "fsspec refuses it", "tree": "by ls", "unstrip_protocol": "text alone",
    "get_mapper": "the rows of the mapper", "read_range": "ours",
    "isdir": "beside isfile", "lexists": "beside exists", "checksum": "beside ukey", "listdir": "beside ls", "disk_usage": "beside du",
    "modified": "beside created",
}  # fmt: skip


def test_each_method_is_a_row_of_a_table() -> None:
    rows = {call.partition(",")[0] for call in [*READING, *PUTTING, *(call for changes in CHANGES.values() for call in changes)]}
    methods = {name for name, value in inspect.getmembers(TieredFileSystem) if callable(value) and not name.startswith("_")}
    ours = {name for name in methods if hasattr(AbstractFileSystem, name) or name in vars(TieredFileSystem)} - {"transaction_type"}
    assert ours == (ours & rows) | OTHERWISE.keys()


# --- patterns and directories ------------------------------------------------------------------------


def test_a_pattern_that_is_no_name_is_still_a_pattern(fs: TieredFileSystem, tmp_path: Path) -> None:
    for name in ("a1", "a2", "b1"):
        fs.pipe_file(f"{TOP}{name}", name.encode())
    assert fs.cat(f"{TOP}a[12]") == {f"{TOP}a1": b"a1", f"{TOP}a2": b"a2"}
    fs.get(f"{TOP}a?", str(tmp_path / "local"))
    assert sorted(path.name for path in (tmp_path / "local").iterdir()) == ["a1", "a2"]
    fs.mv(f"{TOP}a?", f"{TOP}c/")
    fs.rm(f"{TOP}*1")
    assert fs.find("notes") == [f"{TOP}c/a1", f"{TOP}c/a2"]


@pytest.mark.parametrize("change", ["rm", "mv", "copy", "get"])
def test_a_directory_of_an_odd_name_is_that_directory(fs: TieredFileSystem, tmp_path: Path, change: str) -> None:
    for key in ("d[1]/x", "d1/x"):
        fs.pipe_file(f"{TOP}{key}", key.encode())
    if change == "rm":
        fs.rm(f"{TOP}d[1]", recursive=True)
        assert fs.find("notes") == [f"{TOP}d1/x"]
    elif change == "get":
        fs.get(f"{TOP}d[1]", str(tmp_path / "d"), recursive=True)
        assert (tmp_path / "d" / "x").read_bytes() == b"d[1]/x"
    else:
        getattr(fs, change)(f"{TOP}d[1]", f"{TOP}e", recursive=True)
        assert fs.cat(f"{TOP}e/x") == b"d[1]/x" and fs.cat(f"{TOP}d1/x") == b"d1/x"


def test_a_directory_that_is_removed_by_a_name_with_a_slash_leaves_the_object_beside_it(fs: TieredFileSystem) -> None:
    for key in ("d", "d/", "d/x"):
        fs.storage.put(ObjectId.create("notes", key), key.encode())
    fs.rm(f"{TOP}d/", recursive=True)
    assert stored(fs) == {f"{TOP}d": b"d"}
    calls: list[Callable[[], None]] = [
        lambda: fs.rm(f"{TOP}d/", recursive=True), lambda: fs.rm(f"{TOP}d/"), lambda: fs.rm_file(f"{TOP}d/"), lambda: fs.rm([]),
    ]  # fmt: skip
    for again in calls:
        with pytest.raises(FileNotFoundError):
            again()
    assert stored(fs) == {f"{TOP}d": b"d"}


def test_a_usecase_that_begins_like_an_address_is_that_usecase(fs: TieredFileSystem) -> None:
    for usecase in ("tiered:x", "x"):
        fs.storage.put(ObjectId.create(usecase, "k"), usecase.encode())
    for address in ("tiered://x/objects/k", "tiered:/x/objects/k", "/x/objects/k", "tiered:///x/objects/k"):
        assert fs.cat(address) == b"x"
    assert fs.cat("tiered://tiered:x/objects/k") == b"tiered:x"
    for name in fs.find("tiered:x"):
        fs.rm(name)
    assert stored(fs) == {"x/objects/k": b"x"}


def test_an_object_is_moved_from_a_name_with_a_slash_to_the_one_without(fs: TieredFileSystem) -> None:
    fs.storage.put(ObjectId.create("notes", "k/"), ODD)
    fs.mv(f"{TOP}k/", f"{TOP}k")
    assert stored(fs) == {f"{TOP}k": ODD}
    fs.mv(f"{TOP}k", f"{TOP}k")
    assert stored(fs) == {f"{TOP}k": ODD}


def test_an_empty_object_whose_key_ends_with_a_slash_marks_a_directory_and_can_be_removed(fs: TieredFileSystem) -> None:
    fs.storage.put(ObjectId.create("notes", "d/"), b"")
    assert fs.isdir(f"{TOP}d/") and fs.isdir(f"{TOP}d") and fs.find("notes") == [f"{TOP}d/"] and fs.cat(f"{TOP}d/") == b""
    fs.rm_file(f"{TOP}d/")
    assert fs.find("notes") == []
    with pytest.raises(FileNotFoundError):
        fs.rm_file(f"{TOP}d/")


SLASHES = ["d/a/b", "d/a//b", "d/a//c/x", "d/a///b", "d//z", "/top"]


def test_what_is_below_an_empty_name_is_listed_once_by_each_way(fs: TieredFileSystem) -> None:
    for key in SLASHES:
        fs.pipe_file(f"{TOP}{key}", key.encode())
    everything = sorted(TOP + key for key in SLASHES)
    assert fs.find("notes") == everything
    assert sorted(f"{at}/{name}" for at, _, names in fs.walk("notes") for name in names) == everything
    assert sorted(each["name"] for _, _, files in fs.walk("notes", topdown=False, detail=True) for each in files.values()) == everything

    def below(path: str, depth: int = 0) -> Iterator[str]:
        assert depth < 9
        for each in fs.ls(path):
            yield from below(each["name"], depth + 1) if each["type"] == "directory" else [each["name"]]

    assert sorted(below("notes")) == everything
    assert fs.ls(f"{TOP}d/a", detail=False) == [f"{TOP}d/a///b", f"{TOP}d/a//b", f"{TOP}d/a//c", f"{TOP}d/a/b"]
    for depth in (1, 2, 3):
        walked = [f"{at}/{name}" for at, _, names in fs.walk(f"{TOP}d", maxdepth=depth) for name in names]
        assert fs.find(f"{TOP}d", maxdepth=depth) == sorted(walked)
    assert fs.du("notes") == sum(map(len, SLASHES)) and fs.tree("notes", recursion_limit=9)
    with_directories = set(fs.find("notes", withdirs=True)) - set(everything)
    assert with_directories == {at for at, _, _ in fs.walk("notes")} and not any(name.endswith("/") for name in with_directories)
    fs.copy(f"{TOP}d", f"{TOP}e", recursive=True)
    assert {name[len(TOP) + 1 :] for name in fs.find(f"{TOP}e")} == {key[1:] for key in SLASHES if key.startswith("d")}
    fs.rm(f"{TOP}d", recursive=True)
    assert len(fs.find("notes")) == len(SLASHES)


def test_walk_may_be_cut_short_and_tells_errors_as_asked(fs: TieredFileSystem) -> None:
    for key in ("a/1", "b/2"):
        fs.pipe_file(f"{TOP}{key}", b"")
    seen = []
    for at, directories, _ in fs.walk("notes/objects"):
        seen.append(at)
        directories[:] = [name for name in directories if name != "a"]
    assert seen == ["notes/objects", "notes/objects/b"]
    told: list[OSError] = []
    assert list(fs.walk("none")) == list(fs.walk("none", on_error=told.append)) == [] and isinstance(told[0], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        list(fs.walk("none", on_error="raise"))
    with pytest.raises(ValueError, match="maxdepth"):
        list(fs.walk("notes", maxdepth=0))


@pytest.mark.parametrize("keys", [("d/a/b", "d/a//b"), ("d/a//b",), ("d//b",), ("d/a///b",)])
def test_a_copy_to_the_local_disk_names_the_key_that_can_be_no_file_and_copies_nothing(
    fs: TieredFileSystem, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    for key in (*keys, "d/good"):
        fs.pipe_file(f"{TOP}{key}", key.encode())
    with pytest.raises(InvalidRequestError, match=f"{keys[-1]}' is no path of a file: it has a part ''"):
        fs.get(f"{TOP}d", str(tmp_path / "local"), recursive=True)
    assert list(tmp_path.iterdir()) == []


CLASHING: dict[str, Callable[[TieredFileSystem, Path], object]] = {
    "get": lambda fs, local: fs.get([f"{TOP}x/a", f"{TOP}y/a"], str(local)),
    "get, by lists": lambda fs, local: fs.get([f"{TOP}x/a", f"{TOP}y/a"], [str(local / "a"), str(local / "a")]),
    "copy": lambda fs, _: fs.copy([f"{TOP}x/a", f"{TOP}y/a"], f"{TOP}z"),
    "mv": lambda fs, _: fs.mv([f"{TOP}x/a", f"{TOP}y/a"], f"{TOP}z"),
    "mv, by lists": lambda fs, _: fs.mv([f"{TOP}x/a", f"{TOP}y/a"], [f"{TOP}z", f"{TOP}z"]),
    "put": lambda fs, local: fs.put([str(local / "x" / "a"), str(local / "y" / "a")], f"{TOP}z"),
}


@pytest.mark.parametrize("call", CLASHING)
def test_two_that_would_become_one_are_refused_before_anything_is_copied(fs: TieredFileSystem, tmp_path: Path, call: str) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_bytes(name.encode())
        fs.pipe_file(f"{TOP}{name}/a", name.encode())
    with pytest.raises(InvalidRequestError, match=r"x/a' and .*y/a' would both become "):
        CLASHING[call](fs, tmp_path)
    assert stored(fs) == {f"{TOP}x/a": b"x", f"{TOP}y/a": b"y"} and sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]
