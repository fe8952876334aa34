"""The spans: one for each operation and each call to a service, and a link from recovery to what it finishes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from changelog.base.errors import UnavailableError
from changelog.change import Entry, encode
from tests.given.observed_world import BrokenProvider, ObservedWorld
from tests.given.tapped_store import LARGE, OBJECT, SMALL
from tests.given.virtual_time import simulated
from tiered.bulk import PutRequest
from tiered.errors import DanglingTombstoneError
from tiered.object_id import ObjectId
from tiered.telemetry.telemetry import Telemetry
from tiered.telemetry.traces import parse_traceparent


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def traceparent(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


@simulated
async def test_a_put_is_a_span_and_so_is_each_of_its_calls_also_after_the_answer() -> None:
    world = ObservedWorld()
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        await storage.put(OBJECT, LARGE)
    first, second = world.spans("tiered.put")
    assert (first.kind, parent(first), first.status.status_code) == (SpanKind.INTERNAL, None, StatusCode.UNSET)
    calls = [span for span in world.spans() if parent(span) == ids(second)[1]]
    assert sorted(span.name for span in calls) == [
        "tiered.changelog.forget", "tiered.changelog.record", "tiered.high_volume.read", "tiered.high_volume.settle",
        "tiered.high_volume.swap", "tiered.long_term.delete", "tiered.long_term.open_upload", "tiered.long_term.upload_finalise",
    ]  # fmt: skip
    assert {ids(span)[0] for span in calls} == {ids(second)[0]} and {span.kind for span in calls} == {SpanKind.CLIENT}
    [swap] = [span for span in calls if span.name == "tiered.high_volume.swap"]
    [deleted] = [span for span in calls if span.name == "tiered.long_term.delete"]
    assert dict(swap.attributes or {}) == {"tiered.swap": "won"}
    assert dict(deleted.attributes or {}) == {"tiered.blob_deleted": 1, "tiered.blob_bytes_deleted": len(LARGE)}


@simulated
async def test_every_operation_is_in_the_trace_of_its_caller() -> None:
    world = ObservedWorld()
    async with world.store() as storage:
        with world.provider.get_tracer("caller").start_as_current_span("request") as request:
            await storage.put(OBJECT, SMALL)
            async with storage.put_many([PutRequest(ObjectId.create("a", str(n)), SMALL) for n in range(3)]) as results:
                assert [result.error async for result in results] == [None, None, None]
            await storage.get(OBJECT)
            await storage.head(OBJECT)
            async for _ in storage.list():
                assert trace.get_current_span() is request, "the span of a page is not left open between two ids"
            await storage.delete(OBJECT)
            assert trace.get_current_span() is request
    names = [span.name for span in world.spans() if parent(span) == request.get_span_context().span_id]
    assert names == ["tiered.put"] * 4 + ["tiered.get", "tiered.head", "tiered.list", "tiered.delete"]


@simulated
async def test_what_the_payload_does_is_within_the_put() -> None:
    world = ObservedWorld()

    async def payload() -> AsyncIterator[bytes]:
        with world.provider.get_tracer("caller").start_as_current_span("reads a file"):
            pass
        yield LARGE

    async with world.store() as storage:
        await storage.put(OBJECT, payload())
    [put], [inner] = world.spans("tiered.put"), world.spans("reads a file")
    assert parent(inner) == ids(put)[1]


@simulated
async def test_the_heartbeat_belongs_to_no_trace_of_who_opened_the_store() -> None:
    world = ObservedWorld()

    async def minute() -> AsyncIterator[bytes]:
        yield LARGE
        await world.runtime.sleep(60)
        yield LARGE

    with world.provider.get_tracer("caller").start_as_current_span("the program begins"):
        async with world.store() as storage:
            await storage.put(OBJECT, minute())
    renewals = world.spans("tiered.changelog.renew")
    assert renewals and {parent(span) for span in renewals} == {None}


# --- recovery ------------------------------------------------------------------------------------


async def died(world: ObservedWorld) -> None:
    """A put whose process is gone before it could clean up."""
    async def never(real: Any, *args: Any) -> Any:
        raise UnavailableError("no route")

    world.log.hooks["forget"] = never
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
    del world.log.hooks["forget"]
    await world.runtime.sleep(60)


@simulated
async def test_the_span_of_recovery_links_to_the_operation_that_died() -> None:
    world = ObservedWorld()
    await died(world)
    [put], [entry] = world.spans("tiered.put"), await world.entries()
    assert entry.change.trace == traceparent(put)
    with world.provider.get_tracer("caller").start_as_current_span("the daemon begins"):
        assert (await world.recovery().run_once()).recovered == 1
    [recovered] = world.spans("tiered.recover")
    [link] = recovered.links
    assert (link.context.trace_id, link.context.span_id) == ids(put)
    assert parent(recovered) is None and ids(recovered)[0] != ids(put)[0]
    assert dict(recovered.attributes or {}) == {"tiered.recovery": "forgotten"}
    assert {span.name for span in world.spans() if parent(span) == ids(recovered)[1]} == {
        "tiered.changelog.claim", "tiered.high_volume.settle", "tiered.changelog.forget",
        "tiered.changelog.now_ms", "tiered.changelog.write_values",  # that the feed is off, once in five minutes
    }


@pytest.mark.parametrize("carried", [None, "", "junk", f"00-{'0' * 32}-{'0' * 16}-01", f"ff-{'1' * 32}-{'1' * 16}-01"])
def test_an_entry_that_names_no_operation_gets_a_span_without_a_link(carried: str | None) -> None:
    @simulated
    async def test() -> None:
        world = ObservedWorld()
        world.telemetry = Telemetry()
        await died(world)
        [entry] = await world.entries()
        assert isinstance(entry, Entry) and entry.change.trace is None
        stored = world.log.target.stored
        stored[entry.key] = replace(stored[entry.key], value=encode(replace(entry, change=replace(entry.change, trace=carried))))
        world.telemetry = Telemetry(tracer_provider=world.provider)
        assert (await world.recovery().run_once()).recovered == 1
        [recovered] = world.spans("tiered.recover")
        assert not recovered.links and parent(recovered) is None

    test()


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.integers(0, 255))
def test_a_traceparent_names_a_span(trace_id: int, span_id: int, flags: int) -> None:
    named = parse_traceparent(f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}")
    assert named is not None and (named.trace_id, named.span_id, named.trace_flags) == (trace_id, span_id, flags)


@given(st.text())
def test_any_other_text_names_none(text: str) -> None:
    assert parse_traceparent(text) is None


# --- errors --------------------------------------------------------------------------------------


@simulated
async def test_a_failed_operation_says_which_kind_of_error_and_no_name_of_an_object() -> None:
    world = ObservedWorld()
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        world.blobs.target.blobs.clear()
        with pytest.raises(DanglingTombstoneError):
            await storage.get(OBJECT)
    [get] = world.spans("tiered.get")
    assert (get.status.status_code, get.status.description, list(get.events)) == (StatusCode.ERROR, None, [])
    assert dict(get.attributes or {}) == {"tiered.dangling": 1, "error.type": "DanglingTombstoneError"}
    assert not [span.to_json() for span in world.spans() if OBJECT.key in span.to_json() or OBJECT.usecase in span.to_json()]


@simulated
async def test_a_repeated_call_is_noted_on_its_operation() -> None:
    world = ObservedWorld()

    async def once(real: Any, *args: Any, **named: Any) -> Any:
        del world.rows.hooks["read"]
        raise UnavailableError("busy")

    async with world.store() as storage:
        world.rows.hooks["read"] = once
        await storage.head(OBJECT)
    [head] = world.spans("tiered.head")
    failed, _ = world.spans("tiered.high_volume.read")
    assert dict(head.attributes or {}) == {"tiered.retry": "UnavailableError"}
    assert (failed.status.status_code, dict(failed.attributes or {})) == (StatusCode.ERROR, {"error.type": "UnavailableError"})


@simulated
async def test_a_cancelled_operation_ends_its_spans() -> None:
    world = ObservedWorld()

    async def for_ever(real: Any, *args: Any, **named: Any) -> Any:
        await anyio.sleep_forever()

    async with world.store() as storage:
        world.rows.hooks["read"] = for_ever
        with anyio.move_on_after(1) as scope:
            await storage.head(OBJECT)
        assert scope.cancelled_caught
    assert [span.name for span in world.spans()] == ["tiered.high_volume.read", "tiered.head"]
    assert {(span.attributes or {})["error.type"] for span in world.spans()} == {"Cancelled"}
    assert world.value("tiered_operations_total", operation="head", result="cancelled") == 1


@pytest.mark.parametrize("broken", ["start_span", "end", "set_attribute", "set_status", "get_span_context"])
def test_a_tracer_that_raises_fails_no_operation(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    @simulated
    async def test() -> None:
        world = ObservedWorld()
        world.telemetry = Telemetry(registry=world.registry, tracer_provider=BrokenProvider(broken))
        before = trace.get_current_span()
        async with world.store() as storage:
            await storage.put(OBJECT, LARGE)
            world.blobs.target.blobs.clear()
            with pytest.raises(DanglingTombstoneError):
                await storage.get(OBJECT)
            await storage.delete(OBJECT)
        assert (await world.recovery().run_once()).seen == 0
        assert trace.get_current_span() is before, "the caller's own span is current again"
        assert world.value("tiered_telemetry_failures_total") > 0
        assert await world.is_clean()

    caplog.set_level(logging.WARNING, "tiered")
    test()
    assert len([record for record in caplog.records if record.message.startswith("telemetry_failed")]) == 1
