"""`tiered sync` and `tiered cp -r`: a local directory and the objects below a prefix. And `tiered import`.

Each file that is copied, deleted or skipped is a line; what fails is a sentence on stderr, too. The last line counts
all, and stderr says whether the same command may mend what failed. *Crash*: the same command does what is left.
*Failure*: the others go on, and the exit code is that of the failure that asks for most: 6, 3, 7, 5, 4
(`recovery.cli.app`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, NoReturn

import anyio
import typer

from changelog.base.errors import InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from recovery.cli.objects import reading
from recovery.cli.output import dump, plain, write
from recovery.cli.progress import CountLine
from recovery.cli.shared import EXIT_CODES, AbsentError, choice, guard, guarded_packages, say, shared
from tiered.directories import DirectoryReport, FileResult, Kind, download_directory, upload_directory
from tiered.directories.pairs import whole_prefix
from tiered.errors import ConditionFailedError, OutcomeUnknownError
from tiered.object_id import ObjectPrefix
from tiered.open import open_storage
from tiered.text import quoted

ASKS_FOR_MOST = (6, 3, 7, 5, 4)
"""Exit codes. One that another attempt may mend comes last."""

MAY_HEAL: tuple[type[TieredError], ...] = (UnavailableError, UnconfirmedError, OutcomeUnknownError)
"""To these errors the same command is an answer. To `ConditionFailedError` of a sync, too: it compares anew."""

JobsOption = Annotated[int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="How many files at once; by default 16.")]


@shared
def sync(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A directory, or USECASE/[NAME.VALUE/…]objects/KEY.")],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="The other of the two.")],
    delete: Annotated[bool, typer.Option("--delete", help="Then delete what the source does not have, if nothing failed.")] = False,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="With --delete: also if the source is empty.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; print what would be done.")] = False,
    size_only: Annotated[bool, typer.Option("--size-only", help="Compare sizes alone: misses changes that keep the size.")] = False,
    jobs: JobsOption = None,
) -> None:
    """Copies what differs, by size and SHA-256, from a directory to the objects below a key, or back.

    Links and special files are skipped. Each file is copied as a whole or not at all. Call it again after a failure: it
    does what is left. What another writer changed meanwhile is not overwritten, and the exit code is 7.
    """
    copy(source, destination, delete=delete, allow_empty=allow_empty, dry_run=dry_run, size_only=size_only, jobs=jobs)


def copy(
    source: str, destination: str, *, delete: bool = False, allow_empty: bool = False, dry_run: bool = False, size_only: bool = False,
    jobs: int | None = None, must_exist: bool = False, conditions: bool = False,
) -> NoReturn:
    """Runs the command, and ends the program.

    `must_exist`: it is an error if there is no object to fetch. `conditions`: some were given, which is refused.
    """
    lines = ResultLines(dry_run, (*MAY_HEAL, ConditionFailedError))

    async def command() -> DirectoryReport:
        if conditions:
            raise InvalidRequestError("--if-absent and --if-revision are for one object: leave them out with -r")
        prefix, directory, uploads = _sides(source, destination)
        lines.prefix = whole_prefix(prefix).path
        options = {"delete": delete, "allow_empty": allow_empty, "dry_run": dry_run, "size_only": size_only}
        if uploads:
            async with reading() if dry_run else open_storage(choice.settings()) as storage:
                return await upload_directory(storage, directory, prefix, concurrency=jobs, on_result=lines.add, **options)
        async with reading() as storage:
            report = await download_directory(storage, prefix, directory, concurrency=jobs, on_result=lines.add, **options)
        if must_exist and report == DirectoryReport():
            raise AbsentError(f"there is no object below {prefix.path}")
        return report

    raise typer.Exit(guard(partial(_run, command, lines)))


@shared
def import_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="An export, a directory, gs://BUCKET/PREFIX or s3://BUCKET/PREFIX.")],
    into: Annotated[str | None, typer.Option(metavar="PREFIX", help="USECASE/[NAME.VALUE/…]objects/KEY, if SOURCE is no export.")] = None,
    match: Annotated[str | None, typer.Option(metavar="PATTERN", help=(
        "Of what names are made, such as users/{user}/{rest}: PREFIX has the same words, such as photos/user.{user}/objects/{rest}."
    ))] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace other objects that are there.")] = False,
    skip_existing: Annotated[bool, typer.Option("--skip-existing", help="Leave other objects that are there.")] = False,
    incomplete: Annotated[bool, typer.Option("--incomplete", help="Take an export that misses objects.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Store nothing; print what would be done.")] = False,
    jobs: JobsOption = None,
) -> None:
    """Stores the objects of an export with all that it knows of them, or files and foreign objects below PREFIX.

    What is there already stays; another object in its place is a failure (exit code 7), unless an option says what to
    do. Bytes that differ from the manifest are not stored. Call it again after a failure: it does what is left.
    """
    lines = ResultLines(dry_run)

    async def command() -> DirectoryReport:
        with guarded_packages():
            from tiered.exports import Existing, NamePattern, import_objects
        if overwrite and skip_existing:
            raise InvalidRequestError("--overwrite and --skip-existing exclude each other: give one of them")
        target: ObjectPrefix | NamePattern | None = None
        if match is not None:
            if into is None:
                raise InvalidRequestError("--match is of --into: say there which ids the names become")
            target = NamePattern(match, into)
        elif into is not None:
            if "{" in into:
                raise InvalidRequestError(f"--into {quoted(into)} has words in braces: say with --match which part of a name each is")
            if (target := _objects(into)) is None:
                raise InvalidRequestError(f"--into {quoted(into)} names no objects: write USECASE/[NAME.VALUE/…]objects/KEY")
            lines.prefix = whole_prefix(target).path
        existing = Existing.OVERWRITE if overwrite else Existing.SKIP if skip_existing else Existing.REFUSE
        async with reading() if dry_run else open_storage(choice.settings()) as storage:
            return await import_objects(
                storage, source, target, existing=existing, incomplete=incomplete, dry_run=dry_run, concurrency=jobs, on_result=lines.add
            )

    raise typer.Exit(guard(partial(_run, command, lines)))


def _run(command: Callable[[], Awaitable[DirectoryReport]], lines: ResultLines) -> int:
    try:
        report = anyio.run(command)
    finally:
        lines.clear()
    lines.end(report)
    return lines.code


def _sides(source: str, destination: str) -> tuple[ObjectPrefix, str, bool]:
    """Which of the two are objects, which is a directory, and whether the directory is the source."""
    objects = [_objects(source), _objects(destination)]
    match objects:
        case None, ObjectPrefix() as prefix:
            return prefix, source, True
        case ObjectPrefix() as prefix, None:
            return prefix, destination, False
        case None, None:
            raise InvalidRequestError(
                f"neither {quoted(source)} nor {quoted(destination)} names objects: write one as USECASE/[NAME.VALUE/…]objects/KEY"
            )
    raise InvalidRequestError(f"{quoted(source)} and {quoted(destination)} both name objects: write a directory as ./NAME or /NAME")


def _objects(text: str) -> ObjectPrefix | None:
    """The objects that a text names; None: it names a directory."""
    if text in (".", "..", "~") or text.startswith(("/", "./", "../", "~/")):
        return None
    try:
        prefix = ObjectPrefix.parse(text)
    except InvalidRequestError:
        return None
    return None if prefix.key is None else prefix


class ResultLines:
    """What is printed of the results, and the exit code."""

    def __init__(self, dry_run: bool, heal: tuple[type[TieredError], ...] = MAY_HEAL) -> None:
        """`heal`: errors that the same command may not meet again."""
        self.code = 0
        self._heal = heal
        self._healing = 0
        self.prefix = ""
        self._dry_run = dry_run
        self._line = CountLine("files looked at", "bytes copied")
        self.clear = self._line.clear

    def add(self, result: FileResult) -> None:
        if result.error is not None:
            self._healing += isinstance(result.error, self._heal)
            code = next((code for kind, code in EXIT_CODES if isinstance(result.error, kind)), 4)
            self.code = min((each for each in (self.code, code) if each), key=ASKS_FOR_MOST.index)
        if result.kind is not Kind.UNCHANGED:
            self.clear()
            self._print(result)
        self._line.add((result.size or 0) if result.kind is Kind.COPIED else 0)

    def _print(self, result: FileResult) -> None:
        why = result.why or ""
        if result.kind is Kind.FAILED:
            say(why if why.startswith((quoted(result.path), result.path)) else f"{quoted(result.path)}: {why}")
        if choice.json:
            object_id = f"{self.prefix}{result.path}" if result.object_id is None else str(result.object_id)
            value = {"result": result.kind.value, "path": result.path, "object": object_id, "size": result.size}
            write(dump({**value, "why": why} if why else value))
        elif result.kind is not Kind.FAILED:
            word = {Kind.COPIED: "copy", Kind.DELETED: "delete"}.get(result.kind)
            what = result.kind.value if word is None or not self._dry_run else f"would {word}"
            size = "" if result.size is None else f"  {result.size} bytes"
            is_told = result.object_id is None or str(result.object_id) == f"{self.prefix}{result.path}"
            moved = "" if is_told else f" -> {result.object_id}"
            write(f"{what}  {plain(result.path)}{plain(moved)}{size}{f': {plain(why)}' if why else ''}")

    def end(self, report: DirectoryReport) -> None:
        if report.deletes_nothing is not None:
            say(f"nothing was deleted, because {report.deletes_nothing}")
        if report.failed:
            again = report.failed - self._healing
            left = "the same command does what is left" if self._healing else ""
            stays = f"{again:,} of them will fail again until what is told is changed" if again else ""
            say(f"{report.failed:,} of {self._line.count:,} failed; {', but '.join(filter(None, (left, stays)))}")
        if choice.json:
            write(dump({
                "copied": report.copied, "bytes": report.bytes_copied, "unchanged": report.unchanged, "deleted": report.deleted,
                "skipped": report.skipped, "failed": report.failed, "dry_run": self._dry_run,
            }))  # fmt: skip
            return
        nothing = "" if report.copied or report.deleted or report.failed else "nothing to do: "
        write(
            f"{'dry run: ' if self._dry_run else ''}{nothing}{report.copied:,} copied ({report.bytes_copied:,} bytes), "
            f"{report.unchanged:,} unchanged, {report.deleted:,} deleted, {report.skipped:,} skipped, {report.failed:,} failed"
        )
