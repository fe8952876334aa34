"""What the killed writers have left, read through the adapters: rows, blobs, entries and sessions of their usecase.

    dangling      tombstones without their blob, at any time, while others write
    unfinished    entries of the changelog
    contents_of, left_of    all of it, once every process has ended
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from changelog.base.errors import CorruptRecordError
from changelog.change import ChangeId, Entry
from recovery.entries import all_entries
from recovery.prove.judge import Content, digest, short
from recovery.prove.writer import USECASE
from tiered.open import Backends
from tiered.services.backends import DamagedError, Inline, Row
from tiered.services.capabilities import PartUploads

PAGE = 500
BELOW, BEYOND = f"{USECASE}/", f"{USECASE}0"
"""All names of the usecase begin with the first, and are before the second."""
_FAR_NS = 1 << 62


async def rows_of(backends: Backends) -> dict[str, str | None]:
    """The blob that each row redirects to, by the row's path; None: it is inline."""
    found: dict[str, str | None] = {}
    start: bytes | None = b""
    while start is not None:
        page = await backends.tiers.high_volume.scan(BELOW, start, PAGE)
        found |= {row.path: row.target for row in page.rows}
        start = page.next_start
    return found


async def blobs_of(backends: Backends) -> set[str]:
    found: set[str] = set()
    start: str | None = BELOW
    while start is not None:
        page = await backends.tiers.long_term.list(start, BEYOND, PAGE)
        found |= {blob.name for blob in page.blobs} | {odd.name for odd in page.oddities}
        start = page.next_start
    return found


async def dangling(backends: Backends) -> set[str]:
    """The names of blobs that a row redirects to and that do not exist.

    It reads the rows before and after it looks for the blobs. A revision that was replaced never comes back. So a row
    that names the same blob both times has named it all the while. A listing is not believed alone.
    """
    before = await rows_of(backends)
    there = await blobs_of(backends)
    absent = [name for name in before.values() if name is not None and name not in there]
    absent = [name for name in absent if await backends.tiers.long_term.head(name) is None]
    if not absent:
        return set()
    after = set((await rows_of(backends)).values())
    return {name for name in absent if name in after}


async def unfinished(backends: Backends) -> list[str]:
    """The keys of the entries, with why one is stuck."""
    return [
        f"{each.key}{f', which recovery gave up: {each.stuck.error}' if each.stuck else ''}"
        async for each in all_entries(backends.log)
        if not isinstance(each, Entry) or each.change.object.startswith(BELOW)
    ]


async def contents_of(backends: Backends) -> AsyncIterator[tuple[str, Content | str | None]]:
    """Each object with what it holds; text: what is wrong with it; None: its blob is gone."""
    for path in await rows_of(backends):
        try:
            yield path, await _content(backends, await backends.tiers.high_volume.read(path))
        except (CorruptRecordError, DamagedError) as error:
            yield path, f"{short(path)} cannot be read: {error}"


async def _content(backends: Backends, row: Row) -> Content | None:
    if isinstance(row.state, Inline):
        return Content(digest(row.state.payload), row.state.metadata.custom.get("call"))
    reader = None if row.target is None else await backends.tiers.long_term.open(row.target)
    if reader is None:
        return None
    try:
        payload = b"".join([bytes(chunk) async for chunk in reader.chunks()])
    finally:
        await reader.aclose()
    return Content(digest(payload), reader.metadata.custom.get("call"))


async def left_of(backends: Backends) -> list[str]:
    """A sentence for each thing that nothing names, once the log is empty."""
    named = set((await rows_of(backends)).values())
    return [
        *[f"the changelog still has {each}" for each in await unfinished(backends)],
        *[f"no row names the blob {short(name)}" for name in sorted(await blobs_of(backends) - named)],
        *[f"an upload of {short(name)} was left" async for name in _sessions(backends)],
    ]


async def _sessions(backends: Backends) -> AsyncIterator[str]:
    """The blobs of sessions that should have ended: the row has a mark of their change, so somebody has settled it.

    Without a mark the writer died before its entry was there. Recovery ends such a session, which can become no blob,
    an hour later.
    """
    if not isinstance(blobs := backends.tiers.long_term, PartUploads):
        return
    after: str | None = ""
    while after is not None:
        page = await blobs.open_sessions(_FAR_NS, after, PAGE)
        for name in (each.name for each in page.sessions if each.name.startswith(BELOW)):
            path, _, token = name.rpartition("/")
            row = await backends.tiers.high_volume.read(path, marks=ChangeId(token))
            if row.won | row.refused:
                yield name
        after = page.next_after
