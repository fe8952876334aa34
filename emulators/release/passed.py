"""build/release/passed.json: the steps that passed, so that a release goes on after a cut or a failure from outside.

It counts for the commit that it names and the files that were built then, and for nothing else.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from emulators.release.checkout import Checkout, NotReadyError
from emulators.release.running import EndedStep
from emulators.release.steps import ReleaseStep
from emulators.release.tools import not_as_summed, sha256

ANEW = "begin anew, without --go-on"


def keep_passed(file: Path, of: Checkout, steps: Sequence[ReleaseStep], ran: Sequence[EndedStep]) -> None:
    """Adds those of `ran` that passed. Two runs may do so at the same time, each with steps of its own (`--only`)."""
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended: dict[ReleaseStep, EndedStep] = {}
        with suppress(NotReadyError):
            ended = {each.step: each for each in passed_earlier(file, of, steps)}
        ended |= {each.step: each for each in ran if each.code == 0}
        told = [
            {"name": each.step.name, "command": each.step.command, "left_out": each.left_out, "took_s": each.took_s}
            for each in ended.values()
        ]  # fmt: skip
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"commit": of.commit, "built": _built(of.root), "steps": told}, indent=1), encoding="utf-8")
        new.replace(file)


def passed_earlier(file: Path, of: Checkout, steps: Sequence[ReleaseStep]) -> list[EndedStep]:
    """Returns what need not run again. Raises `NotReadyError` if that is not for this commit and these files."""
    try:
        kept = json.loads(file.read_text("utf-8"))
        commit, built, ended = str(kept["commit"]), dict(kept["built"]), kept["steps"]
        known = {(step.name, step.command): step for step in steps}
        passed = [
            EndedStep(known[each["name"], each["command"]], 0, tuple(map(str, each["left_out"])), float(each["took_s"]), earlier=True)
            for each in ended if (each["name"], each["command"]) in known
        ]  # fmt: skip
    except FileNotFoundError:
        raise NotReadyError(f"{file} is missing, so no run is there to go on with: {ANEW}") from None
    except (OSError, ValueError, KeyError, TypeError) as failed:
        raise NotReadyError(f"{file} cannot be read ({failed!r}): {ANEW}") from failed
    if commit != of.commit:
        raise NotReadyError(f"{file} is of the commit {commit}, and this is {of.commit}: {ANEW}")
    if steps[0] not in {each.step for each in passed}:  # the others prove what it builds
        raise NotReadyError(f"{file} has no {steps[0].name} that passed: {ANEW}")
    if built != _built(of.root) or not_as_summed(of.root / "dist"):
        raise NotReadyError(f"dist/ is no longer what was built for {file}: {ANEW}")
    return passed


def _built(root: Path) -> dict[str, str]:
    """The SHA-256 of the wheel and of the source distribution, by name. A later step may add files to dist/."""
    return {file.name: sha256(file) for kind in ("*.whl", "*.tar.gz") for file in (root / "dist").glob(kind)}
