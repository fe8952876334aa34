"""`open_sink`: the sink that a text names, such as one of the setting `feed.to`. It does no I/O.

    text -> Place.parse -> its row in tiered/sinks.py -> the module of that row -> open_at(place, runtime, settings)

`open_at` returns the sink, or raises `ConfigurationError`: the address names none. The module is imported here when it
is needed: a store without a feed needs none of the packages of sinks.
"""

from __future__ import annotations

from importlib import import_module

from changelog.base.errors import ConfigurationError
from changelog.base.extras import installing
from changelog.base.runtime import Runtime
from recovery.display import escape_controls
from recovery.feed.sinks.sink import Sink
from tiered.settings import Settings
from tiered.sinks import Place


def open_sink(text: str, runtime: Runtime, settings: Settings | None = None) -> Sink:
    """Returns the sink. Whether it can be reached is known at the first delivery.

    `settings`: of the store, for a bucket; None: the defaults. Raises `ConfigurationError`: the text names no sink, or
    a package is missing.
    """
    place = Place.parse(text)
    try:
        module = import_module(f"recovery.feed.sinks.{place.kind.module}")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"to deliver to {escape_controls(place.shown)}, {error.name} is needed: {installing(place.kind.extra)}"
        ) from None
    opened: Sink = module.open_at(place, runtime, settings)
    return opened
