"""Who else may read what a store holds: nobody, unless the store was there and its modes say otherwise."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tiered import ConfigurationError, ObjectId, Settings, open_storage
from tiered.embedded.blobs import FileBlobs
from tiered.open import open_backends
from tiered.provision.embedded_store import inspect_directory
from tiered.provision.findings import NoticeKind
from tiered.testing.clock import Clock
from tiered.testing.contracts.whole_blobs import store as store_blob

pytestmark = pytest.mark.anyio

LARGE_BYTES = 2 << 20
"""So the object becomes a blob."""


@pytest.fixture
def umask() -> Iterator[None]:
    """One that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def runtime() -> Clock:
    return Clock()


async def put(directory: Path, name: str) -> None:
    async with open_storage(Settings(directory=directory)) as storage:
        await storage.put(ObjectId.create("photos", "small"), b"payload")
        await storage.put(ObjectId.create("photos", name), bytes(LARGE_BYTES))


def modes(directory: Path) -> dict[str, int]:
    paths = [directory, *directory.rglob("*")]
    return {str(path.relative_to(directory.parent)): path.stat().st_mode & 0o7777 for path in paths}


def wider(directory: Path, directories: int, files: int) -> dict[str, str]:
    """The paths below that have another mode."""
    return {
        path: oct(mode)
        for path, mode in modes(directory).items()
        if mode & 0o777 != (directories if (directory.parent / path).is_dir() else files)
    }


@pytest.mark.usefixtures("umask")
async def test_a_new_store_could_be_read_by_every_user_of_the_machine(tmp_path: Path) -> None:
    await put(tmp_path / "above" / "store", "large")
    assert wider(tmp_path / "above" / "store", 0o700, 0o600) == {} and len(modes(tmp_path / "above" / "store")) > 7
    assert (tmp_path / "above").stat().st_mode & 0o777 == 0o777, "what only leads to the store is nobody's secret"


@pytest.mark.usefixtures("umask")
async def test_on_macos_where_only_root_may_call_mknod_a_new_database_could_be_read_by_every_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "mknod", refused)
    (tmp_path / "store").mkdir(mode=0o755)
    await put(tmp_path / "store", "large")
    assert (tmp_path / "store" / "tiered.db").stat().st_mode & 0o777 == 0o600
    assert not list((tmp_path / "store").glob(".*")), "and nothing is left of its making"


@pytest.mark.usefixtures("umask")
async def test_new_blobs_that_no_database_makes_room_for_could_be_read_by_every_user(tmp_path: Path, runtime: Clock) -> None:
    await store_blob(await FileBlobs.open_directory(tmp_path / "above" / "store", runtime), "u/objects/key")
    assert wider(tmp_path / "above" / "store", 0o700, 0o600) == {} and (tmp_path / "above").stat().st_mode & 0o777 == 0o777


@pytest.mark.usefixtures("umask")
async def test_what_a_new_store_puts_into_a_directory_that_was_there_could_be_read_by_every_user(tmp_path: Path, runtime: Clock) -> None:
    (tmp_path / "store").mkdir(mode=0o755)
    await put(tmp_path / "store", "large")
    found = modes(tmp_path / "store")
    assert found.pop("store") == 0o755 and found["store/tiered.db"] == 0o600 and found["store/blobs"] == 0o700
    assert all(mode & 0o077 == 0 for mode in found.values())
    told = await inspect_directory(tmp_path / "store", "tiered.db", "sqlite", runtime)
    assert not any("chmod" in each.sentence for each in told)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("directories", "files", "who"), [(0o2770, 0o660, "its group"), (0o755, 0o644, "its group and everybody")])
async def test_a_store_that_others_share_stays_theirs(
    tmp_path: Path, runtime: Clock, directories: int, files: int, who: str
) -> None:
    store = tmp_path / "store"
    await put(store, "large")
    for path in (store, *store.rglob("*")):
        path.chmod(directories if path.is_dir() else files)
    (store / "tiered.db-reserve").unlink()
    await put(store, "larger")
    (store / "uploads").rmdir()
    await put(store, "largest")
    assert wider(store, directories & 0o777, files) == {}
    [note] = [each for each in await inspect_directory(store, "tiered.db", "sqlite", runtime) if "chmod" in each.sentence]
    assert note.kind is NoticeKind.NOTE and f"let {who} read the store" in note.sentence and f"chmod -R go= {store}" in note.sentence


@pytest.mark.usefixtures("umask")
async def test_the_log_of_a_store_has_the_mode_of_its_database(tmp_path: Path) -> None:
    async with open_storage(Settings(directory=tmp_path / "store")) as storage:
        await storage.put(ObjectId.create("photos", "small"), b"payload")
        with closing(sqlite3.connect(tmp_path / "store" / "tiered.db")) as other:
            other.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        assert wider(tmp_path / "store", 0o700, 0o600) == {} and (tmp_path / "store" / "tiered.db-wal").stat().st_size > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write into the private store of another user")
async def test_what_root_wrote_into_the_private_store_of_a_user_shut_that_user_out_of_the_object_and_of_the_listing(tmp_path: Path) -> None:
    """As `sudo tiered audit delete --quarantine` does: its long names make directories."""
    store, user = tmp_path / "store", 65534
    await put(store, "large")
    for path in (store, *store.rglob("*")):
        os.chown(path, user, user)
    await put(store, "l/" * 100)
    (store / "uploads").rmdir()
    await put(store, "larger")
    made = [store / "uploads", *(store / "blobs").rglob("*")]
    assert len(made) == 6 and any(path.is_dir() for path in made[1:])
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(user, user)}


@pytest.mark.parametrize("writes", [True, False])
async def test_another_users_store_is_refused_in_a_sentence(unprivileged: Path, runtime: Clock, writes: bool) -> None:
    (unprivileged / "store").mkdir(mode=0)
    with pytest.raises(ConfigurationError, match="store cannot be looked into: Permission denied"):
        async with open_backends(Settings(directory=unprivileged / "store"), runtime, writes=writes):
            pass
