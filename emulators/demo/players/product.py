"""Runs a command of the product as a process of the demo: it ends when its parent process has ended.

    python -m emulators.demo.players.product PARENT_PID status --watch 1

A command that could not reach the services when it began (exit code 4) ends as the demo's own processes do then.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from threading import Thread

from emulators.demo.players.object_writer import TURNED_AWAY
from recovery.cli.main import main

LOOK_S = 0.5
UNAVAILABLE = 4


def follow_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    Thread(target=follow_parent, args=(int(sys.argv.pop(1)),), daemon=True).start()
    try:
        main()
    except SystemExit as ended:
        sys.exit(TURNED_AWAY if ended.code == UNAVAILABLE else ended.code)
