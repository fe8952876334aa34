"""Runs processes under the recorder (`recorder.c`), and reads what they did to the files below one directory.

    Recording(root, beside)     notes what is there now: that counts as safe on the disk
      run, start                processes whose changes are recorded, in one order over all of them
      operations()              everything in that order; also the notes that the processes made with `note`

A note says what its process knew, for instance that a put was acknowledged. Its place in the record says what had
happened by then. *Failure*: `RecorderMissingError` if there is no C compiler, or the system is not Linux.
`RecordingError` if a process did not end as it should, or if the record is not all that happened.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROOT, LOG, KILL_AT = "POWER_ROOT", "POWER_LOG", "POWER_KILL_AT"
SOURCE = Path(__file__).with_name("recorder.c")
PROCESS_S = 120.0

_HEAD = struct.Struct("=IIQQQqIIII")


class RecordKind(StrEnum):
    """What a record tells. The letters are those of the recorder."""

    CREATE = "C"
    MAKE_DIRECTORY = "D"
    LINK = "L"
    RENAME = "R"
    UNLINK = "U"
    WRITE = "W"
    TRUNCATE = "T"
    SYNC = "S"
    SYNC_ALL = "A"
    NOTE = "N"


class RecorderMissingError(Exception):
    """The recorder cannot be built here. The text says what is missing."""


class RecordingError(Exception):
    """A process failed under the recorder, or the record has a gap."""


@dataclass(frozen=True, slots=True)
class DiskOperation:
    """One change, or a note. `inode`: of the file or directory that is written, synced or named.

    `directory`: the inode of the one in which `name` changes. A rename goes to `other` in `to`. `offset`: in bytes; of
    TRUNCATE the new size. `data`: what is written, or the text of a note. `pid`: of the process.
    """

    kind: RecordKind
    pid: int = 0
    inode: int = 0
    directory: int = 0
    to: int = 0
    name: str = ""
    other: str = ""
    offset: int = 0
    data: bytes = b""


def build(into: Path) -> Path:
    """Compiles the recorder. Returns the library. Raises `RecorderMissingError`."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not sys.platform.startswith("linux"):
        raise RecorderMissingError("the recorder of file operations needs Linux")
    if compiler is None:
        raise RecorderMissingError("the recorder of file operations needs a C compiler: install gcc")
    library = into / "recorder.so"
    done = subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RecorderMissingError(f"the recorder of file operations cannot be compiled: {done.stderr.strip()[:500]}")
    return library


def note(text: str, log: Path | None = None) -> None:
    """Puts a note into the record. `log`: its file; None: that of the process, which is recorded."""
    log_file = os.open(os.environ[LOG] if log is None else log, os.O_WRONLY | os.O_APPEND)
    try:
        fcntl.flock(log_file, fcntl.LOCK_EX)
        data = text.encode()
        os.write(log_file, _HEAD.pack(ord(RecordKind.NOTE), os.getpid(), 0, 0, 0, 0, 0, 0, len(data), 0) + data)
    finally:
        os.close(log_file)


class Recording:
    """A record of what happens below `root`. The file of the record is in `beside`, which lies elsewhere."""

    def __init__(self, library: Path, root: Path, beside: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.before = seen(self.root)
        self._library = library
        self._log = beside / "record"
        self._log.touch()

    def start(self, arguments: Sequence[str], *, kill_at: str | None = None) -> subprocess.Popen[str]:
        """Starts this Python with `arguments`. `kill_at`: right after which of its changes it is killed."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TIERED_")},
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "PYTHONDONTWRITEBYTECODE": "1",
            "LD_PRELOAD": str(self._library), ROOT: str(self.root), LOG: str(self._log),
        }  # fmt: skip
        if kill_at is not None:
            environment[KILL_AT] = kill_at
        return subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def run(self, *commands: Sequence[str], kill_at: str | None = None) -> list[str]:
        """Runs processes at the same time, until all have ended. Returns what each printed. Raises `RecordingError`."""
        processes = [self.start(arguments, kill_at=kill_at) for arguments in commands]
        return [self.end(process, killed=kill_at is not None) for process in processes]

    @staticmethod
    def end(process: subprocess.Popen[str], *, killed: bool = False) -> str:
        """Waits until it has ended, and returns what it printed. Raises `RecordingError` if it ended in another way."""
        out, errors = process.communicate(timeout=PROCESS_S)
        if process.returncode != (-signal.SIGKILL if killed else 0):
            raise RecordingError(f"{process.args!r} ended with {process.returncode}: {out}{errors}")
        return out

    def note(self, text: str) -> None:
        note(text, self._log)

    def operations(self) -> list[DiskOperation]:
        return list(_operations(self._log.read_bytes()))


def _operations(raw: bytes) -> Iterator[DiskOperation]:
    at = 0
    while at < len(raw):
        what, pid, inode, directory, to, offset, name_bytes, other_bytes, data_bytes, _ = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        ends = at + name_bytes, at + name_bytes + other_bytes, at + name_bytes + other_bytes + data_bytes
        name, other = os.fsdecode(raw[at : ends[0]]), os.fsdecode(raw[ends[0] : ends[1]])
        yield DiskOperation(RecordKind(chr(what)), pid, inode, directory, to, name, other, offset, raw[ends[1] : ends[2]])
        at = ends[2]


@dataclass(frozen=True, slots=True)
class DiskImage:
    """Files and directories by their inodes. A directory is its names, each with the inode that it leads to."""

    root: int
    files: Mapping[int, bytes]
    directories: Mapping[int, Mapping[str, int]]


def seen(root: Path) -> DiskImage:
    """Returns what is below `root` at this moment."""
    files: dict[int, bytes] = {}
    directories: dict[int, dict[str, int]] = {}

    def look(directory: Path) -> int:
        entries = directories[inode := directory.stat().st_ino] = {}
        for path in sorted(directory.iterdir()):
            if path.is_dir():
                entries[path.name] = look(path)
            else:
                entries[path.name] = path.stat().st_ino
                files[path.stat().st_ino] = path.read_bytes()
        return inode

    return DiskImage(look(root), files, directories)
