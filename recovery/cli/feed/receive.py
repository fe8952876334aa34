"""`tiered feed receive`: keeps the files of a change feed that a writer sends by HTTP PUT (`recovery.http.receiver`).

*Crash*: what was acknowledged is there; the writer sends the rest again. *Failure*: a port that is taken ends the
command with one sentence. A directory that is foreign or full is told to the writer, which goes on trying.
"""

from __future__ import annotations

import re
import signal
import sys
from typing import Annotated

import anyio
import typer

from changelog.base.errors import ConfigurationError, InvalidRequestError
from changelog.base.extras import installing
from changelog.base.runtime import SystemRuntime
from recovery.cli.output import dump, write
from recovery.cli.shared import choice, run_async, shared, stay
from tiered.text import refuse_password
from tiered.whose import refuse_store

PORT = 9465
UPLOAD_S = 300.0
"""A connection lives at most so long, so a file must have come by then."""
_ADDRESS = re.compile(r"(?:(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\]):)?(?P<port>[0-9]{1,5})")


@shared
def receive(
    into: Annotated[str, typer.Argument(metavar="DIR", help="Where the files are kept. It is made if its parent is there.")],
    listen: Annotated[str, typer.Option("--listen", metavar="[HOST:]PORT", help=(
        "Where to listen; without a host: 127.0.0.1. There is no password: everybody who reaches it may write."
    ))] = f"127.0.0.1:{PORT}",
    bytes_max: Annotated[int, typer.Option("--bytes-max", min=1, metavar="BYTES", help="A larger file is refused.")] = 64 * 2**20,
) -> None:  # fmt: skip
    """Takes the files of a change feed by HTTP PUT, keeps them durably, and shows them again, until Ctrl-C."""

    async def command() -> None:
        try:
            from recovery.http.receiver import make_receiver
            from recovery.http.server import bound_to, names_of, run_uvicorn, url_of
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"to receive a feed, {error.name} is needed: {installing('daemon')}") from None
        host, port = _address(listen)
        if not into.strip():
            raise InvalidRequestError("DIR is empty: give a directory")
        refuse_password("the directory", into)
        refuse_store(into)
        with bound_to(host, port, "--listen", "--listen") as bound, anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            app = make_receiver(into, SystemRuntime(), names_of(bound, host), bytes_max)
            url = url_of(bound)
            write(dump({"url": url, "directory": into}) if choice.json else f"files sent to {url} are kept in {into}")
            sys.stdout.flush()  # whoever started this waits for the address
            stay()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run_uvicorn, app, bound, UPLOAD_S)
                async for _ in signals:
                    break
                tasks.cancel_scope.cancel()

    run_async(command)


def _address(text: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise InvalidRequestError(f"--listen is {text!r}: give a port, or an address and a port such as 127.0.0.1:{PORT}")
    return (found["host"] or "127.0.0.1").strip("[]"), int(found["port"])
