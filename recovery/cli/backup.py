"""`tiered backup`: a copy of an embedded store that is in use, as it was at one moment.

*Crash* and *failure*: as in `recovery.backup`; the same command begins anew. The main thread copies, so that
Ctrl-C leaves nothing either.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from recovery.cli.output import dump, write
from recovery.cli.shared import choice, guard, shared


@shared
def backup(
    into: Annotated[Path, typer.Argument(metavar="INTO", help="A new directory, on the file system of the store.")],
) -> None:
    """Copies an embedded store while it is in use, as it was at one moment. Blobs are hard links, and take no space.

    Writers wait meanwhile, less than a second for 100,000 blobs. Copy INTO to another machine then, and remove it: on
    the same disk it protects against nothing.
    """

    def command() -> int:
        from recovery.backup import back_up
        from tiered.embedded.blobs import refuse_if_gone
        from tiered.open import open_backends

        settings, runtime = choice.existing(), SystemRuntime()
        if not settings.embedded or (directory := settings.directory) is None:
            raise ConfigurationError("only a store in a directory is copied like this; services have backups of their own")

        async def look() -> None:
            """What cannot be opened, such as a newer version's, is not copied: it may have more than is known here."""
            async with open_backends(settings, runtime, writes=False) as backends:
                await refuse_if_gone(directory, backends.tiers.high_volume, empty=True)

        anyio.run(look)
        waited_s = back_up(directory, into, runtime)
        if choice.json:
            write(dump({"backup": str(into), "writers_waited_s": round(waited_s, 3)}))
        else:
            write(f"{into} is complete; writers waited for {waited_s:.2f} s")
        return 0

    raise typer.Exit(guard(command))
