"""Worlds in which processes of two codes work on one store: those of the last release, and those of this checkout.

Each life of a caller, a daemon, an audit, an operator or a collector has one code or the other, as the seed says. So a
restart may be an upgrade or a downgrade, and every pair meets. Each world has the real adapters of Bigtable and S3,
because two processes share only bytes. All else is as in any world (`run.py`), and so are the invariants: nothing is
lost, and nobody parks what the other recorded.

Backends that are not in a world (SQLite, PostgreSQL, GCS) meet in the demo: `python -m emulators demo --beside`.
"""

from __future__ import annotations

from dataclasses import replace

from emulators.released import other as other_release
from emulators.simulation.coverage import Coverage
from emulators.simulation.recipe import Recipe
from emulators.simulation.run import RunResult, run
from emulators.world.code import TODAY, Code, beside

ANOTHER_SEED = 1_000_000_000
KINDS = ("writer", "reader", "recoverer", "job", "auditor", "blind-auditor", "operator", "last recovery")
"""What must be met in both codes (`Stage.lives`). The services' own collection has no code."""
WORLDS_TO_TELL = 300
"""So many seeds meet each of `KINDS` in both codes."""


def other_code(named: str) -> Code:
    """Returns the code of the last release (`released`), or of a commit. Raises `NotReleasedError` or `CodeError`."""
    release = other_release(named)
    return beside(release.version, release.source())


def recipe_of_both(seed: int) -> Recipe:
    """Returns what a seed chooses for two codes: a world with a changelog, on services that take bytes."""
    number = seed
    while not (found := Recipe.of_simulated_blobs(number)).durable:
        number += ANOTHER_SEED
    return replace(found.on_s3(), seed=seed, bigtable=True)


def run_both(seed: int, coverage: Coverage, other: Code) -> RunResult:
    """Runs the world of a seed, with processes of this checkout and of `other`."""
    return run(recipe_of_both(seed), coverage, (TODAY, other))


def run_before(seed: int, coverage: Coverage, older: Code, newer: Code) -> RunResult:
    """Runs the world of a seed with processes of `older`, and of `newer`, whose entries `older` cannot read."""
    return run(recipe_of_both(seed), coverage, (older, newer), newer)


def missing(coverage: Coverage, worlds: int, other: str) -> list[str]:
    """Returns what was never met in which code, as far as that many worlds can tell."""
    if worlds < WORLDS_TO_TELL:
        return []
    wanted = [f"{kind} of {code}" for kind in KINDS for code in (TODAY.name, other)]
    return [each for each in wanted if not coverage.sections["lives"][each]]
