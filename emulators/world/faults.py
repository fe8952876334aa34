"""Processes that can die or stall, and the network between them and the services, call by call.

    Process --call--> Link --request--> [ Network ] --> SimulatedRows, SimulatedChangeLog, SimulatedBlobs
                       |
                       a *call point*: "log.record #1", the first `record` of this process on the log

Every call of every protocol goes through `Link.call`, also those on the uploads and readers that a call returns. A
`Plan` chooses from the name of the call point what happens there.

A *crash* is not a cancellation. First the process is severed: none of its later calls takes effect or returns. Then it
is cancelled, and whatever its clean-up does has no effect.

A call takes the time of its `Travel`, to the service and back. A request that has left belongs to the network. If it is
late, duplicated or under way, it arrives even when its sender has given up or is dead.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import anyio

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.log import ChangeLog
from emulators.world.code import TODAY, Code
from emulators.world.runtime import Request, SimulatedRuntime, elapse, now_s
from tiered.services.backends import HighVolumeBackend, LongTermBackend
from tiered.testing.blobs import MemoryUpload

T = TypeVar("T")
S = TypeVar("S")


class Mode(Enum):
    """What may happen to one call."""

    CRASH_BEFORE = "the process dies before the request leaves"
    CRASH_AFTER = "the process dies after the effect, before the answer"
    STALL_BEFORE = "the process stops for a while before the request leaves"
    STALL_AFTER = "the process stops for a while after the effect, before the answer"
    SUSPEND_BEFORE = "its machine sleeps for a while before the request leaves, and its monotonic clock with it"
    SUSPEND_AFTER = "its machine sleeps for a while after the effect, before the answer"
    UNAVAILABLE = "no effect, and UnavailableError"
    DENIED = "no effect, and ConfigurationError, as when a permission was taken away"
    DROPPED = "no effect, and UnconfirmedError"
    LOST = "the effect, and UnconfirmedError"
    DAMAGED = "the effect, and UnavailableError: an upload whose checksum is not what was sent"
    LATE = "UnconfirmedError at once, and the effect a while later"
    DUPLICATED = "the effect and its answer, and the request once more a while later"
    SLOW = "the effect a while later, then its answer, if the caller still waits"
    CRAWLING = "a scan or renewal of many rows that goes from one to the next with a while between: no snapshot"


@dataclass(frozen=True, slots=True)
class CallFault:
    """A fault of one call. `seconds`: how long its "while" lasts."""

    mode: Mode
    seconds: float = 0.0


Plan = Callable[[str], CallFault | None]
"""Returns the fault for a call point, or None. It is asked once for each call, when the process makes it."""


Travel = Callable[[str], tuple[float, float]]
"""Returns for a call point the seconds that the request travels, and then the answer. It is asked once for each call.
"""

SCANS = frozenset({
    "rows.scan", "rows.redirects", "rows.redirects_at", "blobs.list", "log.stale", "log.entries", "log.kept", "log.scan_values",
})  # fmt: skip
READS = SCANS | {
    "rows.read", "rows.boundaries", "blobs.open", "blobs.head", "blobs.now_ns", "blobs.parts", "log.read", "log.read_note",
    "log.read_values",
}  # fmt: skip
STREAMS = frozenset({"upload.write", "reader.chunks", "reader.aclose"})
"""Parts of a stream. Each comes after the one before, or not at all. If the sender gives up, a part under way is lost.
"""
ONCE = frozenset({
    "rows.put_inline", "rows.delete_inline", "blobs.open_upload", "blobs.open_copy", "blobs.begin_parts", "upload.finalise", "upload.abort",
    "log.open",
})  # fmt: skip
"""Calls that no client sends twice, so no network has two of them to deliver."""

_STOPS = (Mode.STALL_BEFORE, Mode.SUSPEND_BEFORE)

Turn = Callable[[str, str], Awaitable[None]]
"""Receives a process's name and the call point that it has reached. It returns when that call may go on."""


def call_of(point: str) -> str:
    """Returns the call that is made at this point, such as `rows.swap`."""
    return point.partition(" #")[0]


