"""What tests ask of the processes that they or the demo started."""

from __future__ import annotations

import os


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
