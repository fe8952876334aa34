"""A trial: a second store beside that of the settings, in the same services, with the same rights, for a while.

    begin     removes what a run has left that was killed; makes the trial, as `tiered provision` does
    end       removes the trial, and looks whether it is gone

Nothing of it is seen by the store beside it, by its audit, its daemon or its feed: the rows are in a schema or a table
of their own, the blobs below `~prove/` in the bucket. *Crash*: the next run removes it, `LEFT_AFTER_MS` after it began.
*Failure* to remove it is said, with the place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from anyio import CancelScope, move_on_after

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from tiered.kinds import chosen
from tiered.kinds.kind import TRIAL_TIME_DIGITS, TrialKind
from tiered.open import Backends, open_backends
from tiered.provision.findings import problems
from tiered.settings import TRIAL_DIGITS, FeedSettings, Settings

LEFT_AFTER_MS = 2 * 3600 * 1000
"""No run takes so long, so what is older was left by one that was killed."""
REMOVAL_S, REMOVALS = 120.0, 3


@dataclass(slots=True)
class Trial:
    """`settings`: of the trial. `left`: what could not be removed, each a sentence. `wrong`: what `tiered provision`
    has found that it cannot mend, and in spite of which the trial opens.
    """

    name: str
    settings: Settings
    runtime: Runtime
    left: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def open(self) -> AbstractAsyncContextManager[Backends]:
        """Opens its backends once more, over other connections."""
        return open_backends(self.settings, self.runtime, verify=False)


def trial_kinds(settings: Settings) -> tuple[TrialKind, TrialKind]:
    """The kinds of rows and of blobs, as what holds a trial. `ConfigurationError`: one of them cannot."""
    rows, blobs = chosen.rows_kind(settings), chosen.blobs_kind(settings)
    for kind, name in ((rows, settings.rows_kind), (blobs, settings.blobs_kind)):
        if not isinstance(kind, TrialKind):
            raise ConfigurationError(f"the kind {name} cannot hold a second store for a while, so nothing can be tried: update its package")
    return cast(TrialKind, rows), cast(TrialKind, blobs)


def settings_of(settings: Settings, trial: str) -> Settings:
    """Those of the trial: the place is another one, the changelog is kept, and no feed and no policy is in the way."""
    plain = settings.model_copy(update={"changelog": settings.changelog_kept, "feed": FeedSettings(), "usecases": {}})
    for kind in trial_kinds(settings):
        plain = kind.beside(plain, trial)
    return plain


@asynccontextmanager
async def begin(settings: Settings, runtime: Runtime, left: list[str] | None = None) -> AsyncIterator[Trial]:
    """A trial for the block. `ConfigurationError`: it cannot be opened, with what provisioning says.

    `left`: the list that gets what could not be removed, also if the block is never begun.
    """
    kinds = trial_kinds(settings)
    now_ms = runtime.wall_ns() // 1_000_000
    chance = TRIAL_DIGITS - TRIAL_TIME_DIGITS  # two that begin at the same moment have two trials
    name = f"{now_ms:0{TRIAL_TIME_DIGITS}x}{runtime.random.getrandbits(4 * chance):0{chance}x}"
    trial = Trial(name, settings_of(settings, name), runtime, [] if left is None else left)
    trial.left += await _sweep(settings, runtime, kinds, before_ms=now_ms - LEFT_AFTER_MS)
    try:
        trial.wrong = problems(await chosen.provision(trial.settings, runtime=runtime))
        if trial.wrong:
            try:
                async with open_backends(trial.settings, runtime):
                    pass
            except TieredError as error:
                needs = "; ".join(kind.trial_needs(settings).rights for kind in kinds)
                rights = [] if isinstance(error, UnavailableError) else [f"to try these services, this identity needs: {needs}"]
                raise ConfigurationError("\n".join([*trial.wrong, *rights])) from None
        yield trial
    finally:
        with CancelScope(shield=True), move_on_after(REMOVAL_S) as scope:
            trial.left += await _remove(settings, runtime, kinds, trial.name)
        if scope.cancelled_caught:
            trial.left.append(f"the trial {name} is left, until a later run removes it: its removal took longer than {REMOVAL_S:g} s")


async def _sweep(settings: Settings, runtime: Runtime, kinds: Sequence[TrialKind], before_ms: int) -> list[str]:
    """Removes the trials that began before. Returns what is left, each a sentence. Raises `ConfigurationError`."""
    said: list[str] = []
    found: set[str] = set()
    for kind in kinds:
        try:
            found |= {name for name in await kind.trials(settings, runtime) if _began_ms(name) < before_ms}
        except ConfigurationError:  # there is no such bucket, which a trial does not make
            raise
        except TieredError as error:
            said.append(f"what other runs have left was not looked for: {error}")
    for name in sorted(found):
        said += await _remove(settings, runtime, kinds, name)
    return said


def _began_ms(name: str) -> float:
    """When a trial was begun. What has another name is no trial."""
    try:
        return int(name, 16) >> 4 * (TRIAL_DIGITS - TRIAL_TIME_DIGITS) if len(name) == TRIAL_DIGITS else float("inf")
    except ValueError:
        return float("inf")


async def _remove(settings: Settings, runtime: Runtime, kinds: Sequence[TrialKind], name: str) -> list[str]:
    """The blobs first: without the rows, nobody would know whose they are."""
    said = []
    for kind in reversed(kinds):
        why = ""
        for _ in range(REMOVALS):  # one answer that does not come leaves nothing for hours
            try:
                await kind.remove(settings, runtime, name)
                why = f"the trial {name} is still there after its removal" if name in await kind.trials(settings, runtime) else ""
            except TieredError as error:
                why = f"the trial {name} is left, until a later run removes it: {error}"
            if not why:
                break
        said += [why] if why else []
    return said
