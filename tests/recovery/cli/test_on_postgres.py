"""Commands on a store in PostgreSQL that somebody has changed: what `tiered check` refuses, all others do, too."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.postgres.server import PostgresServer
from tests.given.command_line import OBJECT, Command
from tests.given.fresh_schema import ask

pytestmark = pytest.mark.slow


def test_the_command_the_store_and_the_daemon_refuse_what_check_refuses(postgres: PostgresServer, tmp_path: Path) -> None:
    tiered = Command(tmp_path, store=False)
    schema = f"c{ChangeId.new(SystemRuntime()).replace('-', '')}"
    tiered.environment |= {"TIERED_POSTGRES__DSN": postgres.dsn(), "TIERED_POSTGRES__SCHEMA_NAME": schema}
    tiered.environment["TIERED_DIRECTORY"] = str(tmp_path / "blobs")
    tiered("provision", code=range(9))
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
