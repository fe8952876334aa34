"""A process that runs the seeds it is asked for: `python -m emulators.callers.worker CALLERS PLACE`.

It speaks as `emulators.simulation.worker` does. `PLACE`: where its stores are made.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import signal
import sys
import tempfile

from emulators.callers.explore import run_seed
from emulators.simulation.explore import SEED_ENDS_WITHIN_S
from emulators.simulation.totals import Totals
from tiered.settings import ENV_PREFIX


def work(callers: str) -> None:
    """Serves requests until there are no more."""
    for request in sys.stdin:
        first, count = map(int, request.split())
        totals, hung = Totals(), False
        for seed in range(first, first + count):
            _say(f"@{seed}")
            hung |= _run(callers, seed, totals)
        _say(json.dumps(totals.to_json()))
        if hung:  # an event loop that was stopped leaves its process in a bad state
            os.execv(sys.executable, sys.orig_argv)


def _run(callers: str, seed: int, totals: Totals) -> bool:
    """Runs a seed, and adds it to the totals. Returns whether it hung."""
    began_s = _cpu_s()
    faulthandler.dump_traceback_later(SEED_ENDS_WITHIN_S * 0.9)  # soon this process will be ended
    result = run_seed(callers, seed)
    faulthandler.cancel_dump_traceback_later()
    took_s = _cpu_s() - began_s
    totals.worlds += 1
    totals.cpu_s += took_s
    totals.calls += result.calls
    totals.slowest = max(totals.slowest, (took_s, seed))
    totals.coverage.count("grounds", result.recipe.ground, result.worlds)
    if result.violation is not None:
        totals.violations.append((seed, str(result.violation)))
    return result.violation is not None and result.violation.kind == "hang"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _cpu_s() -> float:
    """Returns the seconds of CPU of this process and of the children that have ended."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    if sys.argv[1] == "command":
        import recovery.cli.app  # noqa: F401 - imported here, so that no child imports it

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        del os.environ[name]
    tempfile.tempdir = sys.argv[2]
    gc.freeze()  # it makes looking for garbage after each episode cheap
    work(sys.argv[1])
