"""`tiered provision`, `check` and `hand-back`: make what a store needs, look whether it is there, and take it away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from recovery.cli.output import dump, write
from recovery.cli.shared import choice, run_async, shared
from recovery.display import escape_controls
from recovery.entries import count_stuck, stuck_sentence
from recovery.last_audit import read_audits
from recovery.states import Level
from recovery.typed_commands import typed, with_typed
from tiered.open import open_backends
from tiered.settings import Settings

if TYPE_CHECKING:
    from tiered.provision.findings import Notice
    from tiered.services.backends import Tiers

SHOWN = ("problem", "planned", "done", "note", "ok")
"""The order in which kinds of findings are printed."""


@shared
def provision(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    location: Annotated[str | None, typer.Option(
        metavar="PLACE", help="Where a new bucket is made for good: EU, US, europe-west1, …"
    )] = None,
    adopt_bucket: Annotated[bool, typer.Option(
        "--adopt-bucket", help="Take all that lies in the bucket (below its prefix) for this store's, if no store owns it yet."
    )] = False,
    adopt_bucket_from: Annotated[str | None, typer.Option(
        metavar="OWNER", help="Take the blobs over from this owner, as 'tiered check' names it, if no store uses it any more."
    )] = None,
    grant_writer: Annotated[str | None, typer.Option(
        metavar="ROLE", help="The role of PostgreSQL with which services and daemons connect: it gets the rights that they need."
    )] = None,
    grant_reader: Annotated[str | None, typer.Option(metavar="ROLE", help="As --grant-writer, for whoever only reads.")] = None,
) -> None:
    """
    Creates what is missing in the services: tables, schemas, rules, buckets, and who owns them. Nothing is removed.
    """

    async def command() -> None:
        from tiered.kinds import chosen

        show_findings(await chosen.provision(
            choice.settings(), dry_run=dry_run, location=location, adopt=adopt_bucket, adopt_from=adopt_bucket_from,
            writer=grant_writer, reader=grant_reader,
        ))  # fmt: skip

    run_async(command)


@shared
def check() -> None:
    """
    Looks whether what the store needs is there, and prints a sentence for each part: problems first. Mends nothing.

    What a service does less than the store can, without a loss, is counted; --verbose and --json tell each.
    """

    async def command() -> None:
        from tiered.kinds import chosen

        settings = choice.existing()
        found = await chosen.inspect(settings)
        known = await _add_known(settings, found)
        show_findings(found if choice.json or choice.verbose else summed(found), known)

    run_async(command)


@shared
def hand_back(dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False) -> None:
    """
    Gives a Bigtable table back to Objectstore: removes what only this software knows. Stop all that writes first.
    """

    async def command() -> None:
        from tiered.kinds import chosen

        settings = choice.existing()
        if found := await _in_the_way(settings):
            show_findings(found)  # which raises: each is a problem
        done = await chosen.hand_back(settings, dry_run=dry_run)
        show_findings([*done, *([] if dry_run else await _in_the_way(settings))])

    run_async(command)


async def _in_the_way(settings: Settings) -> list[Notice]:
    """Why a store cannot be handed back now: what its changelog shows of work that is under way."""
    from recovery.status.look import gather
    from tiered.provision.findings import Notice, NoticeKind

    if not settings.logged:
        return [Notice(NoticeKind.PROBLEM, (
            "whether changes are under way is not known without a changelog: set the one of the writers"
            f" (changelog: {settings.changelog_kept}); if they keep none, 'tiered provision' makes an empty one"
        ))]
    async with open_backends(settings, SystemRuntime(), writes=False, verify=False) as backends:
        status = await gather(backends, settings, SystemRuntime())
    found = []
    if not status.entries.complete or status.daemons is None:
        found.append("whether changes are under way is not known: 'tiered status' says what does not answer")
    if count := status.entries.counted:
        are = "change is" if count == 1 else "changes are"
        cure = "run 'tiered recover --once', and 'tiered log abort ID' for open uploads in 'tiered log list'"
        found.append(f"{count:,} {are} not cleaned up: {cure}")
    if alive := [each.instance for each in status.daemons or () if each.alive]:
        found.append(f"recovery works on this store: stop {', '.join(alive)}")
    return [Notice(NoticeKind.PROBLEM, sentence) for sentence in found]


async def _add_known(settings: Settings, found: list[Notice]) -> list[tuple[Level, str]]:
    """Adds to the findings that entries are stuck, that data are lost or may be, and that other software writes here.

    Returns the first two: the level that `tiered status` has for each, and the sentence.

    Where Bigtable or GCS already has a problem it adds nothing: it would wait for the same failure again.
    """
    from recovery.dangling import look_at_lost_reads
    from recovery.status.judgement import data_orders
    from tiered.provision.findings import Notice, NoticeKind, problems

    if problems(found) and not settings.embedded:
        return []
    try:
        # Opened to read, and not verified: the findings have reported what writers need already.
        async with open_backends(settings, SystemRuntime(), writes=False, verify=False) as backends:
            count, audits = await count_stuck(backends.log), await read_audits(backends.log)
            lost_reads = await look_at_lost_reads(backends.tiers, backends.log, SystemRuntime(), audits)
            if not settings.embedded:
                found += await _other_writers(backends.tiers)
    except TieredError as error:
        if not problems(found):
            found.append(Notice(NoticeKind.PROBLEM, str(error)))
        return []
    known = [(Level.STUCK, stuck_sentence(count))] if count else []
    for level, order in data_orders(audits, lost_reads.is_loss):
        known.append((level, f"{order.why} Run `{typed(order.type, choice.typed())}`." if order.type else order.why))
    found += [Notice(NoticeKind.PROBLEM, sentence) for _, sentence in known]
    return known


async def _other_writers(tiers: Tiers) -> list[Notice]:
    """What some rows show of whether other software writes beside this one. No rights to read them: a note."""
    from recovery.mixed_writers import find_mix, rows_here_and_there
    from tiered.provision.findings import Notice, NoticeKind

    runtime = SystemRuntime()
    try:
        rows = await rows_here_and_there(tiers.high_volume, runtime)
        mix = await find_mix(rows, tiers.long_term, runtime.wall_ns())
    except TieredError as error:
        return [Notice(NoticeKind.NOTE, f"it is not known whether other software writes beside this one: {error}")]
    if mix is not None:
        cure = "its writers wipe the marks that keep objects from being lost: let only one of them write"
        ends = "if it has stopped since, this ends two days after its last write"
        return [Notice(NoticeKind.PROBLEM, f"{mix.sentence}: {cure}; {ends}")]
    if any(row.token is None and (row.target or row.metadata) for row in rows):  # a damaged row has neither
        seen = f"{len(rows):,} rows were looked at, and none shows that other software writes beside this one"
        return [Notice(NoticeKind.OK, f"{seen}; some are of other software")]
    return []


def summed(findings: Sequence[Notice]) -> list[Notice]:
    """The findings, with a line in place of several notes that say the same of a service until it is updated."""
    from tiered.provision.findings import note

    lasting = [each for each in findings if each.lasts]
    if len(lasting) < 2:
        return list(findings)
    said = f"{len(lasting)} things the service does less than the store can: no data is lost by that, and it stays so until an update"
    return [*(each for each in findings if not each.lasts), note(f"{said}; 'tiered check --verbose' tells each")]


def show_findings(findings: Sequence[Notice], known: Sequence[tuple[Level, str]] = ()) -> None:
    """Prints a line for each finding, problems first and what is well last.

    Then raises `CorruptRecordError` if anything is `known` to be stuck or lost, else `ConfigurationError` if there is a
    problem, else `UnavailableError` if it is not known whether data are lost.
    """
    wrong = [finding for finding in findings if finding.kind.value == "problem"]
    lines = [(finding.kind.value, with_typed(finding.sentence, choice.typed())) for finding in findings]
    if choice.json:
        write(dump({"ok": not wrong, "findings": [{"kind": kind, "sentence": sentence} for kind, sentence in lines]}))
    else:
        for kind, sentence in sorted(lines, key=lambda line: SHOWN.index(line[0])):
            write(f"{kind:8}{escape_controls(sentence)}")
    said = "\n".join(sentence for _, sentence in known)
    if any(level in (Level.STUCK, Level.LOST) for level, _ in known):
        raise CorruptRecordError(said)
    if known and len(wrong) == len(known):
        raise UnavailableError(said)
    if wrong:
        raise ConfigurationError(f"{len(wrong)} of these must be mended, see: problem")
