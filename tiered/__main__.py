"""The door of the `tiered` command. The command itself is in `recovery.cli`, which may be another's package."""

from __future__ import annotations

import sys
from importlib import import_module

from tiered.own import own


def main() -> None:
    """Runs the command line. It ends with 3 if `recovery` is another's package."""
    try:
        own("recovery")
    except ImportError as error:
        if error.name != "recovery":
            raise
        sys.exit(_refused(str(error)))
    import_module("recovery.cli.main").main()


def _refused(sentence: str) -> int:
    if sys.stderr is not None:
        sys.stderr.write(f"tiered: {sentence}\n")
    return 3


if __name__ == "__main__":
    main()
