"""What tests ask of the processes that they or the demo started."""

from __future__ import annotations

import os
import subprocess
from typing import Any


class StartedProcess(subprocess.Popen[Any]):
    """For `with`. A test that fails kills it. `Popen` would wait for its end, also past the test's time limit."""

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self.kill()
        try:
            super().__exit__(*error)  # type: ignore[arg-type]
        finally:
            self.kill()  # nothing, if it has ended


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
