"""Before an audit: what is compared, up to what time and in which ranges.

Bad settings are refused here, before the audit begins.

    table's boundaries (by bytes)  -.
    bucket's names (bisected)      -'->  cuts  ->  ["", cut 1) [cut 1, cut 2) ... [cut n, end)   every name is in one

The table gives `RANGES_PER_SLOT` ranges for each slot of the engine, and so does the bucket
(`recovery.audit.running.cuts`). So neither side's emptiness hides the other's bulk, and one slow range does not delay
the end of the run. A small bucket gets one range for each slot. To find that out, the plan lists up to `PROBE_NAMES`
names and checks whether the bucket ends there.

No service tells how many names lie between two others, so ranges are uneven, and a range may hold any number of names.
A range that takes too long hands back its rest (`recovery.audit.running.jobs`).

*Failure*: `ConfigurationError`, one sentence with the fix, or `UnavailableError`. This module only reads.
`recovery.audit.running.run` writes.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from recovery.audit.files.directory import DirectoryFiles
from recovery.audit.manifest import OVERDUE_S, Bounds, Cutoff, FeedReferences, Manifest, differing_inputs
from recovery.audit.names import usecase_of
from recovery.audit.running.cuts import cut_names
from recovery.audit.running.jobs import FEED_AGE_MAX_S, GRACE_MIN_S, GRACE_S, AuditOptions, check_there
from recovery.audit.sweeping.judge import SKEW_MAX_NS
from recovery.audit.sweeping.references import check_same as check_same_feed
from recovery.audit.sweeping.references import read_checkpoint, references_of
from recovery.display import escape_controls, span
from tiered.buckets.owners import OWNERS, owned_prefix, taken
from tiered.kinds.chosen import address_of, blobs_kind, rows_kind
from tiered.metadata import NS_PER_S
from tiered.open import Backends, open_backends
from tiered.services.backends import LongTermBackend
from tiered.services.capabilities import Ownership
from tiered.services.retry import retry_read
from tiered.settings import NO_CHANGELOG, Settings
from tiered.whose import refuse_store

RANGES_PER_SLOT = 6
PROBE_NAMES = 10_000
OWNER_BUDGET_S = 30.0
NEAR_MAX, USECASES_LOOKED_AT = 5, 100
NAMES_PER_REQUEST = 1000
"""How many names one page of GCS's listing holds."""


