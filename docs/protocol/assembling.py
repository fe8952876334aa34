"""A multipart upload: its entry waits without an owner, for days, until somebody completes it.

    complete  the log -> the row -> claim -> upload -> swap -> wait -> (no answer, or a conflict: the row again)
              -> seal -> clean-up
                                          -> (the service refuses: give the claim back)
    recover   seal -> settle -> ... -> forget (others.py): it gives the upload up, or finishes it if it is live

The entry is *assembling* until it is *sealed*. Both are compare-and-swaps on its whole value. Anybody may complete an
upload whose entry is assembling, any number of times, even at once: the token of all of these swaps is one, so one of
them takes effect, once. The token is refused only once the entry is sealed, which nothing undoes, and by whoever
replaces the upload after it won. Its marks tell all of that to whoever claims the entry, while they are there. They are
there for two days. So a claim is made, and a swap sent, only within a day of the first claim: before that, nothing can
have won. Afterwards the upload can only be given up. How old the upload was at its first claim does not matter.

An attempt whose upload was refused has sent no swap. It gives its claim back: the entry becomes what it was, but for
the number of attempts. Without that number two claims may be one value, and the first, given back late, would undo the
second.

Built as `tiered/protocol/assembling.py`. Left out here: the list of parts and its marks; who appends them, which is
appends.py; and the first record, which is sent once: nobody learns of an upload whose record was not answered. From the
seal on, all is as with any change, for a feed, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from docs.protocol.services import Step, exists, present, shows
from docs.protocol.state import UPLOAD, Entry, Guards, Proc, Request, State, broken, move, send
from docs.protocol.writer import clean_up


def complete(s: State, k: int, p: Proc, g: Guards) -> Iterator[Step]:
    """One attempt to complete the upload. To try again is the same as another attempt beside it."""
    me = p.name
    match p.pc:
        case "start":
            yield f"{me}: reads the log", move(s, k, p._replace(pc="row", entry=entry_of_upload(s)))
        case "row":
            yield from _read(s, k, p, g)
        case "claim":
            yield _claim(s, k, p, g)
        case "upload":
            sent = send(s, Request("upload", UPLOAD, writes="session"))
            yield f"{me}: completes the upload", move(sent, k, p._replace(pc="uploading"))
            yield f"{me}: is refused; caller told to try again", _tell(s, k, p, "again", p._replace(pc="give back"))
        case "give back":
            yield f"{me}: gives its claim back", move(_given_back(s, p), k, p.ended())
        case "uploading":
            if exists(s, UPLOAD):
                yield f"{me}: finds its upload done", move(s, k, p._replace(pc="swap"))
            yield f"{me}: no answer to its upload; caller told to try again", _tell(s, k, p, "again", p.ended())
        case "swap":
            if g.age_bound and p.aged:
                yield f"{me}: is too old to swap; caller told to try again", _tell(s, k, p, "again", p.ended())
            else:
                yield f"{me}: sends its swap", move(send(s, _swap(p)), k, p._replace(pc="wait"))
        case "wait":
            if not p.again and not (g.age_bound and p.aged):
                yield f"{me}: sends its swap again", move(send(s, _swap(p)), k, p._replace(again=True))
            yield f"{me}: no answer to its swap", move(s, k, p._replace(pc="reread"))
        case "reread":
            yield _reread(s, k, p, g)
        case "seal":
            yield _seal(s, k, p)
        case _:
            assert p.entry is not None
            yield from clean_up(s, k, p, g, p.entry, False)


def hear_completer(s: State, k: int, ok: bool) -> State:
    """Handles the answer to the request that process `k` waits for."""
    p = s.procs[k]
    if p.pc == "uploading":
        return move(s, k, p._replace(pc="swap")) if ok else _tell(s, k, p, "again", p.ended())
    return _tell(s, k, p, "ok", p._replace(pc="seal")) if ok else move(s, k, p._replace(pc="reread"))


def entry_of_upload(s: State) -> Entry | None:
    return next((entry for entry in s.entries if entry.token == UPLOAD), None)


def sealed(s: State, g: Guards, entry: Entry) -> tuple[State, Entry]:
    """The entry as whoever gives the upload up, or finishes it, holds it: nobody completes it from now on."""
    if not entry.assembling or not g.seal_before_refusal:
        return s, entry
    plain = entry._replace(assembling=False, tries=0)
    return s._replace(entries=s.entries - {entry} | {plain}), plain


def _read(s: State, k: int, p: Proc, g: Guards) -> Iterator[Step]:
    """What the row says of the upload: it has won, it was refused, or it may be tried."""
    entry = p.entry
    if f"w:{UPLOAD}" in s.marks or shows(s, g, UPLOAD):
        then = p.ended() if entry is None else p._replace(pc="seal")
        yield f"{p.name}: reads the row, {UPLOAD} has won; caller told ok", _tell(s, k, p, "ok", then)
    elif f"r:{UPLOAD}" in s.marks:
        yield f"{p.name}: reads the row, {UPLOAD} was refused; caller told no", _tell(s, k, p, _refused(s, g), p.ended())
    elif entry is None or not entry.assembling or (g.first_claim_young and entry.over):
        yield f"{p.name}: reads the row, no mark; caller told nothing", _tell(s, k, p, "unknown", p.ended())
    else:
        read = p._replace(pc="claim", old=present(s, g))
        yield f"{p.name}: reads {read.old or 'no tombstone'}", move(s, k, read)


def _claim(s: State, k: int, p: Proc, g: Guards) -> Step:
    if p.entry not in s.entries:
        return f"{p.name}: claims it in vain; caller told to try again", _tell(s, k, p, "again", p.ended())
    mine = p.entry._replace(old=p.old, claimed=True, tries=p.entry.tries + g.count_in_claim)
    claimed = s._replace(entries=s.entries - {p.entry} | {mine})
    pc = "swap" if exists(s, UPLOAD) else "upload"
    return f"{p.name}: claims it over {p.old or 'nothing'}", move(claimed, k, p._replace(pc=pc, entry=mine, before=p.entry))


def _given_back(s: State, p: Proc) -> State:
    if p.entry is None or p.before is None or p.entry not in s.entries:
        return s
    return s._replace(entries=s.entries - {p.entry} | {p.before._replace(tries=p.entry.tries)})


def _reread(s: State, k: int, p: Proc, g: Guards) -> Step:
    if f"w:{UPLOAD}" in s.marks or shows(s, g, UPLOAD):
        return f"{p.name}: reads the row, {UPLOAD} has won; caller told ok", _tell(s, k, p, "ok", p._replace(pc="seal"))
    if f"r:{UPLOAD}" in s.marks:
        return f"{p.name}: reads the row, {UPLOAD} was refused; caller told no", _tell(s, k, p, _refused(s, g), p.ended())
    return f"{p.name}: reads the row, neither; caller told to try again", _tell(s, k, p, "again", p.ended())


def _refused(s: State, g: Guards) -> str:
    """A won mark may have been collected before the refused one of the same token."""
    return "unknown" if g.young_marks_answer and s.aged else "no"


def _seal(s: State, k: int, p: Proc) -> Step:
    assert p.entry is not None
    if p.entry not in s.entries:
        return f"{p.name}: leaves the rest to others", move(s, k, p.ended())
    plain = p.entry._replace(assembling=False, tries=0)
    t = s._replace(entries=s.entries - {p.entry} | {plain})
    return f"{p.name}: seals it", move(t, k, p._replace(pc="settle", entry=plain))


def _tell(s: State, k: int, p: Proc, answer: str, then: Proc) -> State:
    if answer == "ok" and UPLOAD not in s.effects:
        s = broken(s, f"FALSE-OK: {p.name} is told ok, and {UPLOAD} had no effect")
    if answer == "no" and UPLOAD in s.effects:
        s = broken(s, f"FALSE-NO: {p.name} is told that nothing happened, and {UPLOAD} took effect")
    return move(s, k, then._replace(answer=answer))


def _swap(p: Proc) -> Request:
    return Request("swap", UPLOAD, p.old, "blob")
