"""What the services do, each operation in one atomic step: the row, the bucket, and what happens by itself.

    swap      conflict iff a mark of the token exists, or a tombstone is present that targets another than `expected`
              and with a condition unless the state is reserved for the token, or unless nothing that lives is there
    reserve   iff the row shows what is asked for: its state is reserved for the token, until the state changes
    settle    live iff the row shows the token; otherwise it is refused from now on
    inline    conflict iff a tombstone is present or a mark of the token exists
    upload    a blob becomes visible
    time      deadlines pass, expired rows and blobs go, two days pass, old marks go
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from docs.protocol.state import NOBODY, UPLOAD, Entry, Guards, Proc, Request, Scenario, State, Token, broken, expired

Step = tuple[str, State]


def present(s: State, g: Guards) -> Token:
    """Returns the target of the row's tombstone, as a write sees it."""
    return NOBODY if not g.presence and expired(s.until, s.now) else s.target


def shows(s: State, g: Guards, token: Token) -> bool:
    return token != NOBODY and token in (present(s, g), s.inline)


def marked(s: State, g: Guards, token: Token) -> bool:
    return (g.refused_in_swap and f"r:{token}" in s.marks) or (g.won_in_swap and f"w:{token}" in s.marks)


def mark(s: State, verdict: str, token: Token) -> State:
    name = f"{verdict}:{token}"
    fresh = s.fresh | {name} if s.aged else s.fresh
    return s if name in s.marks and fresh == s.fresh else s._replace(marks=s.marks | {name}, fresh=fresh)


def swap(s: State, g: Guards, r: Request, lives: int) -> tuple[State, bool]:
    if marked(s, g, r.token):
        return s, False
    if not g.won_in_swap and shows(s, g, r.token):
        return s, True  # what it would write is there already
    if present(s, g) not in (NOBODY, r.expected):
        return s, False
    if r.only == "revision" and g.reserved_in_swap and r.token not in s.reserved:
        return s, False
    if r.only == "absent" and g.absent_in_swap and (s.target or s.inline) and not expired(s.until, r.at):
        return s, False
    t = _write(s, g, r.token, r.writes, lives)
    return (mark(t, "w", r.token) if g.won_in_swap else t), True


def write_inline(s: State, g: Guards, r: Request) -> tuple[State, bool]:
    if marked(s, g, r.token) or present(s, g) != NOBODY:
        return s, False
    return _write(s, g, r.token, "inline" if r.kind == "put" else "nothing", 0), True


def reserve(s: State, r: Request) -> tuple[State, bool]:
    if r.expected not in (s.target, s.inline):
        return s, False
    return s._replace(reserved=s.reserved | {r.token}), True


def satisfies(s: State, p: Proc, *, mortal: bool = True) -> bool:
    """Tells whether the row satisfies the condition of the write. `mortal` False: an expired object counts as there."""
    shown = NOBODY if mortal and expired(s.until, s.now) else s.target or s.inline
    return shown == p.wants


def settle(s: State, g: Guards, token: Token) -> tuple[State, bool]:
    return (s, True) if shows(s, g, token) else (mark(s, "r", token), False)


def _write(s: State, g: Guards, token: Token, what: str, lives: int) -> State:
    target, inline = token if what == "blob" else NOBODY, token if what == "inline" else NOBODY
    writer = next((p for p in s.procs if p.name == token), None)
    told = writer.answer if writer else ""
    if token == UPLOAD and token in s.effects:
        s = broken(s, f"LATE: {token} takes effect a second time")
    if writer and writer.only and not satisfies(s, writer, mortal=writer.only == "absent"):
        there = s.target or s.inline or "nothing"
        s = broken(s, f"BLIND: {token} takes effect over {there}, and its condition was {writer.wants or 'nothing'}")
    if g.write_ends_reservation:
        s = s._replace(reserved=frozenset())
    if told in ("ok", "no", "false", "over") and (target, inline) != (s.target, s.inline):
        s = broken(s, f"LATE: {token} takes effect after its caller was told {told}")
    return s._replace(target=target, inline=inline, until=lives if what == "blob" else 0, effects=(*s.effects, token))


