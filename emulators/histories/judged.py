"""Gives histories to Porcupine, which knows nothing of this project: are they linearizable?

    python -m emulators.histories.judged FILE ...

The program between is in `linearizable/`. It is built once, with Go (`emulators/go.py`). Where that cannot be, nothing
is judged, and the command says so; that is an error only where CI is set.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from emulators.go import NotBuiltError, our_program

LINEARIZABLE = our_program(Path(__file__).with_name("linearizable"))


async def judge(histories: Sequence[Path]) -> tuple[int, str]:
    """Returns the program's exit code and what it said. 0: linearizable; 1: not so; 2: a file is no history.

    Raises `NotBuiltError`.
    """
    told = await anyio.run_process([str(each) for each in (await LINEARIZABLE.ready(), *histories)], stderr=subprocess.STDOUT, check=False)
    return told.returncode, told.stdout.decode()


def main() -> int:
    try:
        code, said = anyio.run(judge, [Path(name) for name in sys.argv[1:]])
    except NotBuiltError as missing:
        sys.stdout.write(f"not proved: that histories are linearizable, by Porcupine: {missing}\n")
        return 3 if os.environ.get("CI") else 0
    sys.stdout.write(said)
    return code


if __name__ == "__main__":
    sys.exit(main())
