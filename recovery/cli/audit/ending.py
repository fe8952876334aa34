"""How the commands of `tiered audit` end: exit codes that are verdicts, and errors that are none."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import typer

from changelog.base.errors import ConfigurationError
from changelog.base.extras import installing
from recovery.audit.errors import AuditInterruptedError
from recovery.cli.shared import guard, say

CLEAN, FINDINGS, FAILED, INTERRUPTED = 0, 1, 2, 130
AUDIT_MODULES = ("pyarrow", "jinja2", "markupsafe")
"""What the extra `audit` installs."""


def finish(command: Callable[[], int]) -> None:
    """Runs a command, and ends the program with its exit code. Every error that is no interrupt becomes `FAILED`."""
    def call() -> int:
        try:
            return command()
        except AuditInterruptedError as error:
            say(str(error))
            return INTERRUPTED
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in AUDIT_MODULES:
                raise
            what = f"an audit needs {error.name}: {installing('audit')}; to run on Spark, the extra spark"
            raise ConfigurationError(what) from None

    try:
        code = guard(call, FAILED)
    except Exception:  # noqa: BLE001 (a bug: Python would end with 1, which means findings)
        traceback.print_exc()
        code = FAILED
    raise typer.Exit(code)
