"""What the store rests on in the high-volume tier. `ROWS` is the table: a new probe is a row.

What is written goes over one connection, and what is read over another. In each race half of the calls go over either,
because a service may keep a condition among the requests of one connection alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from changelog.change import ChangeId
from recovery.prove.probes.bench import Bench, at_once
from tiered.metadata import NS_PER_MS, NS_PER_S, Metadata, TimeToIdle, TimeToLive
from tiered.provision.findings import NoticeKind
from tiered.provision.probes import Probe, Tried
from tiered.services.backends import Inline, Still, Tombstone, Vacant

_HOUR_NS = 3600 * NS_PER_S
_PAGE = 7
_BYTES_MAX = 1 << 20


async def _basis(bench: Bench) -> Tried:
    path, token = bench.path(), bench.token()
    if not await bench.rows.put_inline(path, token, bench.inline(token)):
        return "refuses an object where nothing is"
    if (await bench.read(path)).state != bench.inline(token):
        return "does not show an object that was just written"
    bench.early = bench.path("early")
    for mark in range(2):
        token = bench.token()
        if mark:
            await bench.rows.settle(bench.early, token)
        elif not await bench.swap(bench.early, token, None, None):
            return "refuses a swap where nothing is"
    return None


async def _seen_at_once(bench: Bench) -> Tried:
    for _ in bench.races(0.1):
        path, token = bench.path(), bench.token()
        state = bench.tombstone(path, token)
        await bench.swap(path, token, None, state)
        row = await bench.read(path)
        if row.state != state or row.won != {token}:
            return "does not show another connection what was just swapped in, with its mark"
        await bench.swap(path, bench.token(), state.target, None)
        if (await bench.read(path)).state is not None:
            return "shows another connection what was just removed"
    return None


async def _as_put(bench: Bench) -> Tried:
    now_ns = bench.runtime.wall_ns() // NS_PER_MS * NS_PER_MS
    metadata = Metadata(
        TimeToLive(ns=_HOUR_NS), now_ns, now_ns + _HOUR_NS, "text/plain", "Zstd", "203.0.113.42", "h\u00e9llo.txt", 3,
        {"build": "a/b", "Unicode": "\u2603"}, {"newer": [1, {"key": None}]},
    )
    tombstones = [(None, None), (TimeToIdle(ns=_HOUR_NS), now_ns + _HOUR_NS)]
    for payload in (b"a\x00b", b"", bytes(range(256)) * (_BYTES_MAX // 256)):
        path, token = bench.path("h\u00e9 \u2603%/+"), bench.token()
        state = Inline(metadata.with_facts(size=len(payload)), payload, token)
        await bench.rows.put_inline(path, token, state)
        if (await bench.read(path)).state != state:
            return f"does not give back an object of {len(payload)} bytes as it was written, with its metadata and its deadline"
    for expiration, deadline_ns in tombstones:
        path, token = bench.path(), bench.token()
        redirect = replace(bench.tombstone(path, token), expiration=expiration, deadline_ns=deadline_ns)
        await bench.swap(path, token, None, redirect)
        if (await bench.read(path)).state != redirect:
            return "does not give back a redirect as it was written, with its deadline"
    return None


async def _race(bench: Bench, share: float, racers: Callable[[str, ChangeId, bool], Awaitable[bool]], what: str) -> Tried:
    """Of many calls for one empty row at once, each of another token, one wrote and is told so; its result is shown."""
    for _ in bench.races(share):
        path, tokens = bench.path(), [bench.token() for _ in range(bench.sizes.racers)]
        answers = await at_once([partial(racers, path, token, bool(number % 2)) for number, token in enumerate(tokens)])
        won = [token for token, answer in zip(tokens, answers, strict=True) if answer]
        row = await bench.read(path)
        if len(won) > 1 or (not won and None not in answers):
            return f"told {len(won)} of {len(tokens)} {what} at once that they had won"
        if won and (row.state is None or row.state.token != won[0]):
            return f"shows another result than that of the one that won of {what} at once"
    return None


async def _one_winner(bench: Bench) -> Tried:
    return await _race(
        bench, 1.0, lambda path, token, other: bench.swap(path, token, None, bench.tombstone(path, token), other=other), "swaps"
    )


async def _one_creates(bench: Bench) -> Tried:
    def create(path: str, token: ChangeId, other: bool) -> Awaitable[bool]:
        only = Vacant(bench.runtime.wall_ns())
        return bench.swap(path, token, None, bench.inline(token), only, other=other)

    return await _race(bench, 0.3, create, "writes that want nothing to be there")


async def _refuses_over_another(bench: Bench) -> Tried:
    path, there = bench.path(), bench.token()
    state = bench.tombstone(path, there)
    await bench.swap(path, there, None, state)
    for expected in (None, f"{path}/{bench.token()}"):
        token = bench.token()
        if await bench.swap(path, token, expected, bench.tombstone(path, token)) or (await bench.read(path)).state != state:
            return "swaps over a redirect that is not the one that was expected"
    return None


async def _inline_spares(bench: Bench) -> Tried:
    path, there = bench.path(), bench.token()
    state = bench.tombstone(path, there)
    await bench.swap(path, there, None, state)
    token = bench.token()
    if await bench.rows.put_inline(path, token, bench.inline(token)) or (await bench.read(path)).state != state:
        return "writes a small object over a redirect"
    if await bench.rows.delete_inline(path, bench.token()) or (await bench.read(path)).state != state:
        return "removes a redirect as if it was a small object"
    return None


async def _won_once(bench: Bench) -> Tried:
    path, token, other = bench.path(), bench.token(), bench.token()
    state = bench.tombstone(path, token)
    await bench.swap(path, token, None, state)
    await bench.swap(path, other, state.target, None)
    if await bench.swap(path, token, None, state) or (await bench.read(path)).state is not None:
        return "lets a swap take effect again after somebody else removed its result"
    if await bench.rows.put_inline(path, token, bench.inline(token)):
        return "lets a token write again that has won before"
    return None


async def _refused_for_ever(bench: Bench) -> Tried:
    path, token = bench.path(), bench.token()
    if await bench.rows.settle(path, token):
        return "calls a change live that never took effect"
    if token not in (await bench.read(path)).refused:
        return "does not show another connection the mark that a token is refused"
    only = Vacant(bench.runtime.wall_ns())
    late = [
        bench.swap(path, token, None, bench.tombstone(path, token), other=True), bench.swap(path, token, None, bench.inline(token), only),
        bench.rows.put_inline(path, token, bench.inline(token)), bench.rows.delete_inline(path, token),
    ]  # fmt: skip
    took = [await each for each in late]
    return "lets a token take effect that was refused" if any(took) or (await bench.read(path)).state is not None else None


async def _settles_one_way(bench: Bench) -> Tried:
    """A change and its settling meet: both say the same, and what they say is shown."""
    for number in bench.races(0.3):
        path, token = bench.path(), bench.token()
        calls = [partial(bench.other_rows.settle, path, token) for _ in range(3)]
        at = number % 4  # whoever is sent first often arrives first
        calls.insert(at, partial(bench.swap, path, token, None, bench.tombstone(path, token)))
        lived = await at_once(calls)
        took = lived.pop(at)
        row = await bench.read(path)
        if (token in row.refused) == (row.state is not None):
            return "shows the result of a change that it has refused, or neither"
        if took is not None and took != (row.state is not None):
            return "tells a swap another outcome than the row shows"
        if row.state is None and any(lived):
            return "called a change live that it refused at the same moment"
    return None


async def _reserves(bench: Bench) -> Tried:
    """A swap over what is reserved, and somebody else's change at the same moment."""
    path, first, second, third = bench.path(), bench.token(), bench.token(), bench.token()
    if await bench.rows.reserve(path, first, bench.inline(second)):
        return "reserves what is not there"
    await bench.rows.put_inline(path, first, bench.inline(first))
    await bench.rows.reserve(path, second, bench.inline(first))
    await bench.rows.put_inline(path, third, bench.inline(third))
    late = await bench.swap(path, second, None, bench.tombstone(path, second), Still(bench.inline(first)))
    if late or (await bench.read(path)).state != bench.inline(third):
        return "swaps over what was not reserved any more"
    for number in bench.races(0.3):
        path, first, second, third = bench.path(), bench.token(), bench.token(), bench.token()
        seen: Inline | Tombstone = bench.inline(first) if number % 2 else bench.tombstone(path, first)
        target = seen.target if isinstance(seen, Tombstone) else None
        await bench.swap(path, first, None, seen)
        if not await bench.rows.reserve(path, second, seen):
            return "does not reserve what is there"
        calls = [
            partial(bench.swap, path, second, target, bench.tombstone(path, second), Still(seen)),
            partial(bench.swap, path, third, target, bench.inline(third), other=True),
        ]
        turned = number % 4 > 1  # whoever is sent first often arrives first
        answers = await at_once(calls[::-1] if turned else calls)
        took, replaced = answers[::-1] if turned else answers
        state = (await bench.read(path)).state
        if state is None or (took and replaced):
            return "let two changes of one object take effect"
        if replaced and not took and state.token != third:
            return "shows a conditional change that it refused"
    return None


