"""`ModelledDisk`, a model of a disk: it replays a record, and leaves what a power cut may leave at any moment.

An fsync of a file makes its bytes and its size safe. An fsync of a directory makes its names safe. What was not synced
since it changed is chosen, by one of two models:

    WEAKEST    what POSIX promises, and no more: each name and each sector of 512 bytes is as at the last sync, or as
               any change since then made it, independent of all others. So is each size. A rename is two changes: the
               file may be left under both names or under none. Sectors that were never written hold anything
    EXT4       `data=ordered`: names change in their order, and each fsync makes all earlier changes of names safe. A
               file that grew has no size beyond what was written of it. Sectors that were overwritten as in WEAKEST

It assumes that a sector is written as a whole or not at all, that a truncation is one change (SQLite relies on it, too,
when it empties its log), that a disk keeps what it was told to sync, and that a directory has one name at a time.
Modes, owners and times are not modelled. A `ModelledDisk` may be told to ignore syncs (`ignores`), to see that somebody
notices.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TypeVar

from emulators.power.recording import DiskImage, DiskOperation, RecordingError, RecordKind

SECTOR = 512
GARBAGE = bytes(range(1, 252))

T = TypeVar("T")


class DiskModel(StrEnum):
    WEAKEST = "weakest"
    EXT4 = "ext4"


@dataclass(frozen=True, slots=True)
class _Written:
    """One change of a file. `size`: of the file after it. `cuts`: a truncation, and `data` are zeros for the rest."""

    offset: int
    data: bytes
    size: int
    cuts: bool = False


@dataclass(slots=True, eq=False)
class _DiskFile:
    """`safe`: the bytes at the last sync. `changes`: those since then."""

    safe: bytearray = field(default_factory=bytearray)
    size: int = 0
    changes: list[_Written] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        self.size = max(self.size, offset + len(data))
        self.changes.append(_Written(offset, data, self.size))

    def truncate(self, size: int) -> None:
        gone, self.size = self.size - size, size
        self.changes.append(_Written(size, bytes(max(0, gone)), size, cuts=True))

    def now(self) -> bytearray:
        content = bytearray(self.safe)
        for each in self.changes:
            _overwrite(content, each.offset, each.data)
        del content[self.size :]
        return content.ljust(self.size, b"\0")

    def sync(self) -> None:
        if self.changes:
            self.safe, self.changes = self.now(), []


@dataclass(slots=True, eq=False)
class _Directory:
    """`safe`: the names at the last sync. `changes`: what each name led to since then; None: to nothing."""

    safe: dict[str, _Node] = field(default_factory=dict)
    changes: dict[str, list[_Node | None]] = field(default_factory=lambda: defaultdict(list))
    journaled: dict[str, _Node] = field(default_factory=dict)
    """For EXT4: the names at the last sync of anything."""

    def now(self) -> dict[str, _Node]:
        names = {**self.safe, **{name: versions[-1] for name, versions in self.changes.items()}}
        return {name: node for name, node in names.items() if node is not None}

    def sync(self) -> None:
        self.safe, self.changes = self.now(), defaultdict(list)


_Node = _DiskFile | _Directory
_Change = tuple[_Directory, str, _Node | None]


class ModelledDisk:
    """Give it the operations of a record, in their order, by `apply`. `leave` may be called after each of them.

    `ignores`: says of an fsync whether this disk ignores it; its second argument is a path below the root.
    """

    def __init__(self, before: DiskImage, ignores: Callable[[DiskOperation, str], bool] | None = None) -> None:
        self._ignores = ignores
        self._nodes: dict[int, _Node] = {inode: _DiskFile(bytearray(data), len(data)) for inode, data in before.files.items()}
        self._nodes |= {inode: _Directory() for inode in before.directories}
        for inode, names in before.directories.items():
            self._directory(inode).safe = {name: self._nodes[target] for name, target in names.items()}
            self._directory(inode).journaled = dict(self._directory(inode).safe)
        self._root = self._directory(before.root)
        self._journal: list[Sequence[_Change]] = []

    def apply(self, operation: DiskOperation) -> None:
        match operation.kind:
            case RecordKind.CREATE | RecordKind.MAKE_DIRECTORY:
                self._nodes[operation.inode] = node = _DiskFile() if operation.kind is RecordKind.CREATE else _Directory()
                self._change((self._directory(operation.directory), operation.name, node))
            case RecordKind.LINK:
                self._change((self._directory(operation.directory), operation.name, self._node(operation.inode)))
            case RecordKind.RENAME:
                into, node = self._directory(operation.to), self._node(operation.inode)
                self._change((into, operation.other, node), (self._directory(operation.directory), operation.name, None))
            case RecordKind.UNLINK:
                self._change((self._directory(operation.directory), operation.name, None))
            case RecordKind.WRITE:
                self._file(operation.inode).write(operation.offset, operation.data)
            case RecordKind.TRUNCATE:
                self._file(operation.inode).truncate(operation.offset)
            case RecordKind.SYNC:
                node = self._node(operation.inode)
                if self._ignores is None or not self._ignores(operation, self._path_of(node)):
                    node.sync()
                    self._commit()
            case RecordKind.SYNC_ALL:
                for node in self._nodes.values():
                    node.sync()
                self._commit()
            case RecordKind.NOTE:
                pass

    def _change(self, *changes: _Change) -> None:
        for directory, name, node in changes:
            directory.changes[name].append(node)
        self._journal.append(changes)

    def _commit(self) -> None:
        for changes in self._journal:
            _carry_out(changes)
        self._journal = []

    def _node(self, inode: int) -> _Node:
        if inode not in self._nodes:
            raise RecordingError(f"the record names inode {inode}, which it did not see begin")
        return self._nodes[inode]

    def _directory(self, inode: int) -> _Directory:
        node = self._node(inode)
        assert isinstance(node, _Directory)
        return node

    def _file(self, inode: int) -> _DiskFile:
        node = self._node(inode)
        assert isinstance(node, _DiskFile)
        return node

    def _path_of(self, node: _Node, within: _Directory | None = None, above: str = "") -> str:
        """A path that leads to it now, below the root. It is empty for the root itself, and for what has none."""
        for name, each in (within or self._root).now().items():
            path = f"{above}{name}"
            if each is node or (isinstance(each, _Directory) and (path := self._path_of(node, each, f"{path}/"))):
                return path
        return ""

    # --- what is left

    def show(self) -> dict[str, bytes | None]:
        """Returns what every process sees now: paths below the root, with their bytes; None: a directory."""
        found: dict[str, bytes | None] = {}

        def look(directory: _Directory, above: str) -> None:
            for name, node in directory.now().items():
                found[above + name] = bytes(node.now()) if isinstance(node, _DiskFile) else None
                if isinstance(node, _Directory):
                    look(node, f"{above}{name}/")

        look(self._root, "")
        return found

    def leave(self, where: Path, chance: Random, model: DiskModel) -> None:
        """Makes the directory `where` hold what a power cut leaves at this moment."""
        names = _Weakest(chance) if model is DiskModel.WEAKEST else self._ordered(chance)
        data = _Choice(chance)
        filler = GARBAGE if model is DiskModel.WEAKEST and chance.random() < 0.3 else b"\0"
        made: dict[int, Path] = {}

        def place(directory: _Directory, at: Path) -> None:
            at.mkdir()
            for name, node in names.of(directory).items():
                path = at / name
                if isinstance(node, _Directory):
                    if id(node) not in made:
                        made[id(node)] = path
                        place(node, path)
                elif id(node) in made:
                    os.link(made[id(node)], path)
                else:
                    made[id(node)] = path
                    path.write_bytes(_left(node, data, model, filler))

        place(self._root, where)

    def _ordered(self, chance: Random) -> _Ordered:
        """EXT4: the changes of names that were carried out by the moment of the power cut."""
        return _Ordered(self._journal[: chance.choice((0, len(self._journal), chance.randint(0, len(self._journal))))])


class _Choice:
    """Chooses versions, all in one manner: what was not synced is lost, is left, mostly either of these, or by lot."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._manner = chance.choice(("old", "new", "each", "mostly old", "mostly new"))

    def of(self, versions: Sequence[T]) -> T:
        """Returns one of the versions, which are in the order of time. The first is what the last sync made safe."""
        match self._manner:
            case "old":
                return versions[0]
            case "new":
                return versions[-1]
            case "mostly old" | "mostly new" if self._chance.random() < 0.8:
                return versions[0 if self._manner == "mostly old" else -1]
            case _:
                return self._chance.choice(versions)


