"""The list of commands, and how the command line ends.

Every command has `--json`. Results go to stdout, everything else goes to stderr. An error is one sentence that says
what to do. With `--json`, a condition that does not hold also prints on stdout which revision was found. The options
`--config`, `--directory`, `--json` and `--verbose` may stand before or after a command's name.

`exit_codes.py` has the exit codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from recovery.cli.exit_codes import finish_help
from recovery.cli.output import write
from recovery.cli.shared import guard, say, shared
from recovery.logs import write_to_stderr

COMMANDS = (
    "put", "get", "head", "rm", "ls", "sync", "cp", "mv", "update-metadata", "set-expiry", "status", "recover", "provision", "check",
    "prove", "hand-back", "backup", "log", "audit", "feed", "export", "import", "config",
)
"""The commands and groups of commands, in the order in which --help lists them."""


def _load(name: str) -> Callable[..., None] | typer.Typer:
    """Imports a command, or a group of commands, and nothing of the others."""
    match name:
        case "put" | "get" | "head" | "rm" | "ls":
            from recovery.cli import objects

            return cast(Callable[..., None], getattr(objects, name))
        case "sync":
            from recovery.cli.syncing import sync

            return sync
        case "cp" | "mv" | "update-metadata" | "set-expiry":
            from recovery.cli import rewriting

            return cast(Callable[..., None], getattr(rewriting, name.replace("-", "_")))
        case "status":
            from recovery.cli.status import status

            return status
        case "recover":
            from recovery.cli.recover import recover

            return recover
        case "prove":
            from recovery.cli.prove import prove

            return prove
        case "provision" | "check" | "hand-back":
            from recovery.cli import deployment

            return cast(Callable[..., None], getattr(deployment, name.replace("-", "_")))
        case "backup":
            from recovery.cli.backup import backup

            return backup
        case "log":
            from recovery.cli.log_commands import log_app

            return log_app
        case "audit":
            from recovery.cli.audit.commands import audit_app

            return audit_app
        case "feed":
            from recovery.cli.feed.commands import feed_app

            return feed_app
        case "export":
            from recovery.cli.export import export_app

            return export_app
        case "import":
            from recovery.cli.syncing import import_

            return import_
        case "config":
            from recovery.cli.config import config_app

            return config_app
    raise KeyError(name)


class _Commands(Mapping[str, Any]):
    """The commands, as typer wants them. Each is imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        found = _load(name)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            alone.command(name)(found)
            return finish_help(typer.main.get_command(alone), name)
        group = typer.main.get_group(found)
        group.name = name
        return finish_help(group, name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(TyperGroup):
    def __init__(self, **said: Any) -> None:
        super().__init__(**said)
        self.commands: Any = _Commands()
        finish_help(self)


app = typer.Typer(
    cls=_Group, help="A blob store over two tiers. When a write has returned, it survives a kill.", no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        write(f"tiered {version('tiered')}")
        raise typer.Exit


@app.callback()
@shared
def choose(
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Settings come from --config, or from --directory alone; TIERED_… variables go over them."""


def run() -> int:
    """Runs what the command line says, and returns the exit code."""
    write_to_stderr()
    return guard(_parse)


def _parse() -> int:
    try:
        return app(standalone_mode=False, prog_name="tiered") or 0
    except SystemExit:  # rich ends the program like this where nobody reads the help
        raise BrokenPipeError from None
    except Exception as error:
        if not (hasattr(error, "format_message") and hasattr(error, "ctx")):
            raise
        if sentence := error.format_message():  # empty where no command was given: the help was printed instead
            where = error.ctx.command_path if error.ctx is not None else "tiered"
            say(f"{sentence}{'' if sentence.endswith(('.', '?')) else '.'} See '{where} --help'.")
        return 2
