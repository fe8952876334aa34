"""`Telemetry`: what a user passes to `open_storage`, and the observer that it gives to core code.

    open_storage(settings, telemetry=Telemetry(registry=REGISTRY, tracer_provider=provider))

The libraries are imported when they are asked for: metrics need prometheus-client, traces the OpenTelemetry API. No
server is started, and no SDK is set up. *Failure*: an error of a registry or of a tracer never reaches an operation. It
is counted, and the first one is logged with its traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from changelog.base.errors import ConfigurationError
from changelog.base.events import events
from changelog.base.extras import installing
from changelog.base.observe import SILENT, Event, Observer, Queue
from changelog.base.runtime import Runtime
from changelog.log import ChangeLog
from tiered.metadata import NS_PER_S
from tiered.services.backends import Tiers
from tiered.telemetry.observed import observed_log, observed_tiers

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from tiered.telemetry.metrics import Metrics
    from tiered.telemetry.traces import OpenSpan, Traces


class Telemetry:
    """Where metrics and spans go. One may serve any number of stores and recovery loops, and so may one registry.

    `registry`: the metrics are registered there; None: there are none. `tracer_provider`: it makes the spans; None:
    there are none. `ConfigurationError`: one of them is of another type, its library is missing, or the registry has
    other metrics of the same names.
    """

    def __init__(self, *, registry: CollectorRegistry | None = None, tracer_provider: TracerProvider | None = None) -> None:
        self._has_failed = False
        self._metrics: Metrics | None = None
        self._traces: Traces | None = None
        try:
            if registry is not None:
                from tiered.telemetry.metrics import metrics_of

                self._metrics = metrics_of(registry)
            if tracer_provider is not None:
                from tiered.telemetry.traces import Traces

                self._traces = Traces(tracer_provider)
        except ModuleNotFoundError as missing:
            raise ConfigurationError(f"telemetry needs {missing.name}, which is missing: {installing('telemetry')}") from None

    def observe(self, tiers: Tiers, log: ChangeLog, runtime: Runtime) -> tuple[Tiers, ChangeLog, Observer]:
        """The backends, wrapped, and the observer for the store or the recovery loop on top of them."""
        if self._metrics is None and self._traces is None:
            return tiers, log, SILENT
        observer = _Telling(self._metrics, self._traces, runtime, self._failed)
        return observed_tiers(tiers, observer), observed_log(log, observer), observer

    def _failed(self, error: Exception) -> None:
        """Telemetry failed, and the operation goes on."""
        if not self._has_failed:
            self._has_failed = True
            events.warning("telemetry_failed", error, exc_info=error)
        if self._metrics is not None:
            self._metrics.failed()


class _Telling(Observer):
    """Tells metrics and traces. Each method catches what they raise."""

    def __init__(self, metrics: Metrics | None, traces: Traces | None, runtime: Runtime, failed: Callable[[Exception], None]) -> None:
        self.metrics = metrics
        self.traces = traces
        self.runtime = runtime
        self._failed = failed

    def operation(self, name: str, link: str | None = None) -> AbstractContextManager[object]:
        return _Operation(self, name, link)

    def call(self, service: str, method: str, *, traced: bool = True) -> AbstractContextManager[object]:
        return _TracedCall(self, service, method, traced)

    def count(self, event: Event, kind: str = "", amount: int = 1) -> None:
        try:
            if self.metrics is not None:
                self.metrics.count(event, kind, amount)
            if self.traces is not None:
                self.traces.count(event, kind, amount)
        except Exception as error:  # noqa: BLE001 - see the class
            self.failed(error)

    def passed(self, seconds: float, *, full: bool, ok: bool) -> None:
        try:
            if self.metrics is not None:
                self.metrics.passed(seconds, full, self.runtime.wall_ns() / NS_PER_S if ok else None)
        except Exception as error:  # noqa: BLE001
            self.failed(error)

    def watch(self, side: str, queue: Queue) -> None:
        try:
            if self.metrics is not None:
                self.metrics.watch(side, queue)
        except Exception as error:  # noqa: BLE001
            self.failed(error)

    def unwatch(self, side: str, queue: Queue) -> None:
        try:
            if self.metrics is not None:
                self.metrics.unwatch(side, queue)
        except Exception as error:  # noqa: BLE001
            self.failed(error)

    def away(self, service: str, stores: int) -> None:
        try:
            if self.metrics is not None:
                self.metrics.away(service, stores)
        except Exception as error:  # noqa: BLE001
            self.failed(error)

    def traceparent(self) -> str | None:
        try:
            return None if self.traces is None else self.traces.traceparent()
        except Exception as error:  # noqa: BLE001
            self.failed(error)
            return None

    def failed(self, error: Exception) -> None:
        self._failed(error)


class _Scope:
    """One operation or call, from its begin to its end."""

    __slots__ = ("_began", "_observer", "_span")

    def __init__(self, observer: _Telling) -> None:
        self._observer = observer
        self._span: OpenSpan | None = None

    def __enter__(self) -> Self:
        observer = self._observer
        if observer.traces is not None:
            try:
                self._span = self._open(observer.traces)
            except Exception as error:  # noqa: BLE001 - see `_Telling`
                observer.failed(error)
        self._began = observer.runtime.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        observer = self._observer
        seconds = observer.runtime.monotonic() - self._began
        try:
            if observer.metrics is not None:
                self._tell(observer.metrics, seconds, error)
        except Exception as failure:  # noqa: BLE001
            observer.failed(failure)
        if self._span is not None:
            try:
                self._span.end(None if error is None else type(error).__name__)
            except Exception as failure:  # noqa: BLE001
                observer.failed(failure)

    def _open(self, traces: Traces) -> OpenSpan | None:
        raise NotImplementedError

    def _tell(self, metrics: Metrics, seconds: float, error: BaseException | None) -> None:
        raise NotImplementedError


class _Operation(_Scope):
    __slots__ = ("_link", "_name")

    def __init__(self, observer: _Telling, name: str, link: str | None) -> None:
        super().__init__(observer)
        self._name = name
        self._link = link

    def _open(self, traces: Traces) -> OpenSpan:
        return traces.operation(self._name, self._link)

    def _tell(self, metrics: Metrics, seconds: float, error: BaseException | None) -> None:
        metrics.operation(self._name, seconds, error)


class _TracedCall(_Scope):
    __slots__ = ("_method", "_service", "_traced")

    def __init__(self, observer: _Telling, service: str, method: str, traced: bool) -> None:
        super().__init__(observer)
        self._service = service
        self._method = method
        self._traced = traced

    def _open(self, traces: Traces) -> OpenSpan | None:
        return traces.call(self._service, self._method) if self._traced else None

    def _tell(self, metrics: Metrics, seconds: float, error: BaseException | None) -> None:
        metrics.call(self._service, self._method, seconds, error)
