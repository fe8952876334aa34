"""What a seed chooses: a world of `emulators.simulation`, with a feed, its writers, its sinks and its bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random  # noqa: TID251 - the simulated door for chance

from emulators.simulation.recipe import Actor, PlannedOutage, Recipe, Role, StepKind, Weather
from emulators.world.deployment import SETTINGS, TIGHT
from emulators.world.faults import Mode
from tiered.settings import FeedSettings, Settings

SKEWS_S = (-86_400.0, -60.0, -5.0, 0.0, 0.0, 5.0, 60.0)
LONGER_S = 300.0
"""Writers of the feed go on for so many seconds after the callers, or until these have finished."""
ZOMBIES = (Mode.STALL_BEFORE, Mode.STALL_AFTER, Mode.SUSPEND_BEFORE, Mode.SLOW, Mode.LATE, Mode.CRASH_BEFORE)
LEFT_OUT = (Role.BLIND_AUDITOR, Role.OLDER)
"""Both delete blobs or rows without a word in the changelog, so no feed could tell of them in time."""


@dataclass(frozen=True, slots=True)
class FeedRecipe:
    """`base`: callers, recoveries, operators, collectors, and the weather. It has a changelog, and lasts hours at most.

    `feeders`: writers of the feed, each in one process after the other. `restarts`: the share of lives that begin a new
    generation. `planted`: so many objects are there before the feed is. `bound`: the actor that cleans up what is
    overdue; None: nobody does.
    """

    base: Recipe
    feeders: tuple[Actor, ...]
    bound: Actor | None
    settings: Settings
    restarts: float
    planted: int

    @property
    def seed(self) -> int:
        return self.base.seed

    @staticmethod
    def of(seed: int) -> FeedRecipe:
        chance = Random(f"feed recipe {seed}")
        base = _hours(seed)
        actors = [replace(actor, stays=False) for actor in base.actors if actor.role not in LEFT_OUT]
        actors = [replace(actor, steps=tuple(step for step in actor.steps if step.kind not in (StepKind.SLEEP, StepKind.COPY_OLDER)))
                  for actor in actors]  # fmt: skip
        if chance.random() < 0.5:  # more writes, on the same two objects
            actors = [replace(actor, steps=actor.steps * chance.choice((2, 3))) if actor.role is Role.CALLER else actor for actor in actors]
        busy_s = max(sum(step.pause_s for step in actor.steps) for actor in actors) + LONGER_S
        poll_s = chance.choice((0.5, 2.0, 5.0))
        feed = FeedSettings(
            enabled=True, to=tuple(f"sink-{number}" for number in range(chance.choice((1, 2, 2)))), poll_s=poll_s,
            progress_every_s=chance.choice((2.0, 10.0)), batch_max=chance.choice((1, 2, 1000)),
            reconcile_every_s=chance.choice((15.0, 100.0, 86_400.0)),
            hold_max_s=chance.choice((5.0, 60.0, 300.0)),
        )  # fmt: skip
        settings = (TIGHT if base.tight else SETTINGS).model_copy(update={"feed": feed})
        weather = _of_feeders(chance, base.weather)
        feeders = tuple(
            Actor(f"feeder-{number}", Role.JOB, starts_s=chance.uniform(0, busy_s / 4), ends_s=busy_s, skew_s=chance.choice(SKEWS_S),
                  weather=weather)
            for number in range(chance.choice((1, 1, 2, 2, 3)))
        )  # fmt: skip
        together = Random(f"feeders together {seed}")  # a chance of its own, so other seeds keep their meaning
        if together.random() < 0.3:
            feeders = tuple(replace(feeder, starts_s=feeders[0].starts_s, skew_s=feeders[0].skew_s) for feeder in feeders)
        bound = Actor("bound", Role.JOB, ends_s=busy_s, every_s=chance.choice((5.0, 40.0))) if chance.random() < 0.4 else None
        outages = base.outages
        if chance.random() < 0.3:
            from_s = chance.uniform(0, busy_s)
            mode = chance.choice((Mode.UNAVAILABLE, Mode.LOST, Mode.SLOW, Mode.DROPPED))
            outages += (PlannedOutage("sink", mode, from_s, from_s + chance.choice((30.0, 300.0))),)
        base = replace(base, actors=tuple(actors), outages=outages, things=chance.choice((base.things, 2)))
        return FeedRecipe(base, feeders, bound, settings, chance.choice((0.0, 0.0, 0.3)), chance.choice((0, 0, 3)))

    def on_services(self) -> FeedRecipe:
        """The same on the real adapters of Bigtable and S3, where older software never wrote: for processes of two
        codes, which share only bytes.
        """
        return replace(self, base=replace(self.base.on_s3(), bigtable=True), planted=0)


def _hours(seed: int) -> Recipe:
    """Returns the recipe of a seed, with a changelog, on simulated rows. One that lasts for days becomes another."""
    number = seed
    while (found := Recipe.of_simulated_blobs(number)).weather.suspend_rate:
        number += 1_000_000_000
    return replace(found, seed=seed, durable=True, bigtable=False)


def _of_feeders(chance: Random, weather: Weather) -> Weather:
    """Returns the faults of the writers' own calls. They make more calls than a caller, so the share is smaller."""
    modes = tuple(mode for mode in Mode if mode not in (Mode.DENIED, Mode.DAMAGED) and chance.random() < 0.5)
    if chance.random() < 0.4:  # zombies: they stand still in the middle of something, while another one takes over
        return Weather(chance.choice((0.01, 0.03, 0.08)), ZOMBIES, weather.travel_s)
    return Weather(chance.choice((0.0, 0.003, 0.01, 0.03)), modes, weather.travel_s)
