"""A writer, as in tiered/protocol/writing.py, and the clean-up that recovery shares (tiered/protocol/finishing.py).

    large, single     start -> upload -> uploading -> swap -> wait -> (judge -> ask ->) clean-up
                      read, record              an upload that is a session, or a single request
    small, delete     start -> once -> (tombstone in the way:) change -> swap -> wait -> ...
                                    -> (no answer:) settle, tell
    with a condition  start -> (false:) tell; (a tombstone, or a large put:) record -> upload -> reserve -> swap -> ...
                                      (otherwise no entry:) reserve -> swap -> wait -> (judge -> ask ->) tell
                      `absent` reserves nothing: its swap says itself that nothing may be there
    clean-up          settle -> cancel -> old -> delete -> forget, or wait out the grace

At any check the lease may be held or have ended, whatever the log says. When it has ended, the writer stops, and
recovery handles what it leaves. A failed clean-up is the same as a crash. A crash is a turn that never comes.
"""

from __future__ import annotations

from collections.abc import Iterator

from docs.protocol import services
from docs.protocol.services import Step, exists, present, satisfies, settle, shows
from docs.protocol.state import NOBODY, Entry, Guards, Proc, Request, Scenario, State, Token, broken, move, send

UPLOADS = {"large": "session", "single": "single"}
WRITES = {"large": "blob", "single": "blob", "small": "inline", "delete": "nothing"}
WRITERS = frozenset(WRITES)


def entry_of(p: Proc) -> Entry:
    return Entry(p.name, UPLOADS.get(p.kind, "nothing"), p.old)


def _record(s: State, p: Proc, scenario: Scenario) -> State:
    entry = entry_of(p)
    t = s._replace(entries=s.entries | {entry})
    return send(t, Request("record", p.name, entry.old, entry.upload)) if scenario.echoes else t


def tell(s: State, k: int, p: Proc, answer: str, then: Proc) -> State:
    """Answers the caller. `over`: the write may have taken effect, and will not any more."""
    superseded = not p.only and any(not is_conditional(s, token) for token in s.effects[p.floor :])
    explained = p.name in s.effects or superseded or (p.kind == "delete" and not p.only and not (s.target or s.inline))
    if answer == "ok" and not explained:
        s = broken(s, f"FALSE-OK: {p.name} is told ok, had no effect, and nobody else wrote since it began")
    if answer == "no" and p.name in s.effects:
        s = broken(s, f"FALSE-NO: {p.name} is told that nothing happened, and it took effect")
    if answer == "false" and p.name in s.effects:
        s = broken(s, f"FALSE-NO: {p.name} is told that its condition is false, and it took effect")
    if answer == "false" and satisfies(s, p):
        s = broken(s, f"FALSE-NO: {p.name} is told that its condition is false, and it is true")
    return move(s, k, then._replace(answer=answer))


def is_conditional(s: State, token: Token) -> bool:
    return any(p.name == token and p.only for p in s.procs)


def hear(g: Guards, s: State, k: int, ok: bool) -> State:
    """Handles the answer to the request that process `k` waits for."""
    p = s.procs[k]
    match p.pc, ok:
        case "once", True:
            return tell(s, k, p, "ok", p.ended())
        case "once", False:
            return move(s, k, p._replace(pc="change"))
        case "uploading", True:
            return move(s, k, p._replace(pc=_commit(p)))
        case "reserving", True:
            return move(s, k, p._replace(pc="swap"))
        case "uploading", False:
            return tell(s, k, p, "no", p._replace(pc="settle"))
        case "wait", True:
            return tell(s, k, p, "ok", p.ended() if p.bare else after_settle(p, g, live=True))
        case _ if not g.settle_before_answer and not g.row_before_answer:
            return tell(s, k, p, "ok", p.ended() if p.bare else p._replace(pc="settle"))  # published: a lost race is no error
        case _:
            return move(s, k, p._replace(pc="judge"))


