"""A world for the audit: so many blobs and tombstones in byte order, generated when they are asked for.

    name number i    attachments/org.{3}/project.{3}/objects/{32 hex}  /  {change id, 10 to 21 months old}
    row of it        except every 1,000th, whose blob is an orphan
    blob of it       except every 10,000th, whose tombstone is dangling

Projects differ only in their names. So the 10,000 names of one project are kept as lines of one length, with everything
that an answer says about them (JSON of a listing, chunks of rows). An answer is a copy of some lines with the
project written into them. That makes some ten million names per second and core, at any size of the world. No client
comes near that.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import numpy as np
from google.cloud.bigtable_v2.types import bigtable
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]

ORPHAN_EVERY, ORPHAN_AT = 1000, 500
DANGLING_EVERY, DANGLING_AT = 10_000, 7777
PER_PROJECT, PER_ORG = 10_000, 1_000_000
KEY_STEP = (1 << 32) // PER_PROJECT
STEM = b"attachments/org.%03d/project.%03d/objects/%08x"
STEM_BYTES = len(STEM % (100, 100, 0))
ORG_AT = (STEM % (100, 100, 0)).index(b"100")
PROJECT_AT = (STEM % (100, 100, 0)).index(b"100", ORG_AT + 3)
PATH_BYTES = STEM_BYTES + 24
NAME_BYTES = PATH_BYTES + 1 + 36
OLDEST_MS, SPREAD_MS = 1_738_368_000_000, 300 * 86_400_000  # 2025-02-01
ROWS_PER_MESSAGE = 100
PAGE_MAX = 1000

ITEM = {
    "kind": "storage#object", "name": "", "bucket": "bench-bucket", "generation": "1738368000000000", "metageneration": "1",
    "contentType": "application/octet-stream", "storageClass": "STANDARD", "size": "1048576", "md5Hash": "1B2M2Y8AsgTpgAmY7PhCfg==",
    "crc32c": "AAAAAA==", "etag": "CIC4v+KniYIDEAE=", "timeCreated": "2025-02-01T00:00:00.000Z", "updated": "2025-02-01T00:00:00.000Z",
    "timeStorageClassUpdated": "2025-02-01T00:00:00.000Z",
}  # fmt: skip
"""What GCS says about an object, in short. Name, generation, size and times are each object's own."""


@dataclass(frozen=True)
class AuditWorld:
    """A world. `names`: how many names there are, of blobs and rows together."""

    names: int

    @property
    def orphans(self) -> int:
        return len(range(ORPHAN_AT, self.names, ORPHAN_EVERY))

    @property
    def dangling(self) -> int:
        return len(range(DANGLING_AT, self.names, DANGLING_EVERY))

    @property
    def blobs(self) -> int:
        return self.names - self.dangling

    @property
    def rows(self) -> int:
        return self.names - self.orphans

    def first_name(self, start: bytes) -> int:
        """Returns the number of the first name of a blob that is not before `start`, or `names` if there is none."""
        return self._first(start, name)

    def first_path(self, start: bytes) -> int:
        """Returns the same for the rows' keys."""
        return self._first(start, path)

    def _first(self, start: bytes, text: Callable[[int], bytes]) -> int:
        found = bisect_left(range(self.names), start[:STEM_BYTES], key=stem)
        return found + 1 if found < self.names and stem(found) == start[:STEM_BYTES] and text(found) < start else found


def stem(number: int) -> bytes:
    """Returns how the name of a number begins. Stems sort in the order of the numbers, and no two are the same."""
    return STEM % (*place(number), number % PER_PROJECT * KEY_STEP)


def place(number: int) -> tuple[int, int]:
    """Returns the organisation and project of a number."""
    return 100 + number // PER_ORG, 100 + number // PER_PROJECT % 100


def names_of(numbers: Numbers) -> Bytes:
    """Returns a line for each of these names, which are of one project."""
    lines = _NAMES[numbers % PER_PROJECT]
    if len(lines):
        _put_place(lines, 0, int(numbers[0]))
    return lines


def name(number: int) -> bytes:
    return stem(number) + bytes(_NAMES[number % PER_PROJECT, STEM_BYTES:])


def path(number: int) -> bytes:
    return name(number)[:PATH_BYTES]


def blobs_among(numbers: Numbers) -> Numbers:
    return np.extract(numbers % DANGLING_EVERY != DANGLING_AT, numbers)


def rows_among(numbers: Numbers) -> Numbers:
    return np.extract(numbers % ORPHAN_EVERY != ORPHAN_AT, numbers)


