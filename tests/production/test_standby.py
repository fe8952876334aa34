"""A standby that lags, named first in the DSN: who judges reads the primary, or says that it does not.

Every command of `tiered` is a row of `COMMANDS`. With the primary there, each says the same as of the primary alone.
Without it, no command concludes anything: no loss, no "clean", no "keeps up"; one that reads objects says where from.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import asyncpg
import pytest
from typer.main import get_command

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from emulators.postgres.server import SAFE, PostgresServer, server_directory
from recovery.cli.app import app
from tests.conftest import postgres_or_skip
from tests.given.command_line import Command
from tests.given.daemon_process import QUICK, running_daemon, wait_for
from tests.given.fresh_schema import ask
from tests.given.s3_buckets import make_bucket
from tests.given.waiting import becomes
from tiered import DanglingTombstoneError, ObjectId, Settings, UnavailableError, open_storage
from tiered.open import open_backends

pytestmark = pytest.mark.slow
RUNTIME = SystemRuntime()
STUCK = Change(ChangeId.new(RUNTIME), "media/objects/of-a-stuck-change")


class Typed(NamedTuple):
    """`alone`: the exit code where only the standby answers. `says`: what is said then, on stdout or stderr."""

    words: tuple[str, ...]
    alone: int
    says: str


NO_PRIMARY, WARNED = "standby", "standby_answers"
COMMANDS: dict[str, Typed | str] = {
    # who reads objects may read from a standby, and says so
    "get": Typed(("get", "media/objects/kept"), 0, WARNED), "head": Typed(("head", "media/objects/kept"), 0, WARNED),
    "ls": Typed(("ls",), 0, WARNED),
    "export objects": Typed(("export", "objects", "--to", "{new}", "--prefix", "media/objects/kept"), 0, WARNED),
    "sync": Typed(("sync", "tiered:media/objects/kept", "{new}", "--dry-run"), 0, WARNED),
    # a row that is old there is no loss
    "get replaced": Typed(("get", "media/objects/replaced"), 4, "lags"),
    "get deleted": Typed(("get", "media/objects/deleted"), 4, "lags"), "ls --long": Typed(("ls", "--long"), 4, "lags"),
    "get newer": Typed(("get", "media/objects/newer"), 1, WARNED),
    # who judges does not
    "status": Typed(("status",), 4, NO_PRIMARY), "check": Typed(("check",), 3, NO_PRIMARY),
    "log list": Typed(("log", "list"), 4, NO_PRIMARY),
    "log show": Typed(("log", "show", STUCK.id), 4, NO_PRIMARY),
    "feed status": Typed(("feed", "status"), 4, NO_PRIMARY),
    "export table": Typed(("export", "table", "--to", "{new}"), 4, NO_PRIMARY),
    "audit plan": Typed(("audit", "plan", "--insist"), 2, NO_PRIMARY),
    "audit run": Typed(("audit", "run", "--engine", "local", "--to", "{new}", "--grace", "0s", "--insist"), 2, NO_PRIMARY),
    "audit show": Typed(("audit", "show", "media/objects/replaced"), 2, NO_PRIMARY),
    # who writes cannot
    "put": Typed(("put", "media/objects/put", "-"), 4, NO_PRIMARY), "rm": Typed(("rm", "media/objects/no-such"), 4, NO_PRIMARY),
    "cp": Typed(("cp", "tiered:media/objects/kept", "tiered:media/objects/copied"), 4, NO_PRIMARY),
    "mv": Typed(("mv", "media/objects/kept", "media/objects/moved"), 4, NO_PRIMARY),
    "update-metadata": Typed(("update-metadata", "media/objects/kept", "--content-type", "text/plain"), 4, NO_PRIMARY),
    "set-expiry": Typed(("set-expiry", "media/objects/kept", "--never"), 4, NO_PRIMARY),
    "recover": Typed(("recover", "--once"), 4, NO_PRIMARY), "provision": Typed(("provision",), 3, NO_PRIMARY),
    "log retry": Typed(("log", "retry", "--all"), 4, NO_PRIMARY), "log abort": Typed(("log", "abort", STUCK.id), 4, NO_PRIMARY),
    # these ask no server of PostgreSQL, or need a run of an audit or a feed, which opens the store as `audit run` does
    **dict.fromkeys(("hand-back", "backup", "feed receive", "feed view", "feed check", "feed convert", "feed follow"), "none is asked"),
    **dict.fromkeys(("export verify", "config show"), "none is asked"),
    **dict.fromkeys(("audit delete", "audit restore", "feed run", "import"), "as audit run, or as put"),
}  # fmt: skip
CHANGES = ("put", "rm", "cp", "mv", "update-metadata", "set-expiry", "recover", "provision", "log retry", "log abort")
CONCLUSIONS = re.compile(r"(?i)is lost|are lost|DATA LOSS|\bclean\b|^Recovery keeps up|nothing waits|no daemon lives|no problem|survives")


def commands(found: Any, *names: str) -> Iterator[str]:
    if not hasattr(found, "commands"):
        yield " ".join(names)
        return
    for name, command in found.commands.items():
        yield from commands(command, *names, name)


def test_every_command_is_a_row() -> None:
    assert set(commands(get_command(app))) <= COMMANDS.keys()


class LaggingPair:
    """A primary, and a standby that no longer replays: since then an object was replaced, one deleted, one made."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer, url: str, directory: Path) -> None:
        self.primary, self.standby, self._url, self._directory = primary, standby, url, directory
        self.name, self._number = f"t{ChangeId.new(RUNTIME).replace('-', '')}", 0
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self._nobody = unused.getsockname()[1]

    def settings(self, *ports: int) -> Settings:
        at = {"bucket": self.name, "endpoint": self._url, "region": "us-east-1", "addressing_style": "path"}
        dsn = self.primary.dsn(host_port=",".join(f"127.0.0.1:{port}" for port in ports))
        return Settings(postgres={"dsn": dsn, "schema_name": self.name}, s3=at, inline_bytes_max=1)

    @property
    def of_primary(self) -> Settings:
        return self.settings(self.primary.port)

    @property
    def of_both(self) -> Settings:
        return self.settings(self.standby.port, self.primary.port)

    @property
    def alone(self) -> Settings:
        return self.settings(self._nobody, self.standby.port)

    def run(self, settings: Settings, *words: str) -> tuple[int, str, str]:
        self._number += 1
        where = self._directory / f"{self._number}.yaml"
        where.write_text(settings.packed())
        tiered = Command(self._directory, store=False)
        filled = [word.format(new=self._directory / f"new-{self._number}") for word in words]
        out = tiered("-c", str(where), *filled, code=range(256), stdin=b"abc")
        return tiered.ended, out, tiered.errors

    async def stop_replay(self) -> None:
        async with open_storage(self.of_primary) as storage:
            for name in ("kept", "replaced", "deleted"):
                await storage.put(ObjectId("media", (), name), name.encode() * 100)
        [[at]] = await ask(self.primary, "SELECT pg_current_wal_lsn()::text")
        await becomes(lambda: ask(self.standby, "SELECT 1 WHERE pg_last_wal_replay_lsn() >= $1::text::pg_lsn", at))
        await ask(self.standby, "SELECT pg_wal_replay_pause()")
        await becomes(lambda: ask(self.standby, "SELECT 1 WHERE pg_get_wal_replay_pause_state() = 'paused'"))
        async with open_storage(self.of_primary) as storage:
            for name in ("replaced", "newer"):
                await storage.put(ObjectId("media", (), name), b"new" * 100)
            await storage.delete(ObjectId("media", (), "deleted"))
        async with open_backends(self.of_primary, RUNTIME) as backends:
            await backends.log.park(await backends.log.record(STUCK, "me"), "a test has parked it")


