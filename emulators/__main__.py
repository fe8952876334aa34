"""Commands to develop with: `python -m emulators up`, `python -m emulators demo`, `python -m emulators prove`.

    up      starts both emulators (`emulators.up`), or a PostgreSQL and an S3 server (`emulators.up_servers`), makes
            what a store needs in them, and stays until it is interrupted. Once both serve, stdout gets a line for each
            variable that leads a store there, such as `BIGTABLE_EMULATOR_HOST=…`; everything else goes to stderr
    demo    kills writers in the middle of their work, recovers, and checks that nothing was lost (`emulators.demo`)
    prove   tries a service that this machine can run as `tiered prove` does, and keeps the report for docs/services.md
            (`emulators.prove`)

Exit codes: 0 done (`up`: after SIGINT or SIGTERM); 1 the demo's check found something; 2 the command line is wrong;
3 it cannot run, and one sentence says why; 130 the demo was interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from changelog.base.errors import TieredError

if TYPE_CHECKING:
    from tiered.settings import Settings

    Start = Callable[..., AbstractAsyncContextManager[Settings]]
    Variables = Callable[[Settings], Mapping[str, str]]

EXTRAS = {
    "google": "gcp", "grpc": "gcp", "aiohttp": "gcp", "multidict": "gcp", "rich": "daemon", "asyncpg": "postgres", "aiobotocore": "s3",
    "botocore": "s3", "google_crc32c": "s3",
}
"""The extra that installs a module."""

PORTS = {"emulators": ("bigtable_port", "gcs_port"), "postgres+s3": ("postgres_port", "s3_port")}
"""The backends of `up`, and the ports that may be chosen of each."""


def main() -> int:
    """Runs what the command line says, and returns the exit code."""
    given = _parser().parse_args()
    logging.basicConfig(level=logging.INFO if given.verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    try:
        return {"demo": _demo, "up": _up, "prove": _prove}[given.command](given)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name.partition(".")[0]) if error.name is not None else None
        if extra is None:
            raise
        what = "the demo needs" if given.command == "demo" else "the emulators need"
        return _failed(f"{what} {error.name}; install it with: pip install '.[{extra}]' in the checkout")


def _up(given: argparse.Namespace) -> int:
    from tiered.settings import load_settings

    if others := [each for ports in PORTS.values() for each in ports if getattr(given, each) and each not in PORTS[given.backend]]:
        _parser().error(f"--{others[0].replace('_', '-')} is no port of --backend {given.backend}: leave it out, or name the other backend")
    ports = {each: getattr(given, each) for each in PORTS[given.backend]}
    sentences: list[str] = []
    try:
        start, variables, names = _services(given.backend)
        started = partial(start, load_settings(given.config) if given.config else names, **ports)
        anyio.run(_serve_until_signal, started, variables, backend="asyncio")
    except* TieredError as failed:
        sentences = [str(error) for error in _leaves(failed)]
    return _failed("; ".join(sentences)) if sentences else 0


def _services(backend: str) -> tuple[Start, Variables, Settings]:
    """Returns what starts the services, what leads a store to them, and their names unless settings give others."""
    if backend == "emulators":
        from emulators import up

        return up.start_emulators, up.variables, up.BUILT_IN
    from emulators import up_servers

    return up_servers.start_servers, up_servers.variables, up_servers.SERVED


async def _serve_until_signal(started: Start, variables: Variables) -> None:
    """Starts both, prints what leads a store there, and waits for SIGINT or SIGTERM. At its end both have ended."""

    async def serve() -> None:
        async with started() as at:
            sys.stdout.write("".join(f"{name}={value}\n" for name, value in variables(at).items()))
            sys.stdout.flush()
            sys.stderr.write("emulators: both are up, and forget everything when they are stopped (Ctrl-C)\n")
            await anyio.sleep_forever()

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await anext(signals)
            tasks.cancel_scope.cancel()


def _prove(given: argparse.Namespace) -> int:
    from emulators.prove import SERVICES, prove_service, say, write_page

    try:
        for name in given.name or ():
            report = anyio.run(prove_service, name, given.by, say, backend="asyncio")
            say(f"{SERVICES[name].shown}: {report.sentence()}")
        write_page()
    except TieredError as error:
        return _failed(str(error))
    return 0


def _demo(given: argparse.Namespace) -> int:
    from emulators.demo.command import DemoOptions, run_demo

    try:
        options = DemoOptions(
            writers=given.writers, daemons=given.daemons, seconds=given.seconds, seed=given.seed, objects=given.objects,
            directory=given.directory, unfenced=given.unfenced, backend=given.backend, audit=given.audit,
            soak=given.soak, beside=given.beside,
        )
        return run_demo(options, given.json)
    except TieredError as error:
        return _failed(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        return _failed(f"{os.fsdecode(error.filename)}: {error.strerror}")
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m emulators", description="Emulators of Bigtable and GCS to develop against, and the demo.")
    commands = parser.add_subparsers(required=True, dest="command", metavar="{up,demo,prove}")
    up = commands.add_parser("up", help="start two services, make what a store needs, print their addresses, and stay until interrupted")
    up.add_argument("--backend", choices=tuple(PORTS), default="emulators", help="default: emulators (of Bigtable and GCS)")
    up.add_argument("--config", "-c", type=Path, help="settings file whose names are used (default: as in deploy/emulators.yaml, or "
                    "deploy/postgres-s3.yaml)")
    for port in (each for ports in PORTS.values() for each in ports):
        up.add_argument(f"--{port.replace('_', '-')}", type=_port, default=0, help="default: any free one")
    demo = commands.add_parser("demo", help="kill writers in the middle of their work, recover, and check that nothing was lost")
    demo.add_argument("--seconds", type=float, default=20.0, help="how long the writers write (default: 20)")
    demo.add_argument("--writers", type=int, default=4, help="writer processes (default: 4)")
    demo.add_argument("--daemons", type=int, default=2, help="recovery daemons (default: 2)")
    demo.add_argument("--objects", type=int, default=200, help="how many objects all writers share (default: 200)")
    demo.add_argument("--seed", type=int, help="of operations and payloads (default: a new one, which is printed)")
    demo.add_argument("--backend", default="embedded", help="embedded, emulators (of Bigtable and GCS), or postgres+s3 (default: embedded)")
    demo.add_argument("--unfenced", action="store_true", help="for comparison: run the protocol without its fence, and see what it loses")
    demo.add_argument(
        "--beside", metavar="CODE", help="every other process runs the wheel of `released`, the last release, or of this commit",
    )
    demo.add_argument(
        "--soak", action="store_true", help="spare a writer and a daemon: they must not grow, and the status must be true all along",
    )
    demo.add_argument(
        "--audit", action=argparse.BooleanOptionalAction, default=True,
        help="at the end, audit what is left, after something was planted for it to find (default: yes)",
    )
    demo.add_argument("--directory", "-d", type=Path, help="a new or empty one, which is kept (default: a temporary one)")
    demo.add_argument("--json", action="store_true", help="print a JSON report on stdout, and the rest on stderr")
    prove = commands.add_parser("prove", help="try services that this machine can run, keep the reports, and write docs/services.md")
    prove.add_argument("name", nargs="*", metavar="NAME", help="of emulators/prove.py, such as postgres (default: only write the page)")
    prove.add_argument("--by", default="this project", help="who runs it, as the page tells it (default: this project)")
    for command in (up, demo, prove):
        command.add_argument("--verbose", "-v", action="store_true", help="say on stderr what happens")
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 (any free one) to 65535")
    return int(text)


def _leaves(group: BaseExceptionGroup[TieredError]) -> Iterator[TieredError]:
    for error in group.exceptions:
        yield from _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]


def _failed(sentence: str) -> int:
    sys.stderr.write(f"emulators: {sentence}\n")
    return 3


if __name__ == "__main__":
    sys.exit(main())
