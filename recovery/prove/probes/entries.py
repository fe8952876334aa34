"""What the store rests on in the changelog. `ENTRIES` is the table: a new probe is a row.

What is written goes over one connection, and what is read over another. In each race half of the calls go over either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from changelog.base.errors import UnavailableError
from changelog.change import Change, Entry
from changelog.key_values import NOTE_BYTES_MAX, VALUE_BYTES_MAX
from changelog.lease import Renewal
from changelog.log import ChangeLog
from recovery.prove.probes.bench import Bench, at_once
from tiered.metadata import NS_PER_MS
from tiered.object_id import blob_name
from tiered.provision.findings import NoticeKind
from tiered.provision.probes import Probe, Tried

_EXPIRY_MS, _HOUR_MS = 30_000, 3_600_000
_CLOCKS_MS, _CLOCKS_MAX_MS = 5_000, _HOUR_MS // 2
_PAGE = 7


def change_of(bench: Bench) -> Change:
    token, path = bench.token(), bench.path("k\u00e9y \u2603")
    return Change(token, path, blob_name(path, token), path, "session/1")


async def _recorded(bench: Bench, owner: str = "prove") -> Entry:
    return await bench.ours.log.record(change_of(bench), owner)


def _either(bench: Bench, number: int) -> ChangeLog:
    return bench.other.log if number % 2 else bench.ours.log


async def _basis(bench: Bench) -> Tried:
    entry = await _recorded(bench)
    if await bench.other.log.read(entry.change.id) != entry:
        return "does not show another connection an entry that was just recorded, as it was recorded"
    await bench.ours.log.forget(entry)
    if await bench.other.log.read(entry.change.id) is not None:
        return "shows an entry that was just forgotten"
    return None


async def _claimed_once(bench: Bench) -> Tried:
    for _ in bench.races(0.3):
        entry = await _recorded(bench)
        claims = [partial(_either(bench, number).claim, entry, f"recovery-{number}") for number in range(bench.sizes.racers)]
        won = [answer for answer in await at_once(claims) if answer is not None]
        found = await bench.other.log.read(entry.change.id)
        if len(won) > 1:
            return f"gave one entry to {len(won)} of {len(claims)} who claimed it at once"
        if not isinstance(found, Entry) or (won and (found.owner, found.attempt) != (won[0].owner, 1)):
            return "shows another owner of an entry than the one that was told to have it"
        await bench.ours.log.forget(found)
    return None


async def _not_yours(bench: Bench) -> Tried:
    entry = await _recorded(bench)
    claimed = await bench.other.log.claim(entry, "recovery")
    if claimed is None:
        return "refuses a claim of an entry as it was read"
    if await bench.ours.log.renew([entry]) != [Renewal.NOT_YOURS] or await bench.ours.log.release(entry):
        return "lets an owner go on whose entry somebody else has claimed"
    try:
        await bench.ours.log.record(entry.change, "prove")
    except UnavailableError:
        pass
    else:
        return "gives a claimed entry back to an owner who records it again"
    if await bench.other.log.read(entry.change.id) != claimed:
        return "changes an entry for somebody who does not have it"
    return None


async def _stays_forgotten(bench: Bench) -> Tried:
    """A heartbeat, a claim and the end of an entry at the same moment."""
    for _ in bench.races(0.1):
        entry = await _recorded(bench)
        meeting: list[Callable[[], Awaitable[object]]] = [
            partial(bench.ours.log.forget, entry), partial(bench.other.log.renew, [entry]),
            partial(bench.other.log.claim, entry, "recovery"), partial(bench.ours.log.release, entry),
        ]  # fmt: skip
        await at_once(meeting)
        found = await bench.other.log.read(entry.change.id)
        if found is not None:
            return "brings back an entry that was forgotten, by a heartbeat or a claim of the same moment"
    renewed = await bench.ours.log.renew([entry])
    if renewed != [Renewal.NOT_YOURS] or await bench.ours.log.claim(entry, "recovery") is not None:
        return "lets somebody go on with an entry that was forgotten"
    return None


async def _stale(bench: Bench) -> Tried:
    """Entries that nobody renews are found, each once, and those that are renewed are not."""
    log = bench.other.log
    dead, released = [await _recorded(bench) for _ in range(10)], await _recorded(bench)
    await bench.ours.log.release(released)
    now_ms = await log.now_ms()
    waits = await _recorded(bench)
    await bench.ours.log.release(waits, now_ms + _HOUR_MS)

    async def found(at_ms: int) -> list[str]:
        keys = list[str]()
        for within in log.ranges():
            start: str | None = within.start
            while start is not None:
                page = await log.stale(replace(within, start=start), at_ms, _EXPIRY_MS, _PAGE)
                keys += [each.key for each in page.entries]
                start = page.next_start
        return keys

    own = {each.key for each in (*dead, released, waits)}
    soon, later = await found(now_ms), await found(now_ms + _EXPIRY_MS + 10_000)
    for each in (*dead, released.released(None), waits):
        await bench.ours.log.forget(each)
    if [key for key in soon if key in own] != [released.key]:
        return "calls an entry stale whose owner is alive, or does not find one that was given up"
    wanted = sorted(own - {waits.key})
    return None if sorted(key for key in later if key in own) == wanted else f"finds {len(later)} of {len(wanted)} stale entries, or others"


async def _lists(bench: Bench) -> Tried:
    entries = sorted([await _recorded(bench) for _ in range(20)], key=lambda entry: entry.key)
    found, start = list[str](), ""
    for _ in range(100):
        page = await bench.other.log.entries(start, _PAGE)
        found += [each.key for each in page.entries]
        if page.next_start is None:
            break
        start = page.next_start
    own = [key for key in found if key in {each.key for each in entries}]
    for each in entries:
        await bench.ours.log.forget(each)
    return None if own == [each.key for each in entries] else f"lists {len(own)} of {len(entries)} entries, or in another order"


async def _notes(bench: Bench) -> Tried:
    name, value = "prove", b"\x00\xff" * (NOTE_BYTES_MAX // 2)
    if not await bench.ours.log.swap_note(name, None, value) or await bench.other.log.read_note(name) != value:
        return "does not keep a note of the largest size"
    for number in bench.races(0.1):
        values = [f"{number} {racer}".encode() for racer in range(bench.sizes.racers)]
        swaps = [partial(_either(bench, racer).swap_note, name, value, each) for racer, each in enumerate(values)]
        answers = await at_once(swaps)
        won = [each for each, answer in zip(values, answers, strict=True) if answer]
        found = await bench.other.log.read_note(name)
        if len(won) > 1 or (won and found != won[0]):
            return f"told {len(won)} of {len(values)} that they had replaced one value of a note, or shows another"
        value = found or b""
    return None


async def _values(bench: Bench) -> Tried:
    keys, now_ms = [f"prove/{number:02}/\u2603" for number in range(20)], bench.runtime.wall_ns() // NS_PER_MS
    newer: dict[str, bytes | None] = dict.fromkeys(keys, b"newer")
    newer[keys[0]] = b"\x00" * VALUE_BYTES_MAX
    await bench.ours.log.write_values(newer, now_ms)
    await bench.other.log.write_values(dict.fromkeys(keys, b"older"), now_ms - 1)
    await bench.other.log.write_values({keys[1]: None}, now_ms + 1)
    newer.pop(keys[1])
    found, start = dict[str, bytes | None](), keys[0]
    for _ in range(100):
        page = await bench.other.log.scan_values(start, "prove0", _PAGE)
        found |= page.values
        if page.next_start is None:
            break
        start = page.next_start
    await bench.ours.log.erase_values(keys)
    if found != newer or list(found) != sorted(found, key=str.encode):
        return "does not keep the newest value of each key, or does not list them in order"
    return None


async def _clock(bench: Bench, most_ms: int) -> Tried:
    before_ms = bench.runtime.wall_ns() // NS_PER_MS
    told_ms = await bench.ours.log.now_ms()
    after_ms = bench.runtime.wall_ns() // NS_PER_MS
    ahead_ms = max(told_ms - after_ms, before_ms - told_ms)
    return f"tells a time that is {ahead_ms / 1000:,.0f} s from this machine's" if ahead_ms > most_ms else None


async def _beats(bench: Bench) -> Tried:
    log = bench.ours.log
    before_ms = await log.announce("prove")
    entry = await _recorded(bench)
    await log.renew([entry])
    found = await bench.other.log.read(entry.change.id)
    after_ms = await log.now_ms()
    await log.forget(entry)
    beat_ms = found.heartbeat_ms if isinstance(found, Entry) else -1
    return None if before_ms <= beat_ms <= after_ms else "dates heartbeats by another clock than the one that it tells"


LEFT = "what a process leaves behind that died is never cleaned up"
NOTES = "two writers of the change feed, or two audits, take each other's place"
FEED = "the change feed tells of references that are not live, or forgets some"
CLOCKS = "objects expire earlier or later than their callers think"
TWICE = "two processes clean up after one change; nothing is lost by that, as the rows decide, but entries come back or are forgotten"

ENTRIES: Sequence[Probe[Bench]] = (
    Probe("an entry", "an entry is recorded, read and forgotten, for all to see", NoticeKind.PROBLEM, LEFT, _basis),
    Probe("claims", "of many who claim an entry at once, one gets it", NoticeKind.PROBLEM, TWICE, _claimed_once),
    Probe("an entry of another", "who does not have an entry any more changes nothing of it", NoticeKind.PROBLEM, TWICE, _not_yours),
    Probe("a forgotten entry", "an entry that was forgotten does not come back", NoticeKind.PROBLEM, TWICE, _stays_forgotten),
    Probe("stale entries", "entries that nobody renews are found, each once, and no others", NoticeKind.PROBLEM, LEFT, _stale),
    Probe("listings of entries", "all entries are listed, in order, in pages", NoticeKind.PROBLEM, LEFT, _lists),
    Probe(
        "notes", "of many who replace one value of a note at once, one does", NoticeKind.PROBLEM,
        NOTES, _notes,
    ),
    Probe(
        "values", "of each key the newest value is kept, and listed", NoticeKind.PROBLEM,
        FEED, _values,
    ),
    Probe(
        "heartbeats", "heartbeats are dated by the clock that the log tells", NoticeKind.PROBLEM,
        "recovery takes living writers for dead, or waits for dead ones", _beats,
    ),
    Probe(
        "clocks half an hour apart", "this machine and the service tell the same time, to half an hour", NoticeKind.PROBLEM,
        "marks are collected while a late request of their change may still come, and objects expire while they are read",
        partial(_clock, most_ms=_CLOCKS_MAX_MS), "set the clock of this machine by NTP",
    ),
    Probe(
        "clocks", f"this machine and the service tell the same time, to {_CLOCKS_MS // 1000} s", NoticeKind.NOTE,
        CLOCKS, partial(_clock, most_ms=_CLOCKS_MS),
        "set the clock of this machine by NTP",
    ),
)  # fmt: skip
"""The first is what all others need."""
