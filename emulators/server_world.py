"""`ServerWorld`: the adapters to PostgreSQL and S3 on real servers, used by many processes, whose calls can fail.

    PostgresRows, PostgresChangeLog --call--> FaultyPool -----> the real pool --> PostgreSQL
    S3Blobs                         --call--> FaultyS3Client -> the real client --> a server of the S3 API
                                              |
                                              a *point*: "s3 put_object blob #1", its first such call

All processes of a world share one pool and one client, and each has wrappers of its own around them. A fault is told as
the real adapter tells it: the driver's own error goes through `translated`, an S3 code through `error_of`, or is
returned where the caller expects it. A request that is late belongs to the network: one to PostgreSQL arrives when the
test says `deliver`, one to S3 when it says `deliver_uploads`. From a dead process no call leaves, and to it none
returns.

Nothing waits for time to pass: `visit` is a pass of recovery while late uploads may still arrive, and `drain` lets the
time go by in which they may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

import asyncpg
from anyio.lowlevel import checkpoint

from changelog.base.errors import TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.base.tasks import tasks_beside
from changelog.change import Entry, encode
from changelog.log import ChangeLog
from changelog.postgres.log import PostgresChangeLog
from changelog.postgres.pool import PostgresPool, Record
from changelog.postgres.sqlstates import translated
from emulators.adapter_world import HOUR_MS, ServedWorld, all_blobs
from emulators.world.faults import Network, Process
from tiered.payload.chunks import Chunk
from tiered.postgres.rows import PostgresRows
from tiered.postgres.schema import quoted_schema
from tiered.s3.blobs import S3Blobs
from tiered.s3.client import Answer, AnswerBody, S3Client
from tiered.s3.errors import Refusal, error_of
from tiered.services.backends import HighVolumeBackend, LongTermBackend
from tiered.settings import Settings
from tiered.transfer.upload_lanes import UploadLanes

T = TypeVar("T")

UPLOAD_BUDGET_S = 2.0
OWNER = "postgresql/test"


class ServerMode(Enum):
    """What may happen to one call. `BEFORE`: it has no effect; `AFTER`: it has."""

    REFUSED = "no effect, and an error that proves it: 40001 of PostgreSQL, 503 SlowDown of S3"
    SKEWED = "no effect: RequestTimeTooSkewed of S3"
    EXPIRED = "no effect: ExpiredToken of S3"
    FAILED_BEFORE = "no effect, and an error that proves nothing: 57014 of PostgreSQL, InternalError of S3"
    FAILED_AFTER = "the effect, and the same error; of a completion, S3 says it in an answer of 200"
    CUT_BEFORE = "no effect, and the connection breaks"
    CUT_AFTER = "the effect, and the connection breaks"
    LATE = "no answer, and the effect later"
    DIE_BEFORE = "the process dies before the request leaves"
    DIE_AFTER = "the process dies after the effect, before the answer"
    DIE_LATE = "the process dies, and its request has its effect later"


OF_S3 = (ServerMode.SKEWED, ServerMode.EXPIRED)
OF_READS = (ServerMode.REFUSED, *OF_S3, ServerMode.CUT_BEFORE, ServerMode.DIE_BEFORE)
"""What may happen to a call that has no effect."""

_BEFORE = (ServerMode.REFUSED, *OF_S3, ServerMode.FAILED_BEFORE, ServerMode.CUT_BEFORE)
_AFTER = (ServerMode.FAILED_AFTER, ServerMode.CUT_AFTER)
_DRIVER_ERRORS: dict[ServerMode, type[Exception]] = {
    ServerMode.REFUSED: asyncpg.SerializationError, ServerMode.FAILED_BEFORE: asyncpg.QueryCanceledError,
    ServerMode.FAILED_AFTER: asyncpg.QueryCanceledError,
}  # fmt: skip
_SAID: dict[ServerMode, tuple[int, str]] = {
    ServerMode.REFUSED: (503, "SlowDown"), ServerMode.SKEWED: (403, "RequestTimeTooSkewed"), ServerMode.EXPIRED: (400, "ExpiredToken"),
    ServerMode.FAILED_BEFORE: (500, "InternalError"), ServerMode.FAILED_AFTER: (500, "InternalError"),
}  # fmt: skip
_BESIDE = {"~t/": "marker", "~m/": "amendment"}

ServerScript = Callable[[str], ServerMode | None]
"""Returns what happens at a point. It is asked once for each call, when the process makes it."""


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A call to make: `send` makes it, `late` leaves it to the network, and `fail` tells a fault as the adapter does.

    `fail` returns what is an answer to the caller, and raises all else.
    """

    name: str
    has_effect: bool
    send: Callable[[], Awaitable[Any]]
    late: Callable[[], None]
    fail: Callable[[ServerMode], Any]


