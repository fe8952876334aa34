"""`tiered put`, `get`, `head`, `rm` and `ls`: objects by hand.

*Crash*: a killed `put` or `rm` leaves its entry to recovery. A killed `get` leaves at most a file `.tiered-….partial`
beside its output. *Failure*: each error of the store becomes one sentence and an exit code (`recovery.cli.app`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime
from recovery.cli import payloads
from recovery.cli.arguments import (
    ChecksumOption,
    CustomOption,
    IfAbsentOption,
    IfRevisionOption,
    ObjectArgument,
    QuietOption,
    TtiOption,
    TtlOption,
    absent,
    checksums_of,
    custom_of,
    expiration_of,
    revision_of,
    show_written,
    with_texts,
)
from recovery.cli.output import dump, iso, plain, show, show_fields, write
from recovery.cli.progress import showing_bytes
from recovery.cli.shared import choice, run_async, say_cut, shared
from tiered.metadata import Metadata, encode_metadata
from tiered.object_id import ObjectId, ObjectPrefix
from tiered.open import open_backends, open_storage
from tiered.services.backends import ByteRange
from tiered.storage import TieredStorage
from tiered.stored import Folder, ListEntry, ObjectHead
from tiered.whose import refuse_store


@shared
@with_texts
def put(
    object_id: ObjectArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The payload's file; - is stdin.")],
    ttl: TtlOption = None,
    tti: TtiOption = None,
    custom: CustomOption = None,
    checksum: ChecksumOption = None,
    compress: Annotated[bool, typer.Option("--compress", help="Store it compressed as zstd; get gives it as it was.")] = False,
    if_absent: IfAbsentOption = False,
    if_revision: IfRevisionOption = None,
    quiet: QuietOption = False,
    **texts: Any,
) -> None:
    """Stores a file or stdin, replacing what is there. A terminal shows the progress.

    Without --content-type, the file's name tells the type.
    """

    async def command() -> None:
        metadata = Metadata(expiration=expiration_of(ttl, tti), custom=custom_of(custom), **texts)
        payload, revision = payloads.read_stdin() if file == "-" else Path(file), revision_of(if_revision, if_absent)
        settings = choice.settings()
        patient = settings.store.model_copy(update={"payload_idle_s": None})  # nobody else waits for this stdin
        async with open_storage(settings.model_copy(update={"store": patient})) as storage:
            with showing_bytes(quiet=quiet) as progress:
                result = await storage.put(
                    ObjectId.parse(object_id), payload, metadata, if_absent=if_absent, if_revision=revision, progress=progress,
                    checksums=checksums_of(checksum), compress="zstd" if compress else None,
                )
        show_written(object_id, result)

    run_async(command)


@shared
def get(
    object_id: ObjectArgument,
    file: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where the payload goes; - is stdout.")] = "-",
    range_: Annotated[str | None, typer.Option(
        "--range", metavar="FIRST:END", help="In bytes, END excluded; also :END, FIRST: and -LAST:."
    )] = None,
    raw: Annotated[bool, typer.Option("--raw", help="What is stored of a compressed object; otherwise it is decompressed.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Fetches an object's payload. With --json, prints its head; the payload then needs --output FILE.

    A file gets the whole payload or none of it, a large one in several ranges at once; stdout may have got a part
    before an error. A terminal shows the progress. Nothing is written to the store: a look by hand does not extend a
    time to idle.
    """

    async def command() -> None:
        if choice.json and file == "-":
            raise InvalidRequestError("--json takes stdout for the head; add --output FILE for the payload")
        if not payloads.is_stdout(file):
            refuse_store(file, choice.settings().directory)
        async with reading() as storage:
            with showing_bytes(quiet=quiet, to_stdout=payloads.is_stdout(file)) as progress:
                stored = await storage.get(ObjectId.parse(object_id), _range(range_), progress=progress, decompress=not raw)
                if stored is None:
                    raise absent(object_id)
                async with stored:
                    await payloads.save(stored, file)
        if choice.json:
            _show_head(stored.head)

    run_async(command)