def blocks(numbers: Numbers) -> Iterator[Numbers]:
    """Splits the numbers into parts of one project each."""
    return iter(np.split(numbers, np.flatnonzero(np.diff(numbers // PER_PROJECT)) + 1)) if len(numbers) else iter(())


# --- the names of a project ------------------------------------------------------------------------


def _chance(salt: int) -> NDArray[np.uint64]:
    """Returns 64 bits for each name of a project. They are the same in every run (splitmix64)."""
    mixed = (np.arange(PER_PROJECT, dtype=np.uint64) + np.uint64(salt << 32)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _lines(texts: Iterable[bytes]) -> Bytes:
    """Returns the lines of texts of one length."""
    whole = list(texts)
    return np.frombuffer(b"".join(whole), np.uint8).reshape(len(whole), -1)


_CREATED_MS = [OLDEST_MS + int(chance) % SPREAD_MS for chance in _chance(1)]
_SIZES = [100_000 + int(chance) % 900_000 for chance in _chance(2)]


def _names() -> Iterator[bytes]:
    for number, (created_ms, key, more, revision) in enumerate(zip(_CREATED_MS, _chance(3), _chance(4), _chance(5), strict=True)):
        bits = f"{int(revision):016x}"
        change = f"{created_ms >> 16:08x}-{created_ms & 0xFFFF:04x}-7{bits[:3]}-8{bits[3:6]}-{bits[4:]}"
        yield stem(number) + f"{int(key):016x}{int(more):016x}"[:24].encode() + b"/" + change.encode()


_NAMES = _lines(_names())


def _put_place(lines: Bytes, at: int, number: int) -> None:
    """Writes the project of a number into names that stand at column `at`."""
    org, project = (np.frombuffer(b"%03d" % each, np.uint8) for each in place(number))
    lines[:, at + ORG_AT : at + ORG_AT + 3] = org
    lines[:, at + PROJECT_AT : at + PROJECT_AT + 3] = project


# --- a listing's page ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Items:
    """Objects as JSON, with the fields that were asked for.

    `lines`: those of one project, each with a comma behind it. `name_at`: the column of the name, or None if the name
    is not among the fields.
    """

    lines: Bytes
    name_at: int | None

    @staticmethod
    @cache
    def of(fields: frozenset[str] | None) -> Items:
        """Returns the items with these fields. None: all fields."""
        chosen = [each for each in ITEM if fields is None or each in fields]
        lines = _lines(_item(number, chosen) + b"," for number in range(PER_PROJECT))
        first = lines[0].tobytes().find(_NAMES[0].tobytes())
        return Items(lines, None if first < 0 else first)

    def text(self, numbers: Numbers) -> bytes:
        """Returns these objects, which are of one project, one after the other with commas between."""
        lines = self.lines[numbers % PER_PROJECT]
        if self.name_at is not None and len(lines):
            _put_place(lines, self.name_at, int(numbers[0]))
        return lines.tobytes()[:-1]


def _item(number: int, fields: Iterable[str]) -> bytes:
    created = datetime.fromtimestamp(_CREATED_MS[number] / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    own = {
        "name": _NAMES[number].tobytes().decode(), "size": str(_SIZES[number]), "generation": f"{_CREATED_MS[number] * 1000}",
        "timeCreated": created, "updated": created, "timeStorageClassUpdated": created,
    }  # fmt: skip
    return json.dumps({each: own.get(each, ITEM[each]) for each in fields}, separators=(",", ":")).encode()


# --- messages of rows ------------------------------------------------------------------------------


@cache
def _rows() -> tuple[Bytes, int, int]:
    """Returns the tombstones of a project, each as the cell that names its blob; and the columns of key and value."""
    names = [line.tobytes() for line in _NAMES]
    lines = _lines(_row_message(each) for each in names)
    value_at = lines[0].tobytes().index(names[0])
    return lines, lines[0].tobytes().index(names[0][:PATH_BYTES]), value_at


def _row_message(name: bytes) -> bytes:
    """Returns the answer that has this tombstone alone. Answers that follow each other are one."""
    chunk = bigtable.ReadRowsResponse.CellChunk(
        row_key=name[:PATH_BYTES], family_name="fm", qualifier=b"r", timestamp_micros=OLDEST_MS * 1000, value=name, commit_row=True
    )
    return bytes(bigtable.ReadRowsResponse.pb(bigtable.ReadRowsResponse(chunks=[chunk])).SerializeToString())


def row_messages(numbers: Numbers) -> Iterator[bytes]:
    """Yields the messages of these tombstones, which are of one project."""
    every, key_at, value_at = _rows()
    for start in range(0, len(numbers), ROWS_PER_MESSAGE):
        some = numbers[start : start + ROWS_PER_MESSAGE]
        lines = every[some % PER_PROJECT]
        _put_place(lines, key_at, int(some[0]))
        _put_place(lines, value_at, int(some[0]))
        yield lines.tobytes()
