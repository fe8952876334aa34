"""Which kinds a store is made of, and what is done with both: open it, name it, look at it, make what it needs.

    settings -- rows_kind  --> RowsKind     the high-volume tier, and the changelog, which is kept where the rows are
             -- blobs_kind --> BlobsKind    the long-term tier

The settings name one of each (`Settings.rows_kind`, `Settings.blobs_kind`). A name that is none of this project's is an
entry point of the group `tiered.kinds`, which leads to the object itself. Such a kind finds its options in
`settings.rows.options` or `settings.blobs.options`.

*Failure*: `ConfigurationError`: no installed package has such a kind, and the sentence says which there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from changelog.base.errors import ConfigurationError, TieredError
from changelog.base.runtime import Runtime, SystemRuntime
from changelog.log import ChangeLog
from changelog.noop import NoopChangeLog
from tiered.kinds import bigtable, directory, gcs, postgres, s3
from tiered.kinds.kind import BlobsKind, RowsKind, SharedFormat
from tiered.provision.findings import Notice, NoticeKind, Provisioning
from tiered.services.backends import Tiers
from tiered.settings import Settings
from tiered.text import quoted

GROUP = "tiered.kinds"
"""The group of entry points. The name of each is the `kind` in the settings."""

OWN_ROWS: Mapping[str, RowsKind] = {"directory": directory.ROWS, "bigtable": bigtable.ROWS, "postgres": postgres.ROWS}
OWN_BLOBS: Mapping[str, BlobsKind] = {"directory": directory.BLOBS, "gcs": gcs.BLOBS, "s3": s3.BLOBS}


def rows_kind(settings: Settings) -> RowsKind:
    """What holds the rows of this store. `ConfigurationError`: it is not installed."""
    return OWN_ROWS.get(settings.rows_kind) or cast(RowsKind, _installed(settings.rows_kind, "rows", RowsKind))


def blobs_kind(settings: Settings) -> BlobsKind:
    """What holds the blobs of this store. `ConfigurationError`: it is not installed."""
    return OWN_BLOBS.get(settings.blobs_kind) or cast(BlobsKind, _installed(settings.blobs_kind, "blobs", BlobsKind))


def address_of(settings: Settings) -> str:
    """Where a store is, such as `bigtable:project/instance/table+gcs:bucket`. In a directory alone: `directory`.

    No path of a directory is part of it, because a directory may be moved.
    """
    if settings.embedded:
        return "directory"
    return f"{rows_kind(settings).address(settings)}+{blobs_kind(settings).address(settings)}"


@asynccontextmanager
async def open_tiers(settings: Settings, runtime: Runtime, *, writes: bool, verify: bool) -> AsyncIterator[tuple[Tiers, ChangeLog]]:
    """Opens both tiers and the changelog, or none of them. The arguments are those of `RowsKind.open`."""
    rows, blobs = rows_kind(settings), blobs_kind(settings)
    async with (
        rows.open(settings, runtime, writes=writes, verify=verify) as opened,
        blobs.open(settings, runtime, opened, writes=writes, verify=verify) as long_term,
    ):
        log = opened.log if settings.logged else NoopChangeLog()
        yield Tiers(opened.rows, long_term, local=opened.local, inline_write_s_max=opened.inline_write_s_max), log


async def inspect(settings: Settings, runtime: Runtime | None = None) -> list[Notice]:
    """The findings of `tiered check`, of both tiers. A tier that does not answer is a problem among them."""
    runtime = runtime or SystemRuntime()
    rows, blobs = rows_kind(settings), blobs_kind(settings)
    found = await rows.inspect(settings, runtime)
    owner: str | None = None
    with suppress(TieredError):  # the rows' own findings say what is wrong
        owner = await rows.owner(settings, runtime)
    return _once([*found, *await blobs.inspect(settings, runtime, owner)])


async def provision(
    settings: Settings, *, dry_run: bool = False, location: str | None = None, adopt: bool = False, adopt_from: str | None = None,
    writer: str | None = None, reader: str | None = None, runtime: Runtime | None = None,
) -> list[Notice]:  # fmt: skip
    """Creates what is missing and mends what destroys data. Everything else stays as it is. Repeatable.

    The options are those of `Provisioning`. Somebody who may create tables runs it; whoever runs the store needs less.
    *Crash* anywhere: run it again.
    """
    runtime, wanted = runtime or SystemRuntime(), Provisioning(dry_run, location, adopt, adopt_from, writer, reader)
    rows, blobs = rows_kind(settings), blobs_kind(settings)
    found = await rows.provision(settings, runtime, wanted)
    try:
        owner = await rows.owner(settings, runtime)
    except TieredError as error:
        if dry_run and any(each.kind is NoticeKind.PLANNED for each in found):
            return [*found, Notice(NoticeKind.NOTE, "the blobs were not looked at: they belong to rows that are not there yet")]
        return [*found, Notice(NoticeKind.PROBLEM, f"nothing was done about the blobs, because nobody knows whose they would be: {error}")]
    return _once([*found, *await blobs.provision(settings, runtime, owner, wanted)])


async def hand_back(settings: Settings, *, dry_run: bool = False, runtime: Runtime | None = None) -> list[Notice]:
    """Removes what other software of this format does not know, once nothing of this store is under way. Repeatable.

    `ConfigurationError`: no other software has this format.
    """
    rows = rows_kind(settings)
    if not isinstance(rows, SharedFormat):
        raise ConfigurationError(f"rows in {settings.rows_kind} have a format of this software alone: there is nobody to hand them back to")
    return await rows.hand_back(settings, runtime or SystemRuntime(), dry_run=dry_run)


def _once(findings: Sequence[Notice]) -> list[Notice]:
    """The findings, each once: two looks may have one in common, such as missing credentials."""
    return list(dict.fromkeys(findings))


def _installed(name: str, section: str, protocol: type) -> Any:
    """The kind of somebody else's package."""
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    if name not in found.names:
        raise ConfigurationError(
            f"{section}.kind is {quoted(name)}, and no installed package has a kind of this name: install it; there are"
            f" {', '.join(sorted(found.names)) or 'none'}"
        )
    try:
        kind = found[name].load()
    except Exception as error:
        raise ConfigurationError(f"the kind {name} of {section}.kind cannot be loaded ({type(error).__name__}: {error})") from error
    if missing := [each for each in vars(protocol) if not each.startswith("_") and not hasattr(kind, each)]:
        raise ConfigurationError(
            f"the kind {name} has no {missing[0]!r}, so it cannot hold {section}: use it for the other tier, or update its package"
        )
    return kind
