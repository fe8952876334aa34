"""`python -m emulators up --backend postgres+s3` and `start_servers`: both servers, provisioned, and nothing left."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import anyio
import pytest

from changelog.base.errors import ConfigurationError
from emulators.lacking import lacking
from emulators.ports import free_port
from emulators.up_servers import SERVED, start_servers, variables
from tests.given.repository import ROOT
from tests.given.services_up import children, comes_true, is_alive, is_open, up
from tiered import ObjectId, open_storage
from tiered.kinds.chosen import inspect
from tiered.provision.findings import problems
from tiered.settings import Settings, load_settings

pytestmark = pytest.mark.asyncio

ON_SERVERS = ("--backend", "postgres+s3")
LINES = 4
CONFIG = ROOT / "deploy" / "postgres-s3.yaml"


@pytest.fixture(autouse=True)
def _servers_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both can be had here, or the test is skipped; where CI is set, it fails. No variable leads to others."""
    if missing := [each for each in lacking() if each.startswith(("no versitygw", "no PostgreSQL"))]:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("; ".join(missing))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def directories_of(processes: list[int]) -> set[Path]:
    """Those that their command lines name."""
    told = " ".join(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in processes)
    return {Path(found) for found in re.findall(r"(?:/[\w.-]+)*/tiered-(?:pg|s3)-\w+", told)}


async def test_what_it_prints_is_all_that_the_command_needs_and_a_signal_ends_both_and_leaves_nothing() -> None:
    async with up(*ON_SERVERS, lines=LINES) as started:
        assert list(started.variables) == [*variables(SERVED)]
        theirs = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
        own = theirs | started.variables | {"TIERED_CONFIG": "deploy/postgres-s3.yaml", "PYTHONPATH": str(ROOT)}
        for command in (["check"], ["put", "notes/objects/readme", "README.md"], ["ls"], ["recover", "--once"]):
            done = await anyio.run_process([sys.executable, "-m", "tiered", *command], cwd=ROOT, env=own, check=False)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        left = children(started.running.pid)
        assert left and len(started.ports) == 2
        directories = directories_of(left)
        assert len(directories) == 2 and all(each.is_dir() for each in directories)
        started.running.terminate()
        code, rest, said = await started.end()
        assert (code, rest) == (0, "") and "Traceback" not in said
        assert not any(map(is_open, started.ports)) and not any(map(is_alive, left))
    assert not any(each.exists() for each in directories)


async def test_killed_it_leaves_no_server_either() -> None:
    async with up(*ON_SERVERS, lines=LINES) as started:
        left = children(started.running.pid)
        started.running.kill()
        await started.running.wait()
        assert await comes_true(lambda: not any(map(is_alive, left)) and not any(map(is_open, started.ports)))


async def test_ports_and_names_are_those_that_are_asked_for_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    postgres, s3 = free_port(), free_port()
    (tmp_path / "names.yaml").write_text(
        "postgres: {dsn: 'postgresql://of-another@db/other', schema_name: mine}\n"
        "s3: {bucket: of-mine, region: us-east-1, addressing_style: path}\n"
    )
    ports = ("--postgres-port", str(postgres), "--s3-port", str(s3))
    async with up(*ON_SERVERS, *ports, "--config", str(tmp_path / "names.yaml"), lines=LINES) as started:
        assert started.ports == [postgres, s3]
        started.running.send_signal(signal.SIGINT)
        assert (await started.end())[0] == 0


async def test_a_context_starts_both_and_ends_them() -> None:
    async with start_servers() as settings:
        assert problems(await inspect(settings)) == []
        async with open_storage(settings) as storage:
            large = ObjectId.create("notes", "large")
            await storage.put(large, b"x" * 3_000_000)
            assert (stored := await storage.get(large)) is not None and len(await stored.read()) == 3_000_000
    assert "AWS_ACCESS_KEY_ID" not in os.environ


async def test_a_store_elsewhere_needs_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="give settings with the sections postgres and s3"):
        async with start_servers(Settings(directory=tmp_path)):
            pass


async def test_the_names_that_are_built_in_are_those_of_the_example() -> None:
    assert load_settings(CONFIG).model_dump() == SERVED.model_dump()