def no_faults(point: str) -> CallFault | None:
    return None


def no_time(point: str) -> tuple[float, float]:
    return 0.0, 0.0


class Network:
    """Carries slow, late and duplicated requests.

    `trace`: every call of every process, in order, with its time and fault. `turn`: decides which call goes on when;
    None: nothing decides. A request under way asks as the process "network". Use it with `async with`. Leaving the
    block waits for nothing that is still under way.
    """

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.turn: Turn | None = None
        self._tasks = anyio.create_task_group()
        self._under_way = 0

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    def note(self, line: str) -> None:
        self.trace.append(f"{now_s():9.3f} {line}")

    @property
    def tasks(self) -> anyio.abc.TaskGroup:
        """Where something may run until the world ends."""
        return self._tasks

    @property
    def quiet(self) -> bool:
        """Whether no slow, late or duplicated request is under way any more."""
        return self._under_way == 0

    def send(self, point: str, request: Callable[[], Awaitable[object]], seconds: float) -> None:
        """Sends a request that arrives in so many seconds. Nobody waits for its answer."""
        self.take_over(point, Request(request()), seconds)

    def take_over(self, point: str, request: Request[Any], seconds: float) -> None:
        """Carries on a request that is under way and needs so many seconds more."""
        self._under_way += 1
        self._tasks.start_soon(self._deliver, point, request, seconds)

    async def carry(self, point: str, request: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Sends a request and waits for the answer. If the sender gives up waiting, the request arrives all the same.
        """
        answers: list[T] = []
        errors: list[TieredError] = []
        answered = anyio.Event()

        async def noted() -> None:
            try:
                answers.append(await request())
            except TieredError as error:
                errors.append(error)
                raise
            finally:
                answered.set()

        self.send(point, noted, seconds)
        await answered.wait()
        for error in errors:
            raise error
        return answers[0]

    async def _deliver(self, point: str, request: Request[Any], seconds: float) -> None:
        try:
            goes_on = request.has_left or await request.goes_on()
            while goes_on:
                try:
                    await elapse(request.wait_s(seconds))
                    if self.turn is not None:
                        await self.turn("network", point)
                except BaseException as error:
                    request.fail(error)
                    raise
                goes_on = await request.goes_on()
            self.note(f"network: {point} has arrived")
        except TieredError as error:
            self.note(f"network: {point} has arrived in vain: {error}")
        finally:
            self._under_way -= 1


class Link:
    """The connection of one process to the world. It names the process's calls and gives each its fault.

    `points`: the call points so far. `answered`: those whose call returned a value to the process.
    """

    def __init__(self, process: Process, network: Network, plan: Plan, travel: Travel = no_time) -> None:
        self.severed = False
        self.points: list[str] = []
        self.answered: list[str] = []
        self._process = process
        self._network = network
        self._plan = plan
        self._travel = travel
        self._calls: Counter[str] = Counter()
        self._stalled_until = 0.0
        self._stops: set[anyio.CancelScope] = set()

    def rows(self, rows: HighVolumeBackend) -> HighVolumeBackend:
        return cast(HighVolumeBackend, _FarService(self, "rows", rows))

    def log(self, log: ChangeLog) -> ChangeLog:
        return cast(ChangeLog, _FarService(self, "log", log))

    def blobs(self, blobs: LongTermBackend) -> LongTermBackend:
        return cast(LongTermBackend, _FarService(self, "blobs", blobs))

    def sink(self, sink: S) -> S:
        """Returns the sink of a change feed, as seen through this link."""
        return cast(S, _FarService(self, "sink", sink))

    def stall(self, seconds: float) -> None:
        """From now on, for so long, let no request leave and no answer arrive."""
        self._stalled_until = max(self._stalled_until, now_s() + seconds)
        if isinstance(self._process.runtime, SimulatedRuntime):
            self._process.runtime.stop(seconds)

    def sever(self) -> None:
        """From now on let nothing leave and nothing arrive, for ever. A process that was stopped is no longer held."""
        self.severed = True
        for stop in self._stops:
            stop.cancel()

    async def call(self, name: str, request: Callable[[], Awaitable[T]]) -> T:
        """Makes one call. It returns, raises, or never ends; in the last case the process is dead."""
        if self.severed or self._stalled_until:
            await self._awake()
        self._calls[name] += 1
        point = f"{name} #{self._calls[name]}"
        if self._network.turn is not None:
            await self._network.turn(self._process.name, point)
        fault = self._plan(point)
        mode, seconds = (None, 0.0) if fault is None else (fault.mode, fault.seconds)
        there_s, back_s = self._travel(point)
        self.points.append(point)
        self._network.note(f"{self._process.name}: {point}" + (f" [{mode.name} {seconds:g} s]" if mode else ""))
        if mode is not None:
            await self._leave(point, mode, seconds, request, there_s + back_s)
        try:
            if mode is Mode.SLOW or (mode in _STOPS and name not in STREAMS):  # a timer that fired in the meantime comes too late
                answer = await self._network.carry(point, request, there_s + (seconds if mode is Mode.SLOW else 0.0))
            elif not there_s and mode is not Mode.CRAWLING:
                answer = await request()  # the request takes no time, so it is never under way
            else:
                answer = await self._ask(name, point, Request(request()), there_s, seconds if mode is Mode.CRAWLING else 0.0)
        finally:
            await self._answered(point, mode, seconds, back_s)
        self.answered.append(point)
        return answer

    async def _ask(self, name: str, point: str, request: Request[T], there_s: float, row_s: float) -> T:
        """Waits for the answer.

        If the caller is cancelled while the request is under way, the network carries the request on.
        """
        while await request.goes_on(row_s):
            stopped_at, wait_s = now_s(), request.wait_s(there_s)
            try:
                await elapse(wait_s)
            except BaseException as error:
                under_way_s = now_s() - stopped_at
                if under_way_s and request.has_left and name not in STREAMS:
                    self._network.take_over(point, request, wait_s - under_way_s)
                else:
                    request.fail(error)
                raise
        return request.answer

    async def _leave(
        self, point: str, mode: Mode, seconds: float, request: Callable[[], Awaitable[object]], round_trip_s: float
    ) -> None:
        if mode in (Mode.UNAVAILABLE, Mode.DENIED, Mode.DROPPED):
            await elapse(round_trip_s)
        match mode:
            case Mode.CRASH_BEFORE:
                self._process.crash()
            case Mode.STALL_BEFORE:
                self.stall(seconds)
            case Mode.SUSPEND_BEFORE:
                self._process.suspend(seconds)
            case Mode.UNAVAILABLE:
                raise UnavailableError(f"{point} of {self._process.name} was refused by the service")
            case Mode.DENIED:
                raise ConfigurationError(f"{point} of {self._process.name} was denied: grant this process the permission for it")
            case Mode.DROPPED:
                raise _unanswered(point, self._process)
            case Mode.LATE:
                self._network.send(point, request, seconds)
                raise _unanswered(point, self._process)
            case Mode.DUPLICATED:
                self._network.send(point, _copy(request), seconds)
        if mode in _STOPS:
            await self._go_on()
        await self._awake()

    async def _answered(self, point: str, mode: Mode | None, seconds: float, back_s: float) -> None:
        """Does what happens between the effect and its answer. It may raise instead of answering."""
        match mode:
            case Mode.CRASH_AFTER:
                self._process.crash()
            case Mode.STALL_AFTER:
                self.stall(seconds)
            case Mode.SUSPEND_AFTER:
                self._process.suspend(seconds)
        await elapse(back_s)  # a caller that is cancelled here may have had its effect
        if self.severed or self._stalled_until:
            await self._awake()
        if mode is Mode.LOST:
            raise UnconfirmedError(f"the answer to {point} of {self._process.name} was lost")
        if mode is Mode.DAMAGED:
            raise UnavailableError(f"what {point} of {self._process.name} stored was damaged on its way: delete it, try again")

    async def _go_on(self) -> None:
        """Waits until the process runs again.

        It stopped just before it sends, so none of its own timers may wake it before that.
        """
        with anyio.CancelScope(shield=True) as stop:
            self._stops.add(stop)
            while (wait_s := self._stalled_until - now_s()) > 0:
                await elapse(wait_s)
        self._stops.discard(stop)

    async def _awake(self) -> None:
        while not self.severed and (wait_s := self._stalled_until - now_s()) > 0:
            await elapse(wait_s)
        if self.severed:
            await anyio.sleep_forever()


def _copy(request: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
    """Returns the network's copy of the request.

    A client ends an upload only once, so that copy is not one of the client's calls.
    """
    upload = getattr(getattr(request, "func", None), "__self__", None)
    copy: Callable[[], Awaitable[object]] = getattr(upload, "finalise_copy", request)
    return copy


def _unanswered(point: str, process: Process) -> UnconfirmedError:
    return UnconfirmedError(f"{point} of {process.name} was not answered")


class _FarService:
    """A service as seen through a link. Its methods are calls. Other attributes are passed on."""

    def __init__(self, link: Link, kind: str, target: object) -> None:
        self._link = link
        self._kind = kind
        self._target = target

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        code = getattr(attribute, "__code__", None)
        flags = 0 if code is None else code.co_flags
        if flags & inspect.CO_COROUTINE:
            attribute = partial(self._call, name, attribute)
        elif flags & inspect.CO_ASYNC_GENERATOR:
            attribute = partial(self._each, name, attribute)
        else:
            return attribute
        self.__dict__[name] = attribute  # found without this method from now on
        return attribute

    async def _call(self, name: str, method: Callable[..., Awaitable[Any]], *args: Any, **named: Any) -> Any:
        if name == "finalise" and isinstance(self._target, MemoryUpload):
            self._target.given_at = now_s()
        answer = await self._link.call(f"{self._kind}.{name}", partial(method, *args, **named))
        if name in ("open_upload", "open_copy"):
            return _FarService(self._link, "upload", answer)
        if name == "open" and answer is not None:
            return _FarService(self._link, "reader", answer)
        return answer

    async def _each(self, name: str, method: Callable[[], AsyncGenerator[Any, None]]) -> AsyncIterator[Any]:
        async with aclosing(method()) as chunks:
            while (chunk := await self._link.call(f"{self._kind}.{name}", partial(anext, chunks, None))) is not None:
                yield chunk


class Process:
    """One simulated process: a name, a runtime of its own, a link, its code, and a life that `crash` ends."""

    def __init__(
        self, name: str, runtime: Runtime, network: Network, plan: Plan = no_faults, travel: Travel = no_time, code: Code = TODAY
    ) -> None:
        self.name = name
        self.code = code
        self.runtime = runtime
        self.link = Link(self, network, plan, travel)
        self._scope = anyio.CancelScope()

    @property
    def alive(self) -> bool:
        return not self.link.severed

    @property
    def stopped_until(self) -> float:
        """The second of the world until which the process stands still, or last stood still. 0: it never did."""
        return self.link._stalled_until

    async def run(self, life: Callable[[], Awaitable[None]]) -> None:
        """Runs until `life` ends or the process crashes. Nobody hears what a dying process raises."""
        with self._scope:
            try:
                await life()
            except Exception:
                if self.alive:
                    raise

    def crash(self) -> None:
        """Kills the process, as kill -9: nothing that it does from now on takes effect. What it had sent already may.
        """
        self.link.sever()
        self._scope.cancel()

    def stall(self, seconds: float) -> None:
        """Stops the process, as SIGSTOP with a SIGCONT later.

        No request leaves, no answer arrives, and a timer cannot replace one.
        """
        self.link.stall(seconds)

    @property
    def clock(self) -> SimulatedRuntime:
        """The process's runtime, if it is a simulated one, which can be set and stopped."""
        assert isinstance(self.runtime, SimulatedRuntime), "only a simulated clock can be"
        return self.runtime

    def suspend(self, seconds: float) -> None:
        """Lets the process's machine sleep. This is `stall`, and its monotonic clock stands still.

        Its boot-time and wall clocks go on.
        """
        self.clock.suspend(seconds)
        self.stall(seconds)
