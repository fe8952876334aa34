"""The files of golden stores: `VERSION/NAME`, the list of their checksums, and what is expected of each store.

    SHA256SUMS       of every other file. `opened` compares before anything is read, so that a changed byte is told as
                     one, and is not taken for a fault of the code.
    NAME.tar.xz      a directory; every file has the time at which the store was made
    NAME.jsonl.xz    rows of a table and blobs of a bucket, one a line
    NAME.json        what later software must make of it

`writing` refuses to make what is there: golden stores of a release are never made again.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import sqlite3
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.golden.clock import MADE_S

HERE = Path(__file__).parent
SUMS = "SHA256SUMS"


class GoldenError(Exception):
    """A golden store is not what was made, or may not be made."""


def versions() -> list[str]:
    """The releases that have golden stores, in order of their names."""
    return sorted(each.parent.name for each in HERE.glob(f"*/{SUMS}"))


def checked(version: str, root: Path = HERE) -> Path:
    """Returns the directory of a release. `GoldenError`: a file is missing, changed, or was not there."""
    directory = root / version
    lines = (line.partition("  ") for line in (directory / SUMS).read_text("utf-8").splitlines())
    sums = {name: wanted for wanted, _, name in lines}
    for name, wanted in sums.items():
        if not (directory / name).is_file():
            raise GoldenError(f"{directory / name} is missing: get it back from the history")
        if sha256(directory / name) != wanted:
            raise GoldenError(f"{directory / name} is not what was made: get it back from the history")
    if more := {each.name for each in directory.iterdir()} - {*sums, SUMS}:
        raise GoldenError(f"{directory} has {', '.join(sorted(more))}, of which {SUMS} says nothing")
    return directory


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def writing(directory: Path) -> Iterator[Path]:
    """Yields a directory that gets its name at the end, with its checksums. What fails before leaves nothing."""
    if directory.exists():
        raise GoldenError(f"{directory} is there: golden stores of a release are made once, and a new format needs a new release")
    with TemporaryDirectory(prefix="partial-", dir=directory.parent) as temporary:
        partial = Path(temporary) / directory.name
        partial.mkdir()
        yield partial
        sums = [f"{sha256(each)}  {each.name}\n" for each in sorted(partial.iterdir())]
        (partial / SUMS).write_text("".join(sums), "utf-8")
        partial.rename(directory)


def pack(directory: Path, into: Path) -> None:
    """Makes the same bytes of the same files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directory.rglob("*")):
            about = archive.gettarinfo(path, str(path.relative_to(directory)))
            about.mtime, about.uid, about.gid, about.uname, about.gname = MADE_S, 0, 0, "", ""
            with path.open("rb") if path.is_file() else io.BytesIO() as content:
                archive.addfile(about, content if path.is_file() else None)
    into.write_bytes(lzma.compress(raw.getvalue(), preset=9))


def unpack(version: str, name: str, into: Path) -> Path:
    """Makes the directory again, below `into`. Returns it."""
    packed = checked(version) / f"{name}.tar.xz"
    with tarfile.open(packed, mode="r:xz") as archive:
        archive.extractall(into / name, filter="data")
    return into / name


def write_lines(lines: Iterable[Any], into: Path) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n" for line in lines)
    into.write_bytes(lzma.compress(text.encode(), preset=9))


def read_lines(version: str, name: str) -> list[Any]:
    raw = lzma.decompress((checked(version) / f"{name}.jsonl.xz").read_bytes())
    return [json.loads(line) for line in raw.decode().splitlines()]


def write_expected(value: Any, into: Path) -> None:
    into.write_text(json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n", "utf-8")


def read_expected(version: str, name: str) -> Any:
    return json.loads((checked(version) / f"{name}.json").read_text("utf-8"))


def unpacked(version: str, name: str, into: Path) -> tuple[Path, Any]:
    """Returns the directory, as if it had been made here, and what is expected of it."""
    expected = read_expected(version, name)
    directory = unpack(version, name, into)
    move(directory, expected["made_in"])
    return directory, expected


def move(directory: Path, made_in: str) -> None:
    """Lets a store, its feed and its audits have been made here. `made_in`: where they were made.

    They name their places: a run of the audit says which store it looked at, and the note of a sink has its place, and
    the hash of it as its name.
    """
    for path in (path for path in directory.rglob("*.json") if path.is_file()):
        path.write_text(path.read_text("utf-8").replace(made_in, str(directory)), "utf-8")
    database = sqlite3.connect(directory / "store" / "tiered.db")
    with closing(database), database:
        for name, value in database.execute("SELECT name, value FROM notes").fetchall():
            moved = value.decode().replace(made_in, str(directory))
            sink = json.loads(moved).get("sink") if name.startswith("feed-sink-") else None
            renamed = name if sink is None else f"feed-sink-{hashlib.sha256(sink.encode()).hexdigest()[:16]}"
            database.execute("UPDATE notes SET name = ?, value = ? WHERE name = ?", (renamed, moved.encode(), name))
