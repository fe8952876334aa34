"""`python -m emulators up`: both emulators, provisioned, until they are interrupted. See `emulators.up`.

stdout gets two lines, `BIGTABLE_EMULATOR_HOST=…` and `STORAGE_EMULATOR_HOST=…`, once both serve; everything else goes to stderr.
Exit codes: 0 after SIGINT or SIGTERM; 2 the command line is wrong; 3 the emulators could not be had, in one sentence.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio

from changelog.base.errors import TieredError

GCP_MODULES = ("google", "grpc", "aiohttp", "multidict")


def main() -> int:
    """Parses the command line and runs it."""
    given = _parser().parse_args()
    try:
        from emulators.up import BUILT_IN, run
        from tiered.settings import load_settings
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in GCP_MODULES:
            raise
        return _failed(f"the emulators need {error.name}; install it with: pip install 'tiered[gcp]'")
    sentences: list[str] = []
    try:
        names = load_settings(given.config) if given.config else BUILT_IN
        anyio.run(run, names, given.bigtable_port, given.gcs_port, backend="asyncio")
    except* TieredError as failed:
        sentences = [str(error) for error in _leaves(failed)]
    return _failed("; ".join(sentences)) if sentences else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m emulators", description="Emulators of Bigtable and GCS to develop against.")
    up = parser.add_subparsers(required=True, metavar="up").add_parser(
        "up", help="start both, make tables and bucket, print their addresses, and stay until interrupted"
    )
    up.add_argument("--config", "-c", type=Path, help="settings file whose names are used (default: as in deploy/emulators.yaml)")
    up.add_argument("--bigtable-port", type=_port, default=0, help="default: any free one")
    up.add_argument("--gcs-port", type=_port, default=0, help="default: any free one")
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
