"""What all commands share: where their settings come from, how they end, how a person writes a duration.

    shared     the options that every command and every group of commands takes, before and behind its name
    choice     what these said, and the settings that follow, read when a command needs them
    guard      an error becomes one sentence on stderr and an exit code; a bug stays a traceback
"""

from __future__ import annotations

import errno
import inspect
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from recovery.visible import visible
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
from tiered.open import DATABASE_NAME
from tiered.settings import ENV_CONFIG, ENV_PREFIX, Settings, load_settings

EXIT_CODES: tuple[tuple[type[TieredError], int], ...] = (
    (UnavailableError, 4), (InvalidRequestError, 3), (OutcomeUnknownError, 5), (UnconfirmedError, 5),
    (CorruptRecordError, 6), (DanglingTombstoneError, 6),
)
GCP_MODULES = ("google", "grpc", "aiohttp")
"""What the extra `gcp` brings."""

GOOGLES_SECTIONS = (f"{ENV_PREFIX}BIGTABLE__", f"{ENV_PREFIX}GCS__")


class AbsentError(Exception):
    """There is no such object or entry."""


class Choice:
    """What the shared options said, wherever they stood. `json`: results are printed as JSON."""

    config: Path | None = None
    directory: Path | None = None
    json: bool = False

    def add(self, config: list[str] | None, directory: list[str] | None, verbose: bool, as_json: bool) -> None:
        """Takes in what one place of the command line says. Raises `typer.BadParameter` where it contradicts another."""
        self.config = _one("--config", self.config, config)
        self.directory = _one("--directory", self.directory, directory)
        if self.config is not None and self.directory is not None:
            raise typer.BadParameter("give either --config or --directory, not both")
        self.json = self.json or as_json
        if verbose:
            logging.getLogger().setLevel(logging.INFO)

    def settings(self) -> Settings:
        """Of a store that may yet have to be made."""
        if self.directory is not None:
            _refuse_another_store(self.directory)
            return load_settings(None, below={"directory": self.directory}, below_from="--directory")
        config = self.config or (Path(named) if (named := os.environ.get(ENV_CONFIG)) else None)
        if config is None and not any(name.startswith(ENV_PREFIX) for name in os.environ):
            raise ConfigurationError(
                "there are no settings: give --config FILE or set TIERED_CONFIG, or --directory DIR for an embedded store"
            )
        return load_settings(config)

    def existing(self) -> Settings:
        """Of a store that must be there: a mistyped directory is not to be filled by a command that reads."""
        settings = self.settings()
        if settings.directory is None:
            return settings
        where = settings.directory
        with suppress(OSError):  # the current directory may be gone
            where = where.absolute()
        try:
            found = (settings.directory / DATABASE_NAME).exists()
        except OSError as error:
            raise ConfigurationError(f"{where} cannot be looked into: {error.strerror}") from None
        if not found:
            raise ConfigurationError(f"there is no store in {where}; check the directory, or put something first")
        return settings


choice = Choice()


def _one(option: str, known: Path | None, said: list[str] | None) -> Path | None:
    """A path that was given any number of times, as long as it is the same."""
    for text in said or ():
        if not text.strip():
            raise typer.BadParameter(f"{option} is empty")
        if known is not None and not _same(known, text):
            raise typer.BadParameter(f"{option} is given twice, as {str(known)!r} and as {text!r}: leave one out")
        known = known or Path(text)
    return known


def _same(one: Path, other: str) -> bool:
    if one == Path(other):
        return True
    with suppress(OSError):
        return os.path.realpath(one.expanduser()) == os.path.realpath(os.path.expanduser(other))
    return False


def _refuse_another_store(directory: Path) -> None:
    """What is deleted must be what was meant: between two stores the command does not choose."""
    named = f"{ENV_PREFIX}DIRECTORY"
    if (other := os.environ.get(named)) and not _same(directory, other):
        raise ConfigurationError(f"--directory {directory} and {named} {other} name two stores: leave one out")
    if section := next((name for name in sorted(os.environ) if name.startswith(GOOGLES_SECTIONS) and os.environ[name]), None):
        raise ConfigurationError(f"--directory {directory} names an embedded store, and {section} one in Bigtable and GCS: leave one out")


# --- options ---------------------------------------------------------------------------------------


def _options(
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="FILE", help="Settings (YAML); or TIERED_CONFIG says where.")
    ] = None,
    directory: Annotated[
        list[str] | None, typer.Option("--directory", "-d", metavar="DIR", help="Instead: an embedded store in this directory.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what happens.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    choice.add(config, directory, verbose, as_json)


_SHARED = inspect.signature(_options, eval_str=True).parameters


def shared(call: Callable[..., None]) -> Callable[..., None]:
    """The function, and with it the options that stand before and behind every command's name."""

    @wraps(call)
    def with_options(**values: Any) -> None:
        _options(**{name: values.pop(name) for name in _SHARED})
        call(**values)

    signature = inspect.signature(call, eval_str=True)
    parameters = [*signature.parameters.values(), *_SHARED.values()]
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


# --- ends ------------------------------------------------------------------------------------------


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
        _drop_output()
        return failed or 0
    except OSError as error:
        _drop_output()
        return failed or _told(error)
    except KeyboardInterrupt:
        os._exit(130)  # a thread may still wait for stdin, and nothing else is left to do


def _told(error: OSError) -> int:
    """Writing names no file; what opens or looks at one does."""
    if error.filename is not None:
        say(f"{os.fsdecode(error.filename)}: {error.strerror}")
        return 3
    if error.errno == errno.ENOENT:
        say("the current directory is gone: change to another")
        return 3
    say(f"the output cannot be written: {error.strerror}")
    return 4


def _drop_output() -> None:
    """Or Python complains while it ends of what could not be written."""
    if sys.stdout is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(sentence: str) -> None:
    """On stderr, if there is one: a sentence that nobody can read changes no exit code."""
    if sys.stderr is not None:
        with suppress(OSError):
            lines = "\n".join(visible(line) for line in sentence.split("\n"))
            sys.stderr.write(f"tiered: {lines}\n")


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def lifetime(text: str) -> timedelta:
    """Of 36h and the like."""
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not (number.isascii() and number.isdecimal()):
        raise InvalidRequestError(f"{text!r} is not a lifetime: write a whole number and s, m, h or d, such as 36h")
    try:
        return timedelta(**{unit: int(number)})
    except (OverflowError, ValueError):  # int() itself gives up on thousands of digits
        raise InvalidRequestError(f"{text[:40]!r} is longer than any calendar; leave the lifetime out") from None
