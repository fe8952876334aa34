"""Calls per operation on PostgreSQL and S3, counted; and the bytes of log and table that rows take, measured.

    python -m benchmarks.calls_elsewhere                          counts, measures, and shows both tables
    python -m benchmarks.calls_elsewhere --docs docs/sizing.md    writes the table of calls into that page

The operations and their calls are those of `benchmarks/calls.py`; `tests/production/test_calls_elsewhere.py` counts. A
statement to PostgreSQL is one round trip, and a transaction of its own. S3 bills each request: those of `PUTS` as one
class, those of `GETS` as another one, and deletions not at all.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from benchmarks.calls import CASES, COUNTED, KIB, CallsCase, Operation
from benchmarks.counted import LaterRuntime
from benchmarks.harness import Figures, between, together
from changelog.change import ChangeId
from emulators.postgres.server import SAFE, postgres_server
from emulators.s3.servers import CREDENTIALS, REGION, start_versitygw
from tiered import ObjectId, Settings, TieredStorage
from tiered.kinds.chosen import provision
from tiered.open import Backends, open_backends
from tiered.postgres.rows import PostgresRows
from tiered.s3.owned import OwnedS3Blobs

READS, WRITES, PUTS, GETS = "statements that read", "statements that write", "S3 PUT class", "S3 GET class"
CLASSES: dict[str, str | None] = {
    "PutObject": PUTS, "CreateMultipartUpload": PUTS, "UploadPart": PUTS, "CompleteMultipartUpload": PUTS, "ListObjectsV2": PUTS,
    "GetObject": GETS, "HeadObject": GETS, "DeleteObject": None, "AbortMultipartUpload": None,
}  # fmt: skip
"""How AWS bills a request, by its list of prices: as PUT, COPY, POST and LIST, as GET and all others, or not at all."""

Calls = tuple[int, int, int, int]
"""Statements that read and that write, requests of the class of PUT and of GET."""

class ServiceTally:
    """What was sent: a phrase for each statement, and the operation of each request to S3."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.writes: list[str] = []
        self.requests: list[str] = []

    @property
    def calls(self) -> Calls:
        """Without what a process tells of the change feed, which it does once in five minutes and at its end."""
        classes = Counter(CLASSES[name] for name in self.requests)
        reads, writes = ([each for each in of if not each.startswith(TELLING)] for of in (self.reads, self.writes))
        return len(reads), len(writes), classes[PUTS], classes[GETS]


TELLING = ("asking for the time", "reading the note", "writing 1 values", "erasing 1 values")


class CountedElsewhere:
    """A store on PostgreSQL and S3. Each operation has a `TieredStorage` of its own, so nothing else is under way."""

    def __init__(self, backends: Backends, runtime: LaterRuntime, settings: Settings) -> None:
        self.runtime = runtime
        assert settings.postgres is not None
        self.schema = settings.postgres.schema_name
        self.settings = settings
        self._backends = backends
        self._tally = ServiceTally()
        rows, blobs = backends.tiers.high_volume, backends.tiers.long_term
        assert isinstance(rows, PostgresRows) and isinstance(blobs, OwnedS3Blobs)
        self.pool = rows._pool
        self._note_statements(self.pool)
        blobs._blobs.client._client.meta.events.register("before-send.s3", self._note_request)

    def _note_statements(self, pool: Any) -> None:
        def noting(send: Any, names: str) -> Any:
            def call(doing: str, *rest: Any, **named: Any) -> Any:
                getattr(self._tally, names).append(doing)
                return send(doing, *rest, **named)

            return call

        for method, names in (("read", "reads"), ("write", "writes"), ("write_many", "writes")):
            setattr(pool, method, noting(getattr(pool, method), names))

    def _note_request(self, event_name: str, **_: Any) -> None:
        """Is called right before a request goes to its connection."""
        self._tally.requests.append(event_name.rpartition(".")[2])

    def storage(self) -> TieredStorage:
        return TieredStorage(self._backends.tiers, self._backends.log, self.runtime, self.settings)

    async def run(self, *operations: Operation) -> None:
        for operation in operations:
            async with self.storage() as storage:
                await operation(storage)

    async def count(self, case: CallsCase) -> ServiceTally:
        """What the operation sends in all, with the clean-up that its caller does not wait for."""
        await self.run(lambda storage: storage.delete(COUNTED), *case.first)
        self.runtime.later_s += case.later_s
        self._tally = ServiceTally()
        await self.run(case.operation)
        return self._tally


