"""`tiered audit`: compare every blob with every reference.

    plan    says what would be compared; reads next to nothing
    run     compares, on Spark or in processes of this machine; a run that was interrupted goes on where it ended
    show    shows all that is known about one object or blob, now

Exit codes: 0 clean, 1 findings, 2 it could not be completed, whatever the reason; 130 interrupted. Each command imports
what it needs itself, so that `tiered --help` is quick and a command that needs no Arrow runs without it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from changelog.base.runtime import SystemRuntime
from recovery.audit.errors import AuditInterruptedError
from recovery.cli.shared import choice, guard, lifetime, say, shared
from tiered.errors import ConfigurationError, InvalidRequestError
from tiered.metadata import NS_PER_S

if TYPE_CHECKING:
    from recovery.audit.work import AuditOptions, Engine
    from tiered.settings import Settings

CLEAN, FINDINGS, FAILED, INTERRUPTED = 0, 1, 2, 130
AUDIT_MODULES = ("pyarrow", "jinja2", "markupsafe")
"""What the extra `audit` installs."""

audit_app = typer.Typer(help="Compares every blob with every reference, while the store is in use; deletes nothing.", no_args_is_help=True)


class EngineName(StrEnum):
    SPARK = "spark"
    LOCAL = "local"


Grace = Annotated[str | None, typer.Option(
    help="What is younger is never called an orphan: a whole number and s, m, h or d; 1h at least, by default 24h. A run keeps its own."
)]  # fmt: skip
Insist = Annotated[bool, typer.Option("--insist", help="A grace below 1h, or a table without objects, is meant.")]
EngineOption = Annotated[EngineName, typer.Option(help="spark, or local: processes of this machine, without Java.")]
To = Annotated[str | None, typer.Option(
    help="Where the run is kept, a path, gs://… or the like; one that was interrupted goes on. By default ./audit-TIME."
)]  # fmt: skip
Price = Annotated[float | None, typer.Option(min=0, help="US dollars for a GiB a month, for the report; by default 0.020.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="An object's path, or a blob's name.")]
From = Annotated[str | None, typer.Option("--from", metavar="RUN", help="The directory of a run: what it found is shown, too.")]
ShownGrace = Annotated[
    str | None, typer.Option("--grace", help="What is younger is not called an orphan; by default that of the run, or 24h.")
]
Parallel = Annotated[int | None, typer.Option(min=1, max=4096, help="So many ranges at once; by default one for each processor.")]
Master = Annotated[str | None, typer.Option(help="Of Spark; by default one of its own on this machine, or spark-submit's.")]

InventoryOption = Annotated[str | None, typer.Option("--inventory", metavar="MANIFEST_OR_DIR", help=(
    "Take the blobs from this inventory report of Google Cloud Storage, instead of listing the bucket."
))]  # fmt: skip
Export = Annotated[str | None, typer.Option(metavar="DIR", help="With --inventory: a Bigtable export as Parquet, instead of a scan.")]


@audit_app.callback()
@shared
def choose_audit() -> None:
    """Compares every blob with every reference, while the store is in use; deletes nothing."""


@audit_app.command()
@shared
def plan(grace: Grace = None, insist: Insist = False, parallel: Parallel = None) -> None:
    """Says what `run` would compare, and in which ranges. Reads next to nothing, writes nothing, starts no Spark."""

    async def command() -> int:
        from recovery.audit.plan import plan_audit
        from recovery.cli.audit.output import show_plan

        options, runtime = _options("", grace, insist, None), SystemRuntime()
        slots = parallel or _processors()
        show_plan(await plan_audit(choice.existing(), options, slots, runtime), slots, choice.json)
        return CLEAN

    _finish(lambda: anyio.run(command))


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
    inventory: InventoryOption = None,
    export: Export = None,
) -> None:
    """Compares everything, and writes findings, manifest.json and report.html."""

    def command() -> int:
        from recovery.audit.plan import check_grace, inputs_of
        from recovery.audit.run import run_audit
        from recovery.cli.audit.output import show_manifest, show_start, showing

        settings = choice.existing()
        if to == "":
            raise InvalidRequestError("--to is empty: name a directory, or leave it out")
        options = _options(to or _new_directory(), grace, insist, price)
        check_grace(options)
        show_start(inputs_of(settings), options, engine.value)
        with ExitStack() as stack:
            if inventory is None and export is None:
                opened = stack.enter_context(_opened(engine, parallel, master))
            else:
                options, opened = stack.enter_context(_with_inventory(settings, options, engine, parallel, master, inventory, export))
            progress = stack.enter_context(showing())
            manifest = anyio.run(run_audit, settings, options, opened, SystemRuntime(), progress)
        show_manifest(manifest, options, choice.json)
        return FAILED if not manifest.complete else FINDINGS if manifest.findings else CLEAN

    _finish(command)


@audit_app.command()
@shared
def show(name: Name, run: From = None, grace: ShownGrace = None) -> None:
    """Shows all that is known about one object or blob, now: its row, blobs, entries of the changelog, verdicts."""

    def command() -> int:
        from recovery.cli.audit.show import show_name

        return show_name(choice.existing(), name, run, grace, choice.json)

    _finish(command)


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
    from recovery.audit.cluster import check_packages

    check_packages()
    from recovery.audit.inventory.engine import open_inventory

    runtime = SystemRuntime()
    with open_inventory(settings, inventory, export, runtime, master=master, slots=parallel, insist=options.insist) as engine:
        yield replace(options, inventory=engine.evidence), engine


def _options(to: str, grace: str | None, insist: bool, price: float | None) -> AuditOptions:
    from recovery.audit.work import AuditOptions

    if price is not None and not math.isfinite(price):
        raise InvalidRequestError(f"--price {price} is no price: give US dollars for a GiB a month, such as 0.020")
    return AuditOptions(to, None if grace is None else lifetime(grace).total_seconds(), insist, price)


def _new_directory() -> str:
    return f"audit-{datetime.fromtimestamp(SystemRuntime().wall_ns() // NS_PER_S, UTC):%Y%m%dT%H%M%SZ}"


def _processors() -> int:
    from recovery.audit.local import LocalEngine

    return LocalEngine().slots


def _finish(command: Callable[[], int]) -> None:
    """Runs a command, and ends the program with its exit code. Every error that is no interrupt becomes `FAILED`."""
    def call() -> int:
        try:
            return command()
        except AuditInterruptedError as error:
            say(str(error))
            return INTERRUPTED
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in AUDIT_MODULES:
                raise
            what = f"an audit needs {error.name}: pip install 'tiered[audit]', or 'tiered[spark]' to run on Spark"
            raise ConfigurationError(what) from None

    try:
        code = guard(call, FAILED)
    except Exception:  # noqa: BLE001 (a bug: Python would end with 1, which means findings)
        traceback.print_exc()
        code = FAILED
    raise typer.Exit(code)
