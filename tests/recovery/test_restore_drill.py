"""The drill of docs/production.md: a store with a change feed is restored from a backup, and readers follow it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from changelog.base.runtime import SystemRuntime
from recovery.backup import back_up
from tests.given.command_line import Command
from tiered.settings import DATABASE_NAME

PLACE = "photos/org.1/objects"


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command.environment |= {"TIERED_FEED__ENABLED": "true", "TIERED_INLINE_BYTES_MAX": "16", "TIERED_FEED__TO": str(tmp_path / "feed")}
    return command


def put(tiered: Command, *names: str) -> None:
    for name in names:
        tiered("put", f"{PLACE}/{name}", "-", stdin=name.encode() * 100)


def read(tiered: Command) -> dict[str, str]:
    """What readers of the newest generation find: the blob of each object."""
    newest = max((tiered.directory / "feed").glob("generation-*"))
    tiered("feed", "check", str(newest))
    view = json.loads(tiered("--json", "feed", "view", str(newest), store=False))
    return {row["record"]["object"].rpartition("/")[2]: row["record"]["blob"] for row in view["records"]}


def live(tiered: Command) -> set[str]:
    """The blobs that the rows name."""
    with closing(sqlite3.connect(tiered.store / DATABASE_NAME)) as database:
        return {target for target, in database.execute("SELECT target FROM rows WHERE target IS NOT NULL")}


def test_after_a_restore_the_readers_of_the_feed_see_what_the_store_holds(tiered: Command) -> None:
    put(tiered, "a", "b", "c")
    tiered("feed", "run", "--once")
    back_up(tiered.store, tiered.directory / "backup", SystemRuntime())
    put(tiered, "a", "d", "e")
    tiered("rm", f"{PLACE}/b")
    tiered("feed", "run", "--once")
    assert set(read(tiered)) == {"a", "c", "d", "e"}

    tiered.store.rename(tiered.directory / "store.broken")
    shutil.copytree(tiered.directory / "backup", tiered.store)
    tiered("recover", "--once")
    put(tiered, "f")
    tiered("feed", "run", "--once")

    assert set(read(tiered)) == {"a", "b", "c", "f"}
    assert set(read(tiered).values()) == live(tiered)
    assert len(list((tiered.directory / "feed").glob("generation-*"))) == 2
    put(tiered, "g")
    tiered("feed", "run", "--once")
    assert len(read(tiered)) == 5
    assert len(list((tiered.directory / "feed").glob("generation-*"))) == 2
    assert "ended" in tiered("feed", "status")


def test_a_copy_of_a_store_and_the_store_itself_do_not_take_turns(tiered: Command) -> None:
    """Each sees files of the other one. One of them goes on, and the other one says so, again and again."""
    put(tiered, "a")
    tiered("feed", "run", "--once")
    back_up(tiered.store, tiered.directory / "copy", SystemRuntime())
    put(tiered, "b")
    tiered("feed", "run", "--once")

    tiered.store, first = tiered.directory / "copy", tiered.store
    put(tiered, "c")
    tiered("feed", "run", "--once")
    copy, tiered.store = tiered.store, first
    for _ in range(2):
        tiered("feed", "run", "--once", code=3)
        assert "a copy of this store, or a backup that was restored, has gone on there" in tiered.errors
        tiered("feed", "status", code=1)
    tiered.store = copy
    tiered("feed", "run", "--once")
    assert set(read(tiered)) == {"a", "c"}
    assert len(list((tiered.directory / "feed").glob("generation-*"))) == 2


def test_of_two_stores_that_deliver_to_one_place_the_second_is_refused(tiered: Command) -> None:
    put(tiered, "a")
    tiered("feed", "run", "--once")
    before = sorted((tiered.directory / "feed").rglob("*"))

    tiered.store, first = tiered.directory / "other", tiered.store
    put(tiered, "b")
    tiered("feed", "run", "--once", code=3)
    assert "is the place of another feed, " in tiered.errors and f"of the directory {first}" in tiered.errors
    assert "give each store a place of its own" in tiered("feed", "status", code=1)
    tiered("feed", "run", "--once", "--new-generation", code=3)
    assert sorted((tiered.directory / "feed").rglob("*")) == before

    tiered.store = first
    tiered("feed", "run", "--once")
    assert set(read(tiered)) == {"a"}
    tiered("feed", "status")
