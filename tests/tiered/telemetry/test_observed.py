"""The wrappers: what they show, what they pass on, and that nobody who uses them notices."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any, cast

import anyio
import pytest

import emulators.world.inside
import tiered.services.capabilities
from changelog.base.capability import Capability
from changelog.base.errors import UnavailableError
from changelog.base.observe import Event, Observer
from changelog.bigtable.log import BigtableChangeLog
from changelog.log import ChangeLog, GarbageCollection
from changelog.noop import NoopChangeLog
from changelog.sqlite.log import SqliteChangeLog
from emulators.simulation.coverage import Coverage
from emulators.simulation.recipe import Recipe
from emulators.simulation.run import run
from emulators.world.runtime import SimulatedRuntime
from emulators.world.services import SimulatedBlobs, SimulatedChangeLog, SimulatedRows
from recovery.loop import RecoveryLoop
from tests.given.observed_world import ObservedWorld
from tests.given.repository import ROOT
from tests.given.tapped_store import LARGE, OBJECT
from tests.given.virtual_time import simulated
from tiered.bigtable.rows import BigtableRows
from tiered.embedded.blobs import FileBlobs
from tiered.embedded.rows import SqliteRows
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.owned import OwnedBlobs
from tiered.metadata import Metadata
from tiered.services.backends import HighVolumeBackend, LongTermBackend, Tiers
from tiered.services.breaker import CHANGELOG, HIGH_VOLUME, LONG_TERM
from tiered.services.capabilities import (
    BLOB_CAPABILITIES,
    LOG_CAPABILITIES,
    ROW_CAPABILITIES,
    BatchDeletion,
    BatchHeads,
    BlobRestoration,
    Ownership,
    RetentionUsage,
    UploadListing,
)
from tiered.storage import TieredStorage
from tiered.telemetry.observed import METHODS, observed_log, observed_tiers
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows

RUNTIME = SimulatedRuntime(1)


class KeptEvents(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.counts: list[tuple[Event, str, int]] = []
        self.failures: list[Exception] = []

    def count(self, event: Event, kind: str = "", amount: int = 1) -> None:
        self.counts.append((event, kind, amount))

    def failed(self, error: Exception) -> None:
        self.failures.append(error)


class Plain:
    """A backend with nothing but the calls of its protocol."""

    def __init__(self, *protocols: type) -> None:
        for protocol in protocols:
            for name, _ in inspect.getmembers(protocol, inspect.iscoroutinefunction):
                setattr(self, name, self._answer(name))

    def _answer(self, name: str) -> Any:
        async def answer(*args: Any, **named: Any) -> Any:
            return name, args, named

        return answer


def wrapped(rows: Any = None, blobs: Any = None, observer: Observer | None = None) -> Tiers:
    return observed_tiers(Tiers(rows, blobs), observer or Observer())


# --- what they show ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "protocol", [GarbageCollection, BlobRestoration, BatchDeletion, Ownership, RetentionUsage, BatchHeads, UploadListing]
)
def test_what_only_some_backends_do_is_seen_exactly_where_they_do_it(protocol: type) -> None:
    with_it, without = Plain(LongTermBackend, protocol), Plain(LongTermBackend)
    assert isinstance(wrapped(blobs=with_it).long_term, protocol)
    assert not isinstance(wrapped(blobs=without).long_term, protocol)


BACKENDS = {
    HIGH_VOLUME: (SqliteRows, BigtableRows, MemoryRows, SimulatedRows),
    LONG_TERM: (FileBlobs, GcsBlobs, OwnedBlobs, MemoryBlobs, SimulatedBlobs),
    CHANGELOG: (SqliteChangeLog, BigtableChangeLog, MemoryChangeLog, SimulatedChangeLog),
}
TIER_OF = {HIGH_VOLUME: HighVolumeBackend, LONG_TERM: LongTermBackend, CHANGELOG: ChangeLog}
CAPABILITIES = [*dict.fromkeys([*ROW_CAPABILITIES, *BLOB_CAPABILITIES, *LOG_CAPABILITIES])]
EACH_BACKEND = pytest.mark.parametrize(("service", "kind"), [(service, kind) for service, kinds in BACKENDS.items() for kind in kinds])


def unopened(kind: type) -> Any:
    """A backend that nothing connects to a service. One that keeps nothing would be no service."""
    backend: Any = object.__new__(kind)
    backend.durable = True
    return backend


def wrap(backend: Any, service: str, observer: Observer) -> Any:
    match service:
        case "high_volume":
            return wrapped(rows=backend, observer=observer).high_volume
        case "long_term":
            return wrapped(blobs=backend, observer=observer).long_term
        case _:
            return observed_log(backend, observer)


def test_every_protocol_among_the_capabilities_is_wrapped() -> None:
    theirs = {each for each in vars(tiered.services.capabilities).values() if getattr(each, "_is_runtime_protocol", False)}
    assert theirs - {Capability} == set(CAPABILITIES)


@EACH_BACKEND
def test_a_wrapped_backend_can_do_what_it_could(service: str, kind: type) -> None:
    backend = unopened(kind)
    observed = wrap(backend, service, Observer())
    assert [isinstance(observed, each) for each in CAPABILITIES] == [isinstance(backend, each) for each in CAPABILITIES]


@EACH_BACKEND
def test_every_call_of_a_backend_is_told(service: str, kind: type) -> None:
    told: list[tuple[str, str]] = []

    class CallNames(Observer):
        def call(self, service: str, method: str, *, traced: bool = True) -> Any:
            told.append((service, method))
            return nullcontext()

    async def answer(*args: Any, **named: Any) -> Any:
        return []

    backend = unopened(kind)
    protocols = [TIER_OF[service], *(each for each in CAPABILITIES if isinstance(backend, each))]
    calls = sorted({name for protocol in protocols for name, _ in inspect.getmembers(protocol, inspect.iscoroutinefunction)})
    for name in calls:
        assert inspect.iscoroutinefunction(getattr(backend, name))
        setattr(backend, name, answer)
    observed = wrap(backend, service, CallNames())

    async def call_each() -> None:
        for name in calls:
            await getattr(observed, name)()

    anyio.run(call_each)
    assert told == [(service, name) for name in calls] and calls


def test_everything_else_of_a_backend_is_passed_on() -> None:
    log = SimulatedChangeLog(RUNTIME)
    observed = observed_log(log, Observer())
    assert (observed.durable, observed.ranges(), cast(Any, observed).stored) == (True, log.ranges(), log.stored)
    with pytest.raises(AttributeError, match="nothing"):
        cast(Any, observed).nothing  # noqa: B018


def test_a_log_that_keeps_nothing_is_no_service() -> None:
    log = NoopChangeLog()
    assert observed_log(log, Observer()) is log


# --- what they pass on ---------------------------------------------------------------------------


@simulated
async def test_an_error_is_passed_on_as_it_is() -> None:
    error = UnavailableError("x")

    async def fail(*args: Any, **named: Any) -> Any:
        raise error

    for service in ("high_volume", "long_term"):
        backend = Plain(HighVolumeBackend if service == "high_volume" else LongTermBackend, GarbageCollection)
        for name in METHODS[service] - {"deleted_generations", "restore", "delete_generations", "kept", "abandoned_uploads"}:
            setattr(backend, name, fail)
            with pytest.raises(UnavailableError) as raised:
                await getattr(getattr(wrapped(backend, backend), service), name)()
            assert raised.value is error and error.__cause__ is None


@simulated
async def test_a_cancellation_is_passed_on() -> None:
    backend = Plain(HighVolumeBackend)
    told = KeptEvents()
    cast(Any, backend).swap = anyio.sleep_forever
    with anyio.move_on_after(1) as scope:
        await cast(Any, wrapped(backend, observer=told).high_volume).swap()
    assert scope.cancelled_caught and told.counts == [(Event.SWAPPED, "unknown", 1)]


@simulated
async def test_an_answer_that_makes_no_sense_is_not_counted_and_is_passed_on() -> None:
    backend = Plain(ChangeLog)
    cast(Any, backend).durable = True
    told = KeptEvents()
    assert await cast(Any, observed_log(cast(Any, backend), told)).renew("x") == ("renew", ("x",), {})
    assert told.counts == [] and [type(error) for error in told.failures] == [AttributeError]


@simulated
async def test_a_blob_that_is_left_half_way_is_closed() -> None:
    closed: list[str] = []

    class PlainReader:
        metadata, size = Metadata(), 2

        async def chunks(self) -> AsyncIterator[bytes]:
            try:
                yield b"1"
                yield b"2"
            finally:
                closed.append("chunks")

        async def aclose(self) -> None:
            closed.append("reader")

    async def open_reader(*args: Any) -> Any:
        return PlainReader()

    blobs = Plain(LongTermBackend)
    cast(Any, blobs).open = open_reader
    reader = await wrapped(blobs=blobs).long_term.open("name")
    assert reader is not None and reader.size == 2
    chunks = cast(Any, reader.chunks())
    assert await anext(chunks) == b"1"
    await chunks.aclose()
    await reader.aclose()
    assert closed == ["chunks", "reader"]


# --- nobody notices ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.night if seed else ()) for seed in range(8)])
def test_a_simulated_world_is_the_same_call_for_call(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run(Recipe.of(seed), Coverage())
    world = ObservedWorld()

    def storage(tiers: Tiers, log: ChangeLog, runtime: Any, settings: Any) -> TieredStorage:
        tiers, log, observer = world.telemetry.observe(tiers, log, runtime)
        return TieredStorage(tiers, log, runtime, settings, observer=observer)

    def recovery(tiers: Tiers, log: ChangeLog, runtime: Any, settings: Any) -> RecoveryLoop:
        tiers, log, observer = world.telemetry.observe(tiers, log, runtime)
        return RecoveryLoop(tiers, log, runtime, settings, observer)

    monkeypatch.setattr(emulators.world.inside, "TieredStorage", storage)
    monkeypatch.setattr(emulators.world.inside, "RecoveryLoop", recovery)
    observed = run(Recipe.of(seed), Coverage())
    assert (observed.trace, observed.violation) == (plain.trace, plain.violation)
    assert world.spans() and world.value("tiered_telemetry_failures_total") == 0


@simulated
async def test_a_store_without_telemetry_is_not_wrapped_and_its_entries_carry_no_trace() -> None:
    world = ObservedWorld()
    seen: list[Any] = []

    async def look(real: Any, change: Any, owner: str) -> Any:
        seen.append(change.trace)
        return await real(change, owner)

    world.log.hooks["record"] = look
    async with TieredStorage(world.tiers, world.log, world.runtime, world.settings()) as storage:
        await storage.put(OBJECT, LARGE)
    assert seen == [None] and world.spans() == []


LOADED = "print(sorted({name.partition('.')[0] for name in sys.modules} & {'prometheus_client', 'opentelemetry'}))"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import tiered, recovery.daemon; tiered.Telemetry()", []),
        (
            "import prometheus_client as p; from tiered import Telemetry; Telemetry(registry=p.CollectorRegistry())",
            ["prometheus_client"],
        ),
        (
            "from opentelemetry.trace import NoOpTracerProvider as P; from tiered import Telemetry; Telemetry(tracer_provider=P())",
            ["opentelemetry"],
        ),
    ],
)
def test_a_library_is_loaded_only_when_it_is_asked_for(code: str, loaded: list[str]) -> None:
    told = subprocess.run((sys.executable, "-c", f"import sys\n{code}\n{LOADED}"), cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(loaded)


def test_the_package_has_no_other_name_that_comes_late() -> None:
    assert tiered.Telemetry.__name__ == "Telemetry"
    with pytest.raises(AttributeError, match="no attribute 'Telemetri'"):
        _ = cast(Any, tiered).Telemetri
