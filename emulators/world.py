"""`World`: one simulated deployment, and what its callers do and are told.

    rows, log, blobs    the services, with a clock of their own, and a `Watch` that looks after every effect
    network             carries what is late; its trace is the world's
    process(name)       a process with a seed, a clock and faults of its own; a `client` or a `recovery` lives in it
    Client              an open store and its one caller, whose operations and answers the history notes

When all is over, `drain` lets recovery finish, and `verify` raises the first `InvariantViolation`. Who crashes when, and
who runs beside whom, is the tests' choice. A write is known by its *label*: its payload repeats it and its metadata
name it, so that a read that mixes two writes is found out (I7).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from emulators.blobs import SimulatedBlobs
from emulators.checker import Answer, History, InvariantViolation, Watch, Write, left_over, orphans
from emulators.faults import Network, Plan, Process, Travel, no_faults, no_time
from emulators.log import SimulatedChangeLog
from emulators.rows import SimulatedRows
from emulators.runtime import SimulatedRuntime
from recovery.loop import RecoveryLoop
from tiered.errors import ConfigurationError, InvalidRequestError, OutcomeUnknownError, UnavailableError
from tiered.metadata import Expiration, Metadata
from tiered.object_id import ObjectId
from tiered.payload import Payload
from tiered.settings import Settings
from tiered.settle import Tiers
from tiered.storage import TieredStorage

INLINE_BYTES_MAX = 100
DRAIN_PASSES_MAX = 10

SETTINGS = Settings(directory=Path("simulated"), changelog="noop", inline_bytes_max=INLINE_BYTES_MAX)
"""As shipped, but for payloads that are easier to read. The components are simulated whatever they say."""


class BrokenPayload(Exception):
    """What a caller's own payload raises half-way."""


class World:
    """`async with World(seed) as world`, inside of `run_world`."""

    def __init__(self, seed: int, *, sessions: bool = True) -> None:
        self.seed = seed
        self.runtime = SimulatedRuntime(f"{seed}/services")
        self.rows = SimulatedRows(self.runtime)
        self.log = SimulatedChangeLog(self.runtime)
        self.blobs = SimulatedBlobs(self.runtime, sessions=sessions)
        self.network = Network()
        self.watch = Watch(self.rows, self.blobs, self.log, self.runtime, self.network.trace)
        self.history = History()

    async def __aenter__(self) -> Self:
        await self.network.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.network.__aexit__(kind, error, trace)

    def process(self, name: str, plan: Plan = no_faults, skew_s: float = 0.0, travel: Travel = no_time) -> Process:
        return Process(name, SimulatedRuntime(f"{self.seed}/{name}", skew_s=skew_s), self.network, plan, travel)

    @asynccontextmanager
    async def client(self, process: Process) -> AsyncIterator[Client]:
        """An open store in this process."""
        async with TieredStorage(self._tiers(process), process.link.log(self.log), process.runtime, SETTINGS) as storage:
            client = Client(process, storage, self.history)
            yield client
            if not await storage.aclose():
                client.note_end()

    def recovery(self, process: Process) -> RecoveryLoop:
        return RecoveryLoop(self._tiers(process), process.link.log(self.log), process.runtime, SETTINGS)

    async def drain(self) -> None:
        """Passes of a recovery without faults until no entry is open and the network quiet, or for some hours."""
        recovery, pause_s = self.recovery(self.process("drain")), SETTINGS.lease.expiry_s + 1
        for _ in range(DRAIN_PASSES_MAX):
            await recovery.run_once()
            if self.network.quiet and all(stored.state for stored in self.log.stored.values()):
                return
            await self.runtime.sleep(pause_s)
            pause_s *= 2

    def verify(self) -> None:
        """Raises the first `InvariantViolation`. Call it when processes have ended and the log is drained."""
        self.watch.verify()
        uploads = [session for session in self.blobs.uploads if session in self.watch.recorded]
        for invariant, findings in (
            ("I4 honest", self.history.unexplained()),
            ("I3 no leak", orphans(self.rows, self.blobs, self.runtime.wall_ns())),
            ("I6 drained", left_over(self.log, uploads)),
        ):
            for finding in findings:
                raise InvariantViolation(invariant, finding, self.network.trace)

    def _tiers(self, process: Process) -> Tiers:
        return Tiers(process.link.rows(self.rows), process.link.blobs(self.blobs))


class Client:
    """The caller of one open store. What it is told is noted; its errors are passed on when they are no honest answer."""

    def __init__(self, process: Process, storage: TieredStorage, history: History) -> None:
        self.storage = storage
        self._process = process
        self._history = history
        self._cancelled: list[Write] = []

    async def put(
        self, object_id: ObjectId, label: str, size: int, *, payload: Payload | None = None, expiration: Expiration = None
    ) -> Answer:
        """Puts `content(label, size)`, as `payload` if that is given. A payload that gives up raises `BrokenPayload`."""
        metadata = Metadata(expiration, custom={"label": label})
        async with self._write(object_id, label) as write:
            await self.storage.put(object_id, content(label, size) if payload is None else payload, metadata)
        return write.answer

    async def delete(self, object_id: ObjectId) -> Answer:
        async with self._write(object_id, None) as write:
            await self.storage.delete(object_id)
        return write.answer

    async def get(self, object_id: ObjectId) -> str | None:
        """The label of what was found; None: nothing, or no answer."""
        read = self._history.begin_read(object_id.path)
        try:
            stored = await self.storage.get(object_id)
            found = None if stored is None else _label(stored.metadata.custom.get("label", ""), await stored.read())
        except (UnavailableError, ConfigurationError):
            return None
        if self._process.alive:
            self._history.end_read(read, found)
        return found

    def note_end(self) -> None:
        """The store has closed and left nothing behind: what was cancelled has had its effect, or never will."""
        for write in self._cancelled:
            self._history.end_write(write, Answer.OVER)

    @asynccontextmanager
    async def _write(self, object_id: ObjectId, label: str | None) -> AsyncIterator[Write]:
        write, answer = self._history.begin_write(object_id.path, label), Answer.OK
        try:
            yield write
        except (UnavailableError, InvalidRequestError, BrokenPayload):
            answer = Answer.NO
        except OutcomeUnknownError as error:
            answer = Answer.OVER if error.settled else Answer.UNKNOWN
        except anyio.get_cancelled_exc_class():
            self._cancelled.append(write)
            raise
        if self._process.alive:
            self._history.end_write(write, answer)


def content(label: str, size: int) -> bytes:
    """`size` bytes that repeat the label."""
    word = f"{label} ".encode()
    return (word * (size // len(word) + 1))[:size]


def _label(label: str, payload: bytes) -> str:
    return label if payload == content(label, len(payload)) else f"metadata of {label!r} with payload {payload[:40]!r}"
