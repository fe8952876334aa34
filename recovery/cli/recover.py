"""`tiered recover`: the daemon, one pass of it, or a look at what a pass would do.

*Crash*: as in `recovery.loop`, another daemon takes over. *Failure*: one pass ends with an exit code as long as
something is lost, stuck, could not be collected or could not be recovered, so that a cron job notices it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, TieredError, UnavailableError
from changelog.base.events import events
from changelog.base.extras import installing
from changelog.base.runtime import Runtime, SystemRuntime
from changelog.change import Entry
from recovery.cli.entries import Listed, open_logged, show_listed, show_nothing, state_words
from recovery.cli.feed.run import fed, open_feed
from recovery.cli.output import show
from recovery.cli.shared import choice, run_async, shared, stay
from recovery.display import count
from recovery.entries import count_open, count_stuck, stuck_sentence
from recovery.logs import use_format
from recovery.typed_commands import with_typed

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from recovery.daemon import Beside
    from recovery.feed.writer.overdue import ReleaseCounts
    from recovery.feed.writer.supervisor import FeedRun
    from recovery.loop import RecoveryLoop, RecoveryReport
    from tiered.open import Backends
    from tiered.settings import Settings


@shared
def recover(
    once: Annotated[bool, typer.Option("--once", help="One pass over the log, then exit.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a pass would work on.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --once or --dry-run: at most so many entries.")] = None,
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="The daemon's status page and metrics, instead of daemon.http_port; 0: any port.")
    ] = None,
    feed: Annotated[bool, typer.Option("--feed", help="The daemon also writes the change feed, as 'tiered feed run' does.")] = False,
) -> None:
    """Runs the recovery daemon: cleans up after processes that died. Any number may run side by side."""

    async def command() -> None:
        if limit is not None and not (once or dry_run):
            raise InvalidRequestError("--limit goes with --once or --dry-run")
        if http_port is not None and (once or dry_run):
            raise InvalidRequestError("--http-port is the daemon's: leave --once and --dry-run out")
        if feed and (once or dry_run):
            raise InvalidRequestError("--feed is the daemon's: leave --once and --dry-run out, and use 'tiered feed run --once'")
        daemon = not (once or dry_run)
        chosen = _with_port(choice.settings(), http_port) if daemon else choice.existing()
        chosen = fed(chosen) if feed else chosen
        with _listening(chosen, daemon) as bound:  # before the store is opened: a port that is taken is told at once
            await work(chosen, bound)

    async def work(chosen: Settings, bound: socket.socket | None) -> None:
        from recovery.daemon import collect, recover_once, run_daemon, source_of
        from recovery.dangling import forget_mended
        from recovery.loop import RecoveryLoop
        from recovery.spot_check import SpotCheck
        from recovery.stray_uploads import StrayUploads
        from tiered.telemetry.telemetry import Telemetry

        use_format(chosen.daemon.log_format)
        registry = None if bound is None else _registry()
        telemetry = None if registry is None else Telemetry(registry=registry)
        opening = open_logged(chosen, writes=not dry_run, collecting=not dry_run, telemetry=telemetry)
        async with opening as (backends, settings):
            loop = RecoveryLoop(backends.tiers, backends.log, SystemRuntime(), settings, backends.observer)
            if dry_run:
                if not await show_listed(loop.survey(), ("key", "state", "object"), _cells, limit, choice.json):
                    show_nothing(with_typed(_nothing_yet(await count_open(backends.log)), choice.typed()), choice.json)
            elif once:
                collected = await collect(backends)  # before recovery, which may need the space
                source = source_of(loop, backends.log, SystemRuntime(), settings)
                report = await recover_once(loop, source, limit)
                overdue, failures = await _release_overdue(backends, settings, None if limit is None else limit - report.seen)
                check = SpotCheck(backends.tiers, backends.log, SystemRuntime(), backends.observer)
                await check.look()
                await StrayUploads(backends.tiers, backends.log).end()
                await forget_mended(backends.tiers, backends.log, SystemRuntime())
                stuck = await count_stuck(backends.log)
                cut = {"more": "maybe"} if report.seen + overdue.looked_at == limit else {}
                kept = {"overdue": overdue.forgotten} if overdue.looked_at else {}
                _show_report(report, {"collected": collected.removed, "stuck": stuck} | kept | cut)
                _raise_unless_clean(report, overdue.failed, stuck, check.lost, [*collected.failures, *failures])
            else:
                logging.getLogger("tiered").setLevel(logging.INFO)
                runtime = SystemRuntime()
                async with AsyncExitStack() as stack:
                    writer = await open_feed(backends, runtime, settings, stack) if feed else None
                    stay()
                    beside = _beside(bound, backends, runtime, settings, registry, writer)
                    done = await run_daemon(backends, runtime, settings, beside, choice.typed_anywhere(settings))
                _show_report(done.report, {"collected": done.collected, "stuck": done.stuck})

    run_async(command)


async def _release_overdue(backends: Backends, settings: Settings, limit: int | None) -> tuple[ReleaseCounts, Sequence[TieredError]]:
    """Cleans up what waited too long for a change feed, also where the feed is off. Returns what it did, and its error.
    """
    from recovery.feed.writer.overdue import ReleaseCounts, release_counted

    try:
        return await release_counted(backends, SystemRuntime(), settings, limit=limit), ()
    except TieredError as error:
        events.warning("overdue_not_released", error)
        return ReleaseCounts(), (error,)


def _with_port(settings: Settings, http_port: int | None) -> Settings:
    if http_port is None:
        return settings
    return settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"http_port": http_port})})


@contextmanager
def _listening(settings: Settings, daemon: bool) -> Iterator[socket.socket | None]:
    """Binds the daemon's port, if it has one. Raises `ConfigurationError`."""
    if not daemon or settings.daemon.http_port is None:
        yield None
        return
    try:
        from recovery.http.server import listening
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"the daemon's HTTP server needs {error.name}: {installing('daemon')}") from None
    with listening(settings.daemon) as bound:
        yield bound


