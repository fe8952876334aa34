"""`tiered audit`: compare every blob with every reference.

    plan    says what would be compared; reads next to nothing
    run     compares, on Spark or in processes of this machine; a run that was interrupted goes on where it ended
    show    shows all that is known about one object or blob, now, or what a run found lost
    delete  deletes the orphans that a run found, if they still are; restore brings them back (`delete.py`)

Exit codes: 0 clean, or done; 1 findings; 2 it could not be completed, whatever the reason; 130 interrupted. Each
command imports what it needs itself, so that `tiered --help` is quick and a command that needs no Arrow runs without
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import typer

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime
from recovery.cli.audit.delete import delete, restore
from recovery.cli.audit.ending import CLEAN, FAILED, FINDINGS, finish
from recovery.cli.audit.engines import EngineName, Master, Parallel
from recovery.cli.audit.options import (
    EngineOption,
    From,
    Grace,
    Insist,
    Name,
    Overdue,
    PayloadChoice,
    Price,
    ReferenceChoice,
    ScopeChoice,
    ShownGrace,
    Since,
    To,
    Unowned,
    VerifyShown,
    grouped,
    price_of,
    seconds,
)
from recovery.cli.shared import choice, shared
from tiered.metadata import NS_PER_S
from tiered.text import refuse_password

if TYPE_CHECKING:
    from recovery.audit.running.jobs import Engine

audit_app = typer.Typer(help="Compares every blob with every reference, while the store is in use.", no_args_is_help=True)


@audit_app.callback()
@shared
def choose_audit() -> None:
    """Compares every blob with every reference, while the store is in use."""


@audit_app.command()
@shared
@grouped
def plan(
    *, grace: Grace = None, insist: Insist = False, parallel: Parallel = None, scope: ScopeChoice, references: ReferenceChoice,
) -> None:  # fmt: skip
    """Says what `run` would compare, and in which ranges. Reads next to nothing, writes nothing, starts no Spark."""

    async def command() -> int:
        from recovery.audit.running.jobs import AuditOptions
        from recovery.audit.running.plan import plan_audit
        from recovery.cli.audit.output import show_plan

        options = AuditOptions("", seconds(grace), insist, prefix=scope.begin(), **references.options())
        slots = parallel or _processors()
        show_plan(await plan_audit(choice.existing(), options, slots, SystemRuntime()), slots, choice.json)
        return CLEAN

    finish(lambda: anyio.run(command))


@audit_app.command()
@shared
@grouped
def run(
    *, to: To = None, engine: EngineOption = EngineName.SPARK, grace: Grace = None, insist: Insist = False, unowned: Unowned = False,
    parallel: Parallel = None, master: Master = None, price: Price = None, scope: ScopeChoice, payloads: PayloadChoice,
    overdue: Overdue = None, since: Since = None, references: ReferenceChoice,
) -> None:  # fmt: skip
    """Compares everything, or what --prefix says, and writes findings, manifest.json and report.html."""

    def command() -> int:
        from recovery.audit.running.jobs import AuditOptions
        from recovery.audit.running.plan import check_grace, inputs_of
        from recovery.audit.running.run import run_audit
        from recovery.cli.audit.output import say_old, show_manifest, show_start, showing_run

        settings = choice.existing()
        if to is not None and not to.strip():
            raise InvalidRequestError("--to is empty: name a directory, or leave it out")
        refuse_password("the run directory", to or "")  # before it is shown
        options = AuditOptions(
            to or _new_directory(), prefix=scope.begin(), verify=payloads.chosen(), overdue_s=seconds(overdue), price=price_of(price),
            grace_s=seconds(grace), insist=insist, unowned=unowned, since=since, tiered=choice.again(absolute=True),
            **references.options(),
        )  # fmt: skip
        check_grace(options)
        begins_ns = SystemRuntime().wall_ns()
        show_start(inputs_of(settings), options, engine.value)
        with _opened(engine, parallel, master) as opened, showing_run() as progress:
            manifest = anyio.run(run_audit, settings, options, opened, SystemRuntime(), progress)
        show_manifest(manifest, options, choice.json)
        if manifest.ended_ns is not None and manifest.ended_ns < begins_ns:
            say_old(manifest, options)
        return FAILED if not manifest.complete else FINDINGS if manifest.findings else CLEAN

    finish(command)


@audit_app.command()
@shared
def show(name: Name = None, run: From = None, grace: ShownGrace = None, verify: VerifyShown = False) -> None:
    """
    Shows all that is known about one object or blob, now: its row, blobs, entries of the changelog, verdicts.

    Without NAME, --from RUN shows the name of each object that this run found lost.
    """

    def command() -> int:
        from recovery.cli.audit.show import show_losses, show_name

        if name is None and run is not None and grace is None and not verify:
            return show_losses(choice.existing(), run, choice.json)
        if name is None:
            raise InvalidRequestError("give the NAME of an object or a blob, or --from RUN alone for what this run found lost")
        return show_name(choice.existing(), name, run, grace, verify, choice.json)

    finish(command)


audit_app.command()(delete)
audit_app.command()(restore)


@contextmanager
def _opened(name: EngineName, parallel: int | None, master: str | None) -> Iterator[Engine]:
    from recovery.audit.running.jobs import carry_out

    if name is EngineName.SPARK:
        from recovery.audit.running.cluster import open_spark

        with open_spark(carry_out, master, parallel) as engine:
            yield engine
        return
    if master is not None:
        raise InvalidRequestError(f"--master {master} is Spark's: leave --engine local out")
    from recovery.audit.running.local import LocalEngine

    yield LocalEngine(parallel)


def _new_directory() -> str:
    return f"audit-{datetime.fromtimestamp(SystemRuntime().wall_ns() // NS_PER_S, UTC):%Y%m%dT%H%M%SZ}"


def _processors() -> int:
    from recovery.audit.running.local import LocalEngine

    return LocalEngine().slots
