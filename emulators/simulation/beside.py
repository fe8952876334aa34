"""Worlds in which processes of two codes work on one store: those of the last release, and those of this checkout.

Each life of a caller, a daemon, an audit, an operator or a collector has one code or the other, as the seed says. So a
restart may be an upgrade or a downgrade, and every pair meets. Each world has the real adapters of Bigtable and S3,
because two processes share only bytes. All else is as in any world (`run.py`), and so are the invariants: nothing is
lost, and nobody parks what the other recorded.

Backends that are not in a world (SQLite, PostgreSQL, GCS) meet in the demo: `python -m emulators demo --beside`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from emulators.released import Release, released
from emulators.simulation.coverage import Coverage
from emulators.simulation.recipe import Recipe, Role
from emulators.simulation.run import RunResult, run
from emulators.world.code import TODAY, Code, beside

RELEASED = "released"
ANOTHER_SEED = 1_000_000_000
MIXED = (Role.CALLER, Role.RECOVERER, Role.JOB, Role.AUDITOR, Role.BLIND_AUDITOR, Role.OPERATOR)
"""The roles that must be met in both codes. The services' own collection has none."""
WORLDS_TO_TELL = 300


def other_code(named: str) -> Code:
    """Returns the code of the last release (`RELEASED`), of a commit, or of the checkout in a directory.

    Raises `NotReleasedError` or `CodeError` if it cannot be had.
    """
    if named == RELEASED:
        release = released()
        return beside(release.version, release.source())
    if Path(named).is_dir():
        return beside(named, Path(named))
    return beside(named, Release(named, named).source())


def recipe_of_both(seed: int) -> Recipe:
    """Returns what a seed chooses for two codes: a world with a changelog, on services that take bytes."""
    number = seed
    while not (found := Recipe.of_simulated_blobs(number)).durable:
        number += ANOTHER_SEED
    return replace(found.on_s3(), seed=seed, bigtable=True)


def run_both(recipe: Recipe, coverage: Coverage, other: Code) -> RunResult:
    return run(recipe, coverage, (TODAY, other))


def missing(coverage: Coverage, worlds: int, others: Sequence[str]) -> list[str]:
    """Returns which role was never met in which code, as far as that many worlds can tell."""
    if worlds < WORLDS_TO_TELL:
        return []
    wanted = [f"{role.name.lower()} of {code}" for role in MIXED for code in (TODAY.name, *others)]
    return [each for each in wanted if not coverage.sections["lives"][each]]
