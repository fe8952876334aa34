"""Which calls each operation makes to PostgreSQL and S3, and that each is counted and traced under its own name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from benchmarks.calls import CASES, MIB
from benchmarks.calls_elsewhere import CountedElsewhere, counted_elsewhere, written
from emulators.postgres.server import PostgresServer
from tests.given.repository import ROOT
from tests.given.s3_buckets import untried
from tiered import ObjectId, open_storage
from tiered.telemetry.telemetry import Telemetry

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CAT = ObjectId.create("photos", "cat")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(anyio_backend: str, postgres: PostgresServer, versitygw_url: str) -> AsyncIterator[CountedElsewhere]:
    with untried():
        async with counted_elsewhere(postgres.dsn(), versitygw_url) as store:
            yield store


def test_the_page_has_what_is_counted() -> None:
    page = (ROOT / "docs/sizing.md").read_text("utf-8")
    assert written(page) == page, "run python -m benchmarks.calls_elsewhere --docs docs/sizing.md"


async def test_no_operation_makes_a_call_too_many(store: CountedElsewhere) -> None:
    assert {case.what: (await store.count(case)).calls for case in CASES} == {case.what: case.elsewhere for case in CASES}


async def test_calls_to_both_services_are_counted_and_traced_by_their_names(store: CountedElsewhere) -> None:
    registry, spans, provider = CollectorRegistry(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with AsyncExitStack() as stack:
        telemetry = Telemetry(registry=registry, tracer_provider=provider)
        storage = await stack.enter_async_context(open_storage(store.settings, telemetry=telemetry))
        await storage.put(CAT, bytes(MIB))
        stored = await storage.get(CAT)
        assert stored is not None and len(await stored.read()) == MIB
        await storage.delete(CAT)
    counted = {
        (sample.labels["service"], sample.labels["method"])
        for metric in registry.collect() for sample in metric.samples
        if sample.name == "tiered_call_duration_seconds_count" and sample.value
    }
    wanted = {
        ("high_volume", "read"), ("high_volume", "swap"), ("high_volume", "settle"), ("changelog", "record"), ("changelog", "forget"),
        ("long_term", "open_upload"), ("long_term", "upload_finalise"), ("long_term", "open"), ("long_term", "delete"),
    }  # fmt: skip
    assert wanted <= counted
    assert {f"{service}.{call}" for service, call in wanted} <= {span.name.removeprefix("tiered.") for span in spans.get_finished_spans()}