@pytest.fixture(scope="module")
def pair(versitygw_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaggingPair]:
    with ExitStack() as stack:
        primary = stack.enter_context(postgres_or_skip(SAFE))
        standby = primary.standby_in(stack.enter_context(server_directory()))
        stack.callback(standby.stop)
        standby.start()
        pair = LaggingPair(primary, standby, versitygw_url, tmp_path_factory.mktemp("pair"))
        anyio.run(make_bucket, versitygw_url, pair.name)
        assert pair.run(pair.of_primary, "provision")[0] == 0
        anyio.run(pair.stop_replay)
        yield pair


FIRST = ("get", "get replaced", "status", "check", "audit run", "put")
"""One of each kind. `make sim` runs all."""
ROWS = [
    pytest.param(row, id=name, marks=() if name in FIRST else pytest.mark.night) for name, row in COMMANDS.items() if isinstance(row, Typed)
]
READERS = [each for each in ROWS if each.id not in CHANGES]


@pytest.mark.parametrize("row", READERS)
def test_with_the_primary_there_a_command_says_what_it_says_of_the_primary_alone(pair: LaggingPair, row: Typed) -> None:
    (code, out, errors), (also, told, complained) = pair.run(pair.of_primary, *row.words), pair.run(pair.of_both, *row.words)
    assert (code, same(out)) == (also, same(told)), (out, told, errors, complained)
    assert "standby" not in complained, complained
    if row.words == ("status",):
        assert code == 6


