"""examples/celery_tasks.py: the task streams through the store, and is tried again when the store is away."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples import celery_tasks
from examples.process_store import ProcessStore
from tiered import ObjectId, Settings, UnavailableError

LARGE = b"a line of a log\n" * 100_000
LOG = ObjectId.create("logs", "2026/monday", scopes={"org": "17"})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessStore]:
    store = ProcessStore(Settings(directory=tmp_path))
    monkeypatch.setattr(celery_tasks, "store", store)
    yield store
    store.close()


def test_an_object_is_compressed_as_it_streams(store: ProcessStore) -> None:
    store().put(LOG, LARGE)
    size = celery_tasks.compress.apply(args=[str(LOG)]).get()
    stored = store().get(ObjectId.create("archive", "2026/monday.gz", scopes={"org": "17"}))
    assert stored is not None
    assert stored.size == size < len(LARGE)
    assert gzip.decompress(stored.read()) == LARGE


def test_an_object_that_is_gone_is_no_error(store: ProcessStore) -> None:
    assert celery_tasks.compress.apply(args=[str(LOG)]).get() is None


def test_a_store_that_is_away_is_asked_again(store: ProcessStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store().put(LOG, LARGE)
    put, asked = store().put, []

    def fail_once(*given: Any) -> object:
        asked.append(given[0])
        if len(asked) == 1:
            raise UnavailableError("away")
        return put(*given)

    monkeypatch.setattr(store(), "put", fail_once)
    assert celery_tasks.compress.apply(args=[str(LOG)]).get() > 0
    assert len(asked) == 2
