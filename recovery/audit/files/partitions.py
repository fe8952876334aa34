"""How the files of a run cover the names: which parts are done, which are missing, and which belong nowhere.

    range 17 [a, z)   ->  part 000017   says: audited [a, f), the rest is to be done as [f, m) and [m, z)
                              |- part 000017-0   [f, m)   says: audited [f, m)
                              `- part 000017-1   [m, z)   is missing

A range begins as one part. A part that takes too long ends early: its file says how far it came, and how its rest is to
be cut. Each partition of the rest is a part of its own, which may end early, too. So the files alone tell which parts
there are, in one order, whoever reads them.

A file counts only if it says the same bounds as the part that it is named after. So a part that was audited twice, and
ended at two places, leaves no gap and no overlap: the partitions of the rest that was replaced do not fit any more, and
are audited again.

No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from recovery.audit.finding import Summary
from recovery.audit.manifest import Bounds

DEPTH_MAX = 60
"""A part of this depth goes on to its end. The name of a deeper one would be too long for a file."""

_KEY = re.compile(r"(\d{6,})((?:-\d+)*)")


@dataclass(frozen=True, slots=True)
class Partition:
    """A part that is to be audited, or was. `range`: the number of its range. `place`: its place in the rest of its
    parent, after that of its parent; empty for the first part of a range.
    """

    range: int
    bounds: Bounds
    place: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """The name of the part in file names and footers, such as 000017 or 000017-1-0."""
        return "-".join([f"{self.range:06d}", *map(str, self.place)])

    def partitions_of_rest(self, rest: Sequence[str]) -> tuple[Partition, ...]:
        """Returns the parts of the rest. `rest`: the names where they begin, in order."""
        return tuple(
            Partition(self.range, Bounds(start=start, end=end), (*self.place, place))
            for place, (start, end) in enumerate(pairwise([*rest, self.bounds.end]))
            if start is not None
        )


@dataclass(frozen=True, slots=True)
class Header:
    """What the footer of a file says of it.

    `bounds`: of the part. `rest`: where the partitions of its rest begin; empty if it was audited to its end. `rows`:
    how many findings it holds. `length`: how many bytes lie before the footer. `sha256`: the checksum of those bytes
    and of what the footer says.
    """

    key: str
    bounds: Bounds
    rest: tuple[str, ...]
    summary: Summary
    rows: int
    length: int
    sha256: str

    @property
    def audited(self) -> Bounds:
        """The names that were audited."""
        return Bounds(start=self.bounds.start, end=self.rest[0]) if self.rest else self.bounds

    def fits(self, partition: Partition) -> bool:
        """Tells whether this is the file of that part."""
        return self.key == partition.key and self.bounds == partition.bounds and is_cut(self.bounds, self.rest)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the files of a run cover its ranges. `done` is in the order of names. `strays`: the keys of files that belong
    to no part.
    """

    done: tuple[tuple[Partition, Header], ...]
    missing: tuple[Partition, ...]
    strays: tuple[str, ...]


def tiled(ranges: Sequence[Bounds], headers: Mapping[str, Header]) -> Tiling:
    """Returns how these files cover these ranges. `headers`: by key."""
    done: list[tuple[Partition, Header]] = []
    missing: list[Partition] = []
    for partition in _walk([Partition(number, bounds) for number, bounds in enumerate(ranges)], headers):
        header = headers.get(partition.key)
        if header is not None and header.fits(partition):
            done.append((partition, header))
        else:
            missing.append(partition)
    known = {partition.key for partition, _ in done} | {partition.key for partition in missing}
    return Tiling(tuple(done), tuple(missing), tuple(key for key in sorted(headers) if key not in known))


def is_cut(bounds: Bounds, cuts: Sequence[str]) -> bool:
    """Tells whether these names are in order and inside the bounds."""
    inside = all(bounds.start < cut and (bounds.end is None or cut < bounds.end) for cut in cuts)
    return inside and all(before < after for before, after in pairwise(cuts))


def is_key(text: str) -> bool:
    """Tells whether a part may have this key. Each part has one spelling of its key."""
    match = _KEY.fullmatch(text)
    return match is not None and text == "-".join([f"{int(match[1]):06d}", *(str(int(each)) for each in match[2].split("-")[1:])])


def _walk(partitions: Sequence[Partition], headers: Mapping[str, Header]) -> Iterator[Partition]:
    """Yields these parts and all parts of their rests, in the order of names."""
    waiting = list(reversed(partitions))
    while waiting:
        partition = waiting.pop()
        yield partition
        header = headers.get(partition.key)
        if header is not None and header.rest and header.fits(partition):
            waiting += reversed(partition.partitions_of_rest(header.rest))