def writer(s: State, k: int, p: Proc, g: Guards, scenario: Scenario) -> Iterator[Step]:
    me, upload = p.name, UPLOADS.get(p.kind)
    match p.pc:
        case "start" if p.only and not satisfies(s, p):
            step = f"{me}: reads {s.target or s.inline or 'nothing'}; caller told that its condition is false"
            yield step, tell(s, k, p, "false", p.ended())
        case "start" if p.only and upload is None:
            read = p._replace(pc=_commit(p), old=present(s, g), floor=len(s.effects), bare=not present(s, g))
            recorded = s if read.bare else _record(s, read, scenario)
            yield f"{me}: reads {s.target or s.inline or 'nothing'}{'' if read.bare else ', records'}", move(recorded, k, read)
        case "start" if upload is None:
            once = p._replace(pc="once", floor=len(s.effects))
            yield f"{me}: sends {_verb(p)}", move(send(s, _inline(p)), k, once)
        case "start":
            opened = s._replace(sessions=s.sessions | {me}) if upload == "session" else s
            read = p._replace(pc="upload" if g.record_before_finalise else "unrecorded", old=present(s, g), floor=len(s.effects))
            recorded = _record(opened, read, scenario) if g.record_before_finalise else opened
            yield f"{me}: reads {read.old or 'no tombstone'}{', records' if g.record_before_finalise else ''}", move(recorded, k, read)
        case "unrecorded":
            early = send(s, Request("upload", me, writes=UPLOADS[p.kind]))
            yield f"{me}: sends the end of its upload", move(early, k, p._replace(pc="record"))
        case "record":
            yield f"{me}: records", move(_record(s, p, scenario), k, p._replace(pc="uploading"))
        case "upload":
            if g.held_before_finalise:
                yield f"{me}: its lease has ended before its upload; caller told no", tell(s, k, p, "no", p.ended())
            if not (g.held_before_finalise and p.lapsed):
                sent = send(s, Request("upload", me, writes=UPLOADS[p.kind]))
                yield f"{me}: sends the end of its upload", move(sent, k, p._replace(pc="uploading"))
        case "uploading":
            if not g.record_before_finalise and exists(s, me):
                yield f"{me}: finds its upload done", move(s, k, p._replace(pc=_commit(p)))
            late = p._replace(pc="settle", late=p.kind == "single")
            yield f"{me}: no answer to its upload; caller told no", tell(s, k, p, "no", late)
        case "once":
            yield from _without_answer(s, k, p, g)
        case "change":
            read = p._replace(pc="swap", old=present(s, g))
            yield f"{me}: reads {read.old or 'no tombstone'}, records", move(_record(s, read, scenario), k, read)
        case "reserve":
            yield f"{me}: reserves {p.wants}", move(send(s, Request("reserve", me, p.wants)), k, p._replace(pc="reserving"))
        case "reserving":
            yield f"{me}: no answer to its reservation", move(s, k, p._replace(pc="judge"))
        case "swap":
            if not p.bare:
                yield f"{me}: its lease has ended before its swap; caller told no", tell(s, k, p, "no", p.ended())
            if g.age_bound and p.aged:
                yield f"{me}: is too old to swap; caller told no", tell(s, k, p, "no", p.ended() if p.bare else p._replace(pc="settle"))
            else:
                yield f"{me}: sends its swap", move(send(s, _swap(s, p)), k, p._replace(pc="wait"))
        case "wait":
            if not p.again and not (g.age_bound and p.aged):
                yield f"{me}: sends its swap again", move(send(s, _swap(s, p)), k, p._replace(again=True))
            yield f"{me}: no answer to its swap", move(s, k, p._replace(pc="judge"))
        case "judge" | "ask":
            yield from _judge(s, k, p, g, scenario)
        case _:
            yield from clean_up(s, k, p, g, entry_of(p), p.late)


def _without_answer(s: State, k: int, p: Proc, g: Guards) -> Iterator[Step]:
    """Yields the steps after an inline write that was sent and not answered."""
    if not g.inline_once and not p.again:
        yield f"{p.name}: sends {_verb(p)} again", move(send(s, _inline(p)), k, p._replace(again=True))
    if not g.settle_unknown_inline:
        yield f"{p.name}: no answer; caller told that it is over", tell(s, k, p, "over", p.ended())
        return
    t, live = settle(s, g, p.name)
    if live:
        yield f"{p.name}: no answer; settles {p.name}, live; caller told ok", tell(t, k, p, "ok", p.ended())
    else:
        then = p._replace(pc="absent") if p.kind == "delete" else p.ended()
        step = f"{p.name}: no answer; settles {p.name}, refused"
        yield (step, move(t, k, then)) if p.kind == "delete" else (f"{step}; caller told that it is over", tell(t, k, p, "over", then))


