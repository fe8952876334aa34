"""Directories and exports without an event loop: the same results, and callbacks in the caller's thread."""

from __future__ import annotations

from pathlib import Path
from threading import get_ident

import pytest

import tiered.sync
from tests.given.directories import PREFIX, TREE, read_tree, write_tree
from tiered import InvalidRequestError, ObjectId, ObjectPrefix
from tiered.exports import Existing
from tiered.testing import blocking_memory_storage

OBJECT, LARGE = ObjectId.create("photos", "cat"), bytes(range(256)) * 10_000


def test_a_directory_goes_to_the_store_and_back(tmp_path: Path) -> None:
    write_tree(tmp_path / "there", TREE)
    threads = set()
    with blocking_memory_storage() as storage:
        report = tiered.sync.upload_directory(storage, tmp_path / "there", PREFIX, on_result=lambda result: threads.add(get_ident()))
        assert report.copied == len(TREE) and threads == {get_ident()}
        assert tiered.sync.download_directory(storage, PREFIX, tmp_path / "back", delete=True).copied == len(TREE)
        with pytest.raises(InvalidRequestError, match="there is no directory"):
            tiered.sync.upload_directory(storage, tmp_path / "nowhere", PREFIX)
        with pytest.raises(ZeroDivisionError):
            tiered.sync.upload_directory(storage, tmp_path / "there", PREFIX, on_result=lambda result: 1 / 0)
    assert read_tree(tmp_path / "back") == TREE
    with pytest.raises(InvalidRequestError, match="not open"):
        tiered.sync.upload_directory(storage, tmp_path / "there", PREFIX)


def test_all_objects_leave_and_come(tmp_path: Path) -> None:
    threads = set()
    with blocking_memory_storage() as storage, blocking_memory_storage() as other:
        storage.put(OBJECT, LARGE)
        done = tiered.sync.export_objects(storage, tmp_path / "out", on_result=lambda row: threads.add(get_ident()))
        assert done.complete and done.exported == 1 and threads == {get_ident()}
        report = tiered.sync.import_objects(other, tmp_path / "out", on_result=lambda result: threads.add(get_ident()))
        assert report.copied == 1 and threads == {get_ident()}
        stored = other.get(OBJECT)
        assert stored is not None and stored.read() == LARGE
        other.put(OBJECT, b"another")
        assert tiered.sync.import_objects(other, tmp_path / "out").failed == 1
        assert tiered.sync.import_objects(other, tmp_path / "out", existing=Existing.OVERWRITE).copied == 1
        with pytest.raises(ZeroDivisionError):
            tiered.sync.export_objects(storage, tmp_path / "more", on_result=lambda row: 1 / 0)
        with pytest.raises(InvalidRequestError, match="is an export"):
            tiered.sync.import_objects(other, tmp_path / "out", ObjectPrefix.create("photos", ""))
    for call in (tiered.sync.export_objects, tiered.sync.import_objects):
        with pytest.raises(InvalidRequestError, match="not open"):
            call(storage, tmp_path / "out")
        with pytest.raises(InvalidRequestError, match=r"pass an open storage of tiered\.sync"):
            call(7, tmp_path / "out")  # type: ignore[arg-type]
