"""What a service refuses until somebody changes something is told by the first attempt, whatever is called of a store.

A row of `REFUSALS` is what a service says, in its own words, and what a caller is told. Each call of the store that
reaches the service is made. A service more is a function that opens its tier, refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import asyncpg
import grpc
import pytest
from google.auth.exceptions import RefreshError

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.base.observe import Event, Observer
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, insecure_channel
from changelog.bigtable.log import BigtableChangeLog
from changelog.change import ChangeId
from changelog.google.tokens import NEW_S, GoogleAuthorization
from changelog.log import ChangeLog
from changelog.postgres.log import PostgresChangeLog
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.postgres.server import PostgresServer
from emulators.s3.faults import FaultKind, FaultyProxy, ServiceFault
from emulators.s3.servers import ACCESS, SECRET
from tests.changelog.google.test_tokens import FakeCredentials, FixedTimeRuntime
from tests.given.fresh_schema import ask, made_schema, settings_of
from tests.given.s3_buckets import make_bucket, s3_blobs
from tests.given.scripted_bigtable import REQUESTS, Fails, ScriptedBigtable
from tests.given.waiting import becomes
from tiered import ObjectId, OutcomeUnknownError, Settings, TieredStorage
from tiered.bigtable.rows import BigtableRows
from tiered.gcs.blobs import GcsBlobs
from tiered.postgres.open import connect
from tiered.postgres.rows import PostgresRows
from tiered.postgres.schema import quoted_schema
from tiered.s3.client import SharedSession
from tiered.services.backends import Tiers
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
RUNTIME = SystemRuntime()
SETTINGS = Settings(directory="unused", inline_bytes_max=100)
LARGE = b"large" * 500
THERE, OTHER = ObjectId.create("photos", "cat"), ObjectId.create("photos", "dog")
TABLE = "projects/p/instances/i/tables/t"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class CountedRetries(Observer):
    """Which errors were answered with another attempt."""

    def __init__(self) -> None:
        self.retried: list[str] = []

    def count(self, event: Event, kind: str = "", amount: int = 1) -> None:
        if event is Event.RETRIED:
            self.retried.append(kind)


# --- what is called ----------------------------------------------------------------------------------

Called = Callable[[TieredStorage], Awaitable[object]]


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(3):
        yield LARGE


async def listed(storage: TieredStorage) -> None:
    async for _ in storage.list(metadata=True):
        pass


async def read(storage: TieredStorage) -> None:
    stored = await storage.get(THERE)
    assert stored is not None
    await stored.read()


OF_BLOBS: dict[str, Called] = {
    "get": read, "head, checksum": lambda storage: storage.head(THERE, checksum=True),
    "put, large": lambda storage: storage.put(OTHER, LARGE), "put, over a large one": lambda storage: storage.put(THERE, LARGE),
    "put, a stream": lambda storage: storage.put(OTHER, pieces()), "copy": lambda storage: storage.copy(THERE, OTHER),
    "rename": lambda storage: storage.rename(THERE, OTHER),
    "update_metadata": lambda storage: storage.update_metadata(THERE, lambda found: replace(found, custom={"a": "1"})),
    "set_expiry": lambda storage: storage.set_expiry(THERE, from_creation=timedelta(days=1)),
    "begin_multipart": lambda storage: storage.begin_multipart(OTHER), "begin_resumable": lambda storage: storage.begin_resumable(OTHER),
}  # fmt: skip
OF_ROWS: dict[str, Called] = OF_BLOBS | {
    "put, small": lambda storage: storage.put(OTHER, b"small"), "put, if absent": lambda storage: storage.put(OTHER, b"", if_absent=True),
    "head": lambda storage: storage.head(THERE), "delete": lambda storage: storage.delete(THERE),
    "list": listed, "list_page": lambda storage: storage.list_page(),
    "outcome": lambda storage: storage.outcome(OutcomeUnknownError(THERE, ChangeId.new(RUNTIME), logged=True)),
}


# --- what is refused ---------------------------------------------------------------------------------

Opened = AbstractAsyncContextManager[tuple[Tiers, ChangeLog]]


@dataclass
class RefusalGround:
    """Where the services are. `memory`: the other tier and the log."""

    request: pytest.FixtureRequest
    rows: MemoryRows = field(default_factory=lambda: MemoryRows(RUNTIME))
    log: MemoryChangeLog = field(default_factory=lambda: MemoryChangeLog(RUNTIME))

    async def store_one(self, blobs: Any) -> None:
        """A large object, stored while nothing is refused."""
        async with TieredStorage(Tiers(self.rows, blobs), self.log, RUNTIME, SETTINGS) as storage:
            await storage.put(THERE, LARGE)


@dataclass(frozen=True)
class TriedRefusal:
    """`opened`: a store of which one service refuses. `code`, `kind`: what its caller is told."""

    service: str
    what: str
    opened: Callable[[RefusalGround], Opened]
    kind: type[TieredError]
    code: str
    calls: dict[str, Called]


def postgres(user: str, database: str = "postgres") -> Callable[[RefusalGround], Opened]:
    @asynccontextmanager
    async def opened(at: RefusalGround) -> AsyncIterator[tuple[Tiers, ChangeLog]]:
        server: PostgresServer = at.request.getfixturevalue("postgres")
        schema = await made_schema(server)
        dsn = f"postgresql://{user}@127.0.0.1:{server.port}/{database}"
        async with guarded(server), connect(settings_of(server, schema, dsn=dsn), writes=True) as pool:
            tiers = Tiers(PostgresRows(pool, schema, RUNTIME, "postgresql/test"), MemoryBlobs(RUNTIME))
            yield tiers, PostgresChangeLog(pool, quoted_schema(schema))

    return opened


@asynccontextmanager
async def guarded(server: PostgresServer) -> AsyncIterator[None]:
    """The server has a role that may nothing, and one that needs a password."""
    rules = server.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    await ask(server, "CREATE ROLE stranger LOGIN")
    await ask(server, "CREATE ROLE locked LOGIN PASSWORD 'right'")
    rules.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{before}")
    await ask(server, "SELECT pg_reload_conf()")

    async def is_locked() -> bool:
        try:
            await (await asyncpg.connect(server.dsn().replace("tiered@", "locked@"), password="wrong")).close()
        except asyncpg.InvalidPasswordError:
            return True
        return False

    try:
        await becomes(is_locked)
        yield
    finally:
        rules.write_text(before)
        await ask(server, "SELECT pg_reload_conf()")
        for role in ("stranger", "locked"):
            await ask(server, f"DROP ROLE {role}")


def bigtable(code: grpc.StatusCode) -> Callable[[RefusalGround], Opened]:
    @asynccontextmanager
    async def opened(at: RefusalGround) -> AsyncIterator[tuple[Tiers, ChangeLog]]:
        server, clock = ScriptedBigtable({method: [Fails(code)] for method in REQUESTS}), FixedTimeRuntime()
        await server.start()
        try:
            async with insecure_channel(server.host) as channel:
                table = BigtableTable(channel, TABLE, authorize=GoogleAuthorization(FakeCredentials(clock), clock))
                yield Tiers(BigtableRows(table, RUNTIME), MemoryBlobs(RUNTIME)), BigtableChangeLog(table, RUNTIME)
        finally:
            await server.server.stop(None)

    return opened


def gcs(status: int | None = None, *, says: Exception | None = None) -> Callable[[RefusalGround], Opened]:
    """`status` None: the bucket is deleted. `says`: what Google says where a token is asked for."""
    @asynccontextmanager
    async def opened(at: RefusalGround) -> AsyncIterator[tuple[Tiers, ChangeLog]]:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(GcsEmulator())
            server.create_bucket("blobs")
            await at.store_one(await stack.enter_async_context(GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url)))
            if status is not None:
                server.faults.append(GcsFault(FaultMode.STATUS, status=status, times=None))
            elif says is None:
                del server.buckets["blobs"]
            clock = FixedTimeRuntime()
            credentials = FakeCredentials(clock)
            credentials.error = says
            authorize = GoogleAuthorization(credentials, clock)
            blobs = GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, authorize=authorize)
            yield Tiers(at.rows, await stack.enter_async_context(blobs)), at.log

    return opened


def s3(access: str = ACCESS, secret: str = SECRET, *, bucket: str = "", code: str = "") -> Callable[[RefusalGround], Opened]:
    """`code`: what something before the server answers in its words; a HEAD has none."""
    @asynccontextmanager
    async def opened(at: RefusalGround) -> AsyncIterator[tuple[Tiers, ChangeLog]]:
        url, named = at.request.getfixturevalue("versitygw_url"), f"refusals-{ChangeId.new(RUNTIME)}"
        await make_bucket(url, named)
        async with s3_blobs(url, named, RUNTIME) as blobs:
            await at.store_one(blobs)
        session = SharedSession()
        session.set_credentials(access, secret)
        async with FaultyProxy(url).serve() as proxy:
            if code:
                methods = ("GET", "HEAD", "PUT", "POST", "DELETE")
                proxy.faults += [ServiceFault(method, FaultKind.BEFORE, 403, code, lasts=True) for method in methods]
            # What is signed is the host, so only what the proxy answers itself goes through it.
            async with s3_blobs(proxy.url if code else url, bucket or named, RUNTIME, session=session) as blobs:
                yield Tiers(at.rows, blobs), at.log

    return opened


DELETED_KEY = RefreshError("invalid_grant: Invalid JWT Signature.", {"error": "invalid_grant"})  # type: ignore[no-untyped-call]
REFUSALS = [
    TriedRefusal("PostgreSQL", "a wrong password", postgres("locked:wrong"), UnavailableError, "28P01", OF_ROWS),
    TriedRefusal("PostgreSQL", "no such role", postgres("nobody_here"), UnavailableError, "28000", OF_ROWS),
    TriedRefusal("PostgreSQL", "no such database", postgres("tiered", "nowhere"), ConfigurationError, "3D000", OF_ROWS),
    TriedRefusal("PostgreSQL", "no right", postgres("stranger"), ConfigurationError, "42501", OF_ROWS),
    TriedRefusal("Bigtable", "bad credentials", bigtable(grpc.StatusCode.UNAUTHENTICATED), UnavailableError, "UNAUTHENTICATED", OF_ROWS),
    TriedRefusal("Bigtable", "no such table", bigtable(grpc.StatusCode.NOT_FOUND), ConfigurationError, "NOT_FOUND", OF_ROWS),
    TriedRefusal("Bigtable", "no right", bigtable(grpc.StatusCode.PERMISSION_DENIED), ConfigurationError, "PERMISSION_DENIED", OF_ROWS),
    TriedRefusal("GCS", "bad credentials", gcs(401), UnavailableError, "401", OF_BLOBS),
    TriedRefusal("GCS", "a key that was deleted", gcs(says=DELETED_KEY), UnavailableError, "", OF_BLOBS),
    TriedRefusal("GCS", "no such bucket", gcs(), ConfigurationError, "404", OF_BLOBS),
    TriedRefusal("GCS", "no right", gcs(403), ConfigurationError, "403", OF_BLOBS),
    TriedRefusal("S3", "a wrong secret", s3(secret="wrong"), UnavailableError, "SignatureDoesNotMatch", OF_BLOBS),
    TriedRefusal("S3", "no such key", s3(code="InvalidAccessKeyId"), UnavailableError, "InvalidAccessKeyId", OF_BLOBS),
    TriedRefusal("S3", "no such key of versitygw", s3("nobody"), UnavailableError, "XAdminUserNotFound", OF_BLOBS),
    TriedRefusal("S3", "credentials that have expired", s3(code="ExpiredToken"), UnavailableError, "ExpiredToken", OF_BLOBS),
    TriedRefusal("S3", "no such bucket", s3(bucket="nowhere"), ConfigurationError, "NoSuchBucket", OF_BLOBS),
    TriedRefusal("S3", "no right", s3(code="AccessDenied"), ConfigurationError, "AccessDenied", OF_BLOBS),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: f"{refusal.service}, {refusal.what}")
async def test_what_will_not_heal_is_told_by_the_first_attempt(refusal: TriedRefusal, request: pytest.FixtureRequest) -> None:
    wrong = []
    retries = CountedRetries()
    async with (
        refusal.opened(RefusalGround(request)) as (tiers, log), TieredStorage(tiers, log, RUNTIME, SETTINGS, observer=retries) as storage,
    ):  # fmt: skip
        for name, call in refusal.calls.items():
            told: object = "nothing"
            try:
                await call(storage)
            except TieredError as error:
                told = type(error), error.code, error.is_final
            if told != (refusal.kind, refusal.code, True):
                wrong.append(f"{name} told {told}")
            wrong += [f"{name} was repeated after {kind}" for kind in retries.retried]
            retries.retried.clear()
    assert wrong == []


async def test_what_is_left_to_clean_up_is_not_waited_for_where_it_is_refused(request: pytest.FixtureRequest) -> None:
    """The deletion of a large object is told as soon as the row is empty; its blob is left to recovery."""
    retries, at = CountedRetries(), RefusalGround(request)
    async with gcs(401)(at) as (tiers, log), TieredStorage(tiers, log, RUNTIME, SETTINGS, observer=retries) as storage:
        await storage.delete(THERE)
        assert await storage.head(THERE) is None
    assert retries.retried == [] and len(at.log.stored) == 1


async def test_a_token_that_was_revoked_is_renewed_and_its_call_made_again() -> None:
    clock, retries, at = FixedTimeRuntime(), CountedRetries(), MemoryRows(RUNTIME)
    authorize = GoogleAuthorization(credentials := FakeCredentials(clock), clock)
    async with GcsEmulator() as server:
        server.create_bucket("blobs")
        async with (
            GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, authorize=authorize) as blobs,
            TieredStorage(Tiers(at, blobs), MemoryChangeLog(RUNTIME), RUNTIME, SETTINGS, observer=retries) as storage,
        ):
            await storage.put(THERE, LARGE)
            clock.waited_s += NEW_S
            server.faults.append(GcsFault(FaultMode.STATUS, status=401))
            await read(storage)
            assert (retries.retried, credentials.refreshed) == (["UnavailableError"], 2)
