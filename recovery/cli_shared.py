"""What all commands share: where their settings come from, how they end, how a person writes a duration.

    choice     --config, --directory and the environment, read when a command needs them
    guard      an error becomes one sentence on stderr and an exit code; a bug stays a traceback
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from recovery.cli_output import AbsentError
from tiered.compose import DATABASE_NAME
from tiered.errors import (
    ConfigurationError,
    CorruptRecordError,
    DanglingTombstoneError,
    InvalidRequestError,
    OutcomeUnknownError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from tiered.settings import ENV_PREFIX, Settings, load_settings

EXIT_CODES: tuple[tuple[type[TieredError], int], ...] = (
    (UnavailableError, 4), (InvalidRequestError, 3), (OutcomeUnknownError, 5), (UnconfirmedError, 5),
    (CorruptRecordError, 6), (DanglingTombstoneError, 6),
)
GCP_MODULES = ("google", "grpc", "aiohttp")
"""What the extra `gcp` brings."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Choice:
    """Where the settings come from; read only when a command needs them."""

    config: Path | None = None
    directory: Path | None = None

    def settings(self) -> Settings:
        """Of a store that may yet have to be made."""
        if self.directory is None:
            if self.config is None and not any(name.startswith(ENV_PREFIX) for name in os.environ):
                raise ConfigurationError(
                    "there are no settings: give --config FILE or set TIERED_CONFIG, or --directory DIR for an embedded store"
                )
            return load_settings(self.config)
        return load_settings(None, below={"directory": self.directory, "changelog": "sqlite"}, below_from="--directory")

    def existing(self) -> Settings:
        """Of a store that must be there: a mistyped directory is not to be filled by a command that reads."""
        settings = self.settings()
        if settings.directory is not None and not (settings.directory / DATABASE_NAME).exists():
            raise ConfigurationError(f"there is no store in {settings.directory.absolute()}; check the directory, or put something first")
        return settings


choice = Choice()


def guard(call: Callable[[], int], failed: int | None = None) -> int:
    """Turns errors into one sentence on stderr and an exit code; into `failed`, where that is given, whatever the error.

    So too where nobody reads the output to its end: who only sees the exit code must not take it for a verdict.
    """
    try:
        code = call()
        if sys.stdout is not None:  # it is, where it was closed before this program began
            sys.stdout.flush()
        return code
    except AbsentError as error:
        say(str(error))
        return failed or 1
    except TieredError as error:
        say(str(error))
        return failed or next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 4)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in GCP_MODULES:
            raise
        say(f"Bigtable and GCS need {error.name}; install it with: pip install 'tiered[gcp]'")
        return failed or 3
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains of it while it ends
        return failed or 0
    except OSError as error:
        say(f"the output cannot be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failed or 4
    except KeyboardInterrupt:
        os._exit(130)  # a thread may still wait for stdin, and nothing else is left to do


def say(sentence: str) -> None:
    Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(f"tiered: {sentence}")


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def lifetime(text: str) -> timedelta:
    """Of 36h and the like."""
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not (number.isascii() and number.isdecimal()):
        raise InvalidRequestError(f"{text!r} is not a lifetime: write a whole number and s, m, h or d, such as 36h")
    try:
        return timedelta(**{unit: int(number)})
    except OverflowError:
        raise InvalidRequestError(f"{text!r} is longer than any calendar; leave the lifetime out") from None
