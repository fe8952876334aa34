"""The spans of the library, on the OpenTelemetry API. Nothing here knows an SDK.

    tiered.put                          an operation: in the trace of whoever calls
      tiered.changelog.record           a call to a service, within the operation
      tiered.high_volume.swap           ... also one that was made after the answer
    tiered.recover                      one entry: a trace of its own, with a link to the operation that wrote the entry
    tiered.changelog.renew              a call outside of any operation: a trace of its own

A span never has an object's name, a payload or the message of an error, which may name an object. What is counted while
a span is open becomes its attribute, such as `tiered.swap = won`.
"""

from __future__ import annotations

import re
from contextvars import ContextVar, Token

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TraceFlags, Tracer, TracerProvider

from changelog.base.errors import ConfigurationError
from changelog.base.observe import Event

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

_ours: ContextVar[Span | None] = ContextVar("tiered_span", default=None)
"""The innermost open span of this module. The current span of OpenTelemetry may be one of the caller's."""


class OpenSpan:
    """A span that is open, and what was current before it."""

    __slots__ = ("_before", "_outer", "span")

    def __init__(self, span: Span, within: Context) -> None:
        self.span = span
        self._before = context.attach(trace.set_span_in_context(span, within))
        self._outer: Token[Span | None] = _ours.set(span)

    def end(self, error: str | None) -> None:
        """`error`: its kind. What was current before is so again, whatever the span itself does."""
        _ours.reset(self._outer)
        context.detach(self._before)
        try:
            if error is not None:
                self.span.set_attribute("error.type", error)
                self.span.set_status(StatusCode.ERROR)
        finally:
            self.span.end()


class Traces:
    def __init__(self, provider: TracerProvider) -> None:
        if not isinstance(provider, TracerProvider):
            raise ConfigurationError(f"tracer_provider is an opentelemetry.trace.TracerProvider, not a {type(provider).__name__}")
        self._tracer: Tracer = provider.get_tracer("tiered")

    def operation(self, name: str, link: str | None) -> OpenSpan:
        linked = parse_traceparent(link)
        within = context.get_current() if link is None else Context()
        return self._open(f"tiered.{name}", within, SpanKind.INTERNAL, linked)

    def call(self, service: str, method: str) -> OpenSpan:
        # A task of the store, such as the heartbeat, inherits the context in which the store was opened. Its calls
        # belong to no trace of the caller.
        within = Context() if _ours.get() is None else context.get_current()
        return self._open(f"tiered.{service}.{method}", within, SpanKind.CLIENT, None)

    def _open(self, name: str, within: Context, kind: SpanKind, linked: SpanContext | None) -> OpenSpan:
        links = [] if linked is None else [Link(linked)]
        return OpenSpan(self._tracer.start_span(name, within, kind, links=links, record_exception=False), within)

    def count(self, event: Event, kind: str, amount: int) -> None:
        """Notes it on the innermost open span. One that has ended notes nothing: clean-up runs after the answer."""
        span = _ours.get()
        if span is not None and span.is_recording():
            span.set_attribute(f"tiered.{event.value}", kind or amount)

    def traceparent(self) -> str | None:
        span = _ours.get()
        found = None if span is None else span.get_span_context()
        if found is None or not found.is_valid:
            return None
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags & 0xFF:02x}"


def parse_traceparent(text: str | None) -> SpanContext | None:
    """The span that a W3C traceparent names. None: it names none. An entry may hold any text there."""
    found = None if text is None else _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    named = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=TraceFlags(int(found[3], 16)))
    return named if named.is_valid else None