EVERYTHING = Bounds(start="", end=None)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an audit would do. `inputs`: as in the manifest. `blobs`: how many there are; None: more than were listed.

    `list_requests`: how many requests it takes to list them once; None: not known. Each lists `NAMES_PER_REQUEST`
    names. `ahead_ns`: how far this machine's clock is ahead of the service's. `references`: the feed that tells the
    references; None: the rows are scanned.
    """

    inputs: dict[str, str]
    log_is_durable: bool
    cutoff: Cutoff
    ranges: tuple[Bounds, ...]
    notes: tuple[str, ...]
    blobs: int | None
    list_requests: int | None
    ahead_ns: int = 0
    references: FeedReferences | None = None


async def plan_audit(settings: Settings, options: AuditOptions, slots: int, runtime: Runtime) -> Plan:
    """Checks what can be checked, and fixes the cut-off. `slots`: how many ranges are audited at once.

    Raises `ConfigurationError` or `UnavailableError`. Nothing was written then.
    """
    check_grace(options)
    check_there(settings)
    inputs = inputs_of(settings)
    async with open_backends(settings, runtime, writes=False) as backends:
        as_of_ns = await backends.tiers.long_term.now_ns()
        ahead_ns = runtime.wall_ns() - as_of_ns
        references = None
        if options.references == "feed":
            age_max_s = FEED_AGE_MAX_S if options.feed_age_max_s is None else options.feed_age_max_s
            references = await references_of(backends.log, address_of(settings), as_of_ns, age_max_s)
        notes = list(_notes(options, ahead_ns))
        scope = Bounds.of_prefix(options.prefix or "")
        blobs = await _count(backends.tiers.long_term, scope)
        if blobs == 0 and options.prefix:
            await _check_scope(backends, options.prefix, scope)
        if blobs != 0 and not options.insist:
            await _check_table(backends, inputs)
        wanted = slots if blobs is not None else slots * RANGES_PER_SLOT
        cuts = list(await backends.tiers.high_volume.boundaries(wanted)) if wanted > 1 else []
        if blobs is None:
            cuts += await cut_names(backends.tiers.long_term, scope, wanted, runtime)
    requests = None if blobs is None else max(1, -(-blobs // NAMES_PER_REQUEST))
    overdue_s = OVERDUE_S if options.overdue_s is None else options.overdue_s
    cutoff = Cutoff(as_of_ns=as_of_ns, grace_s=_grace_of(options), overdue_s=overdue_s)
    return Plan(inputs, backends.log.durable, cutoff, split(cuts, scope), tuple(notes), blobs, requests, ahead_ns, references)


def split(cuts: Iterable[str], scope: Bounds = EVERYTHING) -> tuple[Bounds, ...]:
    """Returns the ranges between these names: without gaps, from the first possible name of `scope` to the last."""
    inner = sorted({cut for cut in cuts if scope.start < cut and (scope.end is None or cut < scope.end)}, key=str.encode)
    return tuple(Bounds(start=start, end=end) for start, end in zip([scope.start, *inner], [*inner, scope.end], strict=True))


def inputs_of(settings: Settings) -> dict[str, str]:
    """Returns what is compared, by name. A run goes on only with the same inputs."""
    return {
        **blobs_kind(settings).inputs(settings), "changelog": settings.changelog or NO_CHANGELOG, **rows_kind(settings).inputs(settings)
    }


# --- checks ----------------------------------------------------------------------------------------


async def check_owner(backends: Backends, runtime: Runtime) -> str | None:
    """Refuses blobs of another store: not one of them would be named by a row of this one.

    Returns why nobody knows whose they are, in one sentence. None: they are this store's. Raises `ConfigurationError`
    or `UnavailableError`.
    """
    blobs = backends.tiers.long_term
    ownerless = await retry_read(blobs.check_owner, runtime, OWNER_BUDGET_S) if isinstance(blobs, Ownership) else None
    return None if ownerless is None else f"blobs of another store may be among these, because {ownerless}"


async def check_owner_of(settings: Settings, runtime: Runtime) -> str | None:
    """As `check_owner`, of the store that these settings name. A directory holds one store only."""
    if settings.embedded:
        return None
    async with open_backends(settings, runtime, writes=False, verify=False) as backends:
        return await check_owner(backends, runtime)


def check_grace(options: AuditOptions) -> None:
    grace_s = _grace_of(options)
    if not math.isfinite(grace_s) or grace_s < 0:
        raise ConfigurationError(f"the grace is {grace_s:g} seconds: give how old a blob must be to be called an orphan, such as 24h")
    if grace_s < GRACE_MIN_S and not options.insist:
        raise ConfigurationError(
            f"the grace is {grace_s:g} seconds, and below an hour a blob that is being written may be called an orphan:"
            " give 1h or more, or insist on it (--insist)"
        )


def check_apart(files: DirectoryFiles, settings: Settings) -> None:
    """Refuses a directory in a store or in an owned bucket: an audit would find its own files there."""
    _, _, bucket = (blobs_kind(settings).place(settings) or "").partition("://")
    if files.bucket is not None and files.bucket == bucket:
        raise ConfigurationError(f"{files.what} {files.uri} is in the bucket that is audited: give one in another bucket")
    if files.local is not None:
        refuse_store(files.local, settings.directory)


def check_unowned(files: DirectoryFiles) -> None:
    """As `check_apart`, of a bucket of whatever store. It asks the bucket, so only before a run begins."""
    if (bucket := files.bucket) is not None:
        owned = [each for name in files.names_in_bucket(OWNERS) if (each := owned_prefix(name)) is not None]
        if (wrong := taken(f"{files.uri.partition('://')[0]}://{bucket}", f"{files.path.partition('/')[2]}/", owned)) is not None:
            raise ConfigurationError(f"{files.what} cannot be there: {wrong}: give one in a bucket without a store")


def check_same(found: dict[str, str], now: dict[str, str], where: str) -> None:
    """Refuses to go on with a run if its inputs are not the same as now."""
    if differing := differing_inputs(found, now):
        what = "; ".join(f"{key} was {before}, and is {after} now" for key, (before, after) in differing.items())
        raise ConfigurationError(f"{where} holds a run of something else ({what}): give another directory, or the settings of then")


def check_cutoff(cutoff: Cutoff, options: AuditOptions, where: str) -> None:
    """Refuses another grace than the run began with.

    The run keeps its cut-off, and whoever asks for another one must know that.
    """
    if options.grace_s not in (None, cutoff.grace_s):
        raise ConfigurationError(
            f"{where} holds a run with a grace of {span(cutoff.grace_s)}, fixed when it began:"
            " leave the grace out, or give another directory"
        )


def check_choices(manifest: Manifest, options: AuditOptions, where: str) -> None:
    """Refuses another scope, other payloads or another time of being overdue than the run began with."""
    share = None if manifest.verify is None else manifest.verify.share
    wanted = None if options.verify is None else options.verify.share
    overdue_s = manifest.cutoff.overdue_s
    for chosen, begun, what in (
        (options.prefix, manifest.scope, f"only names that begin with {manifest.scope!r}" if manifest.scope else "all names"),
        (wanted, share, "no payload" if share is None else f"a share of {share:g} of the payloads"),
        (options.overdue_s, overdue_s, f"blobs overdue after {overdue_s:g} seconds"),
    ):
        if chosen not in (None, begun):
            raise ConfigurationError(
                f"{where} holds a run that looks at {what}, fixed when it began: leave the option out, or give another"
                " directory"
            )


def check_references(manifest: Manifest, options: AuditOptions, where: str) -> None:
    """Refuses to go on with a run whose references came from elsewhere."""
    begun = "rows" if manifest.references is None else "feed"
    if options.references not in (None, begun):
        source = "scanned the rows" if manifest.references is None else "took its references from the change feed"
        raise ConfigurationError(
            f"{where} holds a run that {source}, fixed when it began: give --references {begun}, or another directory"
        )
    age_max_s = None if manifest.references is None else manifest.references.age_max_s
    if options.feed_age_max_s not in (None, age_max_s):
        raise ConfigurationError(
            f"{where} holds a run that began with another age of the change feed: leave --feed-age-max out, or give another directory"
        )


async def check_feed_goes_on(settings: Settings, manifest: Manifest, runtime: Runtime) -> None:
    """Refuses to go on with a run if the feed is not the one that it began with, or not complete any more."""
    if manifest.references is not None and (manifest.ended_ns is None or manifest.failures):
        async with open_backends(settings, runtime, writes=False) as backends:
            check_same_feed(await read_checkpoint(backends.log), manifest.references)


def _grace_of(options: AuditOptions) -> float:
    return GRACE_S if options.grace_s is None else options.grace_s


async def _check_table(backends: Backends, inputs: dict[str, str]) -> None:
    page = await backends.tiers.high_volume.scan("", b"", 1)
    if not page.rows and not page.corrupt:
        table, bucket = inputs.get("table", "the table"), inputs.get("bucket", "the store")
        raise ConfigurationError(
            f"{table} holds no object at all, and {bucket} holds blobs, so it is almost certainly the wrong table:"
            " check the settings, or insist on it (--insist)"
        )


async def _check_scope(backends: Backends, prefix: str, scope: Bounds) -> None:
    """Refuses a scope without a blob and without a row: a mistyped one would be clean, every night.

    A page of blobs may be empty although there are more, so names that cannot be read count, too.
    """
    if (await _next_name(backends, prefix, scope.end)) is not None:
        return
    usecases = [usecase async for usecase in _usecases(backends)]
    near = get_close_matches(usecase_of(prefix) if "/" in prefix else prefix, usecases, NEAR_MAX, 0.5) or usecases[:NEAR_MAX]
    there = f"; there is {', '.join(map(escape_controls, near))}{', …' if len(usecases) > len(near) else ''}" if near else ""
    raise ConfigurationError(
        f"no name of a blob or of an object begins with {escape_controls(prefix)!r}, so there is nothing to audit{there}: look how the name"
        " is spelled, or leave the scope out"
    )


async def _next_name(backends: Backends, start: str, end: str | None) -> str | None:
    """Returns the first name from `start` on (exclusive of `end`) that a blob or a row has. None: there is none."""
    found: list[str] = []
    place: str | None = start
    while place is not None and not found:
        page = await backends.tiers.long_term.list(place, end, 1)
        found += [*(blob.name for blob in page.blobs), *(oddity.name for oddity in page.oddities if oddity.is_blob)][:1]
        place = page.next_start
    rows = await backends.tiers.high_volume.scan("", start.encode(), 1)
    found += [row.path for row in rows.rows]
    return min((name for name in found if end is None or name < end), key=str.encode, default=None)


async def _usecases(backends: Backends) -> AsyncIterator[str]:
    """Yields the first usecases of the store, `USECASES_LOOKED_AT` at most, for an error that names them."""
    start = ""
    for _ in range(USECASES_LOOKED_AT):
        if (name := await _next_name(backends, start, None)) is None:
            return
        usecase = name.partition("/")[0]
        if "/" in name:
            yield usecase
        start = f"{usecase}0" if "/" in name else f"{name}\0"  # 0 comes right after the slash


async def _count(blobs: LongTermBackend, scope: Bounds) -> int | None:
    """Counts the blobs in the scope. Returns None if there are more than `PROBE_NAMES`."""
    number, start = 0, scope.start
    while number < PROBE_NAMES:
        page = await blobs.list(start, scope.end, PROBE_NAMES - number)
        number += len(page.blobs)
        if page.next_start is None:
            return number
        start = page.next_start
    return None


def _notes(options: AuditOptions, skew_ns: int) -> Iterable[str]:
    if _grace_of(options) < GRACE_MIN_S:
        yield f"the grace was {_grace_of(options):g} s, which was insisted on: a blob that was being written may be called an orphan"
    if abs(skew_ns) > SKEW_MAX_NS:
        where = "ahead of" if skew_ns > 0 else "behind"
        yield f"this machine's clock was {abs(skew_ns) / NS_PER_S:.0f} s {where} the service's; ages go by the service's"
