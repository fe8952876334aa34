"""A recovery daemon of the demo: the product's daemon in a process of its own, which logs to stderr.

    python -m emulators.demo.players.daemon CONFIG PARENT_PID [--unfenced]

It stops on SIGTERM, and when its parent process has ended.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import anyio

from changelog.base.runtime import SystemRuntime
from emulators.demo.players.object_writer import TURNED_AWAY, follow_parent
from emulators.demo.players.unfenced import open_demo_backends
from recovery.daemon import run_daemon
from tiered.settings import load_settings


async def recover(config: Path, parent: int, unfenced: bool) -> int:
    """Runs the daemon until SIGTERM or until the parent has ended. Returns the exit code."""
    runtime, settings = SystemRuntime(), load_settings(config)
    async with anyio.create_task_group() as beside:
        beside.start_soon(follow_parent, parent, runtime, lambda: os.kill(os.getpid(), signal.SIGTERM))
        async with open_demo_backends(settings, runtime, unfenced) as backends:
            if backends is not None:
                logging.getLogger("tiered").info("recovery_report %s", await run_daemon(backends, runtime, settings))
        beside.cancel_scope.cancel()
    return TURNED_AWAY if backends is None else 0


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.exit(anyio.run(recover, Path(sys.argv[1]), int(sys.argv[2]), "--unfenced" in sys.argv))


if __name__ == "__main__":
    main()