def same(text: str) -> list[str]:
    """What is said, without times, counts of bytes a second, names of probes, and how the server is called."""
    lines = (re.sub(r"~probe/[0-9a-f-]+|new-\d+|[0-9.,:]+|\b[mµ]?s\b", "#", line) for line in text.splitlines() if "standby" not in line)
    return sorted(" ".join(line.split()) for line in lines)


@pytest.mark.parametrize("row", ROWS)
def test_where_only_the_standby_answers_nothing_is_concluded(pair: LaggingPair, row: Typed) -> None:
    code, out, errors = pair.run(pair.alone, *row.words)
    assert (code, row.says in out + errors) == (row.alone, True), (code, out, errors)
    assert (WARNED in errors) == (row.says in (WARNED, "lags")), "who judges reads nothing of it"
    assert not CONCLUSIONS.search(out + errors), out + errors


def test_a_store_that_only_reads_goes_back_to_the_primary_and_never_calls_lost_what_a_standby_shows(
    pair: LaggingPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(settings: Settings, then: Callable[[Any], None]) -> None:
        async with open_storage(settings, writes=False) as storage:
            with pytest.raises(UnavailableError, match="lags"):
                await storage.get(ObjectId("media", (), "replaced"))
            then(storage)
            found = await storage.get(ObjectId("media", (), "replaced"))
            assert found is not None and await found.read() == b"new" * 100

    def primary_is_back(storage: Any) -> None:
        storage._tiers.high_volume._pool._hosts[:] = [("127.0.0.1", pair.standby.port), ("127.0.0.1", pair.primary.port)]
        storage._tiers.high_volume._pool._idle[0].until = 0.0  # as after STANDBY_S

    anyio.run(read, pair.alone, primary_is_back)


def test_what_the_primary_shows_and_no_blob_has_is_lost_also_for_a_reader_of_both(pair: LaggingPair) -> None:
    async def read() -> None:
        async with open_storage(pair.of_primary) as storage:
            await storage.put(object_id := ObjectId("media", (), "lost"), b"lost" * 100)
        async with open_backends(pair.of_primary, RUNTIME) as backends:
            row = await backends.tiers.high_volume.read(object_id.path)
            assert row.target is not None
            await backends.tiers.long_term.delete(row.target)
        async with open_storage(pair.of_both, writes=False) as storage:
            with pytest.raises(DanglingTombstoneError):
                await storage.get(object_id)

    anyio.run(read)


# --- a server that is read-only ----------------------------------------------------------------------


def test_a_server_that_is_read_only_is_told_by_status_and_when_it_takes_writes_again_the_daemon_is_ready(
    versitygw_url: str, tmp_path: Path
) -> None:
    with postgres_or_skip(SAFE) as server:
        pair = LaggingPair(server, server, versitygw_url, tmp_path)
        anyio.run(make_bucket, versitygw_url, pair.name)
        assert pair.run(pair.of_primary, "provision")[0] == 0
        (config := tmp_path / "tiered.yaml").write_text(pair.of_primary.packed())
        with running_daemon(tmp_path, "-c", str(config), environment=QUICK) as daemon:
            daemon.until(lambda said: bool(said["ready"]), "readyz")
            wait_for(lambda: pair.run(pair.of_primary, "status")[0] == 0)
            anyio.run(read_only, server, "ON")
            try:
                code, out, _ = pair.run(pair.of_primary, "status")
                assert code == 4 and "is read-only (default_transaction_read_only is on)" in out, out
                assert "o daemon lives" not in out and "none lives" not in out
                daemon.until(lambda said: not said["ready"], "readyz")
                said = daemon.until(lambda said: "refuses" in said["headline"])
                assert "does not answer" not in said["headline"]
                assert pair.run(pair.of_primary, "put", "media/objects/a", "-")[0] == 4
                assert pair.run(pair.of_primary, "check")[0] == 3
            finally:
                anyio.run(read_only, server, "OFF")
            daemon.until(lambda said: bool(said["ready"]), "readyz")
            wait_for(lambda: pair.run(pair.of_primary, "status")[0] == 0)


async def read_only(server: PostgresServer, value: str) -> None:
    connection = await asyncpg.connect(server.dsn(), server_settings={"default_transaction_read_only": "off"})
    await connection.execute(f"ALTER DATABASE postgres SET default_transaction_read_only = {value}")
    # Sessions that live keep what they began with, so the daemon's must not outlive its change.
    if value == "ON":
        others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
        await connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
    await connection.close()
