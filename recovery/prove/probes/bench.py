"""`Bench`: where a probe tries. Both tiers and the log of a trial, opened twice, and what each call took.

What is written goes over the connections of `ours`; what is read goes over those of `other`, unless a probe needs it
otherwise. Each probe takes names of its own, and nothing else is in the trial.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from anyio import create_task_group

from changelog.base.errors import TieredError
from changelog.base.observe import Observer
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.open import Backends
from tiered.provision.probes import NotTriedError
from tiered.services.backends import HighVolumeBackend, Inline, LongTermBackend, Only, Row, RowState, Tombstone
from tiered.telemetry.observed import observed_log, observed_tiers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is tried. `racers`: calls at once, in each of `rounds` races; a probe stops after `race_s` seconds, and
    says that it was not tried if fewer than `rounds_min` rounds were over by then. `within_s`: of a whole table.
    `calls_max`: after so many calls of a run no further round begins. `calm`: calls of each operation, one after the
    other, whose latencies are told; no further one begins after `calm_s`. `kills_s`: so long are writers killed.
    `contracts_s`: of all contract suites. `large_bytes`: of the largest blob, which goes up in lanes as the settings
    have them.
    """

    racers: int = 64
    rounds: int = 1000
    rounds_min: int = 5
    race_s: float = 20.0
    within_s: float = 180.0
    calls_max: int = 300_000
    calm: int = 100
    calm_s: float = 60.0
    contracts_s: float = 600.0
    kills_s: float = 120.0
    large_bytes: int = 66 * 1024 * 1024


SILENT_MAX = 4
"""After so many probes in a row that had no answer, a table ends. One may fail by chance, or by a fault of its own."""


class Measured(Observer):
    """What each call took (seconds), by service and method."""

    def __init__(self, runtime: Runtime) -> None:
        self.took: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._runtime = runtime

    @property
    def calls(self) -> int:
        return sum(map(len, self.took.values()))

    def call(self, service: str, method: str, *, traced: bool = True) -> AbstractContextManager[object]:
        return self._timed(service, method)

    @contextmanager
    def _timed(self, service: str, method: str) -> Iterator[None]:
        began = self._runtime.monotonic()
        try:
            yield
        finally:
            self.took[service, method].append(self._runtime.monotonic() - began)


@dataclass(slots=True)
class Bench:
    ours: Backends
    other: Backends
    runtime: Runtime
    sizes: Sizes
    measured: Measured
    early: str = ""
    """The key of the row whose marks the first probe left."""

    usecase: str = "prove"
    """Of all its names: two benches of one trial differ in it."""

    _names: int = 0

    @classmethod
    def of(cls, ours: Backends, other: Backends, runtime: Runtime, sizes: Sizes, usecase: str = "prove") -> Bench:
        measured = Measured(runtime)
        ours, other = (Backends(observed_tiers(each.tiers, measured), observed_log(each.log, measured)) for each in (ours, other))
        return cls(ours, other, runtime, sizes, measured, usecase=usecase)

    @property
    def rows(self) -> HighVolumeBackend:
        return self.ours.tiers.high_volume

    @property
    def other_rows(self) -> HighVolumeBackend:
        return self.other.tiers.high_volume

    @property
    def blobs(self) -> LongTermBackend:
        return self.ours.tiers.long_term

    @property
    def other_blobs(self) -> LongTermBackend:
        return self.other.tiers.long_term

    def path(self, what: str = "key") -> str:
        """The key of a row that nobody has used."""
        self._names += 1
        return f"{self.usecase}/objects/{self._names}/{what}"

    def token(self) -> ChangeId:
        return ChangeId.new(self.runtime)

    def tombstone(self, path: str, token: ChangeId) -> Tombstone:
        return Tombstone(blob_name(path, token), None, None, token)

    def inline(self, token: ChangeId, payload: bytes = b"payload") -> Inline:
        return Inline(Metadata(size=len(payload)), payload, token)

    async def swap(
        self, path: str, token: ChangeId, expected: str | None, state: RowState, only: Only | None = None, *, other: bool = False
    ) -> bool:
        rows = self.other_rows if other else self.rows
        return await rows.swap(path, token, expected, state, self.runtime.boot_time() + 60, only)

    async def read(self, path: str) -> Row:
        """The row with its marks, by the other connections."""
        return await self.other_rows.read(path, marks=True)

    def races(self, share: float = 1.0) -> Iterator[int]:
        """The numbers of the rounds of a race, until the time or the calls are over. `NotTriedError`: too few were.

        `share`: of the rounds and of the time.
        """
        within_s = self.sizes.race_s * share
        ends_at = self.runtime.monotonic() + within_s
        for number in range(math.ceil(self.sizes.rounds * share)):
            is_late, is_used_up = self.runtime.monotonic() >= ends_at, self.measured.calls >= self.sizes.calls_max
            if is_late or is_used_up:
                if number < self.sizes.rounds_min:
                    when = f"{within_s:g} s" if is_late else f"{self.sizes.calls_max:,} calls of the run"
                    raise NotTriedError(f"only {number} of {self.sizes.rounds_min} rounds were over after {when}")
                return
            yield number


async def at_once(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | None]:
    """The answers, None where none came. Raises the first error if nothing was answered."""
    answers: list[T | None] = [None] * len(calls)
    errors: list[TieredError] = []

    async def one(number: int, call: Callable[[], Awaitable[T]]) -> None:
        try:
            answers[number] = await call()
        except TieredError as error:
            errors.append(error)

    async with create_task_group() as tasks:
        for number, call in enumerate(calls):
            tasks.start_soon(one, number, call)
    if len(errors) == len(calls) and errors:
        raise errors[0]
    return answers
