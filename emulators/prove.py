"""Proves a service that this machine can run, and keeps the report: `python -m emulators prove NAME`.

    SERVICES     each service, and the settings of a store that is on it
    keep         docs/services/NAME.json: the report, and who ran it; docs/services.md is made of these (table)

What is not on this machine is `ConfigurationError`, with how to get it. Only asyncio.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from changelog.base.errors import ConfigurationError, InvalidRequestError
from changelog.base.runtime import SystemRuntime
from emulators.gcs.fake_gcs_server import start_fake_gcs
from emulators.gcs.server import GcsEmulator
from emulators.postgres.pooler import pooled
from emulators.postgres.server import SAFE, PostgresNotFoundError, postgres_server
from emulators.s3.ceph import start_ceph
from emulators.s3.servers import CREDENTIALS, REGION, start_minio, start_moto, start_versitygw
from emulators.up import start_emulators
from recovery.prove.probes.bench import Sizes
from recovery.prove.report import ProveReport, ProveVerdict, read
from recovery.prove.run import initial, prove
from tiered.kinds.chosen import provision
from tiered.provision.probes import Result
from tiered.settings import Settings

ROOT = Path(__file__).parents[1]
REPORTS, PAGE = ROOT / "docs" / "services", ROOT / "docs" / "services.md"
BEGIN, END = "<!-- services -->\n", "<!-- end of services -->\n"
BUCKET = "tiered-proved"


@dataclass(frozen=True)
class ProvedService:
    """`shown`: its name. `abouts`: which lines of a report are of it. `start`: a store on it."""

    shown: str
    abouts: frozenset[str]
    start: Callable[[Path], AbstractAsyncContextManager[Settings]]


@asynccontextmanager
async def _directory(at: Path) -> AsyncIterator[Settings]:
    yield Settings(directory=at / "store")


@asynccontextmanager
async def _postgres(at: Path, *, is_pooled: bool = False) -> AsyncIterator[Settings]:
    with postgres_server(SAFE) as server:
        if not is_pooled:
            yield Settings.model_validate({"directory": at / "store", "postgres": {"dsn": server.dsn()}})
            return
        with pooled(server, 10) as port:
            dsn = server.dsn(host_port=f"127.0.0.1:{port}")
            yield Settings.model_validate({"directory": at / "store", "postgres": {"dsn": dsn, "prepared": False}})


@asynccontextmanager
async def _s3(at: Path, start: Callable[[Path], AbstractAsyncContextManager[str]]) -> AsyncIterator[Settings]:
    os.environ.update(CREDENTIALS)
    with postgres_server(SAFE) as server:
        async with start(at) as url:
            bucket = {"bucket": BUCKET, "endpoint": url, "region": REGION, "addressing_style": "path"}
            yield Settings.model_validate({"postgres": {"dsn": server.dsn()}, "s3": bucket})


@asynccontextmanager
async def _gcs(at: Path, start: Callable[[], AbstractAsyncContextManager[str]]) -> AsyncIterator[Settings]:
    with postgres_server(SAFE) as server:
        async with start() as url:
            yield Settings.model_validate({"postgres": {"dsn": server.dsn()}, "gcs": {"bucket": BUCKET, "endpoint": url}})


@asynccontextmanager
async def _our_gcs() -> AsyncIterator[str]:
    async with GcsEmulator() as server:
        yield server.url


@asynccontextmanager
async def _bigtable(at: Path) -> AsyncIterator[Settings]:
    async with start_emulators() as settings:
        yield settings


@asynccontextmanager
async def _moto(at: Path) -> AsyncIterator[str]:
    async with start_moto() as url:
        yield url


_SUITES = {"high_volume": "rows", "changelog": "rows", "long_term": "blobs", "parts": "blobs"}
"""Which contract suites are of which tier."""

_ROWS = frozenset({"rows", "changelog", "settings", "contracts", "kills"})
_BLOBS = frozenset({"blobs", "settings", "contracts", "kills"})
SERVICES: Mapping[str, ProvedService] = {
    "directory": ProvedService("a directory on a disk", _ROWS | _BLOBS, _directory),
    "postgres": ProvedService("PostgreSQL", _ROWS, _postgres),
    "pgbouncer": ProvedService("PostgreSQL behind PgBouncer", _ROWS, partial(_postgres, is_pooled=True)),
    "bigtable-emulator": ProvedService("Google's Bigtable emulator", _ROWS, _bigtable),
    "versitygw": ProvedService("versitygw", _BLOBS, partial(_s3, start=start_versitygw)),
    "minio": ProvedService("MinIO", _BLOBS, partial(_s3, start=start_minio)),
    "ceph": ProvedService("Ceph's gateway", _BLOBS, partial(_s3, start=start_ceph)),
    "moto": ProvedService("moto", _BLOBS, partial(_s3, start=_moto)),
    "gcs-emulator": ProvedService("our GCS emulator", _BLOBS, partial(_gcs, start=_our_gcs)),
    "fake-gcs-server": ProvedService("fake-gcs-server", _BLOBS, partial(_gcs, start=start_fake_gcs)),
}


async def prove_service(name: str, by: str, tell: Callable[[str], None], sizes: Sizes | None = None, into: Path = REPORTS) -> ProveReport:
    """Runs it, tries it, and keeps the report. `name`: of `SERVICES`; for PostgreSQL, its file has the version, too."""
    if name not in SERVICES:
        raise InvalidRequestError(f"{name!r} is no service that this machine can run: give one of {', '.join(SERVICES)}")
    runtime = SystemRuntime()
    with TemporaryDirectory(prefix="tiered-proved-") as at:
        try:
            async with SERVICES[name].start(Path(at)) as settings:
                await provision(settings)  # a problem is for the report
                moment = datetime.fromtimestamp(runtime.wall_ns() / 1e9, UTC).isoformat(timespec="minutes")
                report = initial(settings, version("tiered"), moment)
                await prove(settings, runtime, report, sizes or Sizes(), tell)
        except PostgresNotFoundError as error:
            raise ConfigurationError(str(error)) from error
    keep(name, by, report, into)
    return report


def keep(name: str, by: str, report: ProveReport, into: Path = REPORTS) -> None:
    told = report.services["rows"].get("version", "") if name in ("postgres", "pgbouncer") else ""
    file = f"{name}-{told.rpartition(' ')[2].partition('.')[0]}" if told else name
    into.mkdir(exist_ok=True)
    text = json.dumps({"service": name, "by": by, "report": report.as_json()}, indent=1, ensure_ascii=False)
    (into / f"{file}.json").write_text(f"{text}\n", "utf-8")


_SHORT = {
    ProveVerdict.MAY: "yes", ProveVerdict.MAY_BUT: "yes, with limits", ProveVerdict.UNKNOWN: "not known", ProveVerdict.MUST_NOT: "**no**",
}

# --- the page ----------------------------------------------------------------------------------------


def table(reports: Path = REPORTS) -> str:
    """A row for each report, and below it what does not hold."""
    rows, faults = [], []
    for path in sorted(reports.glob("*.json")):
        said = json.loads(path.read_text("utf-8"))
        service, report = SERVICES[said["service"]], read(json.dumps(said["report"]))
        lines = [
            each for each in report.lines if each.about in service.abouts and _SUITES.get(each.name, each.about) in service.abouts
            and not (each.about == "settings" and each.is_limit)  # of this machine and these settings, and not of the service
        ]
        held, broken, untried = ([each for each in lines if each.result is wanted] for wanted in Result)
        tier = "blobs" if "rows" not in service.abouts else "rows"
        told = report.services[tier].get("version", "not told")
        verdict = _SHORT[replace(report, lines=lines).verdict]
        rows.append(
            f"| [{service.shown}](services/{path.name}) | {told} | {verdict} | {report.at[:10]} | {said['by']} |"
            f" {len(held)} | {len(broken)} | {len(untried)} |\n"
        )
        faults += [f"| {service.shown} | {each.promise} | {'a limit: ' if each.is_limit else ''}{each.cost} |\n" for each in broken]
    head = "| service | what it tells of itself | may it hold a store? | tried on | by | held | not held | not tried |\n"
    head += "|---|---|---|---|---|---|---|---|\n"
    below = "| service | does not keep to this | what is lost |\n|---|---|---|\n"
    return "".join([head, *rows, *(["\n", below, *faults] if faults else [])])


def written(page: str, reports: Path = REPORTS) -> str:
    """The page with the tables of now between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN!r} or {END!r}")
    return f"{before}{begin}\n{table(reports)}\n{end}{after}"


def write_page() -> None:
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")


def say(sentence: str) -> None:
    sys.stderr.write(f"emulators: {sentence}\n")
