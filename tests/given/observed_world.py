"""A simulated world whose stores and recovery loops tell a registry and a tracer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from recovery.loop import RecoveryLoop
from tests.given.tapped_store import TappedWorld
from tiered.open import Backends
from tiered.storage import TieredStorage
from tiered.telemetry.telemetry import Telemetry


class BrokenProvider(trace.TracerProvider):
    """Its tracers raise when a span is begun (`start_span`), or its spans do in the method that is named."""

    def __init__(self, broken: str) -> None:
        self.broken = broken

    def get_tracer(self, *args: Any, **named: Any) -> trace.Tracer:
        return _BrokenTracer(self.broken)


class _BrokenTracer(trace.NoOpTracer):
    def __init__(self, broken: str) -> None:
        self._broken = broken

    def start_span(self, *args: Any, **named: Any) -> trace.Span:
        def fail(*args: Any, **named: Any) -> Any:
            raise RuntimeError(f"{self._broken} is broken")

        if self._broken == "start_span":
            fail()
        span = _Recording()
        setattr(span, self._broken, fail)
        return span


class _Recording(trace.NonRecordingSpan):
    def __init__(self) -> None:
        super().__init__(trace.SpanContext(1, 1, is_remote=False))

    def is_recording(self) -> bool:
        return True


class ObservedWorld(TappedWorld):
    """`registry` and `spans` have what was told. `telemetry` may be replaced before a store is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = CollectorRegistry()
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = Telemetry(registry=self.registry, tracer_provider=self.provider)

    @property
    def backends(self) -> Backends:
        """Wrapped."""
        return Backends(*self.telemetry.observe(self.tiers, self.log, self.runtime))

    @asynccontextmanager
    async def store(self, **values: Any) -> AsyncIterator[TieredStorage]:
        tiers, log, observer = self.telemetry.observe(self.tiers, self.log, self.runtime)
        async with TieredStorage(tiers, log, self.runtime, self.settings(**values), observer=observer) as storage:
            yield storage

    def recovery(self, **values: Any) -> RecoveryLoop:
        tiers, log, observer = self.telemetry.observe(self.tiers, self.log, self.runtime)
        return RecoveryLoop(tiers, log, self.runtime, self.settings(**values), observer)

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels, and maybe others; 0 if there is none."""
        samples = (sample for family in self.registry.collect() for sample in family.samples if sample.name == name)
        return sum((sample.value for sample in samples if labels.items() <= sample.labels.items()), 0.0)

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """Those that have ended, in that order; with that name, if one is given."""
        return [span for span in self._exporter.get_finished_spans() if name in ("", span.name)]
