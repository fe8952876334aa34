"""The metrics of the library, on prometheus-client. docs/metrics.md has a line for each of them.

All stores of one registry share one `Metrics`: counters add up, and gauges are summed over the stores that are open. A
label's value comes from a list that is written down here, in the code that calls or in the settings, and never from a
caller: no object's name, no message of an error. What is in no list is counted as `other`.

*Fork*: the child counts on from the figures that it inherited, as prometheus-client does, and forgets the stores of its
parent, which it cannot use.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakSet

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import tiered.errors
from changelog.base.errors import ConfigurationError, TieredError
from changelog.base.observe import Event, Queue
from tiered.services.breaker import CHANGELOG, HIGH_VOLUME, LONG_TERM

OTHER = "other"
CANCELLED = "cancelled"
OK = "ok"
CALLER, REFUSED, FAILED = "caller", "refused", "failed"

ERRORS = frozenset(tiered.errors.__all__)
_CODE = re.compile(r"[1-5]\d\d|[A-Z][A-Z_]{1,30}|[0-9A-Z]{5}|[A-Z][A-Za-z]{2,35}")

CALL_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
PASS_BUCKETS_S = (0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)

SIDES = ("read", "write", "touch", "payload")
SERVICES = (HIGH_VOLUME, LONG_TERM, CHANGELOG)


@dataclass(frozen=True, slots=True)
class EventCounter:
    """How an event is counted. `kinds`: the values of `label`, if it has one; none: names from the settings."""

    name: str
    help: str
    label: str = ""
    kinds: tuple[str, ...] = ()


COUNTED: Mapping[Event, EventCounter] = {
    Event.RETRIED: EventCounter("tiered_retries", "Calls repeated, by the error of the call before.", "error", (*sorted(ERRORS), OTHER)),
    Event.FAILED_FAST: EventCounter(
        "tiered_failed_fast", "Calls not sent, because their service is away.", "service", SERVICES
    ),
    Event.REFUSED: EventCounter("tiered_refusals", "Operations that the policy of a usecase refused.", "usecase"),
    Event.DANGLING: EventCounter("tiered_dangling_tombstones", "Reads that found a tombstone whose blob is gone: data loss."),
    Event.CHANGE_LOST: EventCounter("tiered_changes_lost", "Changes given up because their lease had ended before the swap."),
    Event.CLEANED_UP: EventCounter(
        "tiered_clean_ups", "Changes that their writer cleaned up, by result.", "result",
        ("forgotten", "cleaned", "deferred", "kept", "left"),
    ),
    Event.RECOVERED: EventCounter(
        "tiered_recovery_entries", "Entries that recovery worked on, by result.", "result",
        ("forgotten", "cleaned", "deferred", "kept", "overdue", "parked", "lost", "failed"),
    ),
    Event.RECORDED: EventCounter("tiered_changes_recorded", "Entries written to the changelog."),
    Event.RENEWED: EventCounter("tiered_renewals", "Renewals of entries, by answer.", "answer", ("renewed", "not_yours", "failed")),
    Event.FORGOTTEN: EventCounter("tiered_changes_forgotten", "Entries removed from the changelog."),
    Event.PARKED: EventCounter("tiered_entries_parked", "Entries set aside for an operator."),
    Event.CLAIMED: EventCounter("tiered_claims", "Claims of entries, by answer.", "answer", ("won", "lost")),
    Event.SWAPPED: EventCounter("tiered_swaps", "Swaps sent to rows, by answer.", "answer", ("won", "conflict", "unknown")),
    Event.SETTLED: EventCounter("tiered_settles", "Settles of rows, by answer.", "answer", ("live", "refused")),
    Event.INLINE_WRITTEN: EventCounter(
        "tiered_inline_writes", "Inline puts and deletes sent to rows, by answer.", "answer", ("done", "refused", "unknown")
    ),
    Event.BLOB_DELETED: EventCounter("tiered_blobs_deleted", "Deletions of blobs that the long-term tier confirmed."),
    Event.BLOB_BYTES_DELETED: EventCounter("tiered_blob_deleted_bytes", "Bytes of deleted blobs, where the tier tells them."),
    Event.COLLECTED: EventCounter(
        "tiered_garbage_collected", "Things removed by the collection of an embedded store.", "service", SERVICES
    ),
}


class Metrics(Collector):
    """All metrics of the stores and recovery loops of one registry. Get it from `metrics_of`."""

    def __init__(self) -> None:
        self._counters = {event: _counter(each) for event, each in COUNTED.items()}
        self._children = {
            (event, kind): self._counters[event].labels(kind) if each.label else self._counters[event]
            for event, each in COUNTED.items() for kind in (each.kinds if each.label else ("",))
        }
        self._failures = Counter("tiered_telemetry_failures", "Times that telemetry itself failed; no operation did.", registry=None)
        self._operations = Counter(
            "tiered_operations", "Operations that ended, by result.", ("operation", "result", "class"), registry=None
        )
        self._operation_s = Histogram(
            "tiered_operation_duration_seconds", "How long callers waited.", ("operation",), registry=None, buckets=CALL_BUCKETS_S
        )
        self._call_s = Histogram(
            "tiered_call_duration_seconds", "How long calls to services took.", ("service", "method"), registry=None,
            buckets=CALL_BUCKETS_S,
        )
        self._calls: dict[tuple[str, str], Histogram] = {}
        self._refused: dict[tuple[str, str], bool] = {}
        self._call_errors = Counter(
            "tiered_call_errors", "Calls to services that failed.", ("service", "method", "error", "code", "class"), registry=None
        )
        self._passes = Counter("tiered_recovery_passes", "Passes over the changelog, by result.", ("range", "result"), registry=None)
        self._pass_s = Histogram(
            "tiered_recovery_pass_duration_seconds", "How long passes took.", ("range",), registry=None, buckets=PASS_BUCKETS_S
        )
        self._families: tuple[Counter | Histogram, ...] = (
            *self._counters.values(), self._failures, self._operations, self._operation_s, self._call_s, self._call_errors,
            self._passes, self._pass_s,
        )  # fmt: skip
        self._succeeded_s: float | None = None
        self._forget_stores()
        _ALL.add(self)

    def _forget_stores(self) -> None:
        """Also after a fork: the lock may have been held by a thread that the child does not have."""
        self._lock = threading.Lock()
        self._queues: dict[str, WeakSet[Queue]] = {side: WeakSet() for side in SIDES}
        self._away = dict.fromkeys(SERVICES, 0)

    # --- told by the observer --------------------------------------------------------------------

    def operation(self, name: str, seconds: float, error: BaseException | None) -> None:
        self._operation_s.labels(name).observe(seconds)
        self._operations.labels(name, OK if error is None else kind_of(error), class_of(error)).inc()

    def call(self, service: str, method: str, seconds: float, error: BaseException | None) -> None:
        observed = self._calls.get((service, method))
        if observed is None:  # kept, because finding it among all labels costs as much as counting
            observed = self._calls[service, method] = self._call_s.labels(service, method)
        observed.observe(seconds)
        if error is not None:
            judged = class_of(error)
            self._call_errors.labels(service, method, kind_of(error), code_of(error), judged).inc()
            if judged == REFUSED:
                self._refused[service, method] = True
        elif self._refused and self._refused.get((service, method)):
            self._refused[service, method] = False

    def calls_made(self) -> Mapping[str, tuple[int, int]]:
        """By service, how many calls have ended, and how many of them failed."""
        ended, failed = dict.fromkeys(SERVICES, 0), dict.fromkeys(SERVICES, 0)
        for family, suffix, into in ((self._call_s, "_count", ended), (self._call_errors, "_total", failed)):
            for sample in (each for metric in family.collect() for each in metric.samples):
                if sample.name.endswith(suffix) and sample.labels["service"] in into:
                    into[sample.labels["service"]] += round(sample.value)
        return {service: (ended[service], failed[service]) for service in SERVICES}

    def count(self, event: Event, kind: str, amount: int) -> None:
        child = self._children.get((event, kind))
        if child is None and not COUNTED[event].kinds:
            child = self._children[event, kind] = self._counters[event].labels(kind)
        (child or self._children[event, OTHER]).inc(amount)

    def passed(self, seconds: float, full: bool, succeeded_s: float | None) -> None:
        """`succeeded_s`: the time now (Unix seconds) if it was a success."""
        within = "full" if full else "recent"
        self._pass_s.labels(within).observe(seconds)
        self._passes.labels(within, "failed" if succeeded_s is None else OK).inc()
        self._succeeded_s = self._succeeded_s if succeeded_s is None else succeeded_s

    def watch(self, side: str, queue: Queue) -> None:
        with self._lock:
            self._queues[side].add(queue)

    def unwatch(self, side: str, queue: Queue) -> None:
        with self._lock:
            self._queues[side].discard(queue)

    def away(self, service: str, stores: int) -> None:
        with self._lock:
            self._away[service] += stores

    def failed(self) -> None:
        self._failures.inc()

    # --- read by whoever exposes them ------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield from family.collect()
        yield from self._stores()
        if self._succeeded_s is not None:
            yield GaugeMetricFamily(
                "tiered_recovery_last_success_timestamp_seconds",
                "When a pass last ended without any failure, by this machine's clock.", self._succeeded_s,
            )

    def describe(self) -> Iterable[Metric]:
        """For the registry, which refuses a name that it has already."""
        yield from self.collect()
        yield GaugeMetricFamily("tiered_recovery_last_success_timestamp_seconds", "")

    def _stores(self) -> Iterator[Metric]:
        with self._lock:
            queues = {side: list(found) for side, found in self._queues.items()}
            away_now = dict(self._away)
        slots = GaugeMetricFamily("tiered_store_slots", "Operations that may run at once, of all open stores.", labels=("side",))
        held = GaugeMetricFamily("tiered_store_slots_held", "Operations that run, clean-up included.", labels=("side",))
        waiting = GaugeMetricFamily("tiered_store_waiting", "Operations that wait for a slot.", labels=("side",))
        for side, found in queues.items():
            slots.add_metric((side,), sum(queue.slots for queue in found))
            held.add_metric((side,), sum(queue.held for queue in found))
            waiting.add_metric((side,), sum(queue.waiting for queue in found))
        away = GaugeMetricFamily("tiered_service_away", "Open stores that find this service away.", labels=("service",))
        for service, stores in away_now.items():
            away.add_metric((service,), stores)
        refused = GaugeMetricFamily("tiered_call_refused", "1: the last call of this kind was refused.", labels=("service", "method"))
        for names, is_refused in list(self._refused.items()):
            refused.add_metric(names, float(is_refused))
        yield from (slots, held, waiting, away, refused)


def _counter(each: EventCounter) -> Counter:
    return Counter(each.name, each.help, (each.label,) if each.label else (), registry=None)


_ALL: WeakSet[Metrics] = WeakSet()
_OF_REGISTRY: WeakKeyDictionary[CollectorRegistry, Metrics] = WeakKeyDictionary()


def metrics_of(registry: CollectorRegistry) -> Metrics:
    """The metrics in this registry. They are registered when somebody asks for them for the first time.

    `ConfigurationError`: the registry has another metric of one of these names.
    """
    if not isinstance(registry, CollectorRegistry):
        raise ConfigurationError(f"registry is a prometheus_client.CollectorRegistry, not a {type(registry).__name__}")
    if (metrics := _OF_REGISTRY.get(registry)) is None:
        metrics = Metrics()
        try:
            registry.register(metrics)
        except ValueError as error:
            raise ConfigurationError(f"the registry has other metrics of these names: {error}; pass another registry") from error
        _OF_REGISTRY[registry] = metrics
    return metrics


def _after_fork() -> None:
    for metrics in list(_ALL):
        metrics._forget_stores()


os.register_at_fork(after_in_child=_after_fork)


def kind_of(error: BaseException) -> str:
    """The name of the error if it is one of ours, or of the nearest of ours that it is a kind of."""
    if not isinstance(error, Exception):
        return CANCELLED
    return next((each.__name__ for each in type(error).__mro__ if each.__name__ in ERRORS and issubclass(each, TieredError)), OTHER)


def class_of(error: BaseException | None) -> str:
    """What the result is to whoever watches. Alerts go by this alone, so an error that is new here is a failure.

    `ok`; `cancelled`; `caller`: told no for what the caller did; `refused`: a service refuses until somebody changes
    something; `other`: an error that is not ours, such as one of a payload; `failed`: all else.
    """
    if error is None:
        return OK
    if not isinstance(error, Exception):
        return CANCELLED
    if not isinstance(error, TieredError):
        return OTHER
    return CALLER if error.callers_fault else REFUSED if error.refused else FAILED


def code_of(error: BaseException) -> str:
    """What the service called the error: a status of gRPC or HTTP, an SQLSTATE, a word of S3. Empty: it said none."""
    code = getattr(error, "code", "") if isinstance(error, TieredError) else ""
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""