class ServerWire:
    """The calls of one process. `points`: those made so far, `reads`: those without effect, `trace`: what happened."""

    def __init__(self, process: Process, script: ServerScript) -> None:
        self.points: list[str] = []
        self.reads: set[str] = set()
        self.trace: list[str] = []
        self.process = process
        self._script = script
        self._counts: Counter[str] = Counter()

    async def carry(self, call: ServerCall) -> Any:
        await self._refuse_if_dead()
        self._counts[call.name] += 1
        point = f"{call.name} #{self._counts[call.name]}"
        self.points.append(point)
        if not call.has_effect:
            self.reads.add(point)
        mode = self._script(point)
        self.trace.append(point + (f" [{mode.name}]" if mode else ""))
        try:
            return await self._meet(mode, call)
        finally:
            await self._refuse_if_dead()

    async def _meet(self, mode: ServerMode | None, call: ServerCall) -> Any:
        if mode in (ServerMode.LATE, ServerMode.DIE_LATE):
            call.late()
        elif mode not in (*_BEFORE, ServerMode.DIE_BEFORE):
            answer = await call.send()
            if mode is None:
                return answer
        assert mode is not None, "a call without a fault has returned"
        if mode.name.startswith("DIE"):
            self.process.crash()
            return None
        return call.fail(mode)

    async def _refuse_if_dead(self) -> None:
        if not self.process.alive:
            await checkpoint()
            raise UnavailableError("the process is dead")


class FaultyPool(PostgresPool):
    """The pool of one process. `late`: gets the statements that are late."""

    def __init__(self, pool: PostgresPool, wire: ServerWire, late: list[Callable[[], Awaitable[object]]]) -> None:
        self.shown = pool.shown
        self.standby_answers = 0
        self._real = pool
        self._wire = wire
        self._late = late

    async def read(self, doing: str, statement: str, *values: object) -> Sequence[Record]:
        return await self._carry(doing, False, lambda: self._real.read(doing, statement, *values))  # type: ignore[no-any-return]

    async def write(self, doing: str, statement: str, *values: object, may_send: Callable[[], object] | None = None) -> Record | None:
        if may_send is not None:
            may_send()
        return await self._carry(doing, True, lambda: self._real.write(doing, statement, *values))

    async def write_many(self, doing: str, statement: str, *values: object) -> Sequence[Record]:
        return await self._carry(doing, True, lambda: self._real.write_many(doing, statement, *values))  # type: ignore[no-any-return]

    async def _carry(self, doing: str, has_effect: bool, send: Callable[[], Awaitable[Any]]) -> Any:
        def fail(mode: ServerMode) -> None:
            error = _DRIVER_ERRORS.get(mode, asyncpg.ConnectionDoesNotExistError)(f"as the test wants it: {mode.name}")
            raise translated(error, doing, sent=has_effect)

        words = [word for word in doing.split()[:5] if word.isalpha()]
        name = f"postgres {' '.join(words[:3])}"
        return await self._wire.carry(ServerCall(name, has_effect, send, lambda: self._late.append(send), fail))


class FaultyS3Client(S3Client):
    """The client of one process. `late`: gets the requests that are late."""

    def __init__(self, client: S3Client, wire: ServerWire, late: list[Callable[[], Awaitable[object]]]) -> None:
        self.bucket, self.endpoint, self.answer_timeout_s = client.bucket, client.endpoint, client.answer_timeout_s
        self._real = client
        self._wire = wire
        self._late = late

    async def call(
        self, operation: str, doing: str, *, effect: bool = False, accept: Collection[str] = (), answers: int = 1,
        body: bytes | Sequence[Chunk] | None = None, **named: Any,
    ) -> Answer | Refusal:  # fmt: skip
        async def send() -> Answer | Refusal:
            return await self._real.call(operation, doing, effect=effect, accept=accept, answers=answers, body=body, **named)

        name = _name(operation, named)
        has_effect = effect or operation == "create_multipart_upload"
        return await self._wire.carry(ServerCall(  # type: ignore[no-any-return]
            name, has_effect, send, lambda: self._late.append(send), lambda mode: _fail(mode, doing, accept, effect=effect)
        ))  # fmt: skip

    async def open_body(self, doing: str, *, accept: Collection[str] = (), **named: Any) -> tuple[Answer, AnswerBody] | Refusal:
        async def send() -> tuple[Answer, AnswerBody] | Refusal:
            opened = await self._real.open_body(doing, accept=accept, **named)
            if not isinstance(opened, Refusal) and not self._wire.process.alive:
                opened[1].close()  # the dead read nothing
            return opened

        name = _name("get_object", named)
        return await self._wire.carry(ServerCall(  # type: ignore[no-any-return]
            name, False, send, lambda: None, lambda mode: _fail(mode, doing, accept, effect=False)
        ))  # fmt: skip


def _name(operation: str, named: dict[str, Any]) -> str:
    key = named.get("Key", named.get("Prefix", ""))
    return f"s3 {operation} {_BESIDE.get(key[:3], 'blob')}"


