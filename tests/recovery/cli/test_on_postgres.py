"""Commands on a store in PostgreSQL that somebody has changed, that is down, or whose role may only read."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.postgres.server import PostgresServer
from tests.conftest import postgres_or_skip
from tests.given.command_line import OBJECT, OWN_PROCESS, Command
from tests.given.fresh_schema import ask
from tests.given.repository import ROOT

pytestmark = pytest.mark.slow


def made(postgres: PostgresServer, directory: Path, *options: str) -> tuple[Command, str]:
    """`tiered` on a new store in a schema of its own, and that schema. The blobs are in a directory."""
    tiered = Command(directory, store=False)
    schema = f"c{ChangeId.new(SystemRuntime()).replace('-', '')}"
    tiered.environment |= {"TIERED_POSTGRES__DSN": postgres.dsn(), "TIERED_POSTGRES__SCHEMA_NAME": schema}
    tiered.environment["TIERED_DIRECTORY"] = str(directory / "blobs")
    tiered("provision", *options, code=range(9))
    return tiered, schema


def test_status_shows_what_is_known_while_the_server_is_down_and_all_once_it_is_back(tmp_path: Path) -> None:
    with postgres_or_skip() as postgres:
        tiered, _ = made(postgres, tmp_path)
        tiered("put", OBJECT, "-", stdin=b"payload")
        postgres.stop()
        command = [sys.executable, *OWN_PROCESS, "status", "--watch", "0.2", "--json"]
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, env=tiered.environment, cwd=tmp_path, text=True)
        assert watching.stdout is not None
        found = json.loads(watching.stdout.readline())
        assert (found["level"], found["away"], found["stuck"]["count"]) == ("unknown", ["changelog", "high-volume tier"], None)
        postgres.start()
        while found["level"] == "unknown":
            found = json.loads(watching.stdout.readline())
        watching.send_signal(signal.SIGTERM)
        watching.communicate(timeout=60)
        assert (found["level"], found["away"], found["stuck"]["count"]) == ("ok", [], 0)


@pytest.mark.usefixtures("without_workers")
def test_an_audit_whose_role_may_only_read_leaves_its_result_after_one_grant(postgres: PostgresServer, tmp_path: Path) -> None:
    """As deploy/README.md says: without it, `status` and the alerts know of no audit, however many there are."""
    role = f"r{ChangeId.new(SystemRuntime()).replace('-', '')}"
    anyio.run(ask, postgres, f"CREATE ROLE {role} LOGIN")
    tiered, schema = made(postgres, tmp_path, "--grant-reader", role)
    tiered("put", OBJECT, "-", stdin=b"payload")
    tiered.environment["TIERED_POSTGRES__DSN"] = postgres.dsn().replace("//tiered@", f"//{role}@")
    audit = ("audit", "run", "--engine", "local", "--parallel", "1", "--insist", "--to")
    tiered(*audit, str(tmp_path / "run-1"))
    assert "audit_not_noted" in tiered.errors and json.loads(tiered("status", "--json", code=range(9)))["audits"] == []
    [grant] = re.findall("`(GRANT .*)`", (ROOT / "deploy/README.md").read_text())
    anyio.run(ask, postgres, grant.replace("tiered.notes", f"{schema}.notes").replace("tiered_audit", role))
    tiered(*audit, str(tmp_path / "run-2"))
    assert [each["state"] for each in json.loads(tiered("status", "--json", code=range(9)))["audits"]] == ["clean"]


def test_the_command_the_store_and_the_daemon_refuse_what_check_refuses(postgres: PostgresServer, tmp_path: Path) -> None:
    tiered, schema = made(postgres, tmp_path)
    (tmp_path / "payload").write_bytes(b"x" * 2_000_000)
    tiered("put", OBJECT, "payload")
    tiered("recover", "--once")
    anyio.run(ask, postgres, f"ALTER TABLE {schema}.rows ENABLE ROW LEVEL SECURITY")
    sentence = f"row-level security of table rows of schema {schema}"
    for command in (("put", OBJECT, "payload"), ("get", OBJECT), ("recover", "--once"), ("recover",), ("ls",)):
        tiered(*command, code=3)
        assert sentence in tiered.errors
    assert sentence in tiered("check", code=3) + tiered.errors
    anyio.run(ask, postgres, f"ALTER TABLE {schema}.rows DISABLE ROW LEVEL SECURITY")
    assert tiered("get", OBJECT) == "x" * 2_000_000
