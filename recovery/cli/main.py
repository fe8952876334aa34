"""The `tiered` command's door: it sees to the streams, and says what to install where the command line's libraries are missing."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper

MISSING = 3


def main() -> None:
    """Runs the command line. Exit codes: see `recovery.cli.app`."""
    _prepare_streams()
    try:
        from recovery.cli.app import run

        sys.exit(run())
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich", "click"):
            raise
        if sys.stderr is not None:
            sys.stderr.write(f"tiered: the command line needs {error.name}; install it with: pip install 'tiered[daemon]'\n")
        sys.exit(MISSING)
    except KeyboardInterrupt:  # while it starts, for a second or so; later ones are met where they can be answered
        sys.exit(130)


def _prepare_streams() -> None:
    """No character ends the command; and where a stream was closed, no file of the store gets its number, where others would write."""
    with suppress(OSError):
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
        os.close(number)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
