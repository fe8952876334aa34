"""The steps of a release, in order. To add a proof, add a line: its command must end with 0 only if it is proved.

A command runs at the top of the checkout. What it could not prove it says in a line that begins with `not proved: `;
such lines, and the tests that pytest skips, come back in the summary. What needs the wheel finds it in dist/, because
the step `build` is the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RELEASE = ".venv/bin/python -m emulators.release"
SLOW = "TIERED_SIM_SEEDS=1 .venv/bin/python -m pytest --timeout 0 -m sim"


@dataclass(frozen=True)
class ReleaseStep:
    """`minutes`: what it takes about, on two cores. `proves`: what is known once it has passed, as a sentence."""

    name: str
    command: str
    minutes: float
    proves: str


STEPS = (
    ReleaseStep("build", f"{RELEASE}.build", 2, "wheel and source distribution were built in three ways to the same bytes"),
    ReleaseStep("metadata", f"{RELEASE}.metadata", 0.5, "twine accepts their metadata, and the README is a page without dead links"),
    ReleaseStep("bill", f"{RELEASE}.bill", 9, "the bill of materials is what the wheel brings here with each extra"),
    ReleaseStep("workflow", f"{RELEASE}.workflow", 1, "actionlint has nothing against the forge's workflow"),
    ReleaseStep("docs", "make docs", 1, "the site is built, and none of its links is dead"),
    ReleaseStep("tests", ".ci/run", 20, "ruff, mypy and the tests have passed"),
    ReleaseStep("promises", ".venv/bin/python -m emulators.promises", 1, "what the last release promised is kept, or was deprecated by it"),
    ReleaseStep("extras", ".ci/test-extras", 12, "each extra alone does what it promises, and is named where it is missing"),
    ReleaseStep("front-door", f"{SLOW} tests/test_front_door.py", 10, "what README, tutorial and guides show runs where only the wheel is"),
    ReleaseStep("exports", f"{SLOW} tests/tiered/exports", 5, "exports survive a kill and a full disk, at 10,000 objects too"),
    ReleaseStep("beside", ".ci/beside", 10, "the last release and this one work on one store together"),
    ReleaseStep("lowest", ".ci/test-versions lowest", 10, "the fast tests pass with the lowest versions that are admitted"),
    ReleaseStep("newest", ".ci/test-versions newest", 10, "they pass with the newest versions"),
    ReleaseStep("postgres", ".ci/test-postgres", 25, "what meets PostgreSQL passes on 14 to 17, too"),
    ReleaseStep("interpreters", ".ci/test-all others", 40, "they pass on each other Python of this machine that the project supports"),
)


class UnknownStepError(Exception):
    """A name is that of no step. The message has those that there are."""


def chosen(steps: Sequence[ReleaseStep], only: Sequence[str], without: Sequence[str]) -> list[ReleaseStep]:
    """Returns the steps to run. `only`: nothing else, unless it is empty. Raises `UnknownStepError`."""
    there = [step.name for step in steps]
    for name in (*only, *without):
        if name not in there:
            raise UnknownStepError(f"{name!r} is no step; the steps are {', '.join(there)}")
    return [step for step in steps if (not only or step.name in only) and step.name not in without]
