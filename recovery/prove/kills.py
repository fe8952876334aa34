"""Writers that are killed in the middle of their work, recovered, and judged: a whole store, on the user's services.

    play      writer processes (writer.py) put, copy, delete and read; some are killed with SIGKILL at random moments,
              others are stopped for longer than their lease. A recovery process cleans up, and is killed, too.
              Meanwhile no tombstone may be without its blob
    drain     the writers end; recovery works until the log is empty
    judge     each object shows what its callers were told (judge.py), and nothing is left (looks.py)

All processes are children of this one, and end with it, whatever ends it (writer.py). Each is signalled by its process
handle, never by a name. *Crash* or *failure*: what they stored is in the trial, and is removed with it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import DEVNULL, PIPE

from anyio import BrokenResourceError, CancelScope, ClosedResourceError, Event, create_task_group, move_on_after, open_process
from anyio.abc import Process, TaskGroup

from changelog.base.errors import TieredError
from changelog.base.runtime import Runtime
from recovery.prove.judge import CallAnswer, Content, JournaledCall, JournaledKind, calls_of, flaws_of
from recovery.prove.looks import contents_of, dangling, left_of, unfinished
from recovery.prove.report import Line
from recovery.prove.trial import Trial
from recovery.prove.writer import LEAVE_S, TURNED_AWAY, ProcessOrders
from tiered.open import Backends, open_backends
from tiered.provision.probes import ELSE, NotTriedError, Result
from tiered.settings import RecoverySettings, Settings

WRITERS, RECOVERY = ("w0", "w1", "w2"), "recovery"
EXPIRY_S, STOP_S = 2.0, (2.5, 4.0)
GRACE_S = 10.0
"""Longer than a process is stopped, plus the longest delay of its last request. So long, too, may take effect what a
process has sent that is dead."""
INLINE_BYTES_MAX = 16 * 1024
CONNECTIONS = 6
"""Of each process to PostgreSQL. All together must fit into what a server takes by default."""

STRIKES = ("kill",) * 6 + ("stop",) * 3 + ("kill recovery",) * 2
FIRST_STRIKE_S, STRIKE_EVERY_S = 0.3, (0.3, 1.2)
AIM_S = 1.0
"""A kill waits no longer for the middle of a write."""
START_S, LOOK_EVERY_S, DRAIN_S, JUDGE_S = 60.0, 2.0, 60.0, 60.0
CALLS_A_SECOND, BYTES_A_SECOND = 100, 2 * 1024 * 1024
"""What all writers may spend on average, in calls of the store and in payload that is put or read. Then they end."""
CALLS_OF_ONE = 12
"""A call of the store takes fewer calls to the services on average, with those of recovery and of who looks on."""
CRASHES_MAX = 5
DETAILS_MAX = 3

SAFE = "no acknowledged write was lost while writers were killed, and no refused one appeared"
HONEST = "no reader was told of a loss while writers were killed"
CLEAN = "nothing was left of the writers that were killed"


def settings_of(settings: Settings) -> Settings:
    """Those of the trial, with short leases, small large objects, and a recovery that may be killed often."""
    recovery = RecoverySettings(idle_s=0.2, attempts_max=1000, rate_per_s=1000, late_upload_grace_s=GRACE_S, shutdown_budget_s=4)
    at = settings.postgres
    return settings.model_copy(update={
        "instance": None, "inline_bytes_max": INLINE_BYTES_MAX, "recovery": recovery,
        "lease": settings.lease.model_copy(update={"expiry_s": EXPIRY_S}),
        "store": settings.store.model_copy(update={"drain_budget_s": 4.0}),
        "postgres": at and at.model_copy(update={"connections_max": min(at.connections_max, CONNECTIONS)}),
    })  # fmt: skip


def command(name: str) -> list[str]:
    """The command line of a process."""
    return [sys.executable, "-m", "recovery.prove.writer"]


@dataclass(slots=True)
class KilledRun:
    """What has happened. `calls`: of all writers. `strikes`: by kind.

    `dangling`: names of blobs that a row redirected to, and were not there. `looks`: how often that was looked at.
    `hit`: how many writes had no answer when their process was killed.
    """

    calls: list[JournaledCall] = field(default_factory=list)
    strikes: Counter[str] = field(default_factory=Counter)
    dangling: set[str] = field(default_factory=set)
    hit: int = 0
    looks: int = 0


async def kill_writers(trial: Trial, seconds: float, tell: Callable[[str], None]) -> list[Line]:
    """The lines of the report."""
    settings = settings_of(trial.settings)
    async with open_backends(settings, trial.runtime, verify=False) as backends:
        tell(f"killing writers for {seconds:g} s")
        try:
            played = await play(backends, settings, trial.runtime, seconds)
        except (NotTriedError, TieredError) as error:
            return untried_kills(str(error))
        tell("judging what they have left")
        try:
            return await judge(backends, played)
        except TieredError as error:
            return untried_kills(f"what is stored could not be read: {error}")


async def play(
    backends: Backends, settings: Settings, runtime: Runtime, seconds: float, command: Callable[[str], list[str]] = command
) -> KilledRun:
    """Until all processes have ended and the log is empty, or `DRAIN_S` seconds are over.

    `NotTriedError`: the processes do not run.
    """
    late_s = 0.0 if backends.tiers.local else GRACE_S
    players = _Players(settings, runtime, command, late_s)
    failed: NotTriedError | None = None
    try:
        async with create_task_group() as tasks:
            try:
                await _play(players, tasks, backends, runtime, seconds)
            except NotTriedError as error:  # raised below: the group would wrap it
                failed = error
            tasks.cancel_scope.cancel()
    finally:
        players.gather()
    if failed is not None:
        raise failed
    return players.played


async def _play(players: _Players, tasks: TaskGroup, backends: Backends, runtime: Runtime, seconds: float) -> None:
    for part in (*WRITERS, RECOVERY):
        tasks.start_soon(players.run, part)
    with move_on_after(START_S) as waiting:
        while not all(players.has_answered(part) for part in WRITERS):
            players.check()
            await runtime.sleep(0.05)
    if waiting.cancelled_caught:
        raise NotTriedError(f"the writers had no answer within {START_S:g} s")
    async with create_task_group() as beside:
        beside.start_soon(_look_on, backends, runtime, players.played)
        await _strike(players, beside, runtime, seconds)
        await players.end(WRITERS)
        beside.cancel_scope.cancel()
    await _drain(players, backends, runtime)
    await players.end((RECOVERY,))


async def _strike(players: _Players, tasks: TaskGroup, runtime: Runtime, seconds: float) -> None:
    ends_at, deck = runtime.monotonic() + seconds, ["kill"]
    await runtime.sleep(FIRST_STRIKE_S)
    while runtime.monotonic() < ends_at and not players.has_spent(seconds):
        players.check()
        deck = deck or runtime.random.sample(STRIKES, len(STRIKES))
        kind = deck.pop()
        able = [RECOVERY] if kind == "kill recovery" else list(WRITERS)
        if able := [part for part in able if players.may_strike(part)]:
            part = runtime.random.choice(able)
            if kind == "stop":
                tasks.start_soon(players.stop, part, runtime.random.uniform(*STOP_S))
            else:
                await players.kill(part, kind)
        await runtime.sleep(runtime.random.uniform(*STRIKE_EVERY_S))


async def _look_on(backends: Backends, runtime: Runtime, played: KilledRun) -> None:
    """No tombstone may be without its blob at any moment. A look that a service does not answer is left out."""
    while True:
        with suppress(TieredError):
            played.dangling |= await dangling(backends)
            played.looks += 1
        await runtime.sleep(LOOK_EVERY_S)


async def _drain(players: _Players, backends: Backends, runtime: Runtime) -> None:
    """Waits until the log was empty twice: what a dead writer has sent may still arrive after the first look."""
    give_up_at, empty = runtime.monotonic() + DRAIN_S, 0
    while empty < 2 and runtime.monotonic() < give_up_at:
        players.check()
        await runtime.sleep(EXPIRY_S / 2)
        with suppress(TieredError):
            empty = empty + 1 if not await unfinished(backends) else 0


@dataclass(slots=True)
class _Player:
    """A process. `writing`: when each of its writes began that has no answer yet. `took_s`: about how long one takes.
    `calls`, `payload`: how many it began, and how many bytes it put and read.

    `begins`: its next write. `has_answered`: it had an answer. `was_killed`: by us, at a random moment.
    """

    part: str
    process: Process
    said: bytearray = field(default_factory=bytearray)
    writing: dict[str, float] = field(default_factory=dict)
    took_s: float = 0.0
    calls: int = 0
    payload: int = 0
    begins: Event = field(default_factory=Event)
    has_answered: bool = False
    is_stopped: bool = False
    was_killed: bool = False
    ended_at: float = math.inf
    _heard: int = 0

    def hear(self, chunk: bytes) -> None:
        self.said += chunk
        whole = self.said.rfind(b"\n") + 1
        for raw in self.said[self._heard : whole].splitlines():
            line = json.loads(raw)
            self.calls += "begin" in line
            self.payload += line.get("bytes", 0)
            if "end" in line:
                self.has_answered = True
                if (began := self.writing.pop(line["end"], None)) is not None:
                    self.took_s += (line["at"] - began - self.took_s) / 8
            elif line.get("kind", JournaledKind.GET) != JournaledKind.GET:
                self.writing[line["begin"]] = line["at"]
                self.begins.set()
                self.begins = Event()
        self._heard = max(self._heard, whole)


class _Players:
    """All processes of a run: each part is one after the other."""

    def __init__(self, settings: Settings, runtime: Runtime, command: Callable[[str], list[str]], late_s: float) -> None:
        self.played = KilledRun()
        self._settings = settings.packed()
        self._runtime = runtime
        self._command = command
        self._late_s = late_s
        self._players: list[_Player] = []
        self._now: dict[str, _Player] = {}
        self._leaving: set[str] = set()
        self._crashes: list[str] = []

    async def run(self, part: str) -> None:
        """Runs the part, and starts it again when it has ended, until it is to end. Cancelled, it kills it."""
        incarnation = 0
        while part not in self._leaving and len(self._crashes) <= CRASHES_MAX:
            await self._run_once(part, f"{part}.{incarnation}")
            incarnation += 1

    async def _run_once(self, part: str, name: str) -> None:
        with CancelScope(shield=True):  # cancelled halfway, it would leave a process that nobody knows
            started = await open_process(self._command(name), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment())
        async with started as process:
            player = self._now[part] = _Player(part, process)
            self._players.append(player)
            assert process.stdin is not None and process.stdout is not None, "both are pipes"
            try:
                with suppress(BrokenResourceError, ClosedResourceError):
                    await process.stdin.send(ProcessOrders(name, self._settings).packed())
                async for chunk in process.stdout:
                    player.hear(chunk)
                code = await process.wait()
            finally:
                player.ended_at = self._runtime.monotonic()
                del self._now[part]
        if code not in (0, TURNED_AWAY, -signal.SIGKILL, -signal.SIGTERM):
            self._crashes.append(f"{name} with {code} {player.said.rpartition(b'crashed')[2][:300].decode(errors='replace')}")
        elif code == TURNED_AWAY:
            await self._runtime.sleep(1)

    def check(self) -> None:
        """`NotTriedError`: the processes end by themselves."""
        if len(self._crashes) > CRASHES_MAX:
            raise NotTriedError(f"the processes ended by themselves: {self._crashes[-1]}")

    def has_spent(self, seconds: float) -> bool:
        """Whether all that a run of so many seconds may spend is spent."""
        calls, size = sum(each.calls for each in self._players), sum(each.payload for each in self._players)
        return calls >= seconds * CALLS_A_SECOND or size >= seconds * BYTES_A_SECOND

    def has_answered(self, part: str) -> bool:
        return any(player.has_answered for player in self._players if player.part == part)

    def may_strike(self, part: str) -> bool:
        """Whether the part runs, and has begun to work."""
        player = self._now.get(part)
        return player is not None and not player.is_stopped and (part == RECOVERY or player.has_answered)

    async def kill(self, part: str, kind: str) -> None:
        """Kills a writer in the middle of a write: between two calls there would be nothing to lose."""
        player = self._now[part]
        if part != RECOVERY:
            with move_on_after(AIM_S):
                while True:
                    await player.begins.wait()
                    await self._runtime.sleep(self._runtime.random.uniform(0, player.took_s))
                    if player.writing:
                        break
        if self._now.get(part) is player:
            player.was_killed = True
            self.played.strikes[kind] += 1
            self._signal(player, signal.SIGKILL)

    async def stop(self, part: str, seconds: float) -> None:
        player = self._now[part]
        player.is_stopped = True
        self.played.strikes["stop"] += 1
        try:
            self._signal(player, signal.SIGSTOP)
            await self._runtime.sleep(seconds)
        finally:
            player.is_stopped = False
            self._signal(player, signal.SIGCONT)

    async def end(self, parts: Iterable[str]) -> None:
        """Ends them in order; those that take longer than `LEAVE_S` seconds are killed."""
        parts = set(parts)
        self._leaving |= parts
        for part in parts:
            if (player := self._now.get(part)) is not None:
                self._signal(player, signal.SIGCONT)
                self._signal(player, signal.SIGTERM)
        with move_on_after(LEAVE_S):
            while parts & self._now.keys():
                await self._runtime.sleep(0.05)
        for part in parts & self._now.keys():
            self._signal(self._now[part], signal.SIGKILL)
        while parts & self._now.keys():
            await self._runtime.sleep(0.05)

    def _signal(self, player: _Player, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has just ended, and was waited for
            player.process.send_signal(number)

    def gather(self) -> None:
        """What the writers were told, once all processes have ended."""
        for player in self._players:
            calls = [] if player.part == RECOVERY else list(calls_of(bytes(player.said), player.ended_at + self._late_s))
            self.played.calls += calls
            if player.was_killed:
                self.played.hit += sum(each.answer is CallAnswer.NONE and each.kind is not JournaledKind.GET for each in calls)


def environment() -> dict[str, str]:
    """The variables of a process: it finds packages where this one does, whatever is in the working directory."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "PYTHONSAFEPATH": "1"}


