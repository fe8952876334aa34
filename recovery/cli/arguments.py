"""Arguments and results that several commands on objects have in common."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import typer

from changelog.base.errors import InvalidRequestError
from changelog.change import ChangeId
from recovery.cli.output import show
from recovery.cli.shared import AbsentError, choice, lifetime, with_options
from tiered.metadata import FIELDS, Expiration, TimeToIdle, TimeToLive
from tiered.protocol.conditions import ANY_REVISION, IfRevision
from tiered.stored import PutResult

ObjectArgument = Annotated[str, typer.Argument(metavar="OBJECT", help="USECASE/[NAME.VALUE/…]objects/KEY")]
IfAbsentOption = Annotated[bool, typer.Option("--if-absent", help="Only if there is no such object; else exit code 7.")]
IfRevisionOption = Annotated[
    str | None,
    typer.Option("--if-revision", metavar="REVISION", help="Only if the object has this revision, which head shows; else exit code 7."),
]
TtlOption = Annotated[str | None, typer.Option(metavar="DURATION", help="Expire this long from now: 90s, 15m, 36h, 30d.")]
TtiOption = Annotated[str | None, typer.Option(metavar="DURATION", help="Expire this long after the last read: 90s, 15m, 36h, 30d.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]
ChecksumOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME:VALUE", help="crc32c, md5 or sha256, in hex or base64; other bytes are not stored. Repeatable."),
]
CustomOption = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="An entry of the metadata of your own, repeatable.")]


_TEXTS = {
    name: inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Annotated[
        str | None, typer.Option(metavar=row.option[0], help=f"{row.option[1]}.")
    ])
    for name, row in FIELDS.items() if row.option is not None
}  # fmt: skip


def with_texts(call: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each field of metadata whose row has one. The function gets those that were given."""
    return with_options(call, _TEXTS, lambda **texts: {name: text for name, text in texts.items() if text is not None})


def revision_of(text: str | None, if_absent: bool = False) -> IfRevision:
    """Returns the revision that `--if-revision` names. Raises `InvalidRequestError`, also if both options are given."""
    if text is None:
        return ANY_REVISION
    if if_absent:
        raise InvalidRequestError("--if-absent and --if-revision exclude each other: give one of them")
    if not ChangeId.matches(text):
        raise InvalidRequestError(f"--if-revision {text!r} is not a revision: 'tiered head OBJECT' shows that of an object")
    return ChangeId(text)


def expiration_of(ttl: str | None, tti: str | None) -> Expiration:
    """Returns what `--ttl` and `--tti` say. Raises `InvalidRequestError`."""
    if ttl is not None and tti is not None:
        raise InvalidRequestError("an object has either --ttl or --tti, not both")
    if ttl is not None:
        return TimeToLive(lifetime(ttl))
    return None if tti is None else TimeToIdle(lifetime(tti))


def custom_of(pairs: list[str] | None) -> dict[str, str]:
    """Returns what the options `--custom` say. Raises `InvalidRequestError`."""
    return _mapping("--custom", pairs, "=", "KEY=VALUE")


def checksums_of(pairs: list[str] | None) -> dict[str, str] | None:
    """Returns what the options `--checksum` say, also as `head` shows it, `crc32c=…`. Raises `InvalidRequestError`."""
    return _mapping("--checksum", pairs, "[:=]", "NAME:VALUE, such as sha256:9f86…") or None


def _mapping(option: str, pairs: list[str] | None, between: str, form: str) -> dict[str, str]:
    parted = [re.split(between, pair, maxsplit=1) for pair in pairs or ()]
    for parts in parted:
        if len(parts) == 1 or not parts[0]:
            raise InvalidRequestError(f"{option} {parts[0]!r} is not {form}")
    mapping: dict[str, str] = dict(parted)
    if len(mapping) < len(parted):
        twice = Counter(key for key, *_ in parted).most_common(1)[0][0]
        raise InvalidRequestError(f"{option} names {twice!r} twice: leave one out")
    return mapping


def absent(object_id: str) -> AbsentError:
    return AbsentError(f"there is no object {object_id}, or it has expired")


def show_written(object_id: str, result: PutResult, **others: Any) -> None:
    """Prints which revision is there now. `others`: more fields for `--json`."""
    value = {"object": object_id, **others, "revision": result.revision, "tier": result.tier.value, "size": result.size}
    show(value, f"{object_id}  {result.size} bytes  {result.tier.value} tier  revision {result.revision}", choice.json)
