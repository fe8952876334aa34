"""The metrics: each of them moves, docs/metrics.md lists them all and no other, and no label comes from outside."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import tiered.errors
from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    LeaseLostError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.observe import Event, Observer
from changelog.change import Change, ChangeId
from changelog.lease import Renewal
from emulators.world.runtime import run_world
from recovery.daemon import collect
from recovery.feed.writer.overdue import release_overdue
from recovery.metrics import StatusMetrics
from tests.given.observed_world import BrokenProvider, ObservedWorld
from tests.given.repository import ROOT
from tests.given.statuses import STATUS
from tests.given.tapped_store import LARGE, OBJECT, SMALL
from tests.given.virtual_time import simulated
from tiered.errors import AtCapacityError, DanglingTombstoneError, OutcomeUnknownError, RateLimitedError
from tiered.metadata import Metadata, TimeToLive
from tiered.object_id import ObjectId, blob_name
from tiered.services.backends import Tiers
from tiered.telemetry.metrics import COUNTED, class_of, code_of, kind_of, metrics_of
from tiered.telemetry.telemetry import Telemetry
from tiered.testing.blobs import Blob
from tiered.testing.log import StoredEntry

OTHER = ObjectId.create("attachments", "other")
PAGE = ROOT / "docs" / "metrics.md"
ROW = re.compile(r"\| `(tiered_\w+)` \| (\w+) \| ([\w ]+) \| ([^|]*)\| [^|]+\|")


# --- what moves them -----------------------------------------------------------------------------


async def operations(world: ObservedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        await storage.put(OBJECT, LARGE)
        await storage.put(OBJECT, LARGE)
        async with storage.put_many([]):
            pass
        stored = await storage.get(OBJECT)
        assert stored is not None
        assert await stored.read() == LARGE
        await storage.head(OBJECT)
        assert [entry.object_id async for entry in storage.list()] == [OBJECT]
        await storage.delete(OBJECT)
        await storage.delete(OBJECT)
        with pytest.raises(TieredError):
            await storage.put(OBJECT, SMALL, Metadata(size=7))


async def answers_that_are_not_ok(world: ObservedWorld) -> None:
    """Conflicts, answers that were lost, calls that were repeated."""
    async with world.store() as storage:
        async def refuse(real: Any, *args: Any) -> bool:
            return False

        async def lose(real: Any, *args: Any) -> bool:
            del world.rows.hooks["swap"]
            await real(*args)
            raise UnconfirmedError("lost")

        async def lose_inline(real: Any, *args: Any) -> bool:
            raise UnconfirmedError("lost")

        world.rows.hooks["swap"] = refuse
        with pytest.raises(UnavailableError):
            await storage.put(OBJECT, LARGE)
        world.rows.hooks["swap"] = lose
        await storage.put(OBJECT, LARGE)
        world.rows.hooks["put_inline"] = lose_inline
        with pytest.raises(OutcomeUnknownError) as unknown:
            await storage.put(OTHER, SMALL)
        del world.rows.hooks["put_inline"]
        await storage.outcome(unknown.value)

        async def turn_away(real: Any, *args: Any, **named: Any) -> Any:
            del world.rows.hooks["read"]
            raise UnavailableError("turned away").coded("RESOURCE_EXHAUSTED")

        world.rows.hooks["read"] = turn_away
        await storage.head(OBJECT)


async def calls_that_are_refused(world: ObservedWorld) -> None:
    """A right is taken away, nobody calls for hours, it is given back, and then another one is taken away."""
    async def refused(real: Any, *args: Any, **named: Any) -> Any:
        raise ConfigurationError("no right")

    def shown(service: str, method: str) -> float | None:
        return world.registry.get_sample_value("tiered_call_refused", {"service": service, "method": method})

    async with world.store() as storage:
        await storage.head(OBJECT)
        assert shown("high_volume", "read") is None, "none ever was"
        world.rows.hooks["read"] = refused
        with pytest.raises(ConfigurationError):
            await storage.head(OBJECT)
        await world.runtime.sleep(10_000)
        assert (shown("high_volume", "read"), shown("long_term", "open")) == (1, None)
        del world.rows.hooks["read"]
        await storage.head(OBJECT)
        assert shown("high_volume", "read") == 0
        world.rows.hooks["scan"] = refused
        with pytest.raises(ConfigurationError):
            _ = [entry async for entry in storage.list()]
        del world.rows.hooks["scan"]


async def data_loss(world: ObservedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        world.blobs.target.blobs.clear()
        with pytest.raises(DanglingTombstoneError):
            await storage.get(OBJECT)


async def a_full_store(world: ObservedWorld) -> None:
    async with world.store(store={"concurrency_max": 1, "queue_max": 1}) as storage, anyio.create_task_group() as tasks:
        async def slow(real: Any, *args: Any, **named: Any) -> Any:
            await world.runtime.sleep(5)
            return await real(*args, **named)

        world.rows.hooks["read"] = slow
        tasks.start_soon(storage.head, OBJECT)
        await world.runtime.sleep(1)
        tasks.start_soon(storage.head, OBJECT)
        await world.runtime.sleep(1)
        with pytest.raises(AtCapacityError):
            await storage.head(OBJECT)
        shown = [world.value(f"tiered_store_{name}", side="read") for name in ("slots", "slots_held", "waiting")]
        assert shown == [1, 1, 1]
    assert world.value("tiered_store_slots", side="read") == 0, "it is closed"


async def usecases_that_are_refused(world: ObservedWorld) -> None:
    """A policy of its own, and that of all others, whose usecases a caller may choose."""
    async with world.store(usecases={"photos": {"requests_per_s": 0.001}, "*": {"closed": True}}) as storage:
        photo = ObjectId.create("photos", "key")
        await storage.head(photo)
        for _ in range(2):
            with pytest.raises(RateLimitedError):
                await storage.head(photo)
        for usecase in ("a", "b", "c"):
            with pytest.raises(InvalidRequestError):
                await storage.put(ObjectId.create(usecase, "key"), SMALL)
    assert (world.value("tiered_refusals_total", usecase="photos"), world.value("tiered_refusals_total", usecase="*")) == (2, 3)
    assert world.value("tiered_operations_total", operation="head", result="RateLimitedError") == 2


async def services_that_are_away(world: ObservedWorld) -> None:
    patched = pytest.MonkeyPatch()
    patched.setattr("tiered.services.breaker.AWAY_AFTER_S", 5)
    async with world.store(store={"answer_budget_s": 6}) as storage:
        patched.undo()

        async def down(real: Any, *args: Any, **named: Any) -> Any:
            raise UnavailableError("down")

        await storage.put(OTHER, LARGE)
        for service, backend, call in (
            ("long_term", world.blobs, "open"), ("changelog", world.log, "record"), ("high_volume", world.rows, "read")
        ):  # fmt: skip
            backend.hooks[call] = down
            operation = partial(storage.put, OTHER, LARGE) if service == "changelog" else partial(storage.get, OTHER)
            for _ in range(3):
                with pytest.raises(UnavailableError):
                    await operation()
            assert world.value("tiered_service_away", service=service) == 1 and service in storage.services_away
            del backend.hooks[call]
            await world.runtime.sleep(3)
            await operation()
            assert world.value("tiered_service_away", service=service) == 0 and storage.services_away == {}


async def leases(world: ObservedWorld) -> None:
    """A put that takes a minute is renewed; one whose entry is taken over, or whose log is gone, is lost."""
    async def minute() -> AsyncIterator[bytes]:
        yield LARGE
        await world.runtime.sleep(60)
        yield LARGE

    async def gone(real: Any, entries: Any) -> Any:
        return [Renewal.NOT_YOURS for _ in entries]

    async def down(real: Any, entries: Any) -> Any:
        raise UnavailableError("no route")

    async with world.store() as storage:
        await storage.put(OBJECT, minute())
        for answer in (gone, down):
            world.log.hooks["renew"] = answer
            with pytest.raises(LeaseLostError):
                await storage.put(OBJECT, minute())
        del world.log.hooks["renew"]
        await world.recovery().run_once()


async def late_uploads_and_what_is_left(world: ObservedWorld) -> None:
    async def left(real: Any, name: str) -> Any:
        raise UnavailableError("no route")

    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        world.blobs.hooks["delete"] = left
        await storage.put(OBJECT, LARGE)
    del world.blobs.hooks["delete"]

    async with world.store() as storage:
        async def unanswered(real: Any, name: str, metadata: Metadata, size: int | None) -> Any:
            upload = await real(name, metadata, size)
            async def finalise() -> None:
                raise UnconfirmedError("no answer")

            upload.finalise, upload.session = finalise, None
            return upload

        world.blobs.hooks["open_upload"] = unanswered
        with pytest.raises(UnavailableError):
            await storage.put(OBJECT, LARGE)
        del world.blobs.hooks["open_upload"]


async def recovery_of_the_dead(world: ObservedWorld) -> None:
    """Entries of dead owners: nothing to do, garbage, a late upload, unreadable, taken by others, out of reach."""
    async def of_the_dead(key: str, new: bool = False, upload: str | None = None) -> Change:
        change = Change(ChangeId.new(world.runtime), key, upload=upload)
        change = replace(change, new=blob_name(key, change.id)) if new else change
        await world.log.target.record(change, "dead")
        return change

    async def cannot(real: Any, path: str, token: Any) -> Any:
        if path == "attachments/objects/sick":
            raise TypeError("a bug")
        if path == "attachments/objects/torn":
            raise CorruptRecordError("torn")
        if path == "attachments/objects/lost":
            raise LeaseLostError("lost")
        return await real(path, token)

    await of_the_dead("attachments/objects/nothing")
    await of_the_dead("attachments/objects/late", new=True)
    cleaned = await of_the_dead("attachments/objects/cleaned", new=True, upload="session")
    world.blobs.target.blobs[str(cleaned.new)] = Blob(Metadata(), LARGE, 0, "0")
    for key in ("sick", "torn", "lost"):
        await of_the_dead(f"attachments/objects/{key}")
    world.log.target.stored[ChangeId.new(world.runtime).row_key()] = StoredEntry(b"junk", 0)
    await world.runtime.sleep(60)
    world.rows.hooks["settle"] = cannot
    await world.recovery().run_once()
    del world.rows.hooks["settle"]
    await world.runtime.sleep(2000)

    async def taken(real: Any, *args: Any) -> None:
        return None

    world.log.hooks["claim"] = taken
    await world.recovery().run_once()
    del world.log.hooks["claim"]
    await world.recovery().run_once()
    loop = world.recovery()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.run)
        await world.runtime.sleep(120)
        loop.stop()


async def changes_kept_for_the_feed(world: ObservedWorld) -> None:
    feed = {"feed": {"enabled": True}, "changelog": "sqlite"}
    async with world.store(**feed) as storage:
        await storage.put(OBJECT, LARGE)
    await world.log.target.record(Change(ChangeId.new(world.runtime), OBJECT.path), "dead")
    await world.runtime.sleep(60)
    await world.recovery(**feed).run_once()
    await world.runtime.sleep(2 * 86_400)
    assert await release_overdue(world.backends, world.runtime, world.settings(**feed)) == 2


async def collection(world: ObservedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE, Metadata(TimeToLive(timedelta(hours=1))))
    await world.runtime.sleep(3 * 86400)

    async def three(limit: int) -> int:
        return 3

    for backend in (world.rows, world.log):
        backend.target.collect = three  # the simulated ones have nothing to collect
    assert (await collect(world.backends)).removed >= 7
    for backend in (world.rows, world.log):
        del backend.target.collect


async def a_tracer_that_fails(world: ObservedWorld) -> None:
    telemetry, world.telemetry = world.telemetry, Telemetry(registry=world.registry, tracer_provider=BrokenProvider("start_span"))
    async with world.store() as storage:
        await storage.put(OTHER, LARGE)
    world.telemetry = telemetry


async def everything() -> ObservedWorld:
    world = ObservedWorld()
    for act in (
        operations, answers_that_are_not_ok, a_full_store, services_that_are_away, leases, late_uploads_and_what_is_left,
        recovery_of_the_dead, collection, a_tracer_that_fails, data_loss, changes_kept_for_the_feed, calls_that_are_refused,
        usecases_that_are_refused,
    ):
        await act(world)
    world.registry.register(StatusMetrics(lambda: STATUS, lambda: 5.0))
    return world


@pytest.fixture(scope="module")
def moved() -> ObservedWorld:
    worlds: list[ObservedWorld] = []

    async def live() -> None:
        worlds.append(await everything())

    run_world(live, seed=1)
    return worlds[0]


# --- every metric --------------------------------------------------------------------------------


def test_every_metric_moves(moved: ObservedWorld) -> None:
    still = [family.name for family in moved.registry.collect() if not any(sample.value for sample in family.samples)]
    ended = ["tiered_store_slots", "tiered_store_slots_held", "tiered_store_waiting", "tiered_service_away"]
    assert still == ended, "see `a_full_store` and `services_that_are_away`"


def test_every_kind_of_every_event_moves(moved: ObservedWorld) -> None:
    still = [
        (each.name, kind) for each in COUNTED.values() for kind in each.kinds
        if each.label != "error" and not moved.value(f"{each.name}_total", **{each.label: kind})
    ]
    assert still == []


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("tiered_retries_total", {"error": "UnavailableError"}),
        ("tiered_operations_total", {"operation": "put", "result": "LeaseLostError"}),
        ("tiered_operations_total", {"operation": "put", "result": "OutcomeUnknownError"}),
        ("tiered_operations_total", {"operation": "put", "result": "InvalidRequestError"}),
        ("tiered_operations_total", {"operation": "head", "result": "AtCapacityError"}),
        ("tiered_operations_total", {"operation": "get", "result": "DanglingTombstoneError"}),
        ("tiered_operations_total", {"operation": "outcome", "result": "ok"}),
        ("tiered_operations_total", {"operation": "recover", "result": "ok"}),
        ("tiered_operations_total", {"operation": "recover", "result": "CorruptRecordError", "class": "failed"}),
        ("tiered_operations_total", {"operation": "recover", "result": "LeaseLostError", "class": "failed"}),
        ("tiered_operations_total", {"operation": "recover", "result": "other", "class": "other"}),
        (
            "tiered_call_errors_total",
            {"service": "high_volume", "method": "read", "error": "UnavailableError", "code": "RESOURCE_EXHAUSTED"},
        ),
        ("tiered_call_errors_total", {"service": "high_volume", "method": "settle", "error": "other", "code": ""}),
        ("tiered_call_duration_seconds_count", {"service": "long_term", "method": "upload_finalise"}),
        ("tiered_call_duration_seconds_count", {"service": "long_term", "method": "read_chunk"}),
        ("tiered_call_duration_seconds_count", {"service": "changelog", "method": "stale"}),
        ("tiered_recovery_passes_total", {"range": "full", "result": "failed"}),
        ("tiered_recovery_passes_total", {"range": "recent", "result": "ok"}),
    ],
)
def test_what_happened_is_told_apart(moved: ObservedWorld, name: str, labels: Mapping[str, str]) -> None:
    assert moved.value(name, **labels) > 0


@simulated
async def test_figures_are_exact() -> None:
    world = ObservedWorld()
    await operations(world)
    assert world.value("tiered_operations_total", operation="put", result="ok") == 3
    assert world.value("tiered_operations_total", operation="delete", result="ok") == 2
    assert world.value("tiered_operations_total", operation="list", result="ok") == 1
    assert world.value("tiered_changes_recorded_total") == world.value("tiered_changes_forgotten_total") == 3
    assert world.value("tiered_swaps_total", answer="won") == 3
    assert world.value("tiered_blobs_deleted_total") == 2
    assert world.value("tiered_blob_deleted_bytes_total") == 2 * len(LARGE)
    assert world.value("tiered_operation_duration_seconds_count", operation="put") == 4


# --- the page ------------------------------------------------------------------------------------


def documented() -> dict[str, tuple[str, str, set[str]]]:
    rows = [found for line in PAGE.read_text().splitlines() if line.startswith("| `tiered_") and (found := ROW.fullmatch(line))]
    assert len(rows) == sum(line.startswith("| `tiered_") for line in PAGE.read_text().partition("## Traces")[0].splitlines())
    return {row[1]: (row[2], row[3], set(re.findall(r"`(\w+)`", row[4]))) for row in rows}


def registered(registry: CollectorRegistry) -> dict[str, tuple[str, set[str]]]:
    return {_name(family): (family.type, _labels(family)) for family in registry.collect()}


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> set[str]:
    return {label for sample in family.samples for label in sample.labels} - {"le"}


def test_the_page_lists_every_metric_and_no_other(moved: ObservedWorld) -> None:
    page = {name: (kind, labels) for name, (kind, _, labels) in documented().items()}
    assert page == registered(moved.registry)


def test_units_are_those_of_the_conventions() -> None:
    for name, (kind, unit, _) in documented().items():
        assert name.endswith("_total") is (kind == "counter"), name
        assert ("seconds" in name) is (unit == "seconds"), name
        assert ("bytes" in name) is (unit == "bytes"), name


def test_the_page_names_every_value_of_a_label() -> None:
    text = PAGE.read_text()
    missing = [kind for each in COUNTED.values() if each.label != "error" for kind in each.kinds if f"`{kind}`" not in text]
    assert missing == []


# --- labels --------------------------------------------------------------------------------------


def test_no_name_of_an_object_and_nothing_of_an_error_is_in_what_is_scraped(moved: ObservedWorld) -> None:
    scraped = generate_latest(moved.registry).decode()
    assert not [word for word in ("objects/", "attachments", "a bug", "torn", "no route", "junk") if word in scraped]
    assert {family.name for family in text_string_to_metric_families(scraped)}, "it can be parsed"


class MaliciousError(UnavailableError):
    """An error whose name and code were chosen by an enemy."""


MaliciousError.__name__ = 'x"} 1\ntiered_swaps_total{answer="won'


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnavailableError("x"), "UnavailableError"), (LeaseLostError("x"), "LeaseLostError"), (MaliciousError("x"), "UnavailableError"),
        (type("UnavailableError", (Exception,), {})("x"), "other"), (OSError("x"), "other"), (KeyboardInterrupt(), "cancelled"),
        (TieredError("x"), "TieredError"),
    ],
)  # fmt: skip
def test_an_error_is_named_from_a_list(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


CALLERS = {
    "InvalidRequestError", "RangeNotSatisfiableError", "OffsetMismatchError", "ConditionFailedError", "RateLimitedError",
    "UploadEndedError", "CancelledElsewhereError",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(tiered.errors.__all__))
def test_every_error_is_of_one_class_and_what_nobody_judged_is_a_failure(name: str) -> None:
    """Alerts named results one by one, and 240 of 240 puts failed with one that was not named."""
    kind: Any = getattr(tiered.errors, name)
    new: Any = type("NewError", (kind,), {})
    expected = "caller" if name in CALLERS else "refused" if name == "ConfigurationError" else "failed"
    assert class_of(kind.__new__(kind)) == class_of(new.__new__(new)) == expected


@pytest.mark.parametrize(("error", "expected"), [
    (None, "ok"), (anyio.ClosedResourceError(), "other"), (KeyboardInterrupt(), "cancelled"),
    (UnavailableError("its credentials have expired").refusing(), "refused"),
    (UnavailableError("x").like(UnavailableError("y").refusing().coded("ExpiredToken", heard=True)), "refused"),
])  # fmt: skip
def test_the_class_of_what_is_no_error_of_ours(error: BaseException | None, expected: str) -> None:
    assert class_of(error) == expected


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("429", "429"), ("RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"), ("", ""), ('4"} 1', ""), ("attachments/key", ""), ("A" * 40, ""),
        ("999", ""), ("40001", "40001"), ("57P01", "57P01"), ("SlowDown", "SlowDown"), ("XMinioStorageFull", "XMinioStorageFull"),
        ("slowdown", ""), ("Slow Down", ""),
    ],
)  # fmt: skip
def test_a_code_is_what_services_say_or_nothing(code: str, shown: str) -> None:
    assert code_of(UnavailableError("x").coded(code)) == shown
    assert code_of(OSError("x")) == ""


def test_a_kind_that_is_in_no_list_is_other_or_a_failure_of_telemetry() -> None:
    registry = CollectorRegistry()
    observer = observer_of(registry)
    observer.count(Event.RETRIED, "photos/cat.jpg")
    observer.count(Event.SWAPPED, "photos/cat.jpg")
    assert registry.get_sample_value("tiered_retries_total", {"error": "other"}) == 1
    assert registry.get_sample_value("tiered_telemetry_failures_total") == 1
    assert "photos" not in generate_latest(registry).decode()


def observer_of(registry: CollectorRegistry) -> Observer:
    world = ObservedWorld()
    return Telemetry(registry=registry).observe(Tiers(world.rows, world.blobs), world.log, world.runtime)[2]


# --- registries ----------------------------------------------------------------------------------


@simulated
async def test_two_stores_of_one_registry_add_up() -> None:
    world = ObservedWorld()
    async with world.store(instance="one") as one:
        world.telemetry = Telemetry(registry=world.registry)
        async with world.store(instance="two") as two:
            await one.put(OBJECT, SMALL)
            await two.put(OTHER, SMALL)
            assert world.value("tiered_operations_total", operation="put", result="ok") == 2
            assert world.value("tiered_store_slots", side="write") == 2 * world.settings().store.concurrency_max
        assert world.value("tiered_store_slots", side="write") == world.settings().store.concurrency_max


def test_two_registries_are_apart() -> None:
    one, two = CollectorRegistry(), CollectorRegistry()
    observer_of(one).count(Event.DANGLING)
    observer_of(two)
    assert [each.get_sample_value("tiered_dangling_tombstones_total") for each in (one, two)] == [1, 0]


def test_a_registry_with_other_metrics_of_these_names_is_refused() -> None:
    registry = CollectorRegistry()
    Counter("tiered_swaps", "Somebody else's.", registry=registry)
    with pytest.raises(ConfigurationError, match="tiered_swaps"):
        Telemetry(registry=registry)


@pytest.mark.parametrize("wrong", [{"registry": "here"}, {"tracer_provider": "here"}])
def test_what_is_no_registry_or_provider_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="not a str"):
        Telemetry(**wrong)


def test_without_a_registry_and_a_provider_nothing_is_wrapped() -> None:
    world = ObservedWorld()
    tiers, log, _ = Telemetry().observe(world.tiers, world.log, world.runtime)
    assert (tiers.high_volume, tiers.long_term, log) == (world.rows, world.blobs, world.log)


@simulated
async def test_a_forked_child_counts_on_and_forgets_the_stores_of_its_parent() -> None:
    world = ObservedWorld()
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        metrics = metrics_of(world.registry)
        metrics._lock.acquire()  # as if a thread were scraping, which the child does not have
        child = os.fork()
        if child == 0:
            told = observer_of(world.registry)
            told.count(Event.DANGLING)
            slots = world.value("tiered_store_slots", side="read")
            dangling = world.value("tiered_dangling_tombstones_total")
            os._exit(0 if (slots, dangling) == (0, 1) else 1)
        metrics._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222 - it ends at once
        assert world.value("tiered_dangling_tombstones_total") == 0
        assert world.value("tiered_store_slots", side="read") > 0