@shared
def head(object_id: ObjectArgument) -> None:
    """Shows all that is known of an object but its payload."""

    async def command() -> None:
        async with reading() as storage:
            found = await storage.head(ObjectId.parse(object_id), checksum=True)
        if found is None:
            raise absent(object_id)
        _show_head(found)

    run_async(command)


@shared
def rm(object_id: ObjectArgument, if_revision: IfRevisionOption = None) -> None:
    """Deletes an object. It is no error if there is none, unless --if-revision asks for one."""

    async def command() -> None:
        revision = revision_of(if_revision)
        async with open_storage(choice.existing()) as storage:
            await storage.delete(ObjectId.parse(object_id), if_revision=revision)
        show({"object": object_id, "deleted": True}, f"{object_id}  deleted", choice.json)

    run_async(command)


@shared
def ls(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="USECASE, USECASE/NAME.VALUE or USECASE/objects/KEY; nothing lists all.")
    ] = "",
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many; by default all.")] = None,
    folders: Annotated[bool, typer.Option("--folders", help="Show what has the same path up to the next / as one line.")] = False,
    long: Annotated[bool, typer.Option("--long", "-l", help="Show size, creation, tier, revision.")] = False,
    start_after: Annotated[str | None, typer.Option(metavar="OBJECT", help="Begin after this object.")] = None,
) -> None:
    """Lists objects in byte order, one a line; with --json, one JSON object a line.

    Only the KEY of a prefix is compared character by character: org.1 does not list org.17.
    """

    async def command() -> None:
        count = 0
        async with reading() as storage:
            entries = storage.list(
                ObjectPrefix.parse(prefix), start_after=None if start_after is None else ObjectId.parse(start_after),
                limit=None if limit is None else limit + 1, delimiter="/" if folders else None, metadata=long,
            )
            async for entry in entries:
                if count == limit:
                    say_cut(count)
                    return
                write(dump(_listed(entry)) if choice.json else _line(entry, long))
                count += 1

    run_async(command)


@asynccontextmanager
async def reading() -> AsyncIterator[TieredStorage]:
    """Opens a store that must exist, to read, also from a standby, with a warning, if no primary answers. It looks at
    no schema: that protects writers, and takes longer than to read. What is missing is told by the read.
    """
    settings, runtime = choice.existing(), SystemRuntime()
    async with (
        open_backends(settings, runtime, writes=False, verify=False, standby=True) as backends,
        TieredStorage(backends.tiers, backends.log, runtime, settings, writes=False) as storage,
    ):
        yield storage


def _listed(entry: ListEntry | Folder) -> dict[str, Any]:
    if isinstance(entry, Folder):
        return {"folder": entry.prefix.path}
    fields = {
        "object": str(entry.object_id), "size": entry.size, "tier": entry.tier.value, "revision": entry.revision,
        "created": iso(entry.time_created), "expires": iso(entry.time_expires),
    }
    return fields if entry.fault is None else {**fields, "fault": entry.fault}


def _line(entry: ListEntry | Folder, long: bool) -> str:
    name = entry.prefix.path if isinstance(entry, Folder) else str(entry.object_id)
    if not long:
        return name
    if isinstance(entry, Folder):
        size, created, tier, revision, fault = None, None, None, None, None
    else:
        size, created, tier, revision, fault = entry.size, iso(entry.time_created), entry.tier.value, entry.revision, entry.fault
    line = f"{plain(size):>12}  {plain(created):29}  {plain(tier):11}  {plain(revision):36}  {name}"
    return line if fault is None else f"{line}  damaged: {fault}"


def _show_head(head: ObjectHead) -> None:
    value = {
        "object": str(head.object_id), "size": head.size, "tier": head.tier.value, "revision": head.revision,
        "checksum": head.checksum, "created": iso(head.metadata.time_created), "expires": iso(head.metadata.time_expires),
        "metadata": json.loads(encode_metadata(head.metadata)),
    }
    show_fields(value, choice.json)


def _range(text: str | None) -> ByteRange | None:
    if text is None:
        return None
    start, colon, stop = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return ByteRange(int(start or 0), int(stop) if stop else None)
    except ValueError:
        raise InvalidRequestError(f"{text!r} is not a range: write FIRST:END, such as 0:100, 100: or -100:") from None