# --- the lines -----------------------------------------------------------------------------------


async def judge(backends: Backends, played: KilledRun) -> list[Line]:
    """The lines of the report, by what is stored now."""
    lost: list[str] = []
    told = [f"{call.kind} {call.id} was told {call.detail}" for call in played.calls if call.answer is CallAnswer.LOST]
    contents: dict[str, Content | None] = {}
    gone = await dangling(backends)
    told += [f"for a while, the blob {name} was not there, and a row named it" for name in sorted(played.dangling - gone)]
    told += [f"the blob {name} is not there, and a row names it" for name in sorted(gone)]
    async for path, content in contents_of(backends):
        if isinstance(content, str):
            told.append(content)
        contents[path] = content if isinstance(content, Content) else None
    lost += [sentence for _, sentence in flaws_of(contents, played.calls)]
    left = await left_of(backends)
    return [_line(*line, played) for line in (
        ("acknowledged", SAFE, lost, "what was acknowledged is lost, or what was refused is there"),
        ("readable", HONEST, told, "an object is there that nobody can read"),
        ("cleaned up", CLEAN, left, "what nothing names stays, and costs money, until an audit finds it"),
    )]  # fmt: skip


def _line(name: str, promise: str, flaws: Sequence[str], cost: str, played: KilledRun) -> Line:
    answers = Counter(call.answer for call in played.calls)
    strikes = played.strikes
    errors = [call.detail for call in played.calls if call.answer is CallAnswer.ERROR]
    happened = (
        f"{strikes['kill']} writers were killed, with {played.hit} writes under way, {strikes['stop']} were stopped for longer than their"
        f" lease, and {strikes['kill recovery']} recoveries were killed. Of {len(played.calls)} calls, {answers[CallAnswer.OK]} were"
        f" acknowledged, {answers[CallAnswer.NO]} refused, {answers[CallAnswer.FAILED]} told that their condition was false,"
        f" {answers[CallAnswer.UNKNOWN] + answers[CallAnswer.SETTLED]} unknown,"
        f" {answers[CallAnswer.NONE]} without an answer. {played.looks} looks meanwhile. A single request that arrives more than"
        f" {GRACE_S:g} s late was not tried; a store waits {RecoverySettings().late_upload_grace_s:g} s for it"
    )
    if flaws:
        result, first = Result.BROKEN, f"{len(flaws)} times: {'; '.join(flaws[:DETAILS_MAX])}. "
    elif not played.hit:
        result, first = Result.UNTRIED, "no kill hit a write under way. "
    elif not played.looks:
        result, first = Result.UNTRIED, "no look at the rows and blobs meanwhile was answered. "
    elif errors:
        result, first = Result.UNTRIED, f"{len(errors)} calls were told what no caller should be, such as {errors[0]}. "
    else:
        result, first = Result.HELD, ""
    return Line("kills", name, promise, result, first + happened, cost, ELSE)


def untried_kills(why: str) -> list[Line]:
    return [
        Line("kills", name, promise, Result.UNTRIED, why, "nobody knows what a killed process leaves", ELSE)
        for name, promise in (("acknowledged", SAFE), ("readable", HONEST), ("cleaned up", CLEAN))
    ]
