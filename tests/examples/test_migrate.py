"""examples/migrate.py copies a directory and a bucket, goes on after an interruption, and names what it cannot copy."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from pathlib import Path

import pytest
from anyio import to_thread
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from emulators.gcs.server import GcsEmulator
from examples.migrate import Found, Migration, in_bucket, in_directory, main, migrate
from tiered import ObjectId, Settings, open_storage

LARGE = bytes(range(256)) * 5_000


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (root := tmp_path / "photos").mkdir()
    (root / "2026").mkdir()
    (root / "2026/cat.jpg").write_bytes(b"cat")
    (root / "2026/cat.mp4").write_bytes(LARGE)
    (root / "empty").touch()
    return root


def test_the_files_of_a_directory_are_copied_by_the_command(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiered.yaml").write_text(f"directory: {tmp_path / 'store'}\n")
    assert main(["--to", str(tmp_path / "tiered.yaml"), "--usecase", "photos", str(photos)]) == 0
    assert capsys.readouterr().out == "3 copied, 0 failed, 0 not in the store as they are in the source\n"


@pytest.mark.anyio
async def test_an_object_keeps_its_bytes_its_type_and_its_time(photos: Path, tmp_path: Path) -> None:
    settings = Settings(directory=tmp_path / "store")
    assert await migrate(settings, "photos", str(photos)) == 0
    async with open_storage(settings) as storage:
        stored = await storage.get(ObjectId.create("photos", "2026/cat.mp4"))
        assert stored is not None
        assert stored.metadata.content_type == "video/mp4"
        assert stored.metadata.time_created_ns == (photos / "2026/cat.mp4").stat().st_mtime_ns
        assert await stored.read() == LARGE


@pytest.mark.anyio
async def test_it_goes_on_after_an_interruption(photos: Path, tmp_path: Path) -> None:
    async with open_storage(Settings(directory=tmp_path / "store")) as storage:
        await Migration(storage, "photos").copy(list(in_directory(photos))[:1])
        migration = Migration(storage, "photos")
        await migration.copy(in_directory(photos))
        assert (migration.copied, migration.failed) == (2, [])
        (photos / "empty").write_bytes(b"no longer")
        assert [each.object_id.key async for each in migration.missing(in_directory(photos))] == ["empty"]


@pytest.mark.anyio
async def test_what_cannot_be_copied_is_named_and_ends_nothing_else(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = [*in_directory(photos), Found("a/../b", photos / "empty", 0, 0), Found("gone", photos / "gone", 3, 0)]
    async with open_storage(Settings(directory=tmp_path / "store")) as storage:
        await (migration := Migration(storage, "photos")).copy(source)
    assert migration.copied == 3
    assert [line.partition(": ")[0] for line in migration.failed] == ["a/../b", "photos/objects/gone"]


@pytest.mark.anyio
async def test_nothing_in_the_source_is_left_out_without_a_word(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (photos / "link").symlink_to(tmp_path / "elsewhere")
    (photos / "broken").symlink_to(photos / "none")
    scandir = os.scandir

    def denied(path: object) -> object:
        if str(path).endswith("2026"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", denied)
    assert await migrate(Settings(directory=tmp_path / "store"), "photos", str(photos)) == 1
    told = capsys.readouterr()
    assert told.out.startswith("1 copied, 3 failed")
    assert told.err.splitlines() == [
        "broken: No such file or directory", "link: it is no file, or a link to a directory", "2026: Permission denied",
    ]


@pytest.mark.anyio
async def test_a_source_that_is_not_there_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nothing").mkdir()
    assert await migrate(Settings(directory=tmp_path / "store"), "photos", str(tmp_path / "typo")) == 1
    assert "No such file or directory" in capsys.readouterr().err
    assert await migrate(Settings(directory=tmp_path / "store"), "photos", str(tmp_path / "nothing")) == 1
    assert "has no objects" in capsys.readouterr().err


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_the_objects_of_a_bucket_are_copied(tmp_path: Path) -> None:
    async with GcsEmulator() as server, open_storage(Settings(directory=tmp_path / "store")) as storage:
        server.create_bucket("old")
        nobody = AnonymousCredentials()  # type: ignore[no-untyped-call]  # the package's types leave out its constructor
        with closing(Client("project", nobody, client_options={"api_endpoint": server.url})) as client:
            await _fill(client)
            await (migration := Migration(storage, "photos")).copy(in_bucket(client, "old", "photos/"))
        assert (migration.copied, migration.failed) == (2, [])
        stored = await storage.get(ObjectId.create("photos", "cat.mp4"))
        assert stored is not None
        assert (stored.metadata.content_type, await stored.read()) == ("video/x-cat", LARGE)


async def _fill(client: Client) -> None:
    before = threading.enumerate()
    bucket = client.bucket("old")
    for name, payload in (("photos/cat.mp4", LARGE), ("photos/cat.jpg", b"cat"), ("other/dog.jpg", b"dog")):
        await to_thread.run_sync(bucket.blob(name).upload_from_string, payload, "video/x-cat")
    # The client looks a bucket up in a thread, once. It would go on asking after the server has closed.
    for thread in threading.enumerate():
        if thread not in before and "AnyIO" not in thread.name:
            await to_thread.run_sync(thread.join, 10)
