"""All of `tiered prove`: what provisioning finds, the promises, contracts, killed writers. `PARTS` is the table.

    begin a trial  -->  each part that is wanted  -->  remove the trial  -->  hide what names something of the user's

A part that is left out, or that a cancellation ends, has its lines nevertheless: they say that it was not tried.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from anyio import move_on_after

from changelog.base.errors import TieredError
from changelog.base.runtime import Runtime
from recovery.prove import trial
from recovery.prove.contracts import SILENT_S, run_suites, untried_suites
from recovery.prove.kills import BYTES_A_SECOND, CALLS_A_SECOND, CALLS_OF_ONE, DRAIN_S, JUDGE_S, START_S, kill_writers, untried_kills
from recovery.prove.probes.bench import SILENT_MAX, Bench, Measured, Sizes
from recovery.prove.probes.blobs import BLOBS
from recovery.prove.probes.calm import be_calm
from recovery.prove.probes.entries import ENTRIES
from recovery.prove.probes.rows import ROWS
from recovery.prove.report import Line, ProveReport, calls_of, kind_of
from recovery.prove.trial import Trial, trial_kinds
from tiered.kinds import chosen
from tiered.kinds.kind import RequestsKind, RightsKind
from tiered.open import Backends
from tiered.provision.probes import NotTriedError, ProbeOutcome, RequestSizes, Result, try_all
from tiered.settings import DATABASE_NAME, Settings

TABLES = (("rows", ROWS), ("blobs", BLOBS), ("changelog", ENTRIES))
INTERRUPTED = "the run ended before"
REQUESTS_MAX = 5000
"""More than are sent by what only some kinds of blobs have."""
LOOKS_S = 180.0
"""So long at most lasts what comes before all parts, if the service answers as slowly as the settings allow."""


@dataclass(frozen=True, slots=True)
class Prover:
    """What a part works with. `tell`: gets a sentence for each step; it may name what the user has."""

    trial: Trial
    report: ProveReport
    sizes: Sizes
    tell: Callable[[str], None]

    @property
    def runtime(self) -> Runtime:
        return self.trial.runtime


@dataclass(frozen=True, slots=True)
class ProvePart:
    """`tries`: what, in words. `expected`: its lines before anything was tried. `seconds`, `calls`: at most.
    `mib`: of payload that is sent and read, at most.
    """

    tries: str
    run: Callable[[Prover], Awaitable[None]]
    expected: Callable[[str], list[Line]]
    seconds: Callable[[Sizes], float]
    calls: Callable[[Sizes], int]
    mib: Callable[[Sizes], int]


def initial(settings: Settings, tiered: str, at: str) -> ProveReport:
    """The report before anything was tried."""
    services = {"rows": {"kind": kind_of(settings.rows_kind)}, "blobs": {"kind": kind_of(settings.blobs_kind)}}
    return ProveReport(tiered, at, services, [line for part in PARTS.values() for line in part.expected(INTERRUPTED)])


async def prove(
    settings: Settings, runtime: Runtime, report: ProveReport, sizes: Sizes, tell: Callable[[str], None],
    parts: Collection[str] | None = None,
) -> None:
    """Fills the report, also when it is cancelled. Raises `TieredError` if nothing could be tried."""
    began = runtime.monotonic()
    wanted = PARTS.keys() if parts is None else parts
    for name in PARTS.keys() - wanted:
        for line in PARTS[name].expected("left out by --only"):
            report.tell(line)
    left: list[str] = []
    try:
        tell("making a store of its own beside yours")
        async with trial.begin(settings, runtime, left) as tried:
            report.services = await told_by(tried.settings, runtime)
            tell("looking at the settings and the rights, as 'tiered check' does")
            notices = await chosen.inspect(_looked_at(settings, tried), runtime)
            report.expect(Line.of_notice(number, each) for number, each in enumerate(notices, 1))
            report.expect(await rights_of(settings, runtime))
            for name, part in PARTS.items():
                if name in wanted:
                    await _run(part, Prover(tried, report, sizes, tell))
    finally:
        report.seconds, report.left = runtime.monotonic() - began, left
        for each in left:  # of what could not be opened, there is no report
            tell(each)
        report.hide(settings)


async def _run(part: ProvePart, prover: Prover) -> None:
    """What ends a part early ends no other one, and takes away nothing that was found."""
    within_s, why = part.seconds(prover.sizes), ""
    try:
        with move_on_after(within_s) as scope:
            await part.run(prover)
        if scope.cancelled_caught:
            why = f"it took longer than {within_s:g} s"
    except (TieredError, OSError) as error:
        why = str(error)
    if not why:
        return
    prover.tell(f"this part ended early: {why}")
    found = {(each.about, each.name): each for each in prover.report.lines}
    for line in part.expected(f"the part ended early: {why}"):
        if (there := found.get((line.about, line.name))) is not None and there.said == INTERRUPTED:
            prover.report.tell(line)


def _looked_at(settings: Settings, tried: Trial) -> Settings:
    """The user's. A directory that holds no store yet stays so: that of the trial is on the same disk."""
    is_new = settings.directory is not None and not (settings.directory / DATABASE_NAME).exists()
    return tried.settings if settings.embedded and is_new else settings