# --- the bucket ----------------------------------------------------------------------------------


def exists(s: State, blob: Token) -> bool:
    return any(name == blob for name, _ in s.blobs)


def upload(s: State, g: Guards, r: Request, lives: int) -> tuple[State, bool]:
    """The end of an upload arrives."""
    if r.writes == "session":
        if r.token not in s.sessions:
            return s, False
        s = s._replace(sessions=s.sessions - {r.token})
    elif exists(s, r.token):
        if g.create_only:
            return s, False
        s = s._replace(blobs=frozenset(b for b in s.blobs if b[0] != r.token))
    return s._replace(blobs=s.blobs | {(r.token, lives)}), True


def delete(s: State, g: Guards, gone: tuple[Token, ...]) -> State:
    if g.settle_before_delete:
        for blob in gone:
            if f"r:{blob}" not in s.marks and not s.aged:
                s = broken(s, f"UNSETTLED: {blob} is deleted, and its token was not refused")
    return s._replace(blobs=frozenset(b for b in s.blobs if b[0] not in gone))


# --- by itself -----------------------------------------------------------------------------------


def time(s: State, scenario: Scenario) -> Iterator[Step]:
    if scenario.mortal and s.now == 0:
        yield "time: the deadline passes", s._replace(now=1)
    if expired(s.until, s.now):
        yield "row: the expired object is collected", s._replace(target=NOBODY, inline=NOBODY, until=0)
    for blob, until in s.blobs:
        if expired(until, s.now):
            yield f"bucket: its lifecycle deletes the expired blob {blob}", s._replace(
                blobs=s.blobs - {(blob, until)}, lapsed=s.lapsed | {blob})  # fmt: skip
    if scenario.ages and not s.aged:
        # What was under way has arrived by now, or never will.
        procs = tuple(p if p.pc in ("start", "end") and not p.answer else p._replace(aged=True) for p in s.procs)
        entries = frozenset(entry._replace(over=entry.claimed) for entry in s.entries)
        yield "time: two days pass", s._replace(aged=True, procs=procs, net=(), entries=entries)
    if s.aged:
        for name in s.marks - s.fresh:
            yield f"row: the old mark {name} is collected", s._replace(marks=s.marks - {name})


def network(s: State, g: Guards, scenario: Scenario, hear: Callable[[State, int, bool], State]) -> Iterator[Step]:
    """Lets any request arrive. The process that waits for its answer gets it (`hear`), or does not.

    A request that never arrives just stays.
    """
    lives = 1 if scenario.mortal else 0
    for i, r in enumerate(s.net):
        if i and s.net[i - 1] == r:
            continue
        rest = s._replace(net=s.net[:i] + s.net[i + 1 :])
        match r.kind:
            case "swap":
                waits, (t, ok) = "wait", swap(rest, g, r, lives)
                word = f"swap {r.token} ({r.expected or 'nothing'} -> {r.token if r.writes != 'nothing' else 'nothing'})"
            case "upload":
                if scenario.twice and not r.expected:
                    copy = r._replace(expected="copy")
                    rest = rest._replace(net=tuple(sorted((*rest.net, copy))))
                elif r.expected and not exists(s, r.token):
                    continue  # the copy comes soon: assumed never to arrive after the blob was deleted
                waits, (t, ok) = "uploading", upload(rest, g, r, lives)
                word = f"end of upload {r.token}"
            case "record":
                others = frozenset(e for e in s.entries if e.token != r.token)
                entry = Entry(r.token, r.writes, r.expected)
                yield f"network: the first record of {r.token} arrives late", rest._replace(entries=others | {entry})
                continue
            case "reserve":
                waits, (t, ok) = "reserving", reserve(rest, r)
                word = f"reservation of {r.expected} for {r.token}"
            case _:
                waits, (t, ok) = "once", write_inline(rest, g, r)
                word = f"{r.kind}_inline {r.token}"
        for k, p in enumerate(s.procs):
            if p.token == r.token and p.pc == waits and r.expected != "copy":
                yield f"network: {word} {'takes effect' if ok else 'conflicts'}; {p.name} is told", hear(t, k, ok)
        if ok:
            yield f"network: {word} takes effect; no answer", t
