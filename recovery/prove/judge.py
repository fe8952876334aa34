"""What may be seen of an object, by what the callers of all processes were told. `make demo` judges by it, too.

    {"at":…,"begin":ID,"object":…,"kind":…,"digest":…}    in a journal, before a call; some have a condition or a source
    {"at":…,"end":ID,"answer":…}                          after its answer; a read adds "digest" and "by"

It finds these flaws:

    lost        a value is there or was read, although an acknowledged write replaced it; or an acknowledged write with
                a condition replaced something else
    false_no    a call took effect although its caller was told that it never will
    mixed_up    no call wrote these bytes there, or another one than the metadata say

It knows nothing of the store, of which it uses no code. Times are in seconds, by a clock that all processes share.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

SHOWN_MAX = 100


class JournaledKind(StrEnum):
    PUT = "put"
    COPY = "copy"
    DELETE = "delete"
    GET = "get"


class CallAnswer(StrEnum):
    OK = "ok"
    NO = "no"                    # UnavailableError: it did not take effect and never will
    FAILED = "failed"            # ConditionFailedError: the same, because its condition was false
    SETTLED = "settled"          # OutcomeUnknownError: it may have, and will not any more
    UNKNOWN = "unknown"          # OutcomeUnknownError: it may have, or may still
    LOST = "lost"                # its data is lost, or damaged: there must be none
    ERROR = "error"              # any other: there must be none
    NONE = "none"                # its process ended first


NEVER = (CallAnswer.NO, CallAnswer.FAILED)
"""What a caller is told if his call never takes effect."""

ABSENT = "absent"
"""The condition of a write that wants nothing to be there."""


@dataclass(slots=True)
class JournaledCall:
    """One call as its caller saw it.

    `began`, `ended`: in seconds. A call has not ended while it may still take effect.
    `digest`: of the payload that was put or read; None if a read found no object. `by`: the call that is named in the
    metadata that were read. `condition`: ABSENT, or the revision that a write wants to be there; `wanted`: the call
    that this revision's metadata name. `source`: of a copy.
    """

    id: str
    object: str
    kind: JournaledKind
    digest: str | None
    began: float
    ended: float = math.inf
    answer: CallAnswer = CallAnswer.NONE
    by: str | None = None
    detail: str = ""
    condition: str | None = None
    wanted: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """What is stored of an object, or was read of it. `by`: the call that its metadata name."""

    digest: str
    by: str | None


def digest(payload: bytes) -> str:
    return hashlib.blake2b(payload, digest_size=16).hexdigest()


def calls_of(journal: bytes, process_ended: float) -> Iterator[JournaledCall]:
    """The calls of one process. A kill may cut its last line short: it counts as not written.

    `process_ended`: when nothing that the process has sent takes effect any more. A call without an answer ended then.
    """
    found: dict[str, JournaledCall] = {}
    for raw in journal.split(b"\n")[:-1]:
        line = json.loads(raw)
        if "begin" in line:
            found[line["begin"]] = JournaledCall(
                line["begin"], line["object"], JournaledKind(line["kind"]), line["digest"], line["at"], process_ended,
                condition=line.get("condition"), wanted=line.get("wanted"), source=line.get("source"),
            )  # fmt: skip
        elif "end" in line:
            call = found[line["end"]]
            call.answer = CallAnswer(line["answer"])
            call.detail = line.get("detail", "")
            if call.answer is not CallAnswer.UNKNOWN:
                call.ended = line["at"]
            if call.kind is JournaledKind.GET:
                call.digest, call.by = line.get("digest"), line.get("by")
    yield from found.values()


class ObjectHistory:
    """The calls on one object. It says whether what was seen of the object may have been seen at that time.

    If two writes do not overlap, the later one wins. An acknowledged write took effect. So a value must not be seen any
    more once an acknowledged write has ended that began after the value's own write had ended.

    `sources`: the histories of what was copied here. A copy has the metadata of its source, so it is any copy that may
    have seen that value there.
    """

    def __init__(self, calls: Iterable[JournaledCall], sources: Mapping[str, ObjectHistory] | None = None) -> None:
        every = sorted(calls, key=lambda each: each.ended)
        self._puts = {each.digest: each for each in every if each.kind is JournaledKind.PUT}
        self._copies = [each for each in every if each.kind is JournaledKind.COPY]
        self._deletes = [each for each in every if each.kind is JournaledKind.DELETE]
        self._sources = sources or {}
        acknowledged = [each for each in every if each.kind is not JournaledKind.GET and each.answer is CallAnswer.OK]
        self._last_write = _LastBegun(acknowledged)
        self._last_put = _LastBegun([each for each in acknowledged if each.kind is not JournaledKind.DELETE])

    def flaw(self, seen: Content | None, looked: float = math.inf, looked_until: float = math.inf) -> str | None:
        """Returns which flaw it is that `seen` was there between the two moments, or None if it is no flaw.

        `seen` is None if there was no object.
        """
        if seen is None:
            return self._flaw_of_absence(looked, looked_until)
        able = [each for each in self._writers_of(seen) if each.began <= looked_until]
        if not able:
            return "mixed_up"
        able = [each for each in able if each.answer not in NEVER]
        if not able:
            return "false_no"
        return "lost" if max(each.ended for each in able) < self._last_write.before(looked) else None

    def _writers_of(self, seen: Content) -> Iterator[JournaledCall]:
        put = self._puts.get(seen.digest)
        if put is not None and put.id == seen.by:
            yield put
        for copy in self._copies:
            source = self._sources.get(copy.source or "")
            if source is not None and source.flaw(seen, copy.began, copy.ended) is None:
                yield copy

    def _flaw_of_absence(self, looked: float, looked_until: float) -> str | None:
        last_put = self._last_put.before(looked)
        if last_put == -math.inf:
            return None
        able = [each for each in self._deletes if each.ended >= last_put and each.began <= looked_until]
        if any(each.answer not in NEVER for each in able):
            return None
        return "false_no" if able else "lost"


class _LastBegun:
    """Of the calls that had ended by some moment, when did the one begin that began last?"""

    def __init__(self, by_end: list[JournaledCall]) -> None:
        self._ended = [each.ended for each in by_end]
        self._began = list(accumulate((each.began for each in by_end), max))

    def before(self, moment: float) -> float:
        """Returns that time, or -inf if no call had ended."""
        index = bisect_left(self._ended, moment)
        return self._began[index - 1] if index else -math.inf


def flaws_of(contents: Mapping[str, Content | None], calls: Iterable[JournaledCall]) -> Iterator[tuple[str, str]]:
    """Yields each flaw with a sentence, of what is stored, of what was read, and of conditions that were told true.

    `contents`: what each object holds at the end, by its path; None: it is there and nobody can read it, which was said
    elsewhere. What is copied is never a copy.
    """
    of_object: defaultdict[str, list[JournaledCall]] = defaultdict(list)
    digests: dict[str | None, str | None] = {}
    for call in calls:
        of_object[call.object].append(call)
        digests[call.id] = call.digest
    copied = {call.source for of_one in of_object.values() for call in of_one if call.source is not None}
    sources = {path: ObjectHistory(of_object[path]) for path in copied}
    for path in sorted(of_object.keys() | contents.keys()):
        history = ObjectHistory(of_object[path], sources)
        content = contents.get(path)
        found_already = path in contents and content is None
        if not found_already and (flaw := history.flaw(content)):
            yield flaw, f"{short(path)} holds {_said(content)}"
        for read in of_object[path]:
            if read.kind is JournaledKind.GET and read.answer is CallAnswer.OK:
                seen = None if read.digest is None else Content(read.digest, read.by)
                if flaw := history.flaw(seen, read.began, read.ended):
                    yield flaw, f"{read.id} of {short(path)} read {_said(seen)}"
        yield from _false_conditions(path, history, of_object[path], digests)


def _false_conditions(
    path: str, history: ObjectHistory, calls: Iterable[JournaledCall], digests: Mapping[str | None, str | None]
) -> Iterator[tuple[str, str]]:
    """A revision is replaced once. What a condition wants was there at a moment during the call."""
    replaced: dict[str, str] = {}
    for call in calls:
        if call.condition is None or call.answer is not CallAnswer.OK:
            continue
        if call.condition == ABSENT:
            wanted = None
        else:
            if (other := replaced.setdefault(call.condition, call.id)) != call.id:
                yield "lost", f"{other} and {call.id} were both told that they replaced one revision of {short(path)}"
            wanted = Content(digests.get(call.wanted) or "", call.wanted)
        if history.flaw(wanted, call.began, call.ended):
            yield "lost", f"{call.id} was told that it found {_said(wanted)} in {short(path)}, and it did not"


def _said(content: Content | None) -> str:
    return "nothing" if content is None else f"what {content.by} wrote"


def short(name: str) -> str:
    """Returns the name; of a long one only its beginning and its end."""
    return name if len(name) <= SHOWN_MAX else f"{name[: SHOWN_MAX // 2]}…{name[-SHOWN_MAX // 2 :]}"
