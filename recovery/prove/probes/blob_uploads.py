"""Probes of what makes a blob: uploads, sessions that are cancelled, and parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

from changelog.base.errors import UnconfirmedError
from recovery.prove.probes.bench import Bench, at_once
from recovery.prove.probes.blob_calls import (
    AT_ONE_NAME,
    LATE,
    MIB,
    OTHER,
    PAIRS_MAX,
    PAYLOAD,
    PLAIN,
    REFUSALS,
    all_of,
    begun,
    bytes_of,
    deleted,
    makes,
    new_name,
    parts_of,
    put,
    shows,
)
from tiered.metadata import NS_PER_S, Metadata
from tiered.provision.probes import Tried
from tiered.services.backends import SessionEndedError
from tiered.services.capabilities import PART_BYTES_MIN, Part, PartUploads

# --- a blob is created, and never replaced ---------------------------------------------------------


async def stored_and_read(bench: Bench) -> Tried:
    name = new_name(bench)
    await put(bench, name, metadata=Metadata(custom={"tried": "yes"}))
    read = await bytes_of(bench.other_blobs, name)
    if read is None:
        return "does not find a blob that it has just stored"
    return None if read == PAYLOAD else "tells other bytes of a blob than were stored"


async def one_maker(bench: Bench, *, in_sessions: bool) -> Tried:
    """Many uploads of one name end at once; then one that was begun before, and one more of the same bytes.

    The names have no revision, because a directory gives one to a single upload at a time.
    """
    races = bench.races()
    while names := [bench.path("created") for _ in islice(races, max(1, bench.sizes.racers // AT_ONE_NAME))]:
        found = await at_once([partial(_race, bench, name, in_sessions=in_sessions) for name in names])
        if wrong := next(filter(None, found), None):
            return wrong
        await deleted(bench, names)
    return None


async def _race(bench: Bench, name: str, *, in_sessions: bool) -> Tried:
    bodies = [f"{number:08}".encode() for number in range(min(AT_ONE_NAME, bench.sizes.racers))]
    size = None if in_sessions else len(bodies[0])
    tiers = (bench.blobs, bench.other_blobs)
    *racing, late = await all_of([
        partial(begun, tiers[number % 2], name, body, size) for number, body in enumerate([*bodies, b"too late"])
    ])
    outcomes = await at_once([partial(makes, upload) for upload in racing])
    made = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome]
    if len(made) > 1:
        return f"told {len(made)} of {len(bodies)} uploads of one name at once that they had made the blob"
    read = await bytes_of(bench.other_blobs, name)
    if read is None:
        return None if None in outcomes else f"refused each of {len(bodies)} uploads of one name at once"
    if made and read != made[0]:
        return "replaced the blob of the upload that won by that of another"
    if await makes(late) or await bytes_of(bench.other_blobs, name) != read:
        return "replaced a blob by an upload that was begun before, and ended late"
    doubled = False
    with suppress(*REFUSALS):  # a session may be refused when it begins
        doubled = bool(await makes(await begun(bench.blobs, name, read, size)))
    return "took an upload a second time" if doubled or await bytes_of(bench.other_blobs, name) != read else None


async def hidden_before(bench: Bench) -> Tried:
    name = new_name(bench, "hidden")
    upload = await begun(bench.blobs, name, bytes(MIB), None)
    how = await shows(bench, name)
    await upload.abort()
    return (how or await shows(bench, name)) and f"{how or 'shows'} a blob whose upload has not ended"


# --- what was ended stays so -----------------------------------------------------------------------


async def cancelled(bench: Bench) -> Tried:
    """By this connection and by the other one; twice; and one that could bring back what was deleted."""
    for tier in (bench.blobs, bench.other_blobs):
        name = new_name(bench, "cancelled")
        upload = await begun(bench.blobs, name, PAYLOAD, None)
        if upload.session is None:
            return None  # it has none: nothing of an upload is there before its only request
        for _ in range(2):
            await tier.cancel(upload.session)
        if await makes(upload):
            return "made a blob of a session that was cancelled before"
        if how := await shows(bench, name):
            return f"{how}, though its session was cancelled before it ended"
    name = bench.path("cancelled")  # without a revision, which a directory gives to one upload at a time
    first, second = [await begun(tier, name, PAYLOAD, None) for tier in (bench.blobs, bench.other_blobs)]
    await first.finalise()
    await bench.blobs.delete(name)
    for upload in (first, second):
        await bench.blobs.cancel(upload.session or "")
    if await makes(second) or await shows(bench, name):
        return "brought back a blob that was deleted, by a session that was cancelled since"
    return None


async def cancel_races(bench: Bench) -> Tried:
    races = bench.races()
    while names := [new_name(bench, "ended") for _ in islice(races, _pairs(bench))]:
        if wrong := next(filter(None, await all_of([partial(_cancel_race, bench, name) for name in names])), None):
            return wrong
        await deleted(bench, names)
    return None


def _pairs(bench: Bench) -> int:
    return min(PAIRS_MAX, max(1, bench.sizes.racers // 2))


async def _cancel_race(bench: Bench, name: str) -> Tried:
    upload = await begun(bench.blobs, name, PAYLOAD, None)
    if upload.session is None:
        return None
    cancel = partial(bench.other_blobs.cancel, upload.session)
    calls: list[Callable[[], Awaitable[bool | None]]] = [partial(makes, upload), partial(_did, cancel)]
    made, _ = await at_once(calls)
    await cancel()
    return await _disagrees(bench, name, made)


async def _did(call: Callable[[], Awaitable[object]]) -> bool:
    await call()
    return True


async def _disagrees(bench: Bench, name: str, made: bool | None) -> Tried:
    """Whether there is a blob, beside what the one that ended its upload was told."""
    there = await bytes_of(bench.other_blobs, name)
    if made is False and there is not None:
        return "refused the end of an upload that was cancelled at that moment, and made the blob nevertheless"
    if made and there != PAYLOAD:
        return "lost a blob whose upload it had confirmed, because that was cancelled at that moment"
    return None


# --- uploads in parts ------------------------------------------------------------------------------


async def made_of_parts(bench: Bench) -> Tried:
    ours, other, name = parts_of(bench.blobs), parts_of(bench.other_blobs), new_name(bench, "parts")
    session = await ours.begin_parts(name, PLAIN)
    first = b"first" + bytes(PART_BYTES_MIN)
    await other.put_part(name, session, 7, [OTHER])
    large, small = await all_of([partial(ours.put_part, name, session, 2, [first]), partial(other.put_part, name, session, 7, [PAYLOAD])])
    wanted = [(part.number, part.size) for part in (large, small)]
    listed = await other.parts(name, session)
    if [(part.number, part.size) for part in listed] != wanted or [part.etag for part in listed] != [large.etag, small.etag]:
        return "lists other parts of an upload than it took last"
    if how := await shows(bench, name):
        return f"{how}, though its parts were not completed"
    for number in range(2):  # the second one is doubled
        try:
            await other.complete_parts(name, session, [large, small])
        except SessionEndedError as error:
            return f"refuses {'a completion' if number == 0 else 'to confirm a completion again'} ({error})"
    if await bytes_of(bench.blobs, name) != first + PAYLOAD:
        return "made another blob of parts than they are"
    return await _has_ended(ours, name, session, [large, small])


async def _has_ended(tier: PartUploads, name: str, session: str, parts: Sequence[Part]) -> Tried:
    """Whether the calls that name the session are told that it has ended. A completion is told otherwise if it is done.
    """
    for what, call in (
        ("takes a part of", partial(tier.put_part, name, session, 1, [LATE])), ("lists the parts of", partial(tier.parts, name, session)),
        ("completes", partial(tier.complete_parts, name, session, parts[:1])),
    ):  # fmt: skip
        try:
            await call()
        except SessionEndedError:
            continue
        return f"{what} an upload that has ended"
    return None


async def parts_cancelled(bench: Bench) -> Tried:
    ours, name = parts_of(bench.blobs), new_name(bench, "parts cancelled")
    session = await ours.begin_parts(name, PLAIN)
    part = await ours.put_part(name, session, 1, [PAYLOAD])
    for _ in range(2):
        await bench.other_blobs.cancel(session)
    if wrong := await _has_ended(ours, name, session, [part]):
        return wrong
    if how := await shows(bench, name):
        return f"{how}, though its upload in parts was cancelled"
    name = new_name(bench, "parts cancelled")
    session = await ours.begin_parts(name, PLAIN)
    part = await ours.put_part(name, session, 1, [PAYLOAD])
    await ours.complete_parts(name, session, [part])
    await bench.other_blobs.cancel(session)
    if await bytes_of(bench.other_blobs, name) != PAYLOAD:
        return "lost a blob because its upload was cancelled after it was completed"
    await bench.blobs.delete(name)
    if (wrong := await _has_ended(ours, name, session, [part])) or await shows(bench, name):
        return wrong or "brought back a blob that was deleted, by a late completion"
    return None


async def parts_race(bench: Bench) -> Tried:
    races = bench.races()
    while names := [new_name(bench, "completed") for _ in islice(races, _pairs(bench))]:
        if wrong := next(filter(None, await all_of([partial(_completion_race, bench, name) for name in names])), None):
            return wrong
        await deleted(bench, names)
    return None


async def _completion_race(bench: Bench, name: str) -> Tried:
    ours, other = parts_of(bench.blobs), parts_of(bench.other_blobs)
    session = await ours.begin_parts(name, PLAIN)
    part = await ours.put_part(name, session, 1, [PAYLOAD])

    async def completes(tier: PartUploads) -> bool | None:
        try:
            await tier.complete_parts(name, session, [part])
        except UnconfirmedError:
            return None
        except REFUSALS:
            return False
        return True

    cancel = partial(bench.other_blobs.cancel, session)
    calls: list[Callable[[], Awaitable[bool | None]]] = [partial(completes, ours), partial(completes, other), partial(_did, cancel)]
    *made, _ = await at_once(calls)
    await cancel()
    return await _disagrees(bench, name, True if True in made else None if None in made else False)


async def open_sessions(bench: Bench) -> Tried:
    ours, other, far_ns = parts_of(bench.blobs), parts_of(bench.other_blobs), 1 << 62
    sessions = {await ours.begin_parts(name, PLAIN): name for name in [new_name(bench, "é") for _ in range(5)]}
    ended, *rest = sessions
    await bench.blobs.cancel(ended)
    found: list[tuple[str, str]] = []
    after: str | None = ""
    while after is not None:
        page = await other.open_sessions(far_ns, after, 2)
        found += [(each.session, each.name) for each in page.sessions]
        if page.next_after is not None and page.next_after <= after:
            return "lists uploads that have not ended in pages without an end"
        after = page.next_after
    told = [each for each in found if each[0] in sessions]
    begun_ns = await bench.other_blobs.now_ns() - 3600 * NS_PER_S
    early = [each for each in (await other.open_sessions(begun_ns, "", 1000)).sessions if each.session in sessions]
    for session in rest:
        await bench.blobs.cancel(session)
    if sorted(told) != sorted((session, sessions[session]) for session in rest):
        return f"lists {len(told)} of {len(rest)} uploads that have not ended, or others"
    return "says that uploads were begun long before they were" if early else None
