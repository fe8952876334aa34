"""`tiered feed run`: bad input is one sentence."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.given.command_line import Command


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command.environment |= {"TIERED_FEED__ENABLED": "true", "TIERED_INLINE_BYTES_MAX": "16"}
    command("put", "photos/org.1/objects/a", "-", stdin=b"x" * 100)
    return command


@pytest.mark.parametrize(("to", "said"), [
    (["store"], "is in the store"), (["store/blobs/feed"], "is in the store"),
    (["link/feed"], "is in the store"), ([""], "the place of the feed is empty"),
    (["out", "./out/"], "are the same place"), (["out", "other"], "are the same place"),
    (["file"], "a file is where a directory should be"),
    (["no/such/out"], "there is no directory"), (["ftp://host/out"], "is no place for a feed"),
    (["https://u:hush@host/a?token=hush"], "has no query"), (["kafka://u:hush@host:9092/a"], "names a user"),
])  # fmt: skip
def test_a_place_that_is_none_is_one_sentence(tiered: Command, to: Sequence[str], said: str) -> None:
    (tiered.directory / "file").write_bytes(b"x")
    (tiered.directory / "link").symlink_to(tiered.store)
    (tiered.directory / "other").symlink_to("out")
    options = [option for place in to for option in ("--to", place)]
    tiered("feed", "run", "--once", *options, code=3)
    assert said in tiered.errors
    assert "hush" not in tiered.errors
    assert not list(tiered.store.glob("**/generation-*"))


@pytest.mark.parametrize("limit", [(), ("--limit", "10")])
def test_where_the_feed_is_off_one_pass_of_recovery_cleans_up_what_still_waits_for_it(tiered: Command, limit: tuple[str, ...]) -> None:
    """Recovery by cron alone: the blob of before, and its entry, stayed for ever."""
    tiered("feed", "run", "--once", "--to", "out")
    tiered("put", "photos/org.1/objects/a", "-", stdin=b"y" * 100)
    assert len(list((tiered.store / "blobs").rglob("*objects*"))) == 2
    tiered.environment |= {"TIERED_FEED__ENABLED": "false", "TIERED_FEED__HOLD_MAX_S": "60"}
    age(tiered, -30)
    tiered("recover", "--once", *limit)
    assert kept(tiered) == 1, "it may wait for a minute"
    age(tiered, -40)
    report = json.loads(tiered("--json", "recover", "--once", *limit))
    assert (report["overdue"], kept(tiered)) == (1, 0)
    assert len(list((tiered.store / "blobs").rglob("*objects*"))) == 1

    tiered.environment |= {"TIERED_FEED__ENABLED": "true"}
    assert checkpoint(tiered)["gap"], "a feed that is on again reads all rows first"
    tiered("feed", "run", "--once", "--to", "out")
    [generation] = (tiered.directory / "out").glob("generation-*")
    tiered("feed", "check", str(generation))
    assert "1 record at the frontier" in tiered("feed", "view", str(generation), store=False)


def test_an_entry_that_cannot_be_cleaned_up_is_the_exit_code_of_one_pass(tiered: Command) -> None:
    tiered("feed", "run", "--once", "--to", "out")
    tiered("put", "photos/org.1/objects/a", "-", stdin=b"y" * 100)
    tiered.environment |= {"TIERED_FEED__HOLD_MAX_S": "60"}
    age(tiered, -100)
    with closing(sqlite3.connect(tiered.store / "tiered.db")) as database, database:
        database.execute("UPDATE notes SET value = x'7b7d' WHERE name = 'feed'")
    tiered("recover", "--once", code=6)
    assert "the note feed is damaged" in tiered.errors
    assert kept(tiered) == 1


def age(tiered: Command, seconds: int) -> None:
    """Makes kept entries so much older."""
    with closing(sqlite3.connect(tiered.store / "tiered.db")) as database, database:
        for key, state in database.execute("SELECT key, state FROM changes WHERE state IS NOT NULL").fetchall():
            found = json.loads(state)
            database.execute("UPDATE changes SET state = ? WHERE key = ?", (json.dumps(found | {"at": found["at"] + seconds * 1000}), key))


def kept(tiered: Command) -> int:
    with closing(sqlite3.connect(tiered.store / "tiered.db")) as database:
        return int(database.execute("SELECT count(*) FROM changes").fetchone()[0])


def checkpoint(tiered: Command) -> dict[str, Any]:
    with closing(sqlite3.connect(tiered.store / "tiered.db")) as database:
        return dict(json.loads(database.execute("SELECT value FROM notes WHERE name = 'feed'").fetchone()[0]))