@asynccontextmanager
async def counted_elsewhere(dsn: str, endpoint: str) -> AsyncIterator[CountedElsewhere]:
    """A store in a schema and a bucket of its own. Credentials of S3 come from the environment."""
    runtime = LaterRuntime()
    name = f"t{ChangeId.new(runtime).replace('-', '')}"
    settings = Settings.model_validate({
        "postgres": {"dsn": dsn, "schema_name": name},
        "s3": {"bucket": name, "endpoint": endpoint, "region": REGION, "addressing_style": "path"},
        "inline_bytes_max": KIB,
    })  # fmt: skip
    await provision(settings)
    async with open_backends(settings, runtime) as backends:
        yield CountedElsewhere(backends, runtime, settings)


# --- tables ----------------------------------------------------------------------------------------

PER_1000 = {PUTS: 0.005, GETS: 0.0004}
"""US dollars of 1,000 requests: an assumption, AWS's list price of S3 Standard in us-east-1 as it was often quoted."""


def table() -> Figures:
    rows = []
    for case in CASES:
        _, _, puts, gets = case.elsewhere
        rows.append([case.what, *map(str, case.elsewhere), f"{1000 * (puts * PER_1000[PUTS] + gets * PER_1000[GETS]):.2f}"])
    columns = ["operation", READS, WRITES, PUTS, GETS, "requests of a million, US$"]
    return Figures("Calls on PostgreSQL and S3", columns, together(rows))


def written(page: str) -> str:
    """The page with the table as it is now, between its marks."""
    return between(page, "calls elsewhere", table())


async def measured_bytes(store: CountedElsewhere, objects: int) -> Figures:
    """Bytes of PostgreSQL's log and of its tables with their indexes for each object, right after a checkpoint."""
    ids = [ObjectId.create("bench", f"{number:08}") for number in range(objects)]
    schema = store.schema

    async def ask(statement: str) -> float:
        return float((await store.pool.read("measuring", statement))[0][0])

    async def log_bytes() -> float:
        return await ask("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8")

    async def table_bytes() -> float:
        of_schema = f"FROM pg_class WHERE relkind = 'r' AND relnamespace = '{schema}'::regnamespace"
        return await ask(f"SELECT sum(pg_total_relation_size(oid))::float8 {of_schema}")

    async def each(what: str, payload: bytes | None) -> list[str]:
        await store.pool.write("measuring", "CHECKPOINT")
        log, tables = await log_bytes(), await table_bytes()
        async with store.storage() as storage:
            for object_id in ids:
                await (storage.delete(object_id) if payload is None else storage.put(object_id, payload))
        grown = (await table_bytes() - tables) / objects
        return [what, f"{(await log_bytes() - log) / objects:,.0f}", f"{grown:,.0f}"]

    rows = [
        await each("put small, 1 KiB", bytes(KIB)), await each("put small over small", bytes(KIB)), await each("delete small", None),
        await each("put large over nothing", bytes(2 * KIB)), await each("put large over large", bytes(2 * KIB)),
        await each("delete large", None),
    ]  # fmt: skip
    return Figures("Bytes in PostgreSQL", ["operation", "bytes of log (WAL)", "bytes that tables and indexes grew"], rows, [
        f"{objects:,} objects with paths of {len(ids[0].path)} bytes, one after the other; full_page_writes on, no vacuum in between.",
    ])  # fmt: skip


async def measure(objects: int) -> None:
    os.environ.update(CREDENTIALS)
    with postgres_server(SAFE) as server, TemporaryDirectory() as directory:
        async with start_versitygw(Path(directory)) as endpoint, counted_elsewhere(server.dsn(), endpoint) as store:
            counted = {case.what: (await store.count(case)).calls for case in CASES}
            (await measured_bytes(store, objects)).show()
    table().show()
    if wrong := {case.what: counted[case.what] for case in CASES if case.elsewhere != counted[case.what]}:
        sys.exit(f"not as expected: {wrong}")


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.calls_elsewhere", description="Calls and bytes on PostgreSQL and S3.")
    parser.add_argument("--objects", type=int, default=2000, help="how many objects are put to measure bytes (2000)")
    parser.add_argument("--docs", type=Path, help="writes the table of docs/sizing.md")
    given = parser.parse_args()
    if given.docs is not None:
        given.docs.write_text(written(given.docs.read_text("utf-8")), "utf-8")
    else:
        anyio.run(measure, given.objects)


if __name__ == "__main__":
    main()
