"""`Probe`: what is tried of a service, and what is lost where it does otherwise. A table of probes is a sequence.

    try_all(PROBES, bench)  -->  a ProbeOutcome for each: held | not held | not tried, with what the service did

`tiered check` tries little, at each start (`s3_probes.py`); `tiered prove` tries all (`recovery/prove/`). What a probe
needs is its *bench*: names, connections, and the end of all that it made.

*Failure*: an answer that refuses is what is wrong, with the service's words. Where there is no answer, or a right is
missing, it was not tried, and that is said. The first probe of a table is what all others need: if it fails, it is the
only one, and what it raises leaves `try_all`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

from anyio import move_on_after

from changelog.base.errors import TieredError
from tiered.provision.findings import NoticeKind

NO_RIGHT = frozenset({"AccessDenied", "403", "42501", "PERMISSION_DENIED"})
"""Codes for whoever lacks a right. They say nothing of what the service would do."""
ELSE = "use another service, or a version of it that does this"

B = TypeVar("B")

Tried: TypeAlias = str | None
"""What the service does wrong, as the rest of a sentence that begins with the service. None: nothing."""


class NotTriedError(Exception):
    """A probe could not try what it should. The message says why. Never leaves `try_all`."""


@dataclass(frozen=True, slots=True)
class Probe(Generic[B]):
    """`promise`: what is tried, as the service would promise it. `cost`: what is lost without it.

    `kind`: `PROBLEM` if that loses data, or hides them; `NOTE` if the store notices, and only does less.
    """

    name: str
    promise: str
    kind: NoticeKind
    cost: str
    run: Callable[[B], Awaitable[Tried]]
    cure: str = ELSE
    is_needed: Callable[[B], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class RequestSizes:
    """How much is tried. `racers`: requests at once, in each of `rounds` races. `body_bytes`: of each that races.

    `uploads`: how many are listed, two at a time. `limit_s`: after so many seconds, the rest is not tried.
    """

    racers: int = 8
    rounds: int = 3
    body_bytes: int = 64 * 1024
    uploads: int = 5
    limit_s: float = 120.0


class Result(StrEnum):
    HELD = "held"
    BROKEN = "not held"
    UNTRIED = "not tried"


@dataclass(frozen=True, slots=True)
class ProbeOutcome(Generic[B]):
    """What became of a probe. `said`: what the service did, as the rest of a sentence, or why nobody knows.

    `never_begun`: the run was over before.
    """

    probe: Probe[B]
    result: Result
    said: str = ""
    never_begun: bool = False


async def try_all(
    probes: Sequence[Probe[B]], bench: B, within_s: float, unclear: Collection[str] = (),
    silent_max: int = 1, told: Callable[[ProbeOutcome[B]], object] | None = None,
) -> list[ProbeOutcome[B]]:
    """The outcome of each probe that the bench needs, in order.

    Args:
        within_s: What was not begun after so many seconds, and what was under way, was not tried.
        unclear: Codes after which nobody knows what the service would have done.
        silent_max: After so many probes in a row that had no answer, the rest is not tried.
        told: Gets the outcome of each probe that was begun, when it is over: so whoever is cancelled has the others.
    """
    outcomes: list[ProbeOutcome[B]] = []
    why, silent = f"took longer than {within_s:g} s", 0
    with move_on_after(within_s):
        for probe in filter(lambda each: each.is_needed(bench), probes):
            outcome, is_silent = await _try_one(probe, bench, unclear, is_first=probe is probes[0])
            outcomes.append(outcome)
            if told is not None:
                told(outcome)
            if probe is probes[0] and outcome.result is not Result.HELD:
                return outcomes
            silent = silent + 1 if is_silent else 0
            if silent == silent_max:
                why = "stopped answering"
                break
    tried = {each.probe for each in outcomes}
    rest = [each for each in probes if each not in tried and each.is_needed(bench)]
    return outcomes + [ProbeOutcome(each, Result.UNTRIED, why, never_begun=True) for each in rest]


async def _try_one(probe: Probe[B], bench: B, unclear: Collection[str], *, is_first: bool) -> tuple[ProbeOutcome[B], bool]:
    """The outcome, and whether the service did not answer at all."""
    try:
        wrong = await probe.run(bench)
    except NotTriedError as error:
        return ProbeOutcome(probe, Result.UNTRIED, str(error)), False
    except TieredError as error:
        if is_first:
            raise
        if error.heard and error.code not in NO_RIGHT and error.code not in unclear:
            return ProbeOutcome(probe, Result.BROKEN, f"does not show that {probe.promise} ({error})"), False
        is_silent = not error.heard and not error.code
        return ProbeOutcome(probe, Result.UNTRIED, f"gave no answer to tell whether {probe.promise} ({error})"), is_silent
    return ProbeOutcome(probe, Result.HELD if wrong is None else Result.BROKEN, wrong or ""), False
