"""`tiered cp`, `mv`, `update-metadata` and `set-expiry`: changes for which no payload passes through this machine.

But `cp -r` is a `sync` (syncing.py).
Each writes a new revision, and prints it. If nothing is different, it prints the revision that is there. *Crash*: a
killed command leaves its entry to recovery. A killed `mv` may leave both objects. *Failure*: each error of the store
becomes one sentence and an exit code (`recovery.cli.app`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

import typer

from changelog.base.errors import InvalidRequestError
from recovery.cli.arguments import (
    CustomOption,
    IfAbsentOption,
    IfRevisionOption,
    ObjectArgument,
    TtiOption,
    TtlOption,
    absent,
    custom_of,
    expiration_of,
    revision_of,
    show_written,
    with_texts,
)
from recovery.cli.shared import choice, lifetime, run_async, shared
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.open import open_storage

SourceArgument = Annotated[str, typer.Argument(metavar="SOURCE", help="USECASE/[NAME.VALUE/…]objects/KEY")]
DestinationArgument = Annotated[str, typer.Argument(metavar="DESTINATION", help="USECASE/[NAME.VALUE/…]objects/KEY")]


@shared
def cp(
    source: SourceArgument,
    destination: DestinationArgument,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="One of the two is a local directory, as with sync, which can do more.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(
        "--jobs", "-j", min=1, metavar="N", help="With -r: how many files at once; by default 16."
    )] = None,
    if_absent: IfAbsentOption = False,
    if_revision: IfRevisionOption = None,
) -> None:
    """Copies an object within the store. The conditions are about the destination.

    With -r, copies what differs from a directory to the objects below a key, or back.
    """
    if recursive:
        from recovery.cli import syncing  # imported here: the commands below do without

        syncing.copy(source, destination, jobs=jobs, must_exist=True, conditions=if_absent or if_revision is not None)
    _transfer("copy", source, destination, if_absent, if_revision, jobs)


@shared
def mv(
    source: SourceArgument, destination: DestinationArgument, if_absent: IfAbsentOption = False, if_revision: IfRevisionOption = None
) -> None:
    """Copies an object within the store, then deletes what was copied. The conditions are about the destination.

    If it fails in between, both stay. Call it again then, without --if-absent and --if-revision.
    If somebody replaces the source meanwhile, both stay, too, and the exit code is 7.
    """
    _transfer("rename", source, destination, if_absent, if_revision)


def _transfer(how: str, source: str, destination: str, if_absent: bool, if_revision: str | None, jobs: int | None = None) -> None:
    async def command() -> None:
        if jobs is not None:
            raise InvalidRequestError("--jobs is for directories: add -r, or leave it out")
        ids, revision = (ObjectId.parse(source), ObjectId.parse(destination)), revision_of(if_revision, if_absent)
        async with open_storage(choice.existing()) as storage:
            call = storage.copy if how == "copy" else storage.rename
            result = await call(*ids, if_absent=if_absent, if_revision=revision)
        if result is None:
            raise absent(source)
        show_written(destination, result, source=source)

    run_async(command)


@shared
@with_texts
def update_metadata(
    object_id: ObjectArgument,
    ttl: TtlOption = None,
    tti: TtiOption = None,
    custom: CustomOption = None,
    remove_custom: Annotated[list[str] | None, typer.Option(metavar="KEY", help="A key of --custom to remove, repeatable.")] = None,
    if_revision: IfRevisionOption = None,
    **texts: Any,
) -> None:
    """Changes the metadata of an object. What no option names stays, and so do other keys of --custom.

    An empty text removes what is there, except --content-type.
    """

    async def command() -> None:
        expiration = expiration_of(ttl, tti)
        given = texts if expiration is None else {**texts, "expiration": expiration}
        added, removed, revision = custom_of(custom), set(remove_custom or ()), revision_of(if_revision)
        if not given and not added and not removed:
            raise InvalidRequestError("nothing is to be changed: give an option such as --content-type, or see --help")
        if both := removed & set(added):
            raise InvalidRequestError(f"--custom and --remove-custom both name {min(both)!r}: leave one out")

        def changed(before: Metadata) -> Metadata:
            kept = {key: value for key, value in before.custom.items() if key not in removed}
            return replace(before, custom=kept | added, **given)

        async with open_storage(choice.existing()) as storage:
            result = await storage.update_metadata(ObjectId.parse(object_id), changed, if_revision=revision)
        if result is None:
            raise absent(object_id)
        show_written(object_id, result)

    run_async(command)


@shared
def set_expiry(
    object_id: ObjectArgument,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="At this time, such as 2027-01-31T12:00:00Z.")] = None,
    from_creation: Annotated[str | None, typer.Option(
        "--from-creation", metavar="DURATION", help="This long after its creation: 90s, 15m, 36h, 30d."
    )] = None,
    never: Annotated[bool, typer.Option("--never", help="It stays until it is deleted.")] = False,
    extend_only: Annotated[bool, typer.Option("--extend-only", help="Leave an object that lives longer as it is.")] = False,
    if_revision: IfRevisionOption = None,
) -> None:
    """Sets when an object expires: with --at, --from-creation or --never."""

    async def command() -> None:
        if (at is not None) + (from_creation is not None) + never != 1:
            raise InvalidRequestError("say when the object expires: with one of --at TIME, --from-creation 36h and --never")
        moment = None if at is None else _moment(at)
        after = None if from_creation is None else lifetime(from_creation)
        revision = revision_of(if_revision)
        async with open_storage(choice.existing()) as storage:
            result = await storage.set_expiry(
                ObjectId.parse(object_id), at=moment, from_creation=after, extend_only=extend_only, if_revision=revision
            )
        if result is None:
            raise absent(object_id)
        show_written(object_id, result)

    run_async(command)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise InvalidRequestError(f"--at {text!r} is no time with a zone: write it as 2027-01-31T12:00:00Z, or with +01:00 instead of Z")
    return moment
