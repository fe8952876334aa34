"""Every command that takes a directory, a file to write or a bucket, at every kind of place: each asks whose it is.

A store's files and an owner's names are refused by all that write, and by all that would copy them as mere files. An
export is read wherever it lies, because its manifest says what it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import GcsEmulator
from recovery.feed.sinks.gcs import gcs_sink
from recovery.feed.sinks.sink import Owner
from tests.given.command_line import Command
from tests.given.owned_bucket import give
from tiered import ConfigurationError, ObjectId, ObjectPrefix, Settings, TieredStorage
from tiered.exports import export_objects, import_objects, verify_export
from tiered.settings import GcsSettings
from tiered.testing import memory_storage
from tiered.whose import refuse_store

OBJECT, PREFIX = "photos/objects/2026/a", "photos/objects/2026"


class TypedCommand(NamedTuple):
    """A command. `around`: it refuses also what the store is in. `only_refused`: it would not end, or takes seconds."""

    arguments: Callable[[str], list[str]]
    around: bool = False
    only_refused: bool = False


CALLS = {
    "sync down": TypedCommand(lambda at: ["sync", PREFIX, at, "--delete"], around=True),
    "sync down dry": TypedCommand(lambda at: ["sync", PREFIX, at, "--delete", "--dry-run"], around=True),
    "sync up": TypedCommand(lambda at: ["sync", at, PREFIX, "--delete"], around=True),
    "cp -r down": TypedCommand(lambda at: ["cp", "-r", PREFIX, at], around=True),
    "cp -r up": TypedCommand(lambda at: ["cp", "-r", at, PREFIX], around=True),
    "import": TypedCommand(lambda at: ["import", at, "--into", "came/objects/"], around=True),
    "export objects": TypedCommand(lambda at: ["export", "objects", "--to", at]),
    "export table": TypedCommand(lambda at: ["export", "table", "--to", at]),
    "backup": TypedCommand(lambda at: ["backup", at]),
    "feed run": TypedCommand(lambda at: ["feed", "run", "--once", "--to", at]),
    "feed receive": TypedCommand(lambda at: ["feed", "receive", at], only_refused=True),
    "feed convert": TypedCommand(lambda at: ["feed", "convert", "feed.txt", f"{at}/file", "--to", "json"]),
    "get -o": TypedCommand(lambda at: ["get", OBJECT, "-o", f"{at}/file"]),
    "audit run": TypedCommand(lambda at: ["audit", "run", "--engine", "local", "--parallel", "1", "--to", at], only_refused=True),
    "a new store": TypedCommand(lambda at: ["put", OBJECT, "-", "--directory", at]),
}

IN_A_STORE = ("store", "store/x", "store/blobs", "store/blobs/x", "store/uploads/x", "other/blobs/x", "link", "link/blobs/x", "blobs/x")
"""`link` leads to the store; `blobs` to its blobs."""
ELSEWHERE = ("export", "empty", "new")


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    for name in ("other", "store"):
        command = Command(tmp_path)
        command.environment |= {"TIERED_FEED__ENABLED": "true", "TIERED_INLINE_BYTES_MAX": "16"}
        command.store = tmp_path / name
        command("put", OBJECT, "-", stdin=b"large" * 100)
    command("export", "objects", "--to", "export")
    (tmp_path / "link").symlink_to("store")
    (tmp_path / "blobs").symlink_to("store/blobs")
    (tmp_path / "empty").mkdir()
    (tmp_path / "feed.txt").touch()
    return command


def files_of_stores(directory: Path) -> list[str]:
    found = [path for store in ("store", "other") for path in sorted((directory / store).rglob("*"))]
    return [str(path) for path in found if not path.name.startswith("tiered.db-")]


@pytest.mark.parametrize("call", CALLS)
def test_what_is_a_stores_is_refused_before_anything_is_written(tiered: Command, tmp_path: Path, call: str) -> None:
    places = list(IN_A_STORE)
    if call == "a new store":
        tiered, places = Command(tmp_path, store=False), [each for each in IN_A_STORE if each not in ("store", "link")]
    if call == "backup":  # what is there is refused anyway
        places = [each for each in IN_A_STORE if each.endswith("x") and "uploads" not in each]
    before = files_of_stores(tmp_path)
    for place in places:
        tiered(*CALLS[call].arguments(place), code=range(2, 4))
        assert f"is in the store {tmp_path}/" in tiered.errors and "whose files are its own" in tiered.errors, place
        assert files_of_stores(tmp_path) == before and not (tmp_path / "run").exists(), place


def test_what_a_store_lies_in_is_no_directory_of_files(tiered: Command, tmp_path: Path) -> None:
    before = files_of_stores(tmp_path)
    for name in (name for name, call in CALLS.items() if call.around):
        for place in (".", f"../{tmp_path.name}"):
            tiered(*CALLS[name].arguments(place), code=3)
            assert f"holds the store {tmp_path}/store" in tiered.errors and files_of_stores(tmp_path) == before, name


@pytest.mark.parametrize("call", [name for name, call in CALLS.items() if not call.only_refused])
def test_other_places_are_nobodys(tiered: Command, tmp_path: Path, call: str) -> None:
    if call == "a new store":
        tiered = Command(tmp_path, store=False)
    for place in ELSEWHERE:
        if call in ("get -o", "feed convert"):
            (tmp_path / "new").mkdir(exist_ok=True)
        tiered(*CALLS[call].arguments(place), code=range(5))
        assert "whose files are its own" not in tiered.errors, place


def test_blobs_on_another_disk_are_those_of_the_open_store(tiered: Command, tmp_path: Path) -> None:
    (tmp_path / "store/blobs").rename(tmp_path / "disk")
    (tmp_path / "store/blobs").symlink_to(tmp_path / "disk")
    for place in ("disk", "disk/x"):
        tiered("sync", PREFIX, place, "--delete", code=3)
        assert "is in the store" in tiered.errors
    tiered("sync", PREFIX, "new")
    assert (tmp_path / "new/a").read_bytes() == b"large" * 100


def test_blobs_of_rows_elsewhere_are_those_of_the_open_store(tmp_path: Path) -> None:
    (tmp_path / "store/blobs").mkdir(parents=True)
    for place in ("store", "store/x", "store/blobs/x", "store/uploads"):
        with pytest.raises(ConfigurationError, match="is in the store"):
            refuse_store(tmp_path / place, tmp_path / "store")
        refuse_store(tmp_path / place)
    refuse_store("x\0", tmp_path / "store")


# --- buckets -----------------------------------------------------------------------------------------


INTO = ObjectPrefix.create("came", "")


async def claim(storage: TieredStorage, server: GcsEmulator, prefix: str) -> None:
    sink = gcs_sink(GcsSettings(bucket="blobs", endpoint=server.url), prefix.rstrip("/"), SystemRuntime())
    try:
        await sink.claim(Owner("0" * 32, "the directory /var/store"))
    finally:
        await sink.aclose()


async def export(storage: TieredStorage, server: GcsEmulator, prefix: str) -> None:
    await export_objects(storage, f"gs://blobs/{prefix}")
    assert (await verify_export(f"gs://blobs/{prefix}")).complete


async def bring(storage: TieredStorage, server: GcsEmulator, prefix: str) -> None:
    await import_objects(storage, f"gs://blobs/{prefix}", INTO)


BUCKET_CALLS: dict[str, Callable[[TieredStorage, GcsEmulator, str], Awaitable[None]]] = {"feed": claim, "export": export, "import": bring}
"""The run of an audit is a row of `tests/recovery/audit/files/test_ledger.py`: Arrow wants a server of its own."""


@pytest.mark.parametrize(("owned", "prefix", "refused"), [
    ("", "x/", "gs://blobs/x/ lies in gs://blobs/, which belongs to a store"),
    ("a/b/", "a/b/", "gs://blobs/a/b/ lies in gs://blobs/a/b/"), ("a/b/", "a/b/c/", "lies in gs://blobs/a/b/"),
    ("a/b/", "a/", "gs://blobs/a/ holds gs://blobs/a/b/"), ("a/b/", "a/c/", None), ("a/b/", "a/bb/", None), (None, "x/", None),
])  # fmt: skip
@pytest.mark.parametrize("call", BUCKET_CALLS)
async def test_names_of_an_owner_are_refused(
    monkeypatch: pytest.MonkeyPatch, anyio_backend: str, call: str, owned: str | None, prefix: str, refused: str | None
) -> None:
    async with GcsEmulator() as server, memory_storage() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        bucket = server.create_bucket("blobs")
        if owned is not None:
            give(server, owned)
        await storage.put(ObjectId.create("kept", "a"), b"x")
        before = set(bucket.objects)
        if refused is None:
            await BUCKET_CALLS[call](storage, server, prefix)
            return
        with pytest.raises(ConfigurationError, match=refused):
            await BUCKET_CALLS[call](storage, server, prefix)
        assert set(bucket.objects) == before


async def test_the_stores_own_bucket_is_known_without_a_marker(monkeypatch: pytest.MonkeyPatch, anyio_backend: str) -> None:
    async with GcsEmulator() as server:
        settings = Settings(postgres={"dsn": "postgresql://127.0.0.1/x"}, gcs=GcsSettings(bucket="blobs", prefix="a/", endpoint=server.url))
        server.create_bucket("blobs")
        async with memory_storage(settings) as storage:
            for call in (export, bring):
                with pytest.raises(ConfigurationError, match="gs://blobs/a/x/ lies in gs://blobs/a/"):
                    await call(storage, server, "a/x/")
            await export_objects(storage, "gs://blobs/e/")
