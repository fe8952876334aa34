"""A process of the trial that may be killed at any moment: a writer of objects, or a recovery.

    python -m recovery.prove.writer      what it is to do comes by stdin, a journal (judge.py) goes to stdout

So the settings, which may hold a password, are on no command line, in no variable and on no disk, and nothing is left
of it all on this machine. And stdin ends when the parent has ended, whatever ended it: then this process ends, too.

*Stopped* (SIGSTOP) when its parent ends, it hears of nothing. But it is in a process group of its own. A system that
follows POSIX continues and ends the stopped processes of a group whose last parent is gone.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from threading import Event, Thread
from typing import Any, NamedTuple

import anyio

from changelog.base.errors import CorruptRecordError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime, SystemRuntime
from recovery.daemon import run_daemon
from recovery.prove.judge import ABSENT, CallAnswer, JournaledKind, digest
from tiered.errors import ConditionFailedError, DanglingTombstoneError, OutcomeUnknownError
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.settings import Settings
from tiered.storage import TieredStorage

USECASE = "kills"
TASKS, SHARED = 4, 4
"""So many tasks has each writer, and so many objects do all tasks of all writers share."""
PAUSE_MAX_S = 0.1
"""A task rests for as long at most between two calls, so that a run is bounded in what it costs."""
CHUNK_BYTES = 4096
SMALL_BYTES_MAX = 2000
LARGE_TIMES = 3
"""The largest object is as many times as large as the largest inline one."""
TURNED_AWAY = 75
"""Exit code of a process that no service answered when it began (EX_TEMPFAIL): it is started again."""
LEAVE_S = 8.0
"""A process that is told to end, and does not, ends at once after so many seconds."""

CHOICES = (
    (20, "small put"), (20, "large put"), (15, "streamed put"), (15, "conditional put"), (10, "delete"), (5, "conditional delete"),
    (20, "get"), (10, "copy"),
)  # fmt: skip
"""How often a task does what."""


@dataclass(frozen=True, slots=True)
class ProcessOrders:
    """What a process is told. `name`: of the process, as in `w0.3`: what begins with w writes, all else recovers.

    `settings`: as `Settings.packed` has them.
    """

    name: str
    settings: str

    def packed(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


class WriterStep(NamedTuple):
    """A call to do. `payload`: of a put. `source`: of a copy."""

    id: str
    kind: JournaledKind
    object_id: ObjectId
    payload: bytes = b""
    streamed: bool = False
    conditional: bool = False
    source: ObjectId | None = None


def steps(name: str, task: int, runtime: Runtime, inline_bytes_max: int) -> Iterator[WriterStep]:
    """What one task of one process does, without an end. No two payloads are alike.

    Two objects are its own, and those of the same task of each process that had its part: one that it writes and copies
    from, and one that only copies go to.
    """
    part = name.partition(".")[0]
    own, copy = (ObjectId.create(USECASE, f"{part}/{task}/{what}") for what in ("own", "copy"))
    shared = [ObjectId.create(USECASE, f"shared/{number}") for number in range(SHARED)]
    number = 0
    while True:
        number += 1
        identity = f"{name}-{task}-{number}"
        (what,) = runtime.random.choices([each for _, each in CHOICES], [weight for weight, _ in CHOICES])
        object_id = own if runtime.random.random() < 0.5 else runtime.random.choice(shared)
        match what:
            case "get":
                yield WriterStep(identity, JournaledKind.GET, runtime.random.choice((object_id, copy)))
            case "copy":
                yield WriterStep(identity, JournaledKind.COPY, copy if object_id is own else object_id, source=own)
            case "delete" | "conditional delete":
                yield WriterStep(identity, JournaledKind.DELETE, object_id, conditional=what != "delete")
            case _:
                is_small = what == "small put" or (what == "conditional put" and runtime.random.random() < 0.5)
                sizes = (1, SMALL_BYTES_MAX) if is_small else (inline_bytes_max + 1, LARGE_TIMES * inline_bytes_max)
                payload = hashlib.shake_128(identity.encode()).digest(runtime.random.randint(*sizes))
                yield WriterStep(identity, JournaledKind.PUT, object_id, payload, what == "streamed put", what == "conditional put")


class Journal:
    """Takes stdout for itself: what a library prints goes to stderr, which nobody reads."""

    def __init__(self) -> None:
        self._file = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def note(self, **line: object) -> None:
        """One line is one write, so a kill leaves all of it or nothing."""
        os.write(self._file, json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


class KilledWriter:
    """Does the steps of all of its tasks until it is `told` to end."""

    def __init__(self, storage: TieredStorage, journal: Journal, runtime: Runtime, told: anyio.Event) -> None:
        self._storage = storage
        self._journal = journal
        self._runtime = runtime
        self._told = told

    async def work(self, todo: Iterator[WriterStep]) -> None:
        while not self._told.is_set():
            await self._perform(next(todo))
            await self._runtime.sleep(self._runtime.random.uniform(0, PAUSE_MAX_S))

    async def _perform(self, step: WriterStep) -> None:
        """Does one step, with a line in the journal before it and after it."""
        condition: dict[str, Any] = {}
        named: dict[str, Any] = {}
        if step.conditional:
            try:
                head = await self._storage.head(step.object_id)
            except TieredError as error:
                answer, said = answer_of(error)
                if answer is CallAnswer.LOST:
                    self._note(begin=step.id, object=step.object_id.path, kind=JournaledKind.GET, digest=None)
                    self._note(end=step.id, answer=answer, **said)
                return
            if head is not None:
                condition = {"if_revision": head.revision}
                named = {"condition": head.revision, "wanted": head.metadata.custom.get("call")}
            elif step.kind is JournaledKind.DELETE:
                return
            else:
                condition, named = {"if_absent": True}, {"condition": ABSENT}
        if step.source is not None:
            named = {"source": step.source.path}
        put = digest(step.payload) if step.kind is JournaledKind.PUT else None
        self._note(begin=step.id, object=step.object_id.path, kind=step.kind, digest=put, bytes=len(step.payload), **named)
        try:
            answer, said = await self._carry_out(step, condition)
        except TieredError as error:
            answer, said = answer_of(error)
        self._note(end=step.id, answer=answer, **said)

    async def _carry_out(self, step: WriterStep, condition: dict[str, Any]) -> tuple[CallAnswer, dict[str, Any]]:
        match step.kind:
            case JournaledKind.PUT:
                payload = _chunks(step.payload) if step.streamed else step.payload
                await self._storage.put(step.object_id, payload, Metadata(custom={"call": step.id}), **condition)
            case JournaledKind.DELETE:
                await self._storage.delete(step.object_id, **condition)
            case JournaledKind.COPY:
                assert step.source is not None, "a copy has one"
                if await self._storage.copy(step.source, step.object_id) is None:
                    return CallAnswer.NO, {"detail": "there is no source"}
            case JournaledKind.GET:
                stored = await self._storage.get(step.object_id)
                if stored is not None:
                    payload = await stored.read()
                    return CallAnswer.OK, {"digest": digest(payload), "by": stored.metadata.custom.get("call"), "bytes": len(payload)}
        return CallAnswer.OK, {}

    def _note(self, **line: object) -> None:
        self._journal.note(at=self._runtime.monotonic(), **line)


def answer_of(error: TieredError) -> tuple[CallAnswer, dict[str, Any]]:
    """What a caller knows after an error, and what the journal adds."""
    detail = {"detail": f"{type(error).__name__}: {error}"[:1000]}
    match error:
        case OutcomeUnknownError():
            return CallAnswer.SETTLED if error.settled else CallAnswer.UNKNOWN, detail
        case UnavailableError():
            return CallAnswer.NO, detail
        case ConditionFailedError():
            return CallAnswer.FAILED, detail
        case DanglingTombstoneError() | CorruptRecordError():
            return CallAnswer.LOST, detail
        case _:
            return CallAnswer.ERROR, detail


def _chunks(payload: bytes) -> Iterator[bytes]:
    """The payload in chunks: so `put` does not know its size before its end, and begins a session."""
    return (payload[start : start + CHUNK_BYTES] for start in range(0, len(payload), CHUNK_BYTES))


async def write(name: str, settings: Settings, journal: Journal, runtime: Runtime) -> None:
    told = anyio.Event()
    async with anyio.create_task_group() as beside:
        beside.start_soon(_heed, told)
        async with open_storage(settings, runtime) as storage, anyio.create_task_group() as tasks:
            writer = KilledWriter(storage, journal, runtime, told)
            for task in range(TASKS):
                tasks.start_soon(writer.work, steps(name, task, runtime, settings.inline_bytes_max))
        beside.cancel_scope.cancel()


async def _heed(told: anyio.Event) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            told.set()


async def recover(settings: Settings, runtime: Runtime) -> None:
    async with open_backends(settings, runtime) as backends:
        await run_daemon(backends, runtime, settings)


async def run(orders: ProcessOrders) -> int:
    """Returns the exit code."""
    runtime, settings, journal = SystemRuntime(), Settings.unpacked(orders.settings), Journal()
    Thread(target=end_with_parent, daemon=True).start()
    failed: BaseExceptionGroup[TieredError] | None = None
    try:
        await (write(orders.name, settings, journal, runtime) if orders.name.startswith("w") else recover(settings, runtime))
    except* TieredError as errors:
        failed = errors
    if failed is None:
        return 0
    if failed.split((UnavailableError, UnconfirmedError))[1] is None:
        return TURNED_AWAY
    journal.note(crashed=repr(failed)[:1000])
    return 1


def end_with_parent() -> None:
    """Nothing comes by stdin after the orders, so what is read next is its end."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    Event().wait(LEAVE_S)
    os._exit(1)


def main() -> None:
    os.setpgrp()
    sys.exit(anyio.run(run, ProcessOrders(**json.loads(sys.stdin.buffer.readline()))))


if __name__ == "__main__":
    main()
