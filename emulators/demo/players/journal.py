"""The journals: each process of the demo writes into a file of its own what its callers were told, for the check.

    {"at":…,"begin":ID,"object":…,"kind":…,"size":…,"digest":…}       before an operation starts
    {"at":…,"end":ID,"answer":…}                                      after its answer; a read adds "digest" and "by"
    {"at":…,"process":NAME,"event":…}                                 by the director: killed, stopped, ended, …
    {"token":…,"became":…}                                            a row's write timed out; in other files (WRITES)

`recovery/prove/judge.py` reads the first two. It has the words of them, too, and those of a condition. The players
cannot take these from there: beside a release, they run with a `recovery` that does not have that folder yet.

A line is one `write` to the end of the file. It is not synchronised to disk, because only processes die here, not the
machine. A kill may cut the last line short; a reader ignores such a line. `at` is CLOCK_MONOTONIC in seconds, which all
processes of a machine share.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

DIRECTOR, WRITES = "director.jsonl", ".writes"


class OperationKind(StrEnum):
    PUT = "put"
    DELETE = "delete"
    GET = "get"


class JournaledAnswer(StrEnum):
    OK = "ok"
    NO = "no"                    # UnavailableError: it did not take effect and never will
    FAILED = "failed"            # ConditionFailedError: the same, because its condition was false
    SETTLED = "settled"          # OutcomeUnknownError: it may have, and will not any more
    UNKNOWN = "unknown"          # OutcomeUnknownError: it may have, or may still
    ERROR = "error"              # any other: there must be none
    NONE = "none"                # its process ended first


class OperationJournal:
    """Appends lines to one file. Only one process writes to a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **line: object) -> None:
        os.write(self._file, json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Tail:
    """Reads the complete lines that were added to the files of a directory since the last call."""

    def __init__(self, directory: Path, pattern: str) -> None:
        self._directory = directory
        self._pattern = pattern
        self._read: dict[Path, int] = {}

    def lines(self) -> Iterator[bytes]:
        for path in sorted(self._directory.glob(self._pattern)):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                yield from whole.split(b"\n")


def late_writes(directory: Path, won: Collection[str]) -> int:
    """Returns how many writes of rows took effect although they had timed out.

    Their token is live or is in `won`, and no repetition of the write was told that it took effect.
    """
    became: defaultdict[str, set[str]] = defaultdict(set)
    for path in directory.glob(f"w*{WRITES}"):
        for line in read_lines(path):
            became[line["token"]].add(line["became"])
    return sum("answered" not in all_of_it and ("live" in all_of_it or token in won) for token, all_of_it in became.items())


def process_ends(directory: Path) -> dict[str, float]:
    """Returns when each process was seen to have ended, by its name."""
    return {line["process"]: line["at"] for line in read_lines(directory / DIRECTOR) if line["event"] in ("killed", "ended", "crashed")}


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)
