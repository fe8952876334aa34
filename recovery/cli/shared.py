"""What all commands share: their options, where their settings come from, how they end.

    shared       adds the options that every command takes, both before and after its name
    choice       what these options said; a command reads its settings from it when it needs them
    run_async    runs a command
    guard        turns an error into one sentence on stderr and an exit code; a bug stays a traceback
"""

from __future__ import annotations

import errno
import gc
import inspect
import logging
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.events import events
from changelog.base.extras import installing
from recovery.cli.output import dump, write
from recovery.display import escape_controls
from recovery.logs import is_json
from recovery.typed_commands import with_typed
from tiered.errors import ConditionFailedError, DanglingTombstoneError, OutcomeUnknownError
from tiered.settings import BLOB_SECTIONS, DATABASE_NAME, ENV_CONFIG, ENV_PREFIX, ROW_SECTIONS, Settings, load_settings

EXIT_CODES: tuple[tuple[type[TieredError], int], ...] = (
    (UnavailableError, 4), (InvalidRequestError, 3), (OutcomeUnknownError, 5), (UnconfirmedError, 5),
    (CorruptRecordError, 6), (DanglingTombstoneError, 6), (ConditionFailedError, 7),
)
GCP_MODULES = ("google", "grpc", "aiohttp")
"""What the extra `gcp` installs."""

OF_SERVICES = tuple(f"{ENV_PREFIX}{section.upper()}__" for section in (*ROW_SECTIONS, *BLOB_SECTIONS))
"""How variables begin that name a store outside of a directory, or a part of one."""


class AbsentError(Exception):
    """There is no such object or entry."""


class Choice:
    """What the shared options said, before or after a command's name. `json`: results are printed as JSON."""

    config: Path | None = None
    directory: Path | None = None
    json: bool = False
    verbose: bool = False

    def add(self, config: list[str] | None, directory: list[str] | None, verbose: bool, as_json: bool) -> None:
        """Takes in what one place of the command line says. Raises `typer.BadParameter` if two places contradict."""
        self.config = _one("--config", self.config, config)
        self.directory = _one("--directory", self.directory, directory)
        if self.config is not None and self.directory is not None:
            raise typer.BadParameter("give either --config or --directory, not both")
        self.json = self.json or as_json
        self.verbose = self.verbose or verbose
        if verbose:
            logging.getLogger().setLevel(logging.INFO)

    def settings(self) -> Settings:
        """Returns the settings of a store that need not exist yet. Raises `ConfigurationError`."""
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
        """Returns the settings of a store that must exist. Raises `ConfigurationError`.

        Without this, a command that reads would make a store in a directory whose name was mistyped.
        """
        settings = self.settings()
        if settings.directory is None or not settings.embedded:
            return settings
        where = settings.directory
        try:
            found = (where / DATABASE_NAME).exists()
        except OSError as error:
            raise ConfigurationError(f"{where} cannot be looked into: {error.strerror}") from None
        if not found:
            raise ConfigurationError(f"there is no store in {where}; check the directory, or put something first")
        return settings


    def again(self, *, absolute: bool = False) -> tuple[str, ...]:
        """Returns how a command begins that means the same store. `absolute`: also in another working directory."""
        for option, path in (("-d", self.directory), ("-c", self.config)):
            if path is not None:
                return "tiered", option, str(path.absolute() if absolute else path)
        return ("tiered",)

    def typed(self) -> str:
        """Returns how a command begins that means the same store in this shell, quoted for it."""
        return shlex.join(self.again())

    def typed_anywhere(self, settings: Settings) -> str:
        """Returns how a command begins that means the store of these settings in any shell, if one line can say that.

        Settings of services that only the environment has cannot be said: there it is `tiered` alone.
        """
        named = os.environ.get(ENV_CONFIG)
        if self.directory is None and (config := self.config or (Path(named) if named else None)) is not None:
            words = shlex.join(("tiered", "-c", str(config.absolute())))
            # A directory in that file may be relative, which is not known any more.
            return words if settings.directory is None else f"cd {shlex.quote(str(Path.cwd()))} && {words}"
        if settings.directory is None or not settings.embedded:
            return "tiered"
        return shlex.join(("tiered", "-d", str(settings.directory)))


choice = Choice()


def _one(option: str, known: Path | None, said: list[str] | None) -> Path | None:
    """Returns the path that an option gave. It may be given several times, but must be the same each time."""
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
    """Refuses to choose between two stores: the command could delete from the wrong one. Raises `ConfigurationError`.
    """
    named = f"{ENV_PREFIX}DIRECTORY"
    if (other := os.environ.get(named)) and not _same(directory, other):
        raise ConfigurationError(f"--directory {directory} and {named} {other} name two stores: leave one out")
    if section := next((name for name in sorted(os.environ) if name.startswith(OF_SERVICES) and os.environ[name]), None):
        raise ConfigurationError(f"--directory {directory} names an embedded store, and {section} one in a service: leave one out")


# --- options ---------------------------------------------------------------------------------------