class _Weakest:
    def __init__(self, chance: Random) -> None:
        self._choice = _Choice(chance)

    def of(self, directory: _Directory) -> dict[str, _Node]:
        names = {name: self._choice.of([directory.safe.get(name), *versions]) for name, versions in directory.changes.items()}
        return {name: node for name, node in (directory.safe | names).items() if node is not None}


class _Ordered:
    def __init__(self, journal: Sequence[Sequence[_Change]]) -> None:
        self._changes: dict[int, dict[str, _Node | None]] = defaultdict(dict)
        for directory, name, node in (change for changes in journal for change in changes):
            self._changes[id(directory)][name] = node

    def of(self, directory: _Directory) -> dict[str, _Node]:
        names = {**directory.journaled, **self._changes[id(directory)]}
        return {name: node for name, node in names.items() if node is not None}


def _carry_out(changes: Sequence[_Change]) -> None:
    for directory, name, node in changes:
        if node is None:
            directory.journaled.pop(name, None)
        else:
            directory.journaled[name] = node


def _left(file: _DiskFile, choice: _Choice, model: DiskModel, filler: bytes) -> bytes:
    """What is left of a file: some size that it had since the last sync, and each sector as some change since made it.

    EXT4: it grew in the order of its writes, so what it holds beyond its safe size is what made it as large as it is.
    """
    if not file.changes:
        return bytes(file.safe)
    until = choice.of(range(len(file.changes) + 1))  # so many changes of its size are left
    size = file.changes[until - 1].size if until else len(file.safe)
    last = _last_of_sectors(file, choice)
    content = bytearray((filler * (size // len(filler) + 1))[:size])
    content[: len(file.safe)] = file.safe
    for number, each in enumerate(file.changes):
        for at, piece in _sectors(each.offset, each.data):
            in_order = each.cuts or (model is DiskModel.EXT4 and at >= len(file.safe))
            if number < until if in_order else number <= last[at // SECTOR]:
                _overwrite(content, at, piece)
    return bytes(content[:size].ljust(size, b"\0"))


def _last_of_sectors(file: _DiskFile, choice: _Choice) -> dict[int, int]:
    """For each sector that was written since the last sync, the number of the last write that it holds; -1: none."""
    written: dict[int, list[int]] = defaultdict(lambda: [-1])
    for number, each in enumerate(file.changes):
        for sector in () if each.cuts else range(each.offset // SECTOR, -(-(each.offset + len(each.data)) // SECTOR)):
            written[sector].append(number)
    return {sector: choice.of(numbers) for sector, numbers in written.items()}


def _sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    """The pieces of a write that lie in one sector each, with their offsets."""
    first = SECTOR - offset % SECTOR
    cuts = [0, *range(first, len(data), SECTOR), len(data)]
    return [(offset + start, data[start:end]) for start, end in pairwise(cuts) if end > start]


def _overwrite(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
