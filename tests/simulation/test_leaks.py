"""The simulation finds what slowly stops a store, keeps garbage for ever or comes hours late, not only what is lost.

Each is shown by taking a line out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

import recovery.loop
import tiered.protocol.writing
import tiered.storage
import tiered.testing.log
from changelog.change import ChangeId
from changelog.heartbeat import Heartbeat
from changelog.lease import entry_state
from changelog.log import KeyRange, shard_ranges
from emulators.simulation.coverage import Coverage
from emulators.simulation.recipe import Actor, Life, Recipe, Role, Step, StepKind, Weather
from emulators.simulation.run import RunResult, run
from emulators.world.checker import InvariantViolation
from tiered.limits.admission import Slot
from tiered.protocol.reading import Reader
from tiered.protocol.under_way import WritesUnderWay
from tiered.services.guarded import StoreService
from tiered.stored import PutResult

KINDS = (StepKind.PUT_LARGE, StepKind.PUT_MANY, StepKind.PUT_SMALL, StepKind.DELETE)
PUTS = tuple(Step(kind, number % 2, 1.0, Life.EVER) for number, kind in enumerate(KINDS))
CALM = Recipe(
    1, (
        Actor("writer-0", Role.CALLER, PUTS, stays=True), Actor("writer-1", Role.CALLER, PUTS, stays=True, tasks=4),
        Actor("recoverer-0", Role.RECOVERER, every_s=5.0, ends_s=100.0, stays=True),
    ), Weather(),
)  # fmt: skip
"""Nothing goes wrong in it: whatever is held at its end is leaked."""


def of(recipe: Recipe) -> InvariantViolation | None:
    result: RunResult = run(recipe, Coverage())
    return result.violation


def end_in_part(self: WritesUnderWay, write: Any) -> None:
    if write.lease is not None:
        self._heartbeat.drop(write.lease)
    write.answer(None)


def keep(self: Slot, *_: object) -> None:
    self._is_over = True


def never_touch(self: Any, object_id: Any, state: Any) -> None:
    return


async def renew_nothing(self: Heartbeat, leases: Sequence[Any]) -> None:
    return


async def touch_the_blob_alone(self: Reader, object_id: Any, state: Any) -> None:
    return


def all_but_the_first(shards: int = 2) -> Sequence[KeyRange]:
    return shard_ranges(shards)[min(1, shards - 1) :]


def hours_later(self: KeyRange, created_ms: int) -> KeyRange:
    return KeyRange(f"{self.start.rstrip('/')}/00/{ChangeId.first(created_ms + 3_600_000)}", self.end)


def without_size(revision: Any, tier: Any, size: int) -> PutResult:
    return PutResult(revision, tier, 0)


def at_once(entry: Any, now_ms: int, expiry_ms: int, attempts_max: int) -> Any:
    return entry_state(entry, now_ms, expiry_ms, 0)


async def ask_for_ever(self: StoreService, ask: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return await ask(*args, **named)


MUTATIONS: dict[str, tuple[Any, str, Any, str]] = {
    "a write that never ends": (WritesUnderWay, "_end", end_in_part, "leak"),
    "a slot that is never given back": (Slot, "__exit__", keep, "leak"),
    "an object that is never touched": (tiered.storage.TieredStorage, "_touch", never_touch, "I6 drained"),
    "a touch that ends at the blob": (Reader, "touch", touch_the_blob_alone, "I6 drained"),
    "a lease that is never renewed": (Heartbeat, "_renew", renew_nothing, "I6 drained"),
    "a shard that no recovery looks at": (tiered.testing.log, "shard_ranges", all_but_the_first, "I6 drained"),
    "new entries that wait for a full pass": (KeyRange, "since", hours_later, "I6 drained"),
    "a put that tells a wrong size": (tiered.protocol.writing, "PutResult", without_size, "I4 honest"),
    "a healthy entry that is parked": (recovery.loop, "entry_state", at_once, "I6 drained"),
    "a reader that takes nothing for expired": (tiered.protocol.reading, "is_expired", lambda deadline_ns, now_ns: False, "I4 honest"),
    "a caller that waits without a bound": (StoreService, "read", ask_for_ever, "I6 drained"),
}


def test_a_calm_world_leaks_nothing() -> None:
    assert of(CALM) is None
    assert of(replace(CALM, tight=True)) is None


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_finds(name: str) -> None:
    owner, attribute, instead, invariant = MUTATIONS[name]
    with patch.object(owner, attribute, instead):
        found = of(CALM)
    assert found is not None and found.invariant == invariant, found
