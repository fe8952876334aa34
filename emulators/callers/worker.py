"""A process that runs seeds: `python -m emulators.callers.worker FIRST STRIDE`. See `emulators.callers.explore`.

    stdout    {"at": 12}                                          it begins this seed
              {"seed": 12, "calls": 31, "violation": "…" or null}   it has run it

It runs until it is killed. After a violation of kind *hang* it ends by itself, because an event loop that was stopped
leaves its process in a bad state.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import json
import logging
import signal
import sys

from emulators.callers import command_lines as command
from emulators.callers.episode_recipe import EpisodeRecipe
from emulators.callers.episode_run import STUCK_AFTER_S, run


def work_commands(first: int, stride: int) -> None:
    import recovery.cli.app  # noqa: F401 - imported here, so that the children need not import it

    for seed in itertools.count(first, stride):
        _say({"at": seed})
        result = command.run(seed)
        found = result.violation
        _say({
            "seed": seed, "calls": len(result.trace), "worlds": 1, "ground": "of the command",
            "violation": None if found is None else str(found), "kind": None if found is None else found.kind,
        })  # fmt: skip


def work(first: int, stride: int) -> None:
    gc.freeze()  # it makes looking for garbage after each episode cheap
    for seed in itertools.count(first, stride):
        _say({"at": seed})
        faulthandler.dump_traceback_later(3 * STUCK_AFTER_S, exit=True)
        result = run(EpisodeRecipe.of(seed))
        faulthandler.cancel_dump_traceback_later()
        found = result.violation
        _say({
            "seed": seed, "calls": result.calls, "worlds": result.worlds, "ground": result.recipe.ground,
            "violation": None if found is None else str(found), "kind": None if found is None else found.kind,
        })  # fmt: skip
        if found is not None and found.kind == "hang":
            return


def _say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    (work_commands if sys.argv[3:] else work)(int(sys.argv[1]), int(sys.argv[2]))