def _judge(s: State, k: int, p: Proc, g: Guards, scenario: Scenario) -> Iterator[Step]:
    """Yields step 4 of a swap that was not told ok."""
    if any(q.kind == "ask" for q in s.procs):
        yield f"{p.name}: cannot find out in time; caller told unknown", tell(s, k, p, "unknown", p.ended())
    if p.pc == "judge" and p.only and not g.false_after_refusal and not satisfies(s, p) and not shows(s, g, p.name):
        then = p.ended() if p.bare else p._replace(pc="settle")
        yield f"{p.name}: reads the row; caller told that its condition is false", tell(s, k, p, "false", then)
        return
    if p.pc == "judge" and g.settle_before_answer:
        t, live = settle(s, g, p.name)
        if live:
            yield f"{p.name}: settles {p.name}, live; caller told ok", tell(t, k, p, "ok", _after(p, g, live=True))
        elif not g.row_before_answer:
            yield f"{p.name}: settles {p.name}, refused; caller told no", tell(t, k, p, "no", _after(p, g, live=False))
        else:
            yield f"{p.name}: settles {p.name}, refused", move(t, k, p._replace(pc="ask"))
        return
    won, superseded = f"w:{p.name}" in s.marks, s.target not in (NOBODY, p.old)
    superseded &= not (g.condition_in_answer and p.only) and not (g.condition_shown and is_conditional(s, s.target))
    if won or superseded or shows(s, g, p.name):
        word, answer = "won" if won else f"superseded by {s.target}", "ok"
    else:
        word, answer = "neither won nor superseded", "over" if g.young_marks_answer and p.aged else "no"
        if p.only and answer == "no" and not satisfies(s, p):
            word, answer = f"{word}; the condition is false", "false"
    then = _after(p, g, live=False) if g.settle_before_answer or p.bare else p._replace(pc="settle")
    yield f"{p.name}: reads the row, {word}; caller told {answer}", tell(s, k, p, answer, then)


def clean_up(s: State, k: int, p: Proc, g: Guards, entry: Entry, may_land_late: bool) -> Iterator[Step]:
    """Yields steps 5 and 6, for a writer and for recovery."""
    me, token = p.name, entry.token
    match p.pc:
        case "absent":  # a deletion was refused: is anything left to delete?
            answer = "over" if s.target or s.inline else "ok"
            yield f"{me}: reads the row; caller told {answer}", tell(s, k, p, answer, p.ended())
        case "settle":
            t, live, word = look(s, g, token)
            yield f"{me}: {word}", move(t, k, after_settle(p, g, live, entry))
        case "cancel":
            yield f"{me}: cancels the upload {token}", move(s._replace(sessions=s.sessions - {token}), k, _next(p, entry, "cancel"))
        case "old":
            t, live, word = look(s, g, entry.old)
            doomed = p._replace(gone=p.gone if live else (*p.gone, entry.old))
            yield f"{me}: {word}", move(t, k, _next(doomed, entry, "old"))
        case "delete":
            yield f"{me}: deletes {', '.join(p.gone)}", move(services.delete(s, g, p.gone), k, p._replace(pc="forget"))
        case "forget":
            done = p._replace(pc="start", gone=(), entry=None, aged=False) if p.kind == "recover" else p.ended()
            if g.late_cleanup and may_land_late and token in p.gone and not entry.waits:
                waiting = s.entries - {entry} | {entry._replace(waits=True)} if entry in s.entries else s.entries
                yield f"{me}: leaves {token} to wait out the grace", move(s._replace(entries=waiting), k, done)
            else:
                rest = frozenset(e for e in s.entries if e.token != token)
                yield f"{me}: forgets {token}", move(s._replace(entries=rest), k, done)


def look(s: State, g: Guards, token: Token) -> tuple[State, bool, str]:
    """Settles; if that guard is off, only reads the row. Returns whether the token is live, and says so in words."""
    if g.settle_before_delete:
        t, live = settle(s, g, token)
        return t, live, f"settles {token}, {'live' if live else 'refused'}"
    live = shows(s, g, token)
    return s, live, f"sees {token} {'in' if live else 'not in'} the row"


def after_settle(p: Proc, g: Guards, live: bool, entry: Entry | None = None) -> Proc:
    entry = entry or entry_of(p)
    if live or entry.upload == "nothing":
        return _next(p, entry, "cancel")
    doomed = p._replace(gone=(entry.token,))
    return doomed._replace(pc="cancel") if entry.upload == "session" and g.cancel_session else _next(doomed, entry, "cancel")


def _after(p: Proc, g: Guards, live: bool) -> Proc:
    return p.ended() if p.bare else after_settle(p, g, live)


def _next(p: Proc, entry: Entry, done: str) -> Proc:
    """Returns where the clean-up goes on. A step with nothing to do is left out."""
    if done == "cancel" and entry.old:
        return p._replace(pc="old")
    return p._replace(pc="delete" if p.gone else "forget")


def _verb(p: Proc) -> str:
    return "delete_inline" if p.kind == "delete" else "put_inline"


def _inline(p: Proc) -> Request:
    return Request("delete" if p.kind == "delete" else "put", p.name)


def _commit(p: Proc) -> str:
    return "reserve" if p.only == "revision" else "swap"


def _swap(s: State, p: Proc) -> Request:
    return Request("swap", p.name, p.old, WRITES[p.kind], p.only, s.now if p.only == "absent" else 0)
