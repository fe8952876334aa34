"""All processes except the writers: recovery, readers, touches, askers for an outcome, and an audit.

    recover   any entry, at any moment -> settle -> ... -> forget (writer.py), then the next; may stop anywhere, restart
    read      the row -> the blob -> (it is gone:) the row again                              tiered/protocol/reading.py
    touch     the row -> the blob's deadline -> the row's, if it still shows what was read    tiered/protocol/reading.py
    ask       the log -> the row with its marks: what became of the change `old`              TieredStorage.outcome
    audit     lists the blobs, looks at no entry -> the row -> settles and deletes what the row does not name
"""

from __future__ import annotations

from collections.abc import Iterator

from docs.protocol import services
from docs.protocol.assembling import sealed
from docs.protocol.services import Step, exists
from docs.protocol.state import NOBODY, Guards, Proc, State, Token, broken, expired, move
from docs.protocol.writer import after_settle, clean_up, look


def recover(s: State, k: int, p: Proc, g: Guards) -> Iterator[Step]:
    if p.pc != "start":
        assert p.entry is not None, "it works on what it claimed"
        yield from clean_up(s, k, p, g, p.entry, True)
        yield f"{p.name}: stops", move(s, k, Proc("recover", p.name))
        return
    for entry in s.entries:
        if entry.assembling:
            t, plain = sealed(s, g, entry)
            yield f"{p.name}: gives {entry.token} up", move(t, k, p._replace(pc="settle", entry=plain))
            continue
        t = _grace_passes(s, g, entry.token) if entry.waits else s
        t, live, word = look(t, g, entry.token)
        claimed = after_settle(p._replace(entry=entry), g, live, entry)
        yield f"{p.name}: claims {entry.token}{' after the grace' if entry.waits else ''}, {word}", move(t, k, claimed)


def _grace_passes(s: State, g: Guards, token: Token) -> State:
    """The late-upload grace passes. The assumptions about time say what is then true.

    The change's upload has arrived or never will, and its owner's lease has ended.
    """
    net = tuple(r for r in s.net if (r.kind, r.token) != ("upload", token))
    owners = tuple(p._replace(lapsed=True) if p.name == token and p.pc == "upload" else p for p in s.procs)
    return s._replace(net=net, procs=owners if g.held_before_finalise else s.procs)


def read(s: State, k: int, p: Proc, g: Guards) -> Iterator[Step]:
    """A reader. `old`: the target that it follows."""
    if p.pc == "blob":
        if exists(s, p.old):
            yield f"{p.name}: opens {p.old}", move(_found(s, p, p.old), k, p.ended())
        elif g.reread:
            yield f"{p.name}: {p.old} is gone", move(s, k, p._replace(pc="again"))
        else:
            yield f"{p.name}: {p.old} is gone; caller told that it is lost", move(_lost(s, p), k, p.ended())
        return
    q = p._replace(floor=len(s.effects) - 1) if p.pc == "start" else p
    if expired(s.until, s.now) or not (s.target or s.inline):
        yield f"{p.name}: reads the row, nothing", move(s, k, p.ended())
    elif s.inline:
        yield f"{p.name}: reads the row, {s.inline}", move(_found(s, q, s.inline), k, p.ended())
    elif p.pc == "again" and s.target == p.old:
        yield f"{p.name}: reads the row, {p.old} again; caller told that it is lost", move(_lost(s, p), k, p.ended())
    else:
        yield f"{p.name}: reads the row, it names {s.target}", move(s, k, q._replace(pc="blob", old=s.target))


def _found(s: State, p: Proc, what: Token) -> State:
    if what in s.effects[p.floor :]:
        return s
    return broken(s, f"STALE READ: {p.name} finds {what}, which was replaced before it began")


def _lost(s: State, p: Proc) -> State:
    return broken(s, f"FALSE-LOSS: {p.name} is told that {p.old} is lost, and it was only replaced")


def touch(s: State, k: int, p: Proc, g: Guards) -> Iterator[Step]:
    """A touch: it sets a later deadline for what a read has found. `old`: what it saw."""
    first, second = ("blob", "row") if g.touch_blob_first else ("row", "blob")
    if p.pc == "start":
        if s.target and s.until == 1 and not expired(s.until, s.now):
            yield f"{p.name}: reads {s.target}", move(s, k, p._replace(pc=first, old=s.target))
        return
    seen, after = p.old, p._replace(pc=second) if p.pc == first else p.ended()
    if p.pc == "blob":
        if exists(s, seen):
            blobs = frozenset((name, 2 if name == seen else until) for name, until in s.blobs)
            yield f"{p.name}: extends the blob {seen}", move(s._replace(blobs=blobs), k, after)
        else:
            yield f"{p.name}: the blob {seen} is gone", move(s, k, p.ended())
    elif not g.touch_if_shown or s.target == seen:
        yield f"{p.name}: extends the row, which names {seen}", move(s._replace(target=seen, inline=NOBODY, until=2), k, after)
    else:
        yield f"{p.name}: the row has changed", move(s, k, p.ended())


def ask(s: State, k: int, p: Proc, g: Guards) -> Iterator[Step]:
    """An asker: what became of the change `old`, whose caller was told that its outcome is unknown?"""
    k_of, whose = next((i, q) for i, q in enumerate(s.procs) if q.name == p.old)
    if p.pc == "start":
        if whose.answer == "unknown":
            logged = any(e.token == p.old for e in s.entries)
            yield f"{p.name}: reads the log, {p.old} is {'there' if logged else 'gone'}", move(s, k, p._replace(pc="row"))
        return
    if p.old in (s.target, s.inline) or f"w:{p.old}" in s.marks:
        t = s if p.old in s.effects else broken(s, f"FALSE-OK: {p.name} is told that {p.old} took effect, and it did not")
        yield f"{p.name}: reads the row; told that {p.old} took effect", move(t, k, p.ended())
    elif f"r:{p.old}" in s.marks and not (g.young_marks_outcome and whose.aged):
        t = s if p.old not in s.effects else broken(s, f"FALSE-NO: {p.name} is told that {p.old} had no effect, and it took effect")
        told = move(t, k_of, whose._replace(answer="no"))
        yield f"{p.name}: reads the row; told that {p.old} had no effect", move(told, k, p.ended())
    else:
        yield f"{p.name}: reads the row; told nothing", move(s, k, p.ended())


def audit(s: State, k: int, p: Proc, g: Guards) -> Iterator[Step]:
    match p.pc:
        case "start":
            blobs = tuple(sorted(name for name, _ in s.blobs))
            yield f"{p.name}: lists {', '.join(blobs) or 'nothing'}", move(s, k, p._replace(pc="row", gone=blobs))
        case "row":
            orphans = tuple(name for name in p.gone if name != s.target)
            yield f"{p.name}: reads the row", move(s, k, p._replace(pc="settle", gone=orphans) if orphans else p.ended())
        case "settle":
            t, live, word = look(s, g, p.gone[0])
            yield f"{p.name}: {word}", move(t, k, _next(p) if live else p._replace(pc="delete"))
        case "delete":
            yield f"{p.name}: deletes {p.gone[0]}", move(services.delete(s, g, p.gone[:1]), k, _next(p))


def _next(p: Proc) -> Proc:
    """The audit at its next orphan."""
    return p._replace(pc="settle", gone=p.gone[1:]) if p.gone[1:] else p.ended()