def _fail(mode: ServerMode, doing: str, accept: Collection[str], *, effect: bool) -> Refusal:
    if mode not in _SAID:
        kind = UnconfirmedError if effect else UnavailableError
        raise kind(f"{doing} was never confirmed: as the test wants it: {mode.name}")
    status, code = _SAID[mode]
    refusal = Refusal(200 if "completing" in doing and status == 500 else status, code, "as the test wants it")
    if code in accept:
        return refusal
    raise error_of(refusal, doing, effect=effect)


class ServerWorld(ServedWorld[ServerMode]):
    """One deployment: a schema of PostgreSQL and a bucket."""

    def __init__(self, pool: PostgresPool, schema: str, client: S3Client, network: Network, settings: Settings) -> None:
        self.wires: list[ServerWire] = []
        rows, log = PostgresRows(pool, schema, SystemRuntime(), OWNER), PostgresChangeLog(pool, quoted_schema(schema))
        super().__init__(rows, log, network, settings)
        self._pool = pool
        self._schema = schema
        self._client = client
        self._late: list[Callable[[], Awaitable[object]]] = []
        self._landed: list[Callable[[], Awaitable[object]]] = []
        self._late_uploads: list[Callable[[], Awaitable[object]]] = []

    @asynccontextmanager
    async def _opened(
        self, process: Process, script: ServerScript
    ) -> AsyncIterator[tuple[HighVolumeBackend, LongTermBackend, ChangeLog]]:
        wire = ServerWire(process, script)
        self.wires.append(wire)
        pool = FaultyPool(self._pool, wire, self._late)
        rows, log = PostgresRows(pool, self._schema, process.runtime, OWNER), PostgresChangeLog(pool, quoted_schema(self._schema))
        async with self._opened_blobs(process, FaultyS3Client(self._client, wire, self._late_uploads)) as blobs:
            yield rows, blobs, log

    @asynccontextmanager
    async def blobs(self, process: Process) -> AsyncIterator[LongTermBackend]:
        async with self._opened_blobs(process, self._client) as blobs:
            yield blobs

    @asynccontextmanager
    async def _opened_blobs(self, process: Process, client: S3Client) -> AsyncIterator[S3Blobs]:
        """As `S3Blobs.connect`, over this client."""
        async with tasks_beside() as tasks:
            yield S3Blobs(client, tasks, process.runtime, "", UploadLanes(), UPLOAD_BUDGET_S, whole_checksums=True)

    async def deliver(self, *, once_more: bool = False) -> int:
        landing = [*(self._landed if once_more else ()), *self._late]
        self._landed += self._late
        self._late.clear()
        for send in landing:
            await send()
        return len(landing)

    async def deliver_uploads(self) -> int:
        """Lets the late requests to S3 arrive now. Returns how many there were."""
        landing, self._late_uploads = self._late_uploads, []
        for send in landing:
            with suppress(TieredError):  # it arrives in vain
                await send()
        return len(landing)

    async def visit(self) -> None:
        """One pass of recovery, when every owner has been silent for an hour and late uploads may still arrive."""
        await super().age()
        async with self.recovery(self.process("visit")) as recovery:
            await recovery.run_once()

    async def age(self) -> dict[str, str]:
        """Also ends the time in which late uploads may arrive."""
        for entry in await self._entries():
            if isinstance(entry, Entry) and entry.cleanup_after_ms is not None:
                over = replace(entry, cleanup_after_ms=entry.cleanup_after_ms - HOUR_MS)
                statement = f"UPDATE {quoted_schema(self._schema)}.entries SET value = $2 WHERE key = $1"
                await self._pool.write("passing the time", statement, entry.key.encode(), encode(over))
        return await super().age()

    async def set_back(self, entry: Entry, by_ms: int) -> None:
        statement = f"UPDATE {quoted_schema(self._schema)}.entries SET heartbeat_ms = heartbeat_ms - $2 WHERE key = $1"
        await self._pool.write("setting an entry back", statement, entry.key.encode(), by_ms)

    async def still_open(self, sessions: Collection[str]) -> Collection[str]:
        page = await self._client.call("list_multipart_uploads", "looking for open uploads", MaxUploads=1000)
        assert not isinstance(page, Refusal) and not page.get("IsTruncated"), "there are few"
        open_ones = {each["UploadId"] for each in page.get("Uploads", ())}
        return [session for session in sessions if session.rpartition("uploadId=")[2] in open_ones]

    async def findings(self) -> list[str]:
        """Also returns a sentence for each row that expires and whose blob has no deadline, or an earlier one."""
        async with self.blobs(self.process("auditor")) as blobs:
            found = await all_blobs(blobs)
        rows = {path: row for path, row in (await self._all_rows()).items() if row.state is not None and row.state.deadline_ns is not None}
        named = {path: found[row.target] for path, row in rows.items() if row.target in found}
        unmarked = [f"{path} expires, and nothing says when its blob does" for path, blob in named.items() if blob.deadline_ns is None]
        return [*await super().findings(), *unmarked]
