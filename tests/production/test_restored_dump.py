"""A dump of PostgreSQL that is restored: into another database beside the same bucket of S3, or in place."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.postgres.server import PostgresServer, find_client
from tests.given.command_line import Command
from tests.given.s3_buckets import make_bucket
from tiered import ConfigurationError, DanglingTombstoneError, ObjectId, Settings, open_storage
from tiered.buckets.owners import OWNERS
from tiered.kinds.chosen import rows_kind
from tiered.open import open_backends

pytestmark = pytest.mark.slow
RUNTIME = SystemRuntime()
LARGE = 100


class DumpedStore:
    """A store of PostgreSQL and S3, and `tiered` for it. `settings_in`: those of its rows in another database."""

    def __init__(self, server: PostgresServer, url: str, directory: Path) -> None:
        self.name = f"t{ChangeId.new(RUNTIME).replace('-', '')}"
        self._server, self._url, self._directory = server, url, directory
        self.settings = self.settings_in("postgres")
        self.dump = directory / "dump.sql"

    def settings_in(self, database: str) -> Settings:
        at = {"bucket": self.name, "endpoint": self._url, "region": "us-east-1", "addressing_style": "path"}
        return Settings(postgres={"dsn": self._server.dsn(database), "schema_name": self.name}, s3=at, inline_bytes_max=1)

    def command(self, settings: Settings) -> Callable[..., str]:
        (where := self._directory / f"{ChangeId.new(RUNTIME)}.yaml").write_text(settings.packed())
        tiered = Command(self._directory, store=False)

        def run(*words: str, code: int = 0) -> str:
            out = tiered("-c", str(where), *words, code=code)
            return out + tiered.errors

        return run

    def dump_it(self) -> None:
        self._run("pg_dump", "-d", self._server.dsn(), "-n", self.name, "-f", str(self.dump))

    def restore_into(self, database: str) -> None:
        if database == "postgres":
            self._sql(f"DROP SCHEMA {self.name} CASCADE")
        else:
            self._sql(f"CREATE DATABASE {database}")
        self._run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", self._server.dsn(database), "-f", str(self.dump))

    def forget(self, database: str) -> None:
        self._sql(f"DROP DATABASE {database} WITH (FORCE)")

    def _sql(self, statement: str) -> None:
        self._run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", self._server.dsn(), "-c", statement)

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run([str(find_client(program)), *words], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def dumped(durable_postgres: PostgresServer, versitygw_url: str, tmp_path: Path) -> DumpedStore:
    """A store with the objects a, b, c and its dump. Since the dump, a was replaced, b deleted and d made."""
    store = DumpedStore(durable_postgres, versitygw_url, tmp_path)
    anyio.run(make_bucket, versitygw_url, store.name)
    store.command(store.settings)("provision")
    anyio.run(put, store.settings, "a", "b", "c")
    store.dump_it()
    anyio.run(put, store.settings, "a", "d")
    anyio.run(remove, store.settings, "b")
    return store


def of(name: str) -> ObjectId:
    return ObjectId("media", (), name)


async def put(settings: Settings, *names: str) -> None:
    async with open_storage(settings) as storage:
        for name in names:
            await storage.put(of(name), name.encode() * LARGE)


async def remove(settings: Settings, name: str) -> None:
    async with open_storage(settings) as storage:
        await storage.delete(of(name))


async def readable(settings: Settings) -> tuple[str, str]:
    """Which objects can be read to their end, and which are lost: their rows name blobs that are not there."""
    whole, lost = "", ""
    async with open_storage(settings, writes=False) as storage:
        for name in "abcd":
            try:
                if (found := await storage.get(of(name))) is not None and await found.read() == name.encode() * LARGE:
                    whole += name
            except DanglingTombstoneError:
                lost += name
    return whole, lost


async def blobs(settings: Settings) -> set[str]:
    async with open_backends(settings, RUNTIME, writes=False, verify=False) as backends:
        listed = (await backends.tiers.long_term.list("", None, 1000)).blobs
        return {blob.name for blob in listed if not blob.name.startswith(OWNERS)}


async def owner(settings: Settings) -> str:
    return await rows_kind(settings).owner(settings, RUNTIME)


def test_a_dump_in_another_database_does_not_get_the_blobs_until_it_is_given_them(dumped: DumpedStore) -> None:
    database = f"restored_{dumped.name}"
    dumped.restore_into(database)
    restored, before = dumped.settings_in(database), anyio.run(blobs, dumped.settings)
    first, second = anyio.run(owner, dumped.settings), anyio.run(owner, restored)
    assert first != second
    try:
        for writes in (True, False):
            with pytest.raises(ConfigurationError, match=f"belongs to the store of {first}, and this is the store of {second}"):
                anyio.run(opened, restored, writes)
        old, new = dumped.command(dumped.settings), dumped.command(restored)
        for words in (("recover", "--once"), ("audit", "run", "--engine", "local", "--to", "refused", "--grace", "0s", "--insist")):
            assert "belongs to the store of" in new(*words, code=2 if words[0] == "audit" else 3)
        assert f"--adopt-bucket-from {first}" in new("check", code=3)
        assert "belongs to the store of" in new("provision", "--adopt-bucket", code=3)
        assert "belongs to the store of" in new("provision", "--adopt-bucket-from", second, code=3)
        assert anyio.run(blobs, dumped.settings) == before and anyio.run(readable, dumped.settings) == ("acd", "")

        assert "would give" in new("provision", "--adopt-bucket-from", first, "--dry-run")
        assert anyio.run(readable, dumped.settings) == ("acd", "")
        assert f"in place of {first}" in new("provision", "--adopt-bucket-from", first)
        with pytest.raises(ConfigurationError, match=f"belongs to the store of {second}, and this is the store of {first}"):
            anyio.run(opened, dumped.settings, True)
        assert "belongs to the store of" in old("check", code=3)
        assert anyio.run(readable, restored) == ("c", "ab"), "the blobs that a and b had at the dump were deleted since"
        anyio.run(put, restored, "a", "b")
        assert anyio.run(readable, restored) == ("abc", "") and before <= anyio.run(blobs, restored)
    finally:
        dumped.forget(database)


async def opened(settings: Settings, writes: bool) -> None:
    async with open_storage(settings, writes=writes):
        pass


def test_rows_that_went_back_in_time_are_told_and_what_they_forgot_is_not_deleted_within_the_grace(
    dumped: DumpedStore, tmp_path: Path
) -> None:
    newer = anyio.run(blobs, dumped.settings)
    dumped.restore_into("postgres")
    tiered = dumped.command(dumped.settings)
    assert anyio.run(blobs, dumped.settings) == newer, "the owner is the same, and nothing is deleted by opening it"
    tiered("recover", "--once")
    assert anyio.run(blobs, dumped.settings) == newer

    def audited(where: str, *options: str, code: int) -> dict[str, int]:
        tiered("audit", "run", "--engine", "local", "--parallel", "1", "--to", str(tmp_path / where), *options, code=code)
        totals = json.loads((tmp_path / where / "manifest.json").read_text())["totals"]
        return {name: each["number"] for name, each in totals.items() if name in ("dangling", "orphan")}

    assert audited("young", code=1) == {"dangling": 2}, "a and b name blobs that were deleted"
    tiered("audit", "delete", str(tmp_path / "young"), "--class", "orphan", "--yes", code=range(4))
    assert anyio.run(blobs, dumped.settings) == newer
    anyio.run(anyio.sleep, 1.1)  # the service tells whole seconds, and what is not older than the audit is not judged
    told = audited("old", "--grace", "0s", "--insist", code=1)
    assert told == {"dangling": 2, "orphan": 2}, "and nothing names those of the new a and of d"
    assert anyio.run(blobs, dumped.settings) == newer and anyio.run(readable, dumped.settings) == ("c", "ab")
    for name in ("a", "b"):
        assert "gone" in tiered("audit", "show", str(of(name)), code=range(5))
