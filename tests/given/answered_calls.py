"""What the adapters of a service are asked for, call by call, and what may be told after an answer was changed.

    prepare    beside the proxy
    act        through the proxy; one of its answers is changed
    state      what is there, asked beside the proxy: before and after

What `act` may do (`judge`): return, if the state is as `wanted` or, of a call that reads, if it tells the state; raise
`UnavailableError`, if the state is as before; of a call that writes, raise `UnconfirmedError`. Whatever else it raises
leaves untranslated, or believes what the service never said.

A row more is a `Call` in `CALLS`, or in those of one service. A service more is a `AnsweringService`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from changelog.base.errors import InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.changed_answers import LATE_S, AnswerChange, AnswerProxy, Asked, Exchange, RightAnswer, changes_of
from tiered.gcs.bucket_files import GcsFiles
from tiered.metadata import NS_PER_S, Metadata, TimeToIdle
from tiered.s3.blobs import S3Blobs
from tiered.s3.bucket_files import S3Files
from tiered.services.backends import ByteRange, SessionEndedError
from tiered.services.scans import Generation, NotCopied
from tiered.testing.contracts.whole_blobs import read, store
from tiered.transfer.arrival import DAMAGED

RUNTIME = SystemRuntime()
HURRIED_S = 0.25
"""Where no answer comes, a completion waits for 30 such times."""
DEADLINE_NS = 4_000_000_000 * NS_PER_S
LATER_NS = DEADLINE_NS + 3600 * NS_PER_S
LONG_AGO_NS = 1_700_000_000 * NS_PER_S
EXPIRING = Metadata(TimeToIdle(ns=3600 * NS_PER_S), time_expires_ns=DEADLINE_NS)
PLAIN = Metadata()
CUSTOM = Metadata(custom={"colour": "blue", "word": "ümlaut"})


@dataclass
class CallStage:
    """One run of a call. `front`: the adapter behind the proxy; `behind`: beside it. `made`: what `prepare` leaves."""

    front: Any
    behind: Any
    path: str
    payload: bytes
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.path}/{self.made['revision']}"


Chosen = Callable[[int, Sequence[AnswerChange]], Sequence[AnswerChange]]
Step = Callable[[CallStage], Awaitable[Any]]
State = Callable[[Any, CallStage], Awaitable[Any]]
Wanted = Callable[[CallStage], Any]


async def nothing(at: CallStage) -> None:
    """There is nothing to prepare."""


@dataclass(frozen=True)
class Call:
    """A row. `wanted`: the state after it; None: it reads, and tells the state. `beside`: the kinds of requests that it
    does not wait for.
    """

    name: str
    prepare: Step
    act: Step
    state: State
    wanted: Wanted | None = None
    beside: Collection[str] = ()


@dataclass(frozen=True)
class AnsweringService:
    """`make`: makes a bucket at an address. `opened`: the adapter over it, with so many seconds for an answer.

    `kind_of`: what a request is called. `kinds`: those that the calls send. `untold`: pairs of a kind and the beginning
    of a change, as a pattern, that nobody could tell from the truth, and why.
    """

    name: str
    make: Callable[[str, str], Awaitable[None]]
    opened: Callable[[str, str, float], AbstractAsyncContextManager[Any]]
    kind_of: Callable[[Asked], str]
    calls: Sequence[Call]
    kinds: Collection[str]
    untold: Sequence[tuple[str, str, str]] = ()


def reading(name: str, prepare: Step, look: State) -> Call:
    async def act(at: CallStage) -> Any:
        return await look(at.front, at)

    return Call(name, prepare, act, look)


# --- a file beside the blobs -------------------------------------------------------------------------

FILE = b'{"a": 1}\n'


def files(blobs: Any) -> GcsFiles | S3Files:
    return S3Files(blobs.client) if isinstance(blobs, S3Blobs) else GcsFiles(blobs._http, RUNTIME)


def file_of(at: CallStage) -> str:
    return f"{at.path}.json"


async def file_there(at: CallStage) -> None:
    assert await files(at.behind).create(file_of(at), FILE, "application/json")


async def read_file(blobs: Any, at: CallStage) -> Any:
    return await files(blobs).read(file_of(at), 100)


async def names_there(blobs: Any, at: CallStage) -> Any:
    return [name async for name in files(blobs).names(f"{at.path}.", "")]


# --- what is prepared, done and looked at ------------------------------------------------------------


def stored(metadata: Metadata = PLAIN, *, whole: bool = True) -> Step:
    """`whole`: of known size, so by one request; else as a stream."""
    async def prepare(at: CallStage) -> None:
        await put(at.behind, at, metadata, whole=whole)

    return prepare


async def put(blobs: Any, at: CallStage, metadata: Metadata, *, whole: bool, amended: Metadata | None = None) -> None:
    upload = await blobs.open_upload(at.name, metadata, len(at.payload) if whole else None)
    try:
        await upload.write(at.payload)
        if amended is not None:
            upload.amend(amended)
        await upload.finalise()
    finally:
        await upload.abort()


def putting(metadata: Metadata = PLAIN, *, whole: bool = True, amended: Metadata | None = None) -> Step:
    return lambda at: put(at.front, at, metadata, whole=whole, amended=amended)


async def amended_before(at: CallStage) -> None:
    await put(at.behind, at, Metadata(), whole=False, amended=CUSTOM)


async def content(blobs: Any, at: CallStage) -> Any:
    return await read(blobs, at.name)


async def in_ranges(blobs: Any, at: CallStage) -> Any:
    whole = await blobs.open(at.name)
    assert whole is not None
    await whole.aclose()
    part = await whole.ranges().open(2, 5)
    if part is None:
        return None
    try:
        return b"".join([chunk async for chunk in part.chunks()])
    finally:
        await part.aclose()


async def head(blobs: Any, at: CallStage) -> Any:
    found = await blobs.head(at.name)
    return None if found is None else (found.size, found.metadata)


async def content_and_metadata(blobs: Any, at: CallStage) -> Any:
    found = await blobs.head(at.name)
    return None if found is None else (await read(blobs, at.name), found.metadata.custom, found.metadata.time_expires_ns)


async def generation(at: CallStage) -> Generation:
    found = await at.behind.head(at.name)
    assert found is not None
    generation: Generation = found.generation
    return generation


async def seen(at: CallStage) -> None:
    await stored()(at)
    at.made["generation"] = await generation(at)


async def listed(blobs: Any, at: CallStage) -> Any:
    found, start = [], f"{at.path}/"
    while start is not None:
        page = await blobs.list(start, f"{at.path}0", 10)
        found += [(each.name, each.size, each.deadline_ns) for each in page.blobs]
        start = page.next_start
    return found


async def two_stored(at: CallStage) -> None:
    await stored(EXPIRING)(at)
    await store(at.behind, f"{at.name}x", b"beside")


async def time_told(blobs: Any, at: CallStage) -> Any:
    return abs(await blobs.now_ns() - RUNTIME.wall_ns()) < 3600 * NS_PER_S


async def begun_parts(at: CallStage) -> None:
    at.made["session"] = await at.behind.begin_parts(at.name, CUSTOM)


async def one_part(at: CallStage) -> None:
    await begun_parts(at)
    at.made["parts"] = [await at.behind.put_part(at.name, at.made["session"], 1, [at.payload])]


async def parts_there(blobs: Any, at: CallStage) -> Any:
    try:
        return [(each.number, each.size, each.etag) for each in await blobs.parts(at.name, at.made["session"])]
    except SessionEndedError:
        return "ended"


async def sessions_there(blobs: Any, at: CallStage) -> Any:
    found, after = [], ""
    while after is not None:
        page = await blobs.open_sessions(RUNTIME.wall_ns() + 3600 * NS_PER_S, after, 100)
        found += [each.session for each in page.sessions if each.name == at.name]
        after = page.next_after
    return found


async def begin_parts(at: CallStage) -> None:
    at.made["session"] = await at.front.begin_parts(at.name, CUSTOM)


async def session_begun(blobs: Any, at: CallStage) -> Any:
    """An upload that nobody knows ends by itself, so one that is told no may be there."""
    return await sessions_there(blobs, at) if "session" in at.made else "nobody knows it"


async def copied_content(blobs: Any, at: CallStage) -> Any:
    return await read(blobs, f"{at.name}-copy")


async def copy(at: CallStage) -> None:
    pending = await at.front.open_copy(at.name, at.made["generation"], f"{at.name}-copy", CUSTOM)
    try:
        await pending.finalise()
    finally:
        await pending.abort()


async def set_aside(at: CallStage) -> None:
    refuse_none(await at.front.set_aside(at.name, at.made["generation"], f"{at.name}-copy"))


def refuse_none(told: Generation | NotCopied) -> None:
    if isinstance(told, NotCopied):
        raise UnavailableError(f"nothing was copied: {told.name}")


async def aside(at: CallStage) -> None:
    await seen(at)
    at.made["aside"] = await at.behind.set_aside(at.name, at.made["generation"], f"{at.name}-copy")
    await at.behind.delete(at.name)


async def bring_back(at: CallStage) -> None:
    refuse_none(await at.front.bring_back(f"{at.name}-copy", at.made["aside"], at.name, RUNTIME.wall_ns()))


async def delete_generation(at: CallStage) -> None:
    at.made["removal"] = (await at.front.delete_generation(at.name, at.made["generation"])).name


async def removed(blobs: Any, at: CallStage) -> Any:
    return await content(blobs, at), at.made.get("removal")


async def complete_parts(at: CallStage) -> None:
    await at.front.complete_parts(at.name, at.made["session"], at.made["parts"])


PAYLOAD: Wanted = lambda at: at.payload  # noqa: E731
NONE: Wanted = lambda at: None  # noqa: E731
ENDINGS = ("abort_multipart_upload",)

CALLS: Sequence[Call] = (
    Call("put", nothing, putting(), content, PAYLOAD),
    Call("put that expires", nothing, putting(EXPIRING), content_and_metadata, lambda at: (at.payload, {}, DEADLINE_NS)),
    Call("put of a stream", nothing, putting(whole=False), content, PAYLOAD),
    Call("put whose metadata come last", nothing, putting(whole=False, amended=CUSTOM), content_and_metadata,
         lambda at: (at.payload, dict(CUSTOM.custom), None)),
    reading("get", stored(CUSTOM), content), reading("get of nothing", nothing, content),
    reading("get of what was amended", amended_before, content),
    reading("get of a range", stored(), lambda blobs, at: read(blobs, at.name, ByteRange(2, 5))),
    reading("get of the end", stored(), lambda blobs, at: read(blobs, at.name, ByteRange(-3))),
    reading("get in ranges", stored(), in_ranges),
    reading("head", stored(CUSTOM), head), reading("head of nothing", nothing, head),
    reading("head of what expires", stored(EXPIRING), head),
    reading("head of what was amended", amended_before, head),
    Call("delete", stored(), lambda at: at.front.delete(at.name), content, NONE),
    Call("delete of nothing", nothing, lambda at: at.front.delete(at.name), content, NONE),
    Call("delete of a generation", seen, delete_generation, removed, lambda at: (None, at.made["removal"])),
    Call("touch", stored(EXPIRING), lambda at: at.front.touch(at.name, LATER_NS),
         lambda blobs, at: content_and_metadata(blobs, at), lambda at: (at.payload, {}, LATER_NS)),
    reading("list", two_stored, listed), reading("list of nothing", nothing, listed), reading("the time", nothing, time_told),
    reading("owners", nothing, lambda blobs, at: blobs.owners()),
    Call("copy", seen, copy, copied_content, PAYLOAD),
    Call("set aside", seen, set_aside, copied_content, PAYLOAD, ENDINGS), Call("bring back", aside, bring_back, content, PAYLOAD, ENDINGS),
    Call("begin parts", nothing, begin_parts, session_begun, lambda at: [at.made["session"]]),
    Call("put a part", begun_parts, lambda at: at.front.put_part(at.name, at.made["session"], 1, [at.payload]),
         lambda blobs, at: parts_sizes(blobs, at), lambda at: [(1, len(at.payload))]),
    reading("parts", one_part, parts_there),
    Call("complete parts", one_part, complete_parts, content, PAYLOAD),
    Call("cancel parts", one_part, lambda at: at.front.cancel(at.made["session"]), sessions_there, lambda at: []),
    reading("uploads", begun_parts, sessions_there),
)  # fmt: skip


async def parts_sizes(blobs: Any, at: CallStage) -> Any:
    return [(each.number, each.size) for each in await blobs.parts(at.name, at.made["session"])]


# --- a run -------------------------------------------------------------------------------------------


@dataclass
class AnswerBench:
    """A service with a proxy before it. `hurried`: an adapter that waits a moment only for an answer."""

    service: AnsweringService
    proxy: AnswerProxy
    front: Any
    hurried: Any
    behind: Any
    runs: int = 0

    def stage(self, *, hurried: bool = False) -> CallStage:
        self.runs += 1
        path = f"u/objects/key{ChangeId.new(RUNTIME)}"
        made = {"revision": str(ChangeId.new(RUNTIME))}
        return CallStage(self.hurried if hurried else self.front, self.behind, path, f"payload {self.runs:06}".encode(), made)

    async def right(self, call: Call) -> list[Exchange]:
        """The requests of a call that nothing disturbs, with their answers."""
        at = self.stage()
        await call.prepare(at)
        self.proxy.arm(-1, None)
        value = await call.act(at)
        wanted = call.wanted(at) if call.wanted else value
        assert await call.state(self.behind, at) == wanted, f"{call.name}: {value}"
        return list(self.proxy.seen)

    async def wrong(self, call: Call, number: int, change: AnswerChange, other: RightAnswer | None) -> str | None:
        """Runs the call once with this change of one answer. Returns what is wrong then."""
        at = self.stage(hurried=is_held(change))
        await call.prepare(at)
        before = await call.state(self.behind, at) if call.wanted else None
        self.proxy.arm(number, change, other)
        told, value, said = "done", None, ""
        try:
            value = await call.act(at)
        except UnconfirmedError as error:
            told, said = "unknown", str(error)
        except UnavailableError as error:
            told, said = "unknown" if error.code == DAMAGED and call.wanted else "no", str(error)
        except InvalidRequestError as error:
            if not error.heard or error.code.isdecimal():
                return f"it leaves as {type(error).__name__}: {error}"
            told, said = "no", str(error)  # by the service's own word
        except Exception as error:  # noqa: BLE001 - whatever it is: it is what is looked for
            return f"it leaves as {type(error).__name__}: {error}"
        kind = self.service.kind_of(self.proxy.seen[number].asked) if len(self.proxy.seen) > number else ""
        is_used = self.proxy.used
        self.proxy.arm(-1, None)
        await self.proxy.quiet()
        if change.is_late:
            await RUNTIME.sleep(LATE_S)  # so that the connection has got what was sent late
        wrong = await self._judged(call, at, told, value, before)
        if wrong is not None and any(kind == each[0] and re.match(each[1], str(change)) for each in self.service.untold):
            wrong = None
        if wrong is None and not is_used and not is_held(change):
            wrong = "the answer was never asked for"
        return wrong or await self._goes_on(at) or (None if told == "done" or said else "it says nothing")

    async def _judged(self, call: Call, at: CallStage, told: str, value: Any, before: Any) -> str | None:
        if call.wanted is None:
            there = await call.state(self.behind, at)
            if told == "unknown":
                return "what only reads is said to be unconfirmed"
            return None if told == "no" or value == there else f"it tells {value!r}, and there is {there!r}"
        if told == "unknown":
            return None
        there, wanted = await call.state(self.behind, at), call.wanted(at) if told == "done" else before
        return None if there == wanted else f"it is told {told}, and there is {there!r} instead of {wanted!r}"

    async def _goes_on(self, at: CallStage) -> str | None:
        """What is wrong with the next call, which nothing disturbs."""
        there = await head(self.behind, at)
        try:
            return None if await head(self.front, at) == there else "the next call gets the answer of this one"
        except Exception as error:  # noqa: BLE001 - as above
            return f"the next call fails: {type(error).__name__}: {error}"


@asynccontextmanager
async def bench(service: AnsweringService, url: str) -> AsyncIterator[AnswerBench]:
    """`url`: of the server."""
    place = f"answers-{ChangeId.new(RUNTIME)}"
    await service.make(url, place)
    async with (
        AnswerProxy(url).serve() as proxy, service.opened(url, place, 20.0) as behind, service.opened(proxy.url, place, 20.0) as front,
        service.opened(proxy.url, place, HURRIED_S) as hurried,
    ):  # fmt: skip
        yield AnswerBench(service, proxy, front, hurried, behind)


async def faults_of(on: AnswerBench, call: Call, chosen: Chosen) -> tuple[int, list[str]]:
    """Runs the pairs of a call. `chosen`: of the changes of its n-th request. Returns how many, and what was wrong."""
    right, count, wrong = await on.right(call), 0, []
    others = await on.right(call)
    for number, exchange in enumerate(right):
        if exchange.answered is None or on.service.kind_of(exchange.asked) in call.beside:  # None: a fault of the server's own
            continue
        other = others[number].answered if number < len(others) else None
        for change in chosen(number, list(changes_of(exchange.answered))):
            count += 1
            if (fault := await on.wrong(call, number, change, other)) is not None:
                kind = on.service.kind_of(exchange.asked)
                wrong.append(f"{call.name}, answer {number + 1} ({kind}), {change}: {fault}")
    return count, wrong


def is_held(change: AnswerChange) -> bool:
    return change.name in ("no answer", "held in the headers")


def rotating(count: int, offset: int) -> Chosen:
    """So many changes of each answer, none that waits: others for each call, so that all calls try all of them."""
    def chosen(number: int, every: Sequence[AnswerChange]) -> Sequence[AnswerChange]:
        changes = [each for each in every if not is_held(each)]
        step = len(changes) // count
        return [changes[(offset * 7 + number * 3 + each * step) % len(changes)] for each in range(count)]

    return chosen