def _options(
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="FILE", help="The settings (YAML); by default what TIERED_CONFIG names.")
    ] = None,
    directory: Annotated[
        list[str] | None, typer.Option("--directory", "-d", metavar="DIR", help="Instead of settings: an embedded store in this directory.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what happens.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> dict[str, Any]:
    choice.add(config, directory, verbose, as_json)
    return {}


_SHARED = inspect.signature(_options, eval_str=True).parameters


def with_options(
    call: Callable[..., None], options: Mapping[str, inspect.Parameter], take: Callable[..., dict[str, Any]]
) -> Callable[..., None]:
    """Adds options to a command's function. `take`: gets their values, and returns what the function gets of them."""

    @wraps(call)
    def command(**values: Any) -> None:
        taken = take(**{name: values.pop(name) for name in options})
        call(**values, **taken)

    signature = inspect.signature(call, eval_str=True)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = signature.replace(parameters=[*own, *options.values()])  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in (*own, *options.values())}
    return command


def shared(call: Callable[..., None]) -> Callable[..., None]:
    """Adds the shared options to a command's function, or to the callback of a group of commands."""
    return with_options(call, _SHARED, _options)


# --- commands that stay ------------------------------------------------------------------------------

GARBAGE_OFTEN = (700, 10, 10)
"""Python's own thresholds of the garbage collector."""


def stay() -> None:
    """Call it in a command that runs until it is stopped, once it has begun.

    `main` lets the garbage collector run seldom, for commands that end soon. An idle daemon then kept what cycles hold
    (errors and their frames) for an hour and longer, and grew by 0.13 MiB a minute. What is imported stays for good, so
    it is not searched any more.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE_OFTEN)


@contextmanager
def guarded_packages() -> Iterator[None]:
    """Says what to install if a package of the extra `audit` is missing that is imported in this block."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"this needs {error.name}: {installing('audit')}") from None


# --- ends ------------------------------------------------------------------------------------------


def run_async(command: Callable[[], Awaitable[None]]) -> None:
    """Runs a command, and ends the program with its exit code: 0, or what `guard` makes of its error."""
    def call() -> int:
        anyio.run(command)
        return 0

    raise typer.Exit(guard(call))


def guard(call: Callable[[], int], failed: int | None = None) -> int:
    """Calls, and turns an error into one sentence on stderr and an exit code. Returns the exit code.

    `failed`: this exit code for every error, also where nobody reads the output to its end. `tiered audit` needs it:
    its exit codes 0 and 1 are verdicts.
    """
    code = _code_of(call, failed)
    try:
        _flush()
    except OSError:  # something else went wrong before, and its exit code says more
        _drop_output()
    return code


def _code_of(call: Callable[[], int], failed: int | None) -> int:
    try:
        code = call()
        _flush()
        return code
    except AbsentError as error:
        say(str(error))
        return failed or 1
    except TieredError as error:
        if isinstance(error, ConditionFailedError) and choice.json:
            with suppress(OSError):
                write(dump({"object": str(error.object_id), "changed": False, "revision": error.revision}))
        say(str(error))
        return failed or next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 4)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in GCP_MODULES:
            raise
        say(f"Bigtable and GCS need {error.name}; install it with: {installing('gcp')}")
        return failed or 3
    except BrokenPipeError:
        _drop_output()
        if failed is not None:
            say("nobody read the output to its end")
        return failed or 0
    except OSError as error:
        code = _exit_for(error, is_of_output=failed is None or _is_output_full())
        _drop_output()
        return failed or code
    except KeyboardInterrupt:
        os._exit(130)  # at once: a thread may still wait for stdin


def _is_output_full() -> bool:
    """Tells whether stdout is why a call failed: then it still holds what it could not write."""
    try:
        _flush()
    except (OSError, ValueError):
        return True
    return sys.stdout is None


def _exit_for(error: OSError, *, is_of_output: bool) -> int:
    """Says what failed. An error that names a file comes from opening it or looking at it.

    `is_of_output`: one that names none is of stdout. Otherwise nobody knows of what it is.
    """
    if error.filename is not None:
        say(f"{os.fsdecode(error.filename)}: {error.strerror}")
        return 3
    if error.errno == errno.ENOENT:
        say("the current directory is gone: change to another")
        return 3
    what = "the output cannot be written" if is_of_output else "the system refused a call, and did not say for which file"
    say(f"{what}: {error.strerror or error}")
    return 4


def _flush() -> None:
    if sys.stdout is not None:  # None: it was closed before this program began
        sys.stdout.flush()


def _drop_output() -> None:
    """Sends the rest of the output to /dev/null. Otherwise Python reports at its end that it could not be written."""
    if sys.stdout is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(sentence: str) -> None:
    """Prints a sentence on stderr. If that fails, nothing happens: the exit code stays as it is.

    Where stderr has JSON lines, the sentence is one, too. Quoted commands are shown as they are typed for this store.
    """
    sentence = with_typed(sentence, choice.typed())
    if is_json():
        events.error("command_ended", sentence)
        return
    if sys.stderr is not None:
        with suppress(OSError):
            lines = "\n".join(escape_controls(line) for line in sentence.split("\n"))
            sys.stderr.write(f"tiered: {lines}\n")


def say_cut(limit: int) -> None:
    """Says that `--limit` cut a list."""
    say(f"there are more than --limit {limit}")


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def lifetime(text: str) -> timedelta:
    """Returns the duration that a text such as `36h` says. Raises `InvalidRequestError`."""
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not (number.isascii() and number.isdecimal()):
        raise InvalidRequestError(f"{text!r} is not a lifetime: write a whole number and s, m, h or d, such as 36h")
    try:
        return timedelta(**{unit: int(number)})
    except (OverflowError, ValueError):  # int() raises ValueError at thousands of digits
        raise InvalidRequestError(f"{text[:40]!r} is longer than any calendar; leave the lifetime out") from None