def _registry() -> CollectorRegistry:
    """What `/metrics` shows: the daemon's metrics, and those of its process and of Python."""
    from prometheus_client import CollectorRegistry as Registry
    from prometheus_client import GCCollector, PlatformCollector, ProcessCollector

    registry = Registry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


def _beside(
    bound: socket.socket | None, backends: Backends, runtime: Runtime, settings: Settings, registry: CollectorRegistry | None,
    feed: FeedRun | None,
) -> Beside | None:  # fmt: skip
    """What runs beside the loop: the HTTP server and the writer of the feed, if they are wanted."""
    works: list[Beside] = []
    if bound is not None and registry is not None:
        from recovery.http.server import serve

        works.append(partial(serve, bound, backends, runtime, settings, registry, tiered=choice.typed_anywhere(settings)))
    if feed is not None:
        from recovery.feed.writer.supervisor import run_beside

        wait_s, written = settings.recovery.pause_max_s, feed
        works.append(lambda loop: run_beside(written, loop.stopped, runtime, wait_s))
    if not works:
        return None

    async def all_of(loop: RecoveryLoop) -> None:
        async with anyio.create_task_group() as tasks:
            for work in works:
                tasks.start_soon(work, loop)

    return all_of


def _cells(listed: Listed) -> tuple[str, ...]:
    entry, state = listed
    return entry.key, state_words(state), entry.change.object if isinstance(entry, Entry) else entry.error


def _nothing_yet(open_count: int) -> str:
    """Says that nothing can be recovered now. `open_count`: all entries, also those that somebody holds."""
    if not open_count:
        return "nothing to recover"
    are, each = ("entry is", "it") if open_count == 1 else ("entries are", "each")
    return f"nothing to recover yet: {open_count:,} {are} open, and 'tiered log list' says what {each} waits for"


def _show_report(report: RecoveryReport, more: Mapping[str, Any]) -> None:
    value = asdict(report) | dict(more)
    show(value, "  ".join(f"{name} {'-' if number is None else number}" for name, number in value.items()), choice.json)


def _raise_unless_clean(report: RecoveryReport, overdue: int, stuck: int, lost: int, failures: Iterable[TieredError]) -> None:
    """Raises an error as long as something is left to do. `overdue`: how many entries of the feed could not be cleaned
    up. `lost`: objects of the spot check whose blob is gone. `failures`: of the collection, and of the clean-up as a
    whole.
    """
    if lost:
        raise CorruptRecordError(f"the blob of {count(lost, 'object')} is gone, of few that were looked at: audit ('tiered audit run')")
    if stuck:
        raise CorruptRecordError(stuck_sentence(stuck))
    for failure in failures:
        raise failure
    if failed := report.failed + overdue:
        raise UnavailableError(f"{failed} entries could not be recovered now; try again")
