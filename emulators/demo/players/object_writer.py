"""A writer process of the demo: it puts, overwrites, deletes and reads, until it is told to stop or is killed.

    python -m emulators.demo.players.object_writer '{"config":…,"journal":…,"name":"w0.3",…}'

It notes each operation in its journal before it begins and after its answer (`journal.py`). It does not judge the
answers. On SIGTERM it begins no new operation, finishes those under way, and ends. It does the same when its parent
process has ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio

from changelog.base.errors import TieredError, UnavailableError
from changelog.base.runtime import Runtime, SystemRuntime
from changelog.change import ChangeId
from emulators.demo.players.journal import WRITES, JournaledAnswer, OperationJournal, OperationKind
from emulators.demo.players.load import LoadStep, digest, object_ids, steps
from emulators.demo.players.network import far, witness
from emulators.demo.players.unfenced import open_demo_backends
from tiered.errors import ConditionFailedError, OutcomeUnknownError
from tiered.metadata import Metadata, TimeToLive
from tiered.object_id import ObjectId
from tiered.open import Backends
from tiered.settings import Settings, load_settings
from tiered.storage import TieredStorage

TASKS = 8
PARENT_LOOK_S = 0.5
CHUNK_BYTES = 32 * 1024
EXPIRES = TimeToLive(timedelta(days=1))
TURNED_AWAY = 75
"""Exit code of a process whose tiers were out of reach when it began (EX_TEMPFAIL): the director starts it again."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a writer is told. `config`: the settings file. `name`: of the process, as in `w0.3`.

    `parent`: the id of the process whose end ends the writer as well.
    """

    config: str
    journal: str
    name: str
    seed: int
    objects: int
    parent: int
    unfenced: bool = False

    def command(self) -> list[str]:
        return [sys.executable, "-m", "emulators.demo.players.object_writer", json.dumps(asdict(self))]


async def write(orders: Orders, runtime: Runtime) -> int:
    """Works until SIGTERM, or until the parent has ended. Returns the exit code."""
    told, settings = anyio.Event(), load_settings(Path(orders.config))
    async with anyio.create_task_group() as beside:
        beside.start_soon(heed, told.set)
        beside.start_soon(follow_parent, orders.parent, runtime, told.set)
        async with open_demo_backends(settings, runtime, orders.unfenced) as backends:
            if backends is not None:
                await _work_all(orders, backends, runtime, settings, told)
        beside.cancel_scope.cancel()
    return TURNED_AWAY if backends is None else 0


async def _work_all(orders: Orders, backends: Backends, runtime: Runtime, settings: Settings, told: anyio.Event) -> None:
    journal, objects = OperationJournal(Path(orders.journal)), object_ids(orders.objects)
    tiers = backends.tiers
    if (service := settings.bigtable or settings.postgres) is not None:
        tiers = witness(tiers, OperationJournal(Path(orders.journal).with_suffix(WRITES)), runtime, service.timeout_s)
    async with (
        TieredStorage(far(tiers, runtime), backends.log, runtime, settings) as storage,
        anyio.create_task_group() as tasks,
    ):
        for task in range(TASKS):
            tasks.start_soon(_work, storage, journal, runtime, steps(orders.seed, orders.name, task, objects), told)


async def _work(storage: TieredStorage, journal: OperationJournal, runtime: Runtime, todo: Iterator[LoadStep], told: anyio.Event) -> None:
    read = LastRead()
    for step in todo:
        if told.is_set():
            return
        await perform(storage, journal, runtime, step, read)


@dataclass(slots=True)
class LastRead:
    """What a task has read last, and so what its next write may be over: an object, or nothing (`revision` None).

    `by`: the operation that has written it.
    """

    object_id: ObjectId | None = None
    revision: ChangeId | None = None
    by: str | None = None


async def perform(
    storage: TieredStorage, journal: OperationJournal, runtime: Runtime, step: LoadStep, read: LastRead | None = None
) -> JournaledAnswer:
    """Does one operation, and writes a line into the journal before it and after it.

    `read`: what its task has read last; what this operation reads is noted there.
    """
    read = read or LastRead()
    condition = _condition(step, read)
    journal.write(
        at=runtime.monotonic(), begin=step.id, object=step.object_id.path, kind=step.kind, size=len(step.payload),
        digest=digest(step.payload) if step.kind is OperationKind.PUT else None,
        **({"condition": read.revision or "absent", "wanted": read.by} if condition else {}),
    )
    answer, said = await _answered(storage, step, read, condition)
    journal.write(at=runtime.monotonic(), end=step.id, answer=answer, **said)
    return answer


def _condition(step: LoadStep, read: LastRead) -> dict[str, Any]:
    """Returns the condition, as arguments of the store. Without a read that told, there is none."""
    if not step.over_read or read.object_id != step.object_id:
        return {}
    if read.revision is not None:
        return {"if_revision": read.revision}
    return {"if_absent": True} if step.kind is OperationKind.PUT else {}


async def _answered(
    storage: TieredStorage, step: LoadStep, read: LastRead, condition: Mapping[str, Any]
) -> tuple[JournaledAnswer, dict[str, Any]]:
    """Does the operation. Returns the answer, and what the journal adds to it."""
    try:
        return JournaledAnswer.OK, await _carry_out(storage, step, read, condition)
    except OutcomeUnknownError as error:
        return JournaledAnswer.SETTLED if error.settled else JournaledAnswer.UNKNOWN, {"detail": str(error)}
    except UnavailableError as error:
        return JournaledAnswer.NO, {"detail": str(error)}
    except ConditionFailedError as error:
        return JournaledAnswer.FAILED, {"detail": str(error)}
    except TieredError as error:
        return JournaledAnswer.ERROR, {"detail": f"{type(error).__name__}: {error}"}


async def _carry_out(storage: TieredStorage, step: LoadStep, read: LastRead, condition: Mapping[str, Any]) -> dict[str, Any]:
    match step.kind:
        case OperationKind.PUT:
            payload = _chunks(step.payload) if step.streamed else step.payload
            metadata = Metadata(EXPIRES if step.expires else None, custom={"operation": step.id})
            await storage.put(step.object_id, payload, metadata, **condition)
        case OperationKind.DELETE:
            await storage.delete(step.object_id, **condition)
        case OperationKind.GET:
            read.object_id = None
            stored = await storage.get(step.object_id)
            if stored is None:
                read.object_id, read.revision, read.by = step.object_id, None, None
            else:
                content, by = digest(await stored.read()), stored.metadata.custom.get("operation")
                read.object_id, read.revision, read.by = step.object_id, stored.revision, by
                return {"digest": content, "by": by}
    return {}


def _chunks(payload: bytes) -> Iterator[bytes]:
    """Yields the payload in chunks: so `put` does not know its size before its end."""
    return (payload[start : start + CHUNK_BYTES] for start in range(0, len(payload), CHUNK_BYTES))


async def heed(stop: Callable[[], None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            stop()


async def follow_parent(parent: int, runtime: Runtime, stop: Callable[[], None]) -> None:
    """Stops when the parent has ended. It may be killed, too, and must leave no process running."""
    while os.getppid() == parent:
        await runtime.sleep(PARENT_LOOK_S)
    stop()


def main() -> None:
    orders = Orders(**json.loads(sys.argv[1]))
    sys.exit(anyio.run(write, orders, SystemRuntime()))


if __name__ == "__main__":
    main()
