"""A directory as a sink: what is there already, what is in the way, and what a kill leaves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError
from changelog.base.runtime import SystemRuntime
from recovery.feed.sinks.directory import DirectorySink
from recovery.sources.feed_files import names_of
from tests.given.segments import segments

pytestmark = pytest.mark.anyio

FIRST, SECOND, THIRD, LAST = segments()


def sink(path: Path) -> DirectorySink:
    return DirectorySink(path, SystemRuntime())


def everything(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


async def test_the_directory_and_the_folder_are_made_and_other_readers_take_them(tmp_path: Path) -> None:
    await sink(tmp_path / "feed").deliver(FIRST)
    assert names_of(str(tmp_path / "feed" / FIRST.folder)) == [FIRST.name]
    assert everything(tmp_path / "feed" / FIRST.folder) == {FIRST.name}


@pytest.mark.parametrize(("given", "mode"), [(None, 0o700), (0o755, 0o755)])
async def test_the_names_of_all_objects_could_be_read_by_every_user(tmp_path: Path, given: int | None, mode: int) -> None:
    """A directory that was there keeps its mode: others may be meant to read it."""
    before = os.umask(0o022)
    try:
        if given is not None:
            (tmp_path / "feed").mkdir(given)
        await sink(tmp_path / "feed").deliver(FIRST)
        assert (tmp_path / "feed").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


async def test_a_relative_path_stays_the_same_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative = sink(Path("feed"))
    monkeypatch.chdir("/")
    await relative.deliver(FIRST)
    assert relative.name == str(tmp_path / "feed")
    assert (tmp_path / "feed" / FIRST.path).read_bytes() == FIRST.data


@pytest.mark.parametrize("flushed", ["file", "folder", "root"])
async def test_nothing_is_acknowledged_before_it_is_on_the_disk(flushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another process has written the file: nobody knows whether it came to flush it."""
    await sink(tmp_path).deliver(FIRST)
    await sink(tmp_path).deliver(SECOND)
    real = os.fsync

    def fail(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if flushed == ("file" if path.is_file() else "root" if path == tmp_path else "folder"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(handle)

    monkeypatch.setattr(os, "fsync", fail)
    for each in (SECOND, THIRD):
        with pytest.raises(UnavailableError, match="Input/output error"):
            await sink(tmp_path).deliver(each)
    monkeypatch.undo()
    await sink(tmp_path).deliver(THIRD)
    assert everything(tmp_path / FIRST.folder) == {FIRST.name, SECOND.name, THIRD.name}


async def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / FIRST.folder
    await sink(tmp_path).deliver(FIRST)
    (folder / f".{SECOND.name}.0123456789abcdef.partial").write_bytes(SECOND.data[:5])
    (folder / ".hidden").touch()
    await sink(tmp_path).deliver(SECOND)
    assert everything(folder) == {FIRST.name, SECOND.name, ".hidden"}


@pytest.mark.parametrize(("number", "kind", "told"), [
    (errno.ENOSPC, UnavailableError, "the disk is full; free space"),
    (errno.EDQUOT, UnavailableError, "the quota is used up"),
    (errno.EROFS, ConfigurationError, "the disk is read-only"),
])  # fmt: skip
@pytest.mark.parametrize("step", ["open", "write", "link", "mkdir"])
async def test_a_disk_that_takes_no_more_is_told_at_every_step(
    step: str, number: int, kind: type[Exception], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if step != "mkdir":
        await sink(tmp_path).deliver(FIRST)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    real = Path.open

    def opened(path: Path, *said: Any, **named: Any) -> Any:
        if step == "open":
            fail()
        file = real(path, *said, **named)
        return _Full(file, fail)

    if step in ("open", "write"):
        monkeypatch.setattr(Path, "open", opened)
    else:
        monkeypatch.setattr(os, step, fail)
    with pytest.raises(kind, match=told):
        await sink(tmp_path).deliver(FIRST if step == "mkdir" else SECOND)
    monkeypatch.undo()
    await sink(tmp_path).deliver(FIRST)
    await sink(tmp_path).deliver(SECOND)
    assert everything(tmp_path / FIRST.folder) == {FIRST.name, SECOND.name}


class _Full:
    """A file that takes half of what is written, and then fails."""

    def __init__(self, file: Any, fail: Callable[[], None]) -> None:
        self._file = file
        self._fail = fail

    def write(self, content: bytes) -> None:
        self._file.write(content[: len(content) // 2])
        self._file.flush()
        self._fail()

    def __enter__(self) -> _Full:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


async def test_a_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", fail)
    for each in (FIRST, SECOND, SECOND):
        await sink(tmp_path).deliver(each)
    assert everything(tmp_path / FIRST.folder) == {FIRST.name, SECOND.name}


async def test_another_process_is_quicker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file appears after this process has looked, and before the link."""
    await sink(tmp_path).deliver(FIRST)
    real = os.link
    for other, kind in ((SECOND.data, None), (b"other", CorruptRecordError)):
        path = tmp_path / SECOND.path
        path.unlink(missing_ok=True)

        def link(source: Any, target: Any, path: Path = path, other: bytes = other) -> None:
            path.write_bytes(other)
            real(source, target)

        monkeypatch.setattr(os, "link", link)
        if kind is None:
            await sink(tmp_path).deliver(SECOND)
        else:
            with pytest.raises(kind):
                await sink(tmp_path).deliver(SECOND)
        assert path.read_bytes() == other
    assert everything(tmp_path / FIRST.folder) == {FIRST.name, SECOND.name}


# --- what is in the way ----------------------------------------------------------------------------


async def test_a_directory_with_other_things_in_it_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "mail.txt").touch()
    with pytest.raises(ConfigurationError, match="has 'letters' and 1 more, so it is not the directory of a feed"):
        await sink(tmp_path).deliver(FIRST)
    assert everything(tmp_path) == {"letters", "mail.txt"}


async def test_what_every_disk_may_have_and_older_generations_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".snapshot").mkdir()
    older = segments(generation=7)[0]
    await sink(tmp_path).deliver(older)
    await sink(tmp_path).deliver(FIRST)
    assert everything(tmp_path) == {"lost+found", ".snapshot", older.folder, FIRST.folder}


async def test_a_foreign_file_among_those_of_the_feed_is_told(tmp_path: Path) -> None:
    await sink(tmp_path).deliver(FIRST)
    (tmp_path / FIRST.folder / "notes.txt").touch()
    with pytest.raises(ConfigurationError, match=r"has 'notes\.txt', and a feed did not put that there"):
        await sink(tmp_path).deliver(SECOND)


@pytest.mark.parametrize("where", ["root", "folder", "name", "link"])
async def test_a_file_or_a_link_in_the_way_is_told(where: str, tmp_path: Path) -> None:
    root = tmp_path / "feed"
    if where == "root":
        root.touch()
    elif where == "folder":
        root.mkdir()
        (root / FIRST.folder).touch()
    else:
        (root / FIRST.folder).mkdir(parents=True)
        if where == "link":
            (root / FIRST.path).symlink_to("/etc/hostname")
        else:
            (root / FIRST.path).mkdir()
    with pytest.raises(ConfigurationError, match="move it away"):
        await sink(root).deliver(FIRST)


async def test_a_directory_whose_parent_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"there is no directory {tmp_path}/mount: make it"):
        await sink(tmp_path / "mount" / "feed").deliver(FIRST)


async def test_a_directory_that_vanishes_is_not_made_again(tmp_path: Path) -> None:
    one = sink(tmp_path / "feed")
    await one.deliver(FIRST)
    (tmp_path / "feed").rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"vanished while it was used|before is gone"):
            await one.deliver(SECOND)
    (tmp_path / "feed").mkdir()  # the empty directory under a disk that is not mounted
    for later in (one, sink(tmp_path / "feed")):
        with pytest.raises(UnavailableError, match="mount the disk"):
            await later.deliver(SECOND)
    assert everything(tmp_path / "feed") == set()
    (tmp_path / "feed").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "feed")
    await one.deliver(SECOND)
    assert everything(tmp_path / "feed" / FIRST.folder) == {FIRST.name, SECOND.name}


async def test_a_folder_without_its_first_file_has_lost_something(tmp_path: Path) -> None:
    await sink(tmp_path).deliver(FIRST)
    (tmp_path / FIRST.path).unlink()
    with pytest.raises(UnavailableError, match="has no first file"):
        await sink(tmp_path).deliver(SECOND)


async def test_a_directory_in_which_this_process_may_not_write(unprivileged: Path) -> None:
    root = unprivileged / "feed"
    await sink(root).deliver(FIRST)
    (root / FIRST.folder).chmod(0o500)
    try:
        with pytest.raises(ConfigurationError, match="this process may not write there"):
            await sink(root).deliver(SECOND)
    finally:
        (root / FIRST.folder).chmod(0o700)
    await sink(root).deliver(SECOND)


async def test_a_directory_where_a_file_should_be_leaves_no_file_open(tmp_path: Path) -> None:
    """Such a segment is delivered again for ever, and each time it must let go of what it has opened."""
    first, second = segments()[:2]
    sink = DirectorySink(tmp_path / "feed", SystemRuntime())
    await sink.deliver(first)
    (tmp_path / "feed" / second.path).mkdir()
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        with pytest.raises(ConfigurationError, match="a directory is where a file should be"):
            await sink.deliver(second)
    assert len(os.listdir("/dev/fd")) == before
