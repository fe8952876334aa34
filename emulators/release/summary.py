"""The last words of a release. They say what was done in this run, and nothing that was not.

A release is proved only if every step ran and passed. With fewer steps it is called what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emulators.release.checkout import Checkout
from emulators.release.owner import to_decide, to_type
from emulators.release.running import EndedStep
from emulators.release.steps import ReleaseStep
from emulators.release.tools import SUMS, sha256


def summary(of: Checkout, steps: Sequence[ReleaseStep], ran: Sequence[EndedStep], faults: Sequence[str]) -> list[str]:
    """Returns the lines. `steps`: all that there are; `ran`: those that ended in this run, in order.

    `faults`: what the steps changed that they must not.
    """
    dist = of.root / "dist"
    lines = [f"tiered {of.version}, commit {of.commit}", "", *_built(ran, dist), "", *_proved(steps, ran)]
    if faults:
        return [*lines, "", "This is no release: the steps changed what they prove.", *(f"  {fault}" for fault in faults)]
    if [each.step for each in ran if each.code == 0] != list(steps):
        return [*lines, "", "This is no release: not every step has run and passed."]
    decide, files = to_decide(of), sorted(f"dist/{file.name}" for file in (*dist.glob("*.whl"), *dist.glob("*.tar.gz")))
    typed = [f"    {line}" for line in to_type(of, files)]
    always = "Is the name on the index theirs to take? Which remote is public? Nobody here knows."
    if decide:
        again = "The owner decides first. Each of these changes what is built, so commit it and run `make release` again:"
        return [*lines, "", again, *(f"  - {sentence}" for sentence in decide), "", f"Then only an upload is missing. {always}", *typed]
    return [*lines, "", f"Only an upload is missing. {always}", *typed]


def is_built(ran: Sequence[EndedStep]) -> bool:
    """Returns whether dist/ was made by one of these steps."""
    return any(each.step.name == "build" and each.code == 0 for each in ran)


def _built(ran: Sequence[EndedStep], dist: Path) -> list[str]:
    if not is_built(ran):
        return ["Built: nothing in this run."]
    files = sorted(file for file in dist.iterdir() if file.name != SUMS)
    return ["Built:", *(f"  {sha256(file)}  dist/{file.name}" for file in files)]


def _proved(steps: Sequence[ReleaseStep], ran: Sequence[EndedStep]) -> list[str]:
    ended = {each.step.name: each for each in ran}
    lines = ["Proved:"]
    lines += [
        f"  {each.step.proves} ({each.took_s / 60:.1f} min{', in an earlier run' * each.earlier}: {each.step.command})"
        for each in ran if each.code == 0
    ]  # fmt: skip
    lines += ["Not proved:"]
    for step in steps:
        each = ended.get(step.name)
        if each is None or each.code != 0:
            lines.append(f"  {step.proves}: {'it did not run' if each is None else f'it failed with {each.code}'} ({step.command})")
        else:
            lines += [f"  {step.name}: {said}" for said in each.left_out]
    return lines
