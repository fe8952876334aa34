"""Directories without an event loop: the same results, and callbacks in the caller's thread."""

from __future__ import annotations

from pathlib import Path
from threading import get_ident

import pytest

import tiered.sync
from tests.given.directories import PREFIX, TREE, read_tree, write_tree
from tiered import InvalidRequestError
from tiered.testing import blocking_memory_storage


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
