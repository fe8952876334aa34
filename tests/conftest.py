"""What every test has in common: no settings of the machine it runs on, and examples that repeat."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from google.cloud.bigtable_admin_v2.types import ColumnFamily, CreateTableRequest, Table
from hypothesis import settings

from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, insecure_channel
from changelog.change import ChangeId
from emulators.bigtable.emulator import EmulatorNotFoundError, start_bigtable
from tiered.bigtable.cells import LEGACY_FAMILIES
from tiered.provision.schema import FAMILIES
from tiered.settings import ENV_OTHERS, ENV_PREFIX

# Derandomised: a submission is judged by its own change, not by the examples it happened to draw; `make sim`
# looks further. No deadline: other work may share the machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

NOBODY = 65534
EXPLORED = pytest.StashKey[list[str]]()


@pytest.fixture
def said_at_the_end(request: pytest.FixtureRequest) -> list[str]:
    """Lines for the terminal's summary: what fresh seeds explored, whether or not anything was found."""
    return request.config.stash.setdefault(EXPLORED, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(EXPLORED, []):
        terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _no_settings_from_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX) and not name.startswith(ENV_OTHERS)]:
        monkeypatch.delenv(name)


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[Path]:
    """A directory, and this process as a user whom the file system may refuse: to root it refuses nothing."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp())
    os.chown(directory, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield directory
    finally:
        os.seteuid(0)
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def bigtable_host() -> Iterator[str]:
    """`address:port` of an emulator that outlives any test's event loop. None to be had: skipped, but failed where CI is set."""
    with start_blocking_portal() as portal:
        try:
            with portal.wrap_async_context_manager(start_bigtable()) as emulator:
                yield emulator.host
        except EmulatorNotFoundError as missing:
            if os.environ.get("CI"):
                pytest.fail(str(missing))
            pytest.skip(str(missing))


FreshTable = Callable[[], AbstractAsyncContextManager[BigtableTable]]


@pytest.fixture
def fresh_table(bigtable_host: str) -> FreshTable:
    """Opens a new table with all families, without GC rules: nothing is collected in the middle of a test."""
    parent, name = "projects/test/instances/emulated", f"test-{ChangeId.new(SystemRuntime())}"

    @asynccontextmanager
    async def open_table() -> AsyncIterator[BigtableTable]:
        async with insecure_channel(bigtable_host) as channel:
            create = channel.unary_unary(
                "/google.bigtable.admin.v2.BigtableTableAdmin/CreateTable", CreateTableRequest.serialize, Table.deserialize
            )
            families = {family: ColumnFamily() for family in (*FAMILIES, *LEGACY_FAMILIES)}
            await create(CreateTableRequest(parent=parent, table_id=name, table=Table(column_families=families)), timeout=10)
            yield BigtableTable(channel, f"{parent}/tables/{name}")

    return open_table