async def told_by(settings: Settings, runtime: Runtime) -> dict[str, dict[str, str]]:
    """What both services tell of themselves. What one does not tell is left out."""
    found: dict[str, dict[str, str]] = {}
    for tier, name, kind in zip(("rows", "blobs"), (settings.rows_kind, settings.blobs_kind), trial_kinds(settings), strict=True):
        found[tier] = {"kind": kind_of(name)}
        try:
            found[tier] |= await kind.told(settings, runtime)
        except TieredError:
            continue
    return found


async def rights_of(settings: Settings, runtime: Runtime) -> list[Line]:
    """A line for each tier whose service may tell which rights are too many."""
    lines = []
    for tier, kind in (("rows", chosen.rows_kind(settings)), ("blobs", chosen.blobs_kind(settings))):
        if not isinstance(kind, RightsKind):
            continue
        try:
            excess = await kind.excess(settings, runtime)
        except (NotTriedError, TieredError) as error:
            result, said = Result.UNTRIED, str(error)
        else:
            result, said = (Result.BROKEN, f"this identity {', '.join(excess)}") if excess else (Result.HELD, "")
        promise, cost = f"this identity may do no more with the {tier} than a store needs", "whoever takes over a process may do that, too"
        lines.append(Line("rights", tier, promise, result, said, cost, "give the services an identity of their own", is_limit=True))
    return lines


# --- the promises ------------------------------------------------------------------------------------


async def _promises(prover: Prover) -> None:
    async with prover.trial.open() as ours, prover.trial.open() as other:
        bench = Bench.of(ours, other, prover.runtime, prover.sizes)
        calm = await _calm(ours, other, prover)
        try:
            for about, probes in TABLES:
                prover.tell(f"trying {len(probes)} promises about {about}")
                prover.report.drop((about, each.name) for each in probes if not each.is_needed(bench))
                try:
                    told = await try_all(probes, bench, prover.sizes.within_s, silent_max=SILENT_MAX, told=_teller(prover, about))
                except TieredError as error:  # the others need what the first one tried
                    lines = [Line.untried(about, each, f"the first of them could not be tried: {error}") for each in probes]
                else:
                    lines = [Line.of(about, each) for each in told]
                for line in lines:
                    prover.report.tell(line)
        finally:
            kinds = {tier: each["kind"] for tier, each in prover.report.services.items()}
            prover.report.calls = calls_of(bench.measured, calm, kinds)
    await _requests(prover)


async def _requests(prover: Prover) -> None:
    """What only some kinds of blobs have: requests that no call of the store sends."""
    if isinstance(kind := chosen.blobs_kind(prover.trial.settings), RequestsKind):
        prover.tell("trying requests about blobs that no call sends")
        wanted = RequestSizes(prover.sizes.racers, prover.sizes.rounds_min, body_bytes=4096, limit_s=prover.sizes.within_s)
        for each in await kind.try_requests(prover.trial.settings, prover.runtime, wanted):
            prover.report.tell(Line.of("blobs", each))


def _teller(prover: Prover, about: str) -> Callable[[ProbeOutcome[Bench]], None]:
    def told(outcome: ProbeOutcome[Bench]) -> None:
        prover.report.tell(Line.of(about, outcome))
        if outcome.result is not Result.HELD:
            prover.tell(f"{outcome.result}: {about}: {outcome.probe.promise}: {outcome.said}")

    return told


async def _kills(prover: Prover) -> None:
    for line in await kill_writers(prover.trial, prover.sizes.kills_s, prover.tell):
        prover.report.tell(line)


async def _contracts(prover: Prover) -> None:
    for line in await run_suites(prover.trial, prover.sizes, prover.tell):
        prover.report.tell(line)


async def _calm(ours: Backends, other: Backends, prover: Prover) -> Measured:
    prover.tell(f"measuring {prover.sizes.calm} calls of each operation, one after the other")
    bench = Bench.of(ours, other, prover.runtime, prover.sizes, "calm")
    await be_calm(bench)
    return bench.measured


def _expected(why: str) -> list[Line]:
    return [Line.untried(about, probe, why) for about, probes in TABLES for probe in probes]


PARTS: Mapping[str, ProvePart] = {
    "promises": ProvePart(
        "what docs/protocol.md rests on, of rows, blobs and changelog", _promises, _expected,
        lambda sizes: (len(TABLES) + 1) * sizes.within_s + sizes.calm_s, lambda sizes: sizes.calls_max + 20 * sizes.calm + REQUESTS_MAX,
        lambda sizes: 512,
    ),
    "contracts": ProvePart(
        "the contract suites of tiered.testing.contracts", _contracts, untried_suites, lambda sizes: sizes.contracts_s + SILENT_S,
        lambda sizes: 20_000, lambda sizes: 256,
    ),
    "kills": ProvePart(
        "writers that are killed, recovered and judged", _kills, untried_kills, lambda sizes: START_S + sizes.kills_s + DRAIN_S + JUDGE_S,
        lambda sizes: round(sizes.kills_s * CALLS_A_SECOND * CALLS_OF_ONE), lambda sizes: round(sizes.kills_s * BYTES_A_SECOND) >> 20,
    ),
}  # fmt: skip
"""What a run tries, in order. `--only` names them."""
