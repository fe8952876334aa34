"""`tiered feed run`: the writer of the change feed. It works until it is stopped, or with `--once` until all is done.

*Crash*: the next writer goes on where this one was. *Failure* of a service: logged, and tried again. It ends with an
error only if somebody must change something: the settings, a right, a damaged checkpoint.
"""

from __future__ import annotations

import logging
import os
import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from anyio.abc import TaskStatus

from changelog.base.errors import ConfigurationError, TieredError
from changelog.base.runtime import Runtime, SystemRuntime
from recovery.cli.output import iso_of_ms, show
from recovery.cli.shared import choice, run_async, say, shared, stay
from recovery.logs import use_format
from tiered.settings import Settings
from tiered.sinks import Place, shapes
from tiered.whose import refuse_store

if TYPE_CHECKING:
    from recovery.feed.sinks.sink import Sink
    from recovery.feed.writer.supervisor import FeedRun, FeedRunResult
    from tiered.open import Backends

EXIT_AT_ONCE = 130

To = Annotated[list[str] | None, typer.Option(
    metavar="SINK", help=f"Deliver there, instead of feed.to: {shapes()}. Again for more."
)]  # fmt: skip
Once = Annotated[bool, typer.Option("--once", help="End when all that it finds is published, acknowledged and cleaned up.")]
NewGeneration = Annotated[bool, typer.Option(
    "--new-generation", help="Begin anew from nothing, in folders of its own: readers begin anew, too. Needed for a new sink."
)]  # fmt: skip


@shared
def run(to: To = None, once: Once = False, new_generation: NewGeneration = False) -> None:
    """Publishes which object references which blob, as a change feed. Any number may run; one of them works."""

    async def command() -> None:
        settings = fed(choice.existing() if once else choice.settings(), to or ())  # a service may make the store a moment later
        use_format(settings.daemon.log_format)
        logging.getLogger("tiered").setLevel(logging.INFO)
        from tiered.open import open_backends

        async with open_backends(settings, SystemRuntime()) as backends, AsyncExitStack() as stack:
            feed = await open_feed(backends, SystemRuntime(), settings, stack, once=once, new_generation=new_generation)
            stay()
            written = await _until_stopped(feed)
        _show(written)

    run_async(command)


def fed(settings: Settings, to: list[str] | tuple[str, ...] = ()) -> Settings:
    """Returns the settings with these sinks, if any are given. `ConfigurationError`: they have no feed, or no sink."""
    if not settings.feed.enabled:
        raise ConfigurationError(
            "feed.enabled is not set: set it (or TIERED_FEED__ENABLED=true) in every service and daemon of this store,"
            " because each of them must leave its hints; then run this again"
        )
    if to:
        places = tuple(Place.parse(each).text for each in to)
        settings = settings.model_copy(update={"feed": settings.feed.model_copy(update={"to": places})})
    if not settings.feed.to:
        raise ConfigurationError("the feed goes nowhere: give --to SINK, or set feed.to, such as a directory or gs://bucket/prefix")
    return settings


async def open_feed(
    backends: Backends, runtime: Runtime, settings: Settings, stack: AsyncExitStack, *, once: bool = False, new_generation: bool = False
) -> FeedRun:
    """Opens the sinks that the settings name, until the stack is closed. `ConfigurationError`: one of them is none."""
    from recovery.feed.sinks.open import open_sink
    from recovery.feed.writer.supervisor import FeedRun

    if settings.feed.format == "avro":
        import recovery.feed.avro  # noqa: F401 - it says which extra is missing, before anything is opened
    sinks: dict[str, Sink] = {}
    places: set[tuple[str, ...]] = set()
    for text in settings.feed.to:
        place = Place.parse(text)
        name = place.name
        if place.identity in places:
            raise ConfigurationError(f"two sinks of the feed are the same place, {name}: name each place once")
        places.add(place.identity)
        if not place.scheme:
            refuse_store(name, settings.directory)
        sinks[name] = open_sink(text, runtime, settings)
        stack.push_async_callback(sinks[name].aclose)
    say_standby = partial(say, "another writer may be at work; this one waits until it is closed or stands still")
    return FeedRun(backends, runtime, settings, sinks, once=once, new_generation=new_generation, on_standby=say_standby)


async def _until_stopped(feed: FeedRun) -> FeedRunResult:
    """Runs until SIGTERM or SIGINT, or until it has ended by itself."""
    failure: TieredError | None = None
    async with anyio.create_task_group() as beside:
        await beside.start(_heed_signals, feed)
        try:
            await feed.run()
        except TieredError as error:  # raised below, because the task group would wrap it
            failure = error
        beside.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return feed.written


async def _heed_signals(feed: FeedRun, *, task_status: TaskStatus[None]) -> None:
    heeded = [number for number in (signal.SIGINT,) if signal.getsignal(number) is not signal.SIG_IGN]
    with anyio.open_signal_receiver(signal.SIGTERM, *heeded) as signals:
        task_status.started()
        async for _ in signals:
            if feed.stopping:
                os._exit(EXIT_AT_ONCE)  # as safe as a kill
            feed.stop()


def _show(written: FeedRunResult) -> None:
    value = {
        "generation": written.generation, "frontier": written.frontier, "updates": written.updates, "hints": written.hints,
        "left": written.left, "other": written.other,
    }  # fmt: skip
    if written.generation is None:
        show(value, "it was stopped before its turn came", choice.json)
        return
    until = "" if written.frontier is None or written.frontier <= 1 else f"; complete up to {iso_of_ms(written.frontier)}"
    if written.other is not None:
        show(value, f"generation {written.generation}: another writer, {written.other}, has published what was there{until}", choice.json)
        return
    sentence = f"generation {written.generation}: {written.updates:,} updates of {written.hints:,} finished changes and of passes{until}"
    if written.left:
        sentence += f"; the clean-up after {written.left:,} of them is left to the next run"
    show(value, sentence, choice.json)
