"""The `tiered` command's door: it says what to install where the command line's libraries are missing."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line. Exit codes: see `recovery.cli_app`."""
    try:
        from recovery.cli_app import run

        run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit(f"tiered: the command line needs {error.name}; install it with: pip install 'tiered[daemon]'")
    except KeyboardInterrupt:  # while it starts, for a second or so; later ones are met where they can be answered
        sys.exit(130)


if __name__ == "__main__":
    main()
