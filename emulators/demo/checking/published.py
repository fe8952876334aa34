"""Reads what the change feed has published, for the demo's check. It runs none of the feed's code.

    a folder      one generation of a directory: files of JSON lines, whose names are times
    an output     what `tiered feed follow` has printed: JSON lines, too

An update may be there more than once and counts once. It counts when progress has covered its time. These things are
flaws: a gap in the progress, a time with another number of updates than its count, an object with two blobs, an update
that nothing covers, and a view that is not what the rows hold.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRESS = "com.materialize.cdc.progress"
GENERATION = "generation-"

Update = tuple[str, str, int, int]
"""Object, blob, time, difference."""


@dataclass(slots=True)
class PublishedFeed:
    """What a place of the feed holds. `view`: the blobs of each object. `frontier`: all before this time is there.

    `flaws`: a sentence for each rule of the feed that is broken.
    """

    place: str
    files: int = 0
    updates: int = 0
    frontier: int = 0
    view: dict[str, list[str]] = field(default_factory=dict)
    flaws: list[str] = field(default_factory=list)

    def differences(self, rows: Mapping[str, str]) -> list[str]:
        """Returns a sentence for each object of which this view says another thing than `rows`, blobs by object."""
        found = []
        for path in sorted(self.view.keys() | rows.keys()):
            said, held = self.view.get(path, []), [rows[path]] if path in rows else []
            if said != held:
                found.append(f"{self.place} says that {path[-60:]} references {_short(said)}, and its row {_short(held)}")
        return found


def generations(directory: Path) -> list[Path]:
    """Returns the folders of a feed's generations, the newest last."""
    return sorted(directory.glob(f"{GENERATION}*"))


def read_folder(folder: Path | None, place: str) -> PublishedFeed:
    """Returns what is in a generation's folder. None: there is no folder, which is a flaw."""
    if folder is None:
        return PublishedFeed(place, flaws=[f"{place} holds nothing"])
    files = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    found = _read(place, (line for each in files for line in each.read_bytes().splitlines()))
    found.files = len(files)
    return found


def read_output(path: Path, place: str) -> PublishedFeed:
    """Returns what a follower has printed. A last line that is cut short is left out."""
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return _read(place, (line for line in whole.split(b"\n") if line.startswith(b"{")))


def frontier_of_output(path: Path) -> int:
    """Returns up to which time a follower has printed the feed."""
    return read_output(path, "").frontier


def _read(place: str, lines: Iterable[bytes]) -> PublishedFeed:
    updates, progress = set[Update](), list[dict[str, Any]]()
    for message in map(json.loads, lines):
        updates.update(_updates(message))
        if (told := message.get(PROGRESS)) is not None:
            progress.append(told)
    found = PublishedFeed(place, updates=len(updates))
    counts = Counter[int]()
    for told in sorted(progress, key=lambda each: each["lower"]):
        lower, upper = told["lower"][0], told["upper"][0]
        if lower > found.frontier:
            found.flaws.append(f"{place} has no progress from {found.frontier} to {lower}")
        elif lower == found.frontier:
            counts.update({each["time"]: each["count"] for each in told["counts"]})
            found.frontier = upper
    there = Counter(time for _, _, time, _ in updates)
    for time in sorted(there.keys() | counts.keys()):
        if there[time] != counts[time]:
            covered = "that no progress covers" if time >= found.frontier else f"and its progress counts {counts[time]}"
            found.flaws.append(f"{place} has {there[time]} updates of the time {time}, {covered}")
    balance = Counter[tuple[str, str]]()
    for path, blob, time, diff in updates:
        balance[path, blob] += diff if time < found.frontier else 0
    for (path, blob), number in sorted(balance.items()):
        if number not in (0, 1):
            found.flaws.append(f"{place} has {path[-60:]} with {blob[-36:]} {number} times")
        if number:
            found.view.setdefault(path, []).append(blob)
    return found


def _updates(message: dict[str, Any]) -> Iterator[Update]:
    for each in message.get("array", ()):
        yield each["data"]["object"], each["data"]["blob"], each["time"], each["diff"]


def _short(blobs: list[str]) -> str:
    return " and ".join(each[-36:] for each in blobs) or "nothing"
