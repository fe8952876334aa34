"""The door of the `tiered` command: it prepares the streams, and says what to install where a library is missing."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress
from io import TextIOWrapper

MISSING = 3
GARBAGE_MIN = 250_000
"""Python looks for garbage after so many more objects, instead of 700. All that a command imports is less."""


def main() -> None:
    """Runs the command line, and ends the process. `recovery.cli.app` lists the exit codes."""
    _prepare_streams()
    # Pydantic would look for plugins in every installed package. None of them has to do with this program.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # What is imported stays for good. To search it for garbage again and again, and at the end, took a fifth of CPU. So
    # nothing sets this back: Python would look at once. A command that runs for long does it (`recovery.cli.shared`).
    gc.set_threshold(GARBAGE_MIN)
    atexit.register(gc.freeze)
    try:
        from recovery.cli.app import run

        sys.exit(run())
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich", "click"):
            raise
        if sys.stderr is not None:
            from changelog.base.extras import installing

            sys.stderr.write(f"tiered: the command line needs {error.name}; install it with: {installing('daemon')}\n")
        sys.exit(MISSING)
    except KeyboardInterrupt:  # Ctrl-C while it starts, which takes about a second; `guard` answers a later one
        sys.exit(130)


def _prepare_streams() -> None:
    """Opens /dev/null for each closed standard stream, and prints a character that a stream cannot encode as an escape.

    Without this, a file of the store could get the number of a closed stream, and other code would write into it.
    """
    with suppress(OSError):
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
        os.close(number)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
