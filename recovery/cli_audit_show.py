"""`tiered audit show NAME`: all that is known about one object or blob, now.

Exit codes: 0 nothing is wrong with it, 1 something shown is a finding, 2 it could not be told.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated

import anyio
import typer

from changelog.runtime import SystemRuntime
from recovery.audit.manifest import Cutoff
from recovery.audit.show import Looked, Told, as_json, lines, look_at, told_by
from recovery.audit.sweep import READ_BUDGET_S
from recovery.cli_shared import Json, choice, lifetime
from tiered.compose import open_backends
from tiered.errors import ConfigurationError
from tiered.retry import ask
from tiered.settings import Settings

NOTHING_WRONG, A_FINDING = 0, 1
GRACE = "24h"

Name = Annotated[str, typer.Argument(metavar="NAME", help="An object's path, or a blob's name.")]
From = Annotated[str | None, typer.Option("--from", metavar="RUN", help="The directory of a run: what it found is shown, too.")]
Grace = Annotated[str | None, typer.Option(help="What is younger is not called an orphan; by default that of the run, or 24h.")]


def register(app: typer.Typer, finish: Callable[[Callable[[], int]], None]) -> None:
    """Adds the command; `finish` ends it with what it returns, or with an error's sentence and exit code."""

    @app.command()
    def show(name: Name, run: From = None, grace: Grace = None, as_json: Json = False) -> None:
        """Shows all that is known about one object or blob, now: its row, blobs, entries of the changelog, verdicts."""

        def command() -> int:
            settings = choice.existing()
            told = None if run is None else _told(run, name, settings)
            grace_s = told.grace_s if told is not None and grace is None else lifetime(grace or GRACE).total_seconds()
            looked = anyio.run(_look, settings, name, grace_s)
            show_looked(looked, told, as_json)
            return A_FINDING if looked.findings else NOTHING_WRONG

        finish(command)


def show_looked(looked: Looked, told: Told | None, to_json: bool) -> None:
    if to_json:
        typer.echo(json.dumps(as_json(looked, told), ensure_ascii=False))
        return
    for line in lines(looked, told):
        typer.echo(line)


async def _look(settings: Settings, name: str, grace_s: float) -> Looked:
    runtime = SystemRuntime()
    async with open_backends(settings, runtime) as backends:
        as_of_ns = await ask(backends.tiers.long_term.now_ns, runtime, READ_BUDGET_S)
        return await look_at(backends, name, settings, Cutoff(as_of_ns=as_of_ns, grace_s=grace_s), runtime)


def _told(where: str, name: str, settings: Settings) -> Told:
    from recovery.audit.ledger import RunDirectory  # needs Arrow
    from recovery.audit.plan import check_same, inputs_of

    directory = RunDirectory.open(where)
    manifest = directory.read_manifest()
    if manifest is None:
        raise ConfigurationError(f"{directory.uri} holds no run of an audit: give the directory that `tiered audit run` named")
    check_same(manifest.inputs, inputs_of(settings), directory.uri)
    return told_by(directory, manifest, name)
