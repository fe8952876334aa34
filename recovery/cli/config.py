"""`tiered config show`: the settings that apply, and where each comes from."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from recovery.cli.output import PrintedTable, dump, plain, write
from recovery.cli.shared import choice, run_async, say, shared

config_app = typer.Typer(help="The settings.", no_args_is_help=True)


@config_app.callback()
@shared
def choose_config() -> None:
    """The settings."""


@config_app.command("show")
@shared
def config_show(all_of_them: Annotated[bool, typer.Option("--all", help="Also what is for tuning and has its default.")] = False) -> None:
    """Prints the settings that apply, where each comes from, and no secrets. JSON has all of them."""

    async def command() -> None:
        settings = choice.settings()
        shown = settings.shown()
        if choice.json:
            write(dump(shown))
            return
        hidden = set() if all_of_them else {key for key in settings.tuning() & shown.keys() if shown[key]["from"] == "default"}
        table = PrintedTable(("setting", "value", "from"))
        table.add([(key, plain(each["value"]), str(each["from"])) for key, each in shown.items() if key not in hidden])
        if hidden:
            sys.stdout.flush()  # where the output cannot be written, that is all there is to say
            say(f"{len(hidden)} settings for tuning have their defaults and are not shown; --all shows them")

    run_async(command)
