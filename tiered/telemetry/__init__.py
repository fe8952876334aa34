"""Metrics and traces of a store and of recovery (docs/metrics.md).

    telemetry.py    `Telemetry`, which a user passes to `open_storage`; begin here
    observed.py     both tiers and the changelog, wrapped: each call to a service is told to an observer
    metrics.py      the metrics, on prometheus-client
    traces.py       the spans, on the OpenTelemetry API

Core code knows none of this: it talks to an `Observer` (`changelog/base/observe.py`). A store without telemetry imports
nothing of this folder, and its backends are not wrapped.
"""
