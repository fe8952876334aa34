"""What a transaction of the feed is made of: the present references beside the published ones, and their difference.

A *hint* is an entry that the changelog keeps: its change is over, and its object may have another reference now. A
hint says nothing more. The row is read and compared with what is published, so a hint that comes twice, late or for
nothing does no harm. The same comparison, over all rows page by page, is the first pass and the reconciliation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from changelog.key_values import VALUE_KEY_BYTES_MAX
from recovery.feed.messages import Update
from tiered.services.backends import HighVolumeBackend
from tiered.services.scans import RedirectPage

KEYS_AT_ONCE = 100
"""So many rows are read with one call."""


OBJECT_BYTES_MAX = VALUE_KEY_BYTES_MAX - 40
"""The longest path of an object, as UTF-8: its key in the index has a prefix. A blob of a longer path cannot be stored,
because the blob's name would be too long for a bucket. So only a row that somebody else wrote has one."""


@dataclass(slots=True)
class References:
    """What rows hold: `blobs` by object. `damaged`: objects whose row does not tell, each with the reason."""

    blobs: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    def add(self, page: RedirectPage) -> None:
        for redirect in page.redirects:
            if len(redirect.path) * 4 > OBJECT_BYTES_MAX and (size := len(redirect.path.encode())) > OBJECT_BYTES_MAX:
                self.damaged[redirect.path] = f"its name has {size} bytes, and the feed takes no more than {OBJECT_BYTES_MAX}"
                continue
            self.blobs[redirect.path] = redirect.target
        for row in page.corrupt:
            self.damaged[row.path] = row.fault
            self.blobs.pop(row.path, None)


@dataclass(frozen=True, slots=True)
class Range:
    """All references of the objects from `start` (inclusive) to `end` (exclusive; None: to the last one)."""

    start: str
    end: str | None
    references: References


async def of_objects(rows: HighVolumeBackend, objects: Iterable[str]) -> References:
    """Returns the references of these objects. One that has none is in neither part of the result."""
    found = References()
    keys = [path.encode() for path in sorted(set(objects))]
    for begin in range(0, len(keys), KEYS_AT_ONCE):
        found.add(await rows.redirects_at(keys[begin : begin + KEYS_AT_ONCE]))
    return found


async def of_range(rows: HighVolumeBackend, start: str, limit: int) -> Range:
    """Returns about `limit` references from an object on, and how far they reach.

    A page ends at a row key, which may be bytes that are no text. Such a key is passed by.
    """
    found = References()
    position: bytes | None = start.encode()
    while position is not None:
        page = await rows.redirects(position, None, limit)
        found.add(page)
        position = page.next_start
        if position is not None and (end := _text(position)) is not None:
            return Range(start, end, found)
    return Range(start, None, found)


def _text(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def difference(wanted: References, published: Mapping[str, str], objects: Iterable[str], time: int) -> Sequence[Update]:
    """Returns the updates at `time` that turn what is published into what rows hold, for these objects, in order.

    An object whose row is damaged keeps what is published of it.
    """
    updates: list[Update] = []
    for path in sorted(set(objects) - wanted.damaged.keys()):
        before, now = published.get(path), wanted.blobs.get(path)
        if before == now:
            continue
        if before is not None:
            updates.append(Update({"object": path, "blob": before}, time, -1))
        if now is not None:
            updates.append(Update({"object": path, "blob": now}, time, +1))
    return updates


def after(updates: Iterable[Update]) -> dict[str, str | None]:
    """Returns what is published of each object after these updates. None: nothing."""
    index: dict[str, str | None] = {}
    for update in updates:
        path, blob = update.data["object"], update.data["blob"]
        if update.diff > 0:
            index[path] = blob
        else:
            index.setdefault(path, None)
    return index
