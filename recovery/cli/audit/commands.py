"""`tiered audit`: compare every blob with every reference.

    plan    says what would be compared; reads next to nothing
    run     compares, on Spark or in processes of this machine; a run that was interrupted goes on where it ended
    show    shows all that is known about one object or blob, now
    delete  deletes the orphans that a run found, if they still are; restore brings them back (`delete.py`)

Exit codes: 0 clean, or done; 1 findings; 2 it could not be completed, whatever the reason; 130 interrupted. Each
command imports what it needs itself, so that `tiered --help` is quick and a command that needs no Arrow runs without
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime
from recovery.cli.audit.delete import delete, restore
from recovery.cli.audit.ending import CLEAN, FAILED, FINDINGS, finish
from recovery.cli.audit.engines import EngineName, Master, Parallel
from recovery.cli.shared import choice, lifetime, shared
from tiered.metadata import NS_PER_S
from tiered.text import quoted

if TYPE_CHECKING:
    from recovery.audit.manifest import Verify as VerifyChoice
    from recovery.audit.work import AuditOptions, Engine
    from tiered.settings import Settings

VERIFY_MIB_PER_S = 100.0
PRICE_MAX = 1_000_000.0

audit_app = typer.Typer(help="Compares every blob with every reference, while the store is in use.", no_args_is_help=True)


Grace = Annotated[str | None, typer.Option(
    help="Never call what is younger an orphan: a whole number and s, m, h or d; at least 1h, by default 24h. A run keeps its own."
)]  # fmt: skip
Insist = Annotated[bool, typer.Option("--insist", help="Accept a grace below 1h, or a table without objects.")]
EngineOption = Annotated[EngineName, typer.Option(help="spark, or local: processes of this machine, without Java.")]
To = Annotated[str | None, typer.Option(
    help="Where the run is kept, a path, gs://… or the like; one that was interrupted goes on. By default ./audit-TIME."
)]  # fmt: skip
Prefix = Annotated[str | None, typer.Option(help="Only names that begin with this are looked at.")]
Usecase = Annotated[str | None, typer.Option(help="Only this usecase is looked at.")]
Verify = Annotated[bool, typer.Option(
    "--verify", help="Read the payloads that live tombstones name, too, and check them against their checksums."
)]  # fmt: skip
VerifyShare = Annotated[float | None, typer.Option(help="With --verify: read only this share of them, such as 0.1; always the same ones.")]
VerifyRate = Annotated[float | None, typer.Option(
    help="With --verify: read so many MiB a second, all workers together; by default 100; 0: no limit."
)]  # fmt: skip
Overdue = Annotated[str | None, typer.Option(
    help="Report a blob that is still there so long after its deadline; by default 7d."
)]  # fmt: skip
Since = Annotated[str | None, typer.Option(
    metavar="RUN", help="The report says what changed since this run; by default since the youngest one beside the new one."
)]  # fmt: skip
Price = Annotated[float | None, typer.Option(min=0, help="US dollars for a GiB a month, for the report; by default 0.020.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="An object's path, or a blob's name.")]
From = Annotated[str | None, typer.Option("--from", metavar="RUN", help="The directory of a run: what it found is shown, too.")]
ShownGrace = Annotated[
    str | None, typer.Option("--grace", help="Call nothing younger an orphan; by default that of the run, or 24h.")
]
VerifyShown = Annotated[bool, typer.Option("--verify", help="Read payloads of any size; without it, those of up to 64 MiB.")]

InventoryOption = Annotated[str | None, typer.Option("--inventory", metavar="MANIFEST_OR_DIR", help=(
    "Take the blobs from this inventory report of Google Cloud Storage, instead of listing the bucket."
))]  # fmt: skip
Export = Annotated[str | None, typer.Option(metavar="DIR", help="With --inventory: a Bigtable export as Parquet, instead of a scan.")]
References = Annotated[str | None, typer.Option(metavar="rows|feed", help=(
    "Where the references come from: a scan of the rows (the default), or the index of the change feed. A run keeps its own."
))]  # fmt: skip
FeedAgeMax = Annotated[str | None, typer.Option(
    help="With --references feed: how long ago the feed may have been complete; by default 1d."
)]  # fmt: skip
Feed = Annotated[str | None, typer.Option("--feed", metavar="DIR", help=(
    "Add what changed since the run before to the change feed in this directory: +1 for a finding that is new, -1 for one that is gone."
))]  # fmt: skip


@audit_app.callback()
@shared
def choose_audit() -> None:
    """Compares every blob with every reference, while the store is in use."""


@audit_app.command()
@shared
def plan(
    grace: Grace = None, insist: Insist = False, parallel: Parallel = None, prefix: Prefix = None, usecase: Usecase = None,
    references: References = None, feed_age_max: FeedAgeMax = None,
) -> None:  # fmt: skip
    """Says what `run` would compare, and in which ranges. Reads next to nothing, writes nothing, starts no Spark."""

    async def command() -> int:
        from recovery.audit.plan import plan_audit
        from recovery.cli.audit.output import show_plan

        options, runtime = _options("", grace, insist, prefix=_prefix(prefix, usecase)), SystemRuntime()
        options = replace(options, **_references(references, feed_age_max))
        slots = parallel or _processors()
        show_plan(await plan_audit(choice.existing(), options, slots, runtime), slots, choice.json)
        return CLEAN

    finish(lambda: anyio.run(command))


@audit_app.command()
@shared
def run(
    to: To = None,
    engine: EngineOption = EngineName.SPARK,
    grace: Grace = None,
    insist: Insist = False,
    parallel: Parallel = None,
    master: Master = None,
    price: Price = None,
    prefix: Prefix = None,
    usecase: Usecase = None,
    verify: Verify = False,
    verify_share: VerifyShare = None,
    verify_rate: VerifyRate = None,
    overdue: Overdue = None,
    since: Since = None,
    inventory: InventoryOption = None,
    export: Export = None,
    references: References = None,
    feed_age_max: FeedAgeMax = None,
    feed: Feed = None,
) -> None:
    """Compares everything, or what --prefix says, and writes findings, manifest.json and report.html."""

    def command() -> int:
        from recovery.audit.plan import check_grace, inputs_of
        from recovery.audit.run import run_audit
        from recovery.cli.audit.output import say_old, show_manifest, show_start, showing_run

        settings = choice.existing()
        if to is not None and not to.strip():
            raise InvalidRequestError("--to is empty: name a directory, or leave it out")
        options = _options(
            to or _new_directory(), grace, insist, price, _prefix(prefix, usecase), _verify(verify, verify_share, verify_rate),
            None if overdue is None else lifetime(overdue).total_seconds(), since,
        )  # fmt: skip
        options = replace(options, tiered=choice.again(absolute=True), feed=feed, **_references(references, feed_age_max))
        if options.references == "feed" and (inventory is not None or export is not None):
            raise InvalidRequestError("--inventory joins a report with the rows themselves: leave --references feed out")
        check_grace(options)
        begins_ns = SystemRuntime().wall_ns()
        show_start(inputs_of(settings), options, engine.value)
        with ExitStack() as stack:
            if inventory is None and export is None:
                opened = stack.enter_context(_opened(engine, parallel, master))
            else:
                options, opened = stack.enter_context(_with_inventory(settings, options, engine, parallel, master, inventory, export))
            progress = stack.enter_context(showing_run())
            manifest = anyio.run(run_audit, settings, options, opened, SystemRuntime(), progress)
        if manifest.ended_ns is not None and manifest.ended_ns < begins_ns:
            say_old(manifest, options)
        show_manifest(manifest, options, choice.json)
        if feed is not None:
            _add_to_feed(feed, options.directory, choice.json)
        return FAILED if not manifest.complete else FINDINGS if manifest.findings else CLEAN

    finish(command)


@audit_app.command()
@shared
def show(name: Name, run: From = None, grace: ShownGrace = None, verify: VerifyShown = False) -> None:
    """Shows all that is known about one object or blob, now: its row, blobs, entries of the changelog, verdicts."""

    def command() -> int:
        from recovery.cli.audit.show import show_name

        return show_name(choice.existing(), name, run, grace, verify, choice.json)

    finish(command)


audit_app.command()(delete)
audit_app.command()(restore)


@contextmanager
def _opened(name: EngineName, parallel: int | None, master: str | None) -> Iterator[Engine]:
    from recovery.audit.work import carry_out

    if name is EngineName.SPARK:
        from recovery.audit.cluster import open_spark

        with open_spark(carry_out, master, parallel) as engine:
            yield engine
        return
    if master is not None:
        raise InvalidRequestError(f"--master {master} is Spark's: leave --engine local out")
    from recovery.audit.local import LocalEngine

    yield LocalEngine(parallel)


@contextmanager
def _with_inventory(
    settings: Settings, options: AuditOptions, name: EngineName, parallel: int | None, master: str | None, inventory: str | None,
    export: str | None,
) -> Iterator[tuple[AuditOptions, Engine]]:  # fmt: skip
    if inventory is None:
        raise InvalidRequestError("--export is of an audit with --inventory: give the inventory report, too")
    if name is not EngineName.SPARK:
        raise InvalidRequestError("--inventory needs Spark for its join: leave --engine local out")
    if options.prefix is not None or options.verify is not None:
        raise InvalidRequestError("--inventory compares all names and reads no payload: leave --prefix, --usecase and --verify out")
    from recovery.audit.cluster import check_packages

    check_packages()
    from recovery.audit.inventory.engine import open_inventory

    runtime = SystemRuntime()
    with open_inventory(settings, inventory, export, runtime, master=master, slots=parallel, insist=options.insist) as engine:
        yield replace(options, inventory=engine.evidence), engine


def _add_to_feed(feed: str, run: str, as_json: bool) -> None:
    from recovery.audit.feed import FindingsFeed
    from recovery.audit.ledger import RunDirectory
    from recovery.cli.audit.output import show_added

    runtime = SystemRuntime()
    show_added(FindingsFeed.open(feed, runtime).add(RunDirectory.open(run, runtime)), feed, as_json)


def _options(
    to: str, grace: str | None, insist: bool, price: float | None = None, prefix: str | None = None, verify: VerifyChoice | None = None,
    overdue_s: float | None = None, since: str | None = None,
) -> AuditOptions:  # fmt: skip
    from recovery.audit.work import AuditOptions

    if price is not None and not price <= PRICE_MAX:
        raise InvalidRequestError(f"--price {price} is no price: give US dollars for a GiB a month, such as 0.020")
    return AuditOptions(to, None if grace is None else lifetime(grace).total_seconds(), insist, price, prefix, verify, overdue_s, since)


def _references(source: str | None, age_max: str | None) -> dict[str, Any]:
    """Returns the options of an audit that say where its references come from."""
    if source not in (None, "rows", "feed"):
        raise InvalidRequestError(
            f"--references {quoted(source)} is no source of references: give rows, or feed, which is the index that the writer of the"
            " change feed keeps in the changelog; files of a feed are not read"
        )
    if age_max is not None and source != "feed":
        raise InvalidRequestError(f"--feed-age-max {age_max} is of --references feed: add that, or leave it out")
    return {"references": source, "feed_age_max_s": None if age_max is None else lifetime(age_max).total_seconds()}


def _prefix(prefix: str | None, usecase: str | None) -> str | None:
    """Returns how the names begin that are to be looked at. None: all of them."""
    if usecase is None:
        if prefix is not None and not _begins_names(prefix):
            raise InvalidRequestError(f"--prefix {prefix!r} begins no name: give the first characters of some names, or leave it out")
        return prefix
    if prefix is not None:
        raise InvalidRequestError("--usecase and --prefix exclude each other: give --prefix USECASE/… for a part of a usecase")
    if "/" in usecase or not usecase or not _begins_names(f"{usecase}/"):
        raise InvalidRequestError(f"--usecase {usecase!r} is no usecase: it is the first segment of a name, such as media")
    return f"{usecase}/"


def _begins_names(text: str) -> bool:
    from recovery.audit.show import NAME_BYTES_MAX

    data = text.encode(errors="replace")
    return 0 < len(data) <= NAME_BYTES_MAX and b"\0" not in data and data.decode() == text


def _verify(wanted: bool, share: float | None, mib_per_s: float | None) -> VerifyChoice | None:
    from recovery.audit.manifest import Verify

    if not wanted and share is None:
        if mib_per_s is not None:
            raise InvalidRequestError(f"--verify-rate {mib_per_s:g} is of --verify: add --verify, or leave it out")
        return None
    share = 1.0 if share is None else share
    mib_per_s = VERIFY_MIB_PER_S if mib_per_s is None else mib_per_s
    if not 0 < share <= 1:
        raise InvalidRequestError(f"--verify-share {share:g} is no share: give a number above 0, at most 1, such as 0.1")
    if not math.isfinite(mib_per_s) or mib_per_s < 0:
        raise InvalidRequestError(f"--verify-rate {mib_per_s:g} is no rate: give MiB a second, such as 100, or 0 for no limit")
    return Verify(share=share, bytes_per_s=mib_per_s * 1024 * 1024 or None)


def _new_directory() -> str:
    return f"audit-{datetime.fromtimestamp(SystemRuntime().wall_ns() // NS_PER_S, UTC):%Y%m%dT%H%M%SZ}"


def _processors() -> int:
    from recovery.audit.local import LocalEngine

    return LocalEngine().slots
