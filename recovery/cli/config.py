"""`tiered config show`: the settings that apply, and where each comes from."""

from __future__ import annotations

import typer

from recovery.cli.output import PrintedTable, dump, plain, write
from recovery.cli.shared import choice, run_async, shared

config_app = typer.Typer(help="The settings.", no_args_is_help=True)


@config_app.callback()
@shared
def choose_config() -> None:
    """The settings."""


@config_app.command("show")
@shared
def config_show() -> None:
    """Prints the settings that apply, where each comes from, and no secrets."""

    async def command() -> None:
        shown = choice.settings().shown()
        if choice.json:
            write(dump(shown))
            return
        table = PrintedTable(("setting", "value", "from"))
        table.add([(key, plain(each["value"]), str(each["from"])) for key, each in shown.items()])

    run_async(command)