async def _touches(bench: Bench) -> Tried:
    now_ns = bench.runtime.wall_ns() // NS_PER_MS * NS_PER_MS
    path, token = bench.path(), bench.token()
    seen = replace(bench.tombstone(path, token), expiration=TimeToIdle(ns=_HOUR_NS), deadline_ns=now_ns + _HOUR_NS)
    await bench.swap(path, token, None, seen)
    await bench.rows.touch(path, seen, now_ns + 2 * _HOUR_NS)
    await bench.rows.touch(path, seen, now_ns + _HOUR_NS // 2)
    state = (await bench.read(path)).state
    if state is None or state.deadline_ns != now_ns + 2 * _HOUR_NS:
        return "does not extend a deadline, or shortens one"
    other = bench.token()
    after = replace(bench.tombstone(path, other), expiration=seen.expiration, deadline_ns=seen.deadline_ns)
    await bench.swap(path, other, seen.target, after)
    if await bench.rows.touch(path, seen, now_ns + 3 * _HOUR_NS) or (await bench.read(path)).state != after:
        return "extends the deadline of another object than the one that was seen"
    return None


async def _lists(bench: Bench) -> Tried:
    """Small objects and redirects, in pages, in the order of their bytes; rows that hold only marks are left out."""
    below = bench.path("")
    tails = ("a!", "a", "a/", "a0", "aa", "A", "%2F", "+ ", "\u00e9", "e\u0301", "\uff5e", "\U0001f600", "\ufffe", "//", "z" * 900)
    targets: dict[str, str | None] = {}
    for number, tail in enumerate(tails):
        path, token = below + tail, bench.token()
        state = bench.tombstone(path, token) if number % 2 else bench.inline(token)
        await bench.swap(path, token, None, state)
        targets[path] = state.target if isinstance(state, Tombstone) else None
    await bench.swap(f"{below}gone", bench.token(), None, None)
    wanted, found, start = sorted(targets, key=str.encode), list[str](), below.encode()
    for _ in range(3 * len(tails)):
        page = await bench.other_rows.scan(below, start, _PAGE)
        found += [each.path for each in page.rows]
        if page.corrupt or page.next_start is None:
            break
        start = page.next_start
    if found != wanted:
        return f"lists {len(found)} of {len(wanted)} rows, or not in the order of their bytes"
    redirects, begin = list[tuple[str, str]](), below.encode()
    end = f"{below[:-1]}0".encode()
    for _ in range(3 * len(tails)):
        told = await bench.other_rows.redirects(begin, end, _PAGE)
        redirects += [(each.path, each.target) for each in told.redirects]
        if told.next_start is None:
            break
        begin = told.next_start
    if redirects != [(path, target) for path in wanted if (target := targets[path]) is not None]:
        return f"tells {len(redirects)} of {sum(map(bool, targets.values()))} redirects, or others"
    return None


async def _keeps_marks(bench: Bench) -> Tried:
    """The marks of the first probe, when all others are over."""
    row = await bench.read(bench.early)
    return None if len(row.won) == len(row.refused) == 1 else "forgot marks of this run, which must stay for two days"


REPLACED = "a change that was told no, or was undone, takes effect later: it replaces what was acknowledged since, and that is lost"
BOTH = "two changes are told that they took effect, and the blob of one of them is never cleaned up, or is deleted while it is live"
HIDDEN = "what was acknowledged is not found, or what was deleted comes back; the audit may call live blobs garbage"
DAMAGED = "objects are damaged, or expire at another time"
EXPIRES = "an object that is read expires before its time, or one that was replaced comes back"
UNLISTED = "the audit takes live blobs for garbage, and an export or a listing lacks objects"
CONDITION = "if_absent and if_revision lie: a caller overwrites what he was told he would not"

ROWS: Sequence[Probe[Bench]] = (
    Probe("a row", "an object is written, and read", NoticeKind.PROBLEM, "no store can be kept there", _basis),
    Probe("one winner", "of many swaps of one row at once, one wins", NoticeKind.PROBLEM, BOTH, _one_winner),
    Probe(
        "a refused change", "a change that was refused never takes effect, however late its requests come", NoticeKind.PROBLEM, REPLACED,
        _refused_for_ever,
    ),
    Probe(
        "a change and its settling", "of a change and the refusal of it at the same moment, one holds, and all are told so",
        NoticeKind.PROBLEM, REPLACED, _settles_one_way,
    ),
    Probe("a repeated change", "a swap that comes again has no second effect", NoticeKind.PROBLEM, REPLACED, _won_once),
    Probe(
        "what is expected", "a swap takes effect only over the redirect that it expects", NoticeKind.PROBLEM, BOTH, _refuses_over_another,
    ),
    Probe("small over large", "a small write leaves a redirect alone", NoticeKind.PROBLEM, BOTH, _inline_spares),
    Probe(
        "reads after writes", "what is written or removed is seen so at once, by others, too", NoticeKind.PROBLEM, HIDDEN, _seen_at_once,
    ),
    Probe(
        "if nothing is there", "of many writes at once that want nothing to be there, one wins", NoticeKind.PROBLEM, CONDITION,
        _one_creates,
    ),
    Probe(
        "if it is still there", "a write over what was reserved takes effect only while that is there", NoticeKind.PROBLEM, CONDITION,
        _reserves,
    ),
    Probe(
        "objects as written", "payload, metadata and deadline are given back as they were written", NoticeKind.PROBLEM,
        DAMAGED, _as_put,
    ),
    Probe(
        "deadlines", "a deadline is extended, never shortened, and only that of the object that was seen", NoticeKind.PROBLEM,
        EXPIRES, _touches,
    ),
    Probe(
        "listings of rows", "all rows are listed, each once, in the order of their bytes, in pages", NoticeKind.PROBLEM,
        UNLISTED, _lists,
    ),
    Probe(
        "marks", "the marks of a change are kept", NoticeKind.PROBLEM, REPLACED, _keeps_marks,
        "correct the rule that collects them, which 'tiered check' names",
    ),
)  # fmt: skip
"""The first is what all others need; the last looks at what it left."""
