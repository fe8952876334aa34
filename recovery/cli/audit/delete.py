"""`tiered audit delete` and `tiered audit restore`.

Both say what they would do, and do it with `--yes` only. Exit codes: 0 done, or nothing is in the way; 2 refused, or it
could not be completed, such as where a copy is gone and its blob, too; 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import anyio
import typer

from changelog.base.errors import InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from recovery.audit.errors import AuditInterruptedError
from recovery.audit.finding_classes import FindingClass
from recovery.cli.audit.ending import CLEAN, FAILED, finish
from recovery.cli.audit.engines import EngineName, Master, Parallel
from recovery.cli.output import dump, write
from recovery.cli.shared import choice, say, shared

if TYPE_CHECKING:
    from recovery.audit.deleting.deletion import DeletionProgress, DeletionReport
    from recovery.audit.deleting.gates import DeletionRequest
    from recovery.audit.deleting.losses import Loss
    from recovery.audit.deleting.restoring import RestoredCopies, RestoredLosses
    from recovery.audit.running.jobs import Engine

Run = Annotated[str, typer.Argument(metavar="RUN", help="The directory of a run of the audit, a path or a URI.")]
Class = Annotated[str, typer.Option("--class", metavar="CLASS", help="The class of findings to delete: only orphan.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without it, nothing is changed.")]
AtMost = Annotated[int | None, typer.Option(
    min=0, metavar="N", help="Needed for more than 10,000 blobs or 1 % of them: refuse if there are more."
)]  # fmt: skip
Insist = Annotated[bool, typer.Option("--insist", help="Delete without a changelog: a change that is under way may fail.")]
Despite = Annotated[bool, typer.Option("--despite-corrupt-rows", help="Delete although the run found rows that cannot be read.")]
Rate = Annotated[float, typer.Option(min=0.1, max=100_000, metavar="N", help="So many blobs a second at most.")]
EngineOption = Annotated[EngineName, typer.Option(help="local: this process; or spark.")]
Lost = Annotated[str | None, typer.Option(
    "--class", metavar="CLASS", help="dangling: blobs that are gone, and that the bucket still keeps."
)]  # fmt: skip
Label = Annotated[str | None, typer.Option("--quarantine", metavar="LABEL", help="Copy each blob to ~quarantine/LABEL/NAME first.")]


LOSSES_PRINTED = 100


@shared
def delete(
    run: Run, class_: Class, yes: Yes = False, at_most: AtMost = None, insist: Insist = False, despite_corrupt_rows: Despite = False,
    rate: Rate = 200.0, quarantine: Label = None, engine: EngineOption = EngineName.LOCAL, parallel: Parallel = None, master: Master = None,
) -> None:  # fmt: skip
    """Deletes the orphans that a run found, if they still are. Looks at each again, and writes down each deletion."""

    def command() -> int:
        from recovery.audit.deleting.deletion import delete_orphans, look
        from recovery.audit.deleting.gates import DeletionRequest, check_class
        from recovery.audit.deleting.quarantine import check_label
        from recovery.cli.audit.console import showing

        check_class(class_)
        request = DeletionRequest(
            run, at_most=at_most, insist=insist, despite_corrupt_rows=despite_corrupt_rows, rate_per_s=rate,
            quarantine=None if quarantine is None else check_label(quarantine),
        )  # fmt: skip
        settings, runtime = choice.existing(), SystemRuntime()
        before = anyio.run(look, settings, request, runtime)
        if not yes or before.refused:
            _show_look(before, request, choice.json)
            return FAILED if before.refused else CLEAN
        with (
            _opened(engine, parallel, master) as opened, showing("orphans", _place, _how_far) as shown, _kept(shown) as progress
        ):  # fmt: skip
            after = anyio.run(delete_orphans, settings, request, runtime, progress, opened, before)
        _show_deleted(before, after, choice.json)
        return CLEAN

    finish(command)


@shared
def restore(run: Run, yes: Yes = False, rate: Rate = 200.0, class_: Lost = None) -> None:
    """Brings back what the deletion of a run has set aside, or (--class dangling) lost blobs that the bucket keeps."""

    def command() -> int:
        from recovery.audit.deleting.restoring import restore_deleted, restore_lost

        if class_ is not None:
            if class_ != FindingClass.DANGLING:
                raise InvalidRequestError(f"--class {class_!r} cannot be restored: give --class {FindingClass.DANGLING}, or leave it out")

            async def restore_losses() -> RestoredLosses:
                return await restore_lost(choice.existing(), run, SystemRuntime(), rate, lambda _: None, dry=not yes)

            with _saying_what_a_repetition_does(yes):
                losses = anyio.run(restore_losses)
            _show_restored_losses(losses, yes, choice.json)
            return CLEAN

        async def restore_copies() -> RestoredCopies:
            return await restore_deleted(choice.existing(), run, SystemRuntime(), rate, lambda _: None, dry=not yes)

        with _saying_what_a_repetition_does(yes):
            copies = anyio.run(restore_copies)
        _show_restored_copies(copies, yes, choice.json)
        return FAILED if copies.is_lost else CLEAN

    finish(command)


@contextmanager
def _kept(show: Callable[[DeletionProgress], None]) -> Iterator[Callable[[DeletionProgress], None]]:
    """Yields a function that shows progress. If the deletion ends with an error, it says what was done before that."""
    from recovery import display

    last: list[DeletionProgress] = []

    def progress(now: DeletionProgress) -> None:
        last[:] = [now]
        show(now)

    try:
        yield progress
    except AuditInterruptedError:
        raise
    except (TieredError, OSError):
        for each in last:
            done = f"{each.done:,} of {display.count(each.number, 'candidate')} are done, and {display.count(each.deleted, 'blob')} deleted"
            say(f"{done}: the same command goes on from there; what is deleted and could not be noted is then told as gone")
        raise


@contextmanager
def _saying_what_a_repetition_does(begun: bool) -> Iterator[None]:
    try:
        yield
    except (UnavailableError, UnconfirmedError, OSError):
        if begun:
            say("some blobs may be back: the same command goes on, and leaves them as they are")
        raise


@contextmanager
def _opened(name: EngineName, parallel: int | None, master: str | None) -> Iterator[Engine | None]:
    if name is EngineName.SPARK:
        from recovery.audit.deleting.batch import delete_batch
        from recovery.audit.running.cluster import open_spark

        with open_spark(cast(Any, delete_batch), master, parallel) as engine:
            yield engine
        return
    for option, value in (("--master", master), ("--parallel", parallel)):
        if value is not None:
            raise InvalidRequestError(f"{option} {value} is Spark's: add --engine spark, or leave it out")
    yield None


# --- what is printed -------------------------------------------------------------------------------


def _show_look(found: DeletionReport, request: DeletionRequest, as_json: bool) -> None:
    from recovery import display
    from recovery.audit.reporting import run_verdict

    if as_json:
        write(_look_json(found, deleted=False))
    else:
        cost = run_verdict.cost(found.size, run_verdict.PRICE_DEFAULT)
        write(f"orphans    {display.count(found.number, 'blob')}, {display.size(found.size)}, {cost}")
        if found.never:
            write(f"never      {display.count(found.never, 'finding')} that cannot be deleted, because no revision or generation is known")
        if found.misfiled:
            write(f"misfiled   {display.count(found.misfiled, 'blob')} that a row names which cannot be read: spared")
        _show_outcomes(found)
        if found.left:
            write(f"time       about {display.elapsed(found.left / request.rate_per_s)}, at {request.rate_per_s:g} blobs a second")
    for sentence in found.refused:
        say(f"nothing would be deleted: {sentence}")
    if not found.refused:
        say(_next_step(found))


def _next_step(found: DeletionReport) -> str:
    if not found.left:
        return _nothing_to_do(found)
    return "nothing was deleted: give --yes to delete, and --quarantine LABEL to keep copies"


def _show_deleted(before: DeletionReport, after: DeletionReport, as_json: bool) -> None:
    if as_json:
        write(_look_json(after, deleted=True))
        return
    if not before.left:
        say(_nothing_to_do(before))
    _show_outcomes(after)


def _nothing_to_do(found: DeletionReport) -> str:
    """Returns why nothing is to be done. The journal tells of then: a restoration may have brought blobs back."""
    if found.plan is None or not found.number:
        return "nothing was deleted: the run names no orphan that may be deleted"
    return (
        "nothing was deleted now: an earlier call has looked at every candidate of this run, and did then what is shown; what is there now"
        " takes a new audit"
    )


def _show_outcomes(found: DeletionReport) -> None:
    from recovery import display
    from recovery.audit.deleting.candidates import DeleteOutcome

    for outcome in DeleteOutcome:
        if found.done.numbers[outcome]:
            number, size = display.count(found.done.numbers[outcome], "blob"), display.size(found.done.sizes[outcome])
            write(f"{outcome.value:<11}{number}, {size}: {outcome.meaning}")


def _look_json(found: DeletionReport, *, deleted: bool) -> str:
    return dump({
        "run": found.evidence.manifest.run, "candidates": found.number, "size": found.size, "never": found.never,
        "misfiled": found.misfiled, "left": found.left,
        "fates": {each.value: {"number": number, "size": found.done.sizes[each]} for each, number in sorted(found.done.numbers.items())},
        "refused": list(found.refused), "quarantine": None if found.plan is None else found.plan.quarantine, "deleted": deleted,
    })  # fmt: skip


def _show_restored_copies(found: RestoredCopies, done: bool, as_json: bool) -> None:
    from recovery import display

    if as_json:
        returns = {each.value: number for each, number in sorted(found.outcomes.items())}
        write(dump({
            "copies": found.copies, "size": found.size, "quarantine": found.quarantine, "returns": returns, "restored": done,
            "there": None if done else found.there,
        }))  # fmt: skip
        return
    write(f"copies     {display.count(found.copies, 'blob')}, {display.size(found.size)}, noted below ~quarantine/{found.quarantine}/")
    if not done and found.there:
        write(f"there      {display.count(found.there, 'blob')}, {display.size(found.there_size)}: the copy is there now")
    for each, number in sorted(found.outcomes.items()):
        write(f"{each.value:<11}{display.count(number, 'blob')}: {each.meaning}")
    if not done:
        say("nothing was restored: give --yes to restore" if found.there else "nothing was restored, and no copy is there to restore")


def _show_restored_losses(found: RestoredLosses, done: bool, as_json: bool) -> None:
    """Prints what became of the lost blobs: the sums, and then blob by blob."""
    from recovery import display
    from recovery.audit.deleting.losses import TO_DO

    if as_json:
        write(dump({
            "lost": found.number, "doubts": found.doubts, "restored": done, "left_out": found.number - len(found.losses),
            "ends": {end.value: {"number": number, "size": found.sizes[end]} for end, number in sorted(found.ends.items())},
            "blobs": [asdict(each) for each in found.losses],
        }))  # fmt: skip
        return
    write(f"dangling   {display.count(found.number, 'blob')}: what the run calls so")
    for end, number in sorted(found.ends.items()):
        size = f", {display.size(found.sizes[end])}" if end in found.sizes else ""
        write(f"{end.value:<11}{display.count(number, 'blob')}{size}: {end.meaning}")
    for loss in found.losses[:LOSSES_PRINTED]:
        write(f"  {loss.end.value:<11}{display.escape_controls(loss.name)}{_kept_until(loss)}")
    if found.number > LOSSES_PRINTED:
        more = f"{display.count(found.number - LOSSES_PRINTED, 'blob')} more"
        where = "the Parquet files in restored/ of the run tell of all" if done else f"--json shows the first {len(found.losses):,}"
        say(f"{more}: {where}")
    for doubt in found.doubts:
        say(f"the run may not name all that is lost: {doubt}")
    if not done:
        to_do = any(found.ends[end] for end in TO_DO)
        say("nothing was restored: give --yes to restore" if to_do else "nothing was restored, and nothing of this run is to be restored")


def _kept_until(loss: Loss) -> str:
    from recovery import display

    if loss.generation is None or loss.deleted_ns is None:
        return ""
    noncurrent = "as long as the bucket keeps noncurrent generations"
    kept = noncurrent if loss.kept_until_ns is None else f"until {display.moment(loss.kept_until_ns)}"
    times = f"deleted {display.moment(loss.deleted_ns)}, kept {kept}"
    return f": generation {loss.generation}, {display.size(loss.size or 0)}, {times}"


def _place(progress: DeletionProgress) -> tuple[int, int, float]:
    return progress.done, progress.number, progress.seconds


def _how_far(progress: DeletionProgress) -> str:
    from recovery import display

    parts = [f"{display.size(progress.reclaimed)} reclaimed"]
    if progress.seconds_left is not None:
        parts.append(f"{display.elapsed(progress.seconds_left)} left")
    return "  ".join(parts)
