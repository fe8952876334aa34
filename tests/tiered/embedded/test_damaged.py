"""Single records of an embedded store that are damaged: each is named, and costs no other (I6)."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from changelog.change import LOG_PREFIX, Change, ChangeId, Entry, Unreadable
from changelog.log import LOG_END, KeyRange
from changelog.sqlite.database import Database
from changelog.sqlite.log import SqliteChangeLog
from recovery.loop import RecoveryLoop
from tiered import CorruptRecordError, ObjectId, Settings, open_storage
from tiered.embedded.rows import SqliteRows
from tiered.open import open_backends
from tiered.protocol.listing import LIST_PAGE_MAX
from tiered.storage import TieredStorage
from tiered.testing.clock import Clock

pytestmark = pytest.mark.anyio

IDS = [ObjectId.create("notes", key) for key in ("a", "b", "c")]
DAMAGED = IDS[1]
COLUMNS = [
    "deadline_ms = 'soon'", "deadline_ms = CAST(x'ff' AS TEXT)", "deadline_ms = x'00'", "deadline_ms = 1.5", "deadline_ms = 9e999",
    "token = 'x'", "token = 5.5", "token = x'00'", "metadata = '{}'", "metadata = x'ff'", "metadata = NULL", "payload = 'text'",
    "metadata = CAST('{\"expiration_policy\":{\"TimeToLive\":{\"secs\":[1],\"nanos\":0}}}' AS BLOB)",
]  # fmt: skip


def spoil(directory: Path, statement: str, values: tuple[str, ...] = ()) -> None:
    """By another hand than the store's."""
    with closing(sqlite3.connect(directory / "tiered.db")) as connection, connection:
        connection.execute(statement, values)


@dataclass
class DamagedStore:
    directory: Path
    storage: TieredStorage

    def run(self, statement: str) -> None:
        spoil(self.directory, statement)

    async def listed(self) -> list[ObjectId]:
        return [entry.object_id async for entry in self.storage.list()]


@pytest.fixture
async def store(tmp_path: Path, anyio_backend: str) -> AsyncIterator[DamagedStore]:
    async with open_storage(Settings(directory=tmp_path, changelog="sqlite", inline_bytes_max=100)) as storage:
        for object_id in IDS:
            await storage.put(object_id, b"small")
        yield DamagedStore(tmp_path, storage)


# --- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [
    "target = replace(target, 'notes/', 'notez/')", "target = CAST(x'ff' AS TEXT)", "policy = '{'", "token = 'x'",
    "token = 5.5", "metadata = x'ff'",
])  # fmt: skip
async def test_damaged_tombstone_is_named_where_an_audit_reads(store: DamagedStore, column: str) -> None:
    """Otherwise its blob, which nobody can reach by this row, would seem to be an orphan, or to be well."""
    await store.storage.put(DAMAGED, b"large" * 99)
    await store.storage.put(IDS[2], b"large" * 99)
    store.run(f"UPDATE rows SET {column} WHERE path = '{DAMAGED.path}'")
    with pytest.raises(CorruptRecordError):
        await store.storage.head(DAMAGED)
    async with open_backends(Settings(directory=store.directory, changelog="sqlite"), Clock()) as backends:
        rows = backends.tiers.high_volume
        for page in (await rows.redirects(b"", None, 10), await rows.redirects_at([each.path.encode() for each in IDS])):
            assert [row.path for row in page.corrupt] == [DAMAGED.path]
            assert [row.path for row in page.redirects] == [IDS[2].path]


@pytest.mark.parametrize("column", COLUMNS)
async def test_a_damaged_row_is_listed_and_get_says_what_is_wrong(
    store: DamagedStore, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.run(f"UPDATE rows SET {column} WHERE path = '{DAMAGED}'")
    with caplog.at_level(logging.WARNING, "tiered"):
        assert await store.listed() == IDS
    if column.startswith("deadline_ms"):
        assert f"corrupt_row path={DAMAGED}: its deadline is" in caplog.text
    for read in (store.storage.get, store.storage.head):
        with pytest.raises(CorruptRecordError, match=str(DAMAGED)):
            await read(DAMAGED)
    await store.storage.put(DAMAGED, b"mended")
    stored = await store.storage.get(DAMAGED)
    assert stored is not None and await stored.read() == b"mended"


@pytest.mark.parametrize("column", [
    "metadata = x'7b'", "metadata = NULL", "metadata = 5", "token = 'no id'", "token = x'00'", "deadline_ms = 'soon'"
])  # fmt: skip
async def test_an_entry_of_a_damaged_row_says_what_is_wrong(store: DamagedStore, column: str, caplog: pytest.LogCaptureFixture) -> None:
    store.run(f"UPDATE rows SET {column} WHERE path = '{DAMAGED}'")
    for metadata in (False, True):
        entries = {entry.object_id: entry async for entry in store.storage.list(metadata=metadata)}
        assert list(entries) == IDS and [each for each in IDS if entries[each].fault is not None] == [DAMAGED]
        assert (entries[DAMAGED].size, entries[DAMAGED].revision, entries[DAMAGED].metadata) == (None, None, None)
    assert f"corrupt_row path={DAMAGED}" in caplog.text


async def test_a_policy_that_is_too_deep_to_read_is_a_damaged_row(store: DamagedStore) -> None:
    await store.storage.put(DAMAGED, b"large" * 100)
    store.run(f"UPDATE rows SET policy = '{'[' * 100_000}', crc = NULL WHERE path = '{DAMAGED}'")
    for read in (store.storage.get, store.storage.head):
        with pytest.raises(CorruptRecordError, match=str(DAMAGED)):
            await read(DAMAGED)


async def test_a_key_that_is_no_text_or_no_id_is_named_in_the_log_and_the_listing_goes_on(
    store: DamagedStore, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("CAST(x'6e6f7465732f6f626a656374732f62ff' AS TEXT)", "'notes/uploads/b'", "'notes'", "''", "x'00'", "NULL", "'~d/me'"):
        store.run(f"INSERT INTO rows (path, payload, metadata) VALUES ({path}, x'', x'')")
    with caplog.at_level(logging.WARNING, "tiered"):
        assert await store.listed() == IDS
    assert r"notes/objects/b\xff" in caplog.text and "~d/me" in caplog.text


async def test_a_page_that_ends_in_damage_is_no_end(store: DamagedStore, runtime: Clock) -> None:
    keys = [f"notes/objects/b{number:04d}" for number in range(LIST_PAGE_MAX - 2)]
    for key in keys:
        store.run(f"INSERT INTO rows (path, payload, metadata, deadline_ms) VALUES ('{key}', x'', x'', 'soon')")
    store.run("INSERT INTO rows (path, payload, metadata) VALUES (CAST(x'6e6f7465732f6f626a656374732f6239ff' AS TEXT), x'', x'')")
    assert [str(object_id) for object_id in await store.listed()] == sorted([*map(str, IDS), *keys])


async def test_tombstones_beside_damaged_ones_reach_the_audit(store: DamagedStore, runtime: Clock) -> None:
    await store.storage.put(DAMAGED, b"large" * 100)
    for number, (path, target, deadline) in enumerate([
        ("CAST(x'ff' AS TEXT)", "'x'", "NULL"),
        ("'notes/objects/d'", "CAST(x'ff' AS TEXT)", "NULL"), ("'notes/objects/e'", "'x'", "'soon'"),
        ("'notes/objects/f'", "'x'", "CAST(x'ff' AS TEXT)"), ("x'00'", "'x'", "NULL"), ("NULL", "'x'", "NULL"),
    ]):  # fmt: skip
        store.run(f"INSERT INTO rows (rowid, path, target, deadline_ms) VALUES ({100 + number}, {path}, {target}, {deadline})")
    async with Database.open(store.directory / "tiered.db", runtime) as database:
        rows, start, found, corrupt = SqliteRows(database, runtime), b"", [], []
        for _ in range(10):
            page = await rows.redirects(start, None, 1)
            found += [each.path for each in page.redirects]
            corrupt += [each.path for each in page.corrupt]
            if page.next_start is None:
                break
            start = page.next_start
        else:
            pytest.fail("it goes round")
        assert await rows.boundaries(20) == ["notes/objects/b", "notes/objects/c", "notes/objects/d", "notes/objects/e", "notes/objects/f"]
    assert found == [str(DAMAGED)]
    # Keys that are no text are told where the blobs are that they name.
    assert corrupt == ["notes/objects/d", "notes/objects/e", "notes/objects/f", "\0", "", r"\xff"]


async def test_a_settle_refused_the_blob_of_a_row_whose_key_is_no_text(store: DamagedStore, runtime: Clock) -> None:
    """Recovery deletes what a settle does not call live. The row still names the blob."""
    await store.storage.put(DAMAGED, b"large" * 100)
    async with Database.open(store.directory / "tiered.db", runtime) as database:
        rows = SqliteRows(database, runtime)
        target = (await rows.read(str(DAMAGED))).target
        assert target is not None
        token = ChangeId(target.rpartition("/")[2])
        store.run(f"UPDATE rows SET path = CAST(path AS BLOB) WHERE path = '{DAMAGED}'")
        assert await rows.settle(str(DAMAGED), token)
        store.run("DELETE FROM rows WHERE typeof(path) = 'blob'")
        assert not await rows.settle(str(DAMAGED), token)


# --- entries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        "value = '{'", "value = 'text'", "value = x'ff'", "value = 5", "value = x''", "heartbeat_ms = 'soon'", "heartbeat_ms = x'ff'",
        "heartbeat_ms = CAST(x'ff' AS TEXT)", "state = '{'", "state = 5", "state = x'ff'", "state = CAST(x'ff' AS TEXT)",
        "state = '{\"state\":\"stuck\",\"error\":\"\",\"at\":1e999}'",
        "state = '{\"state\":\"done\",\"at\":1e999}'", "key = 'key'", "key = CAST(x'7eff' AS TEXT)", "key = x'7e'",
        "value = CAST(x'7b22ff' AS TEXT)",
    ],
)  # fmt: skip
async def test_a_damaged_entry_does_not_hide_the_others_from_recovery(tmp_path: Path, runtime: Clock, column: str) -> None:
    settings = Settings(directory=tmp_path, changelog="sqlite")
    ids = [ChangeId.new(runtime) for _ in range(3)]
    async with open_backends(settings, runtime) as backends:
        for id, object_id in zip(ids, IDS, strict=True):
            entry = await backends.log.record(Change(id, object_id.path, None, None), "dead")
            assert await backends.log.release(entry)
        spoil(tmp_path, f"UPDATE changes SET {column} WHERE key = ?", (ids[1].row_key(),))
        assert isinstance(backends.log, SqliteChangeLog)
        seen = {entry.change.id for entry in (await backends.log.entries("", 10)).entries if isinstance(entry, Entry)}
        assert {ids[0], ids[2]} <= seen
        await RecoveryLoop(backends.tiers, backends.log, runtime, settings).run_once()
        left = (await backends.log.entries("", 10)).entries
        assert not {ids[0], ids[2]} & {entry.change.id for entry in left if isinstance(entry, Entry)}
        assert all(entry.stuck is not None for entry in left if isinstance(entry, Unreadable) and entry.key == ids[1].row_key())


@pytest.mark.parametrize("column", ["value = 'text'", "value = 5", "version = 'soon'", "key = CAST(x'62ff' AS TEXT)", "key = x'62'"])
async def test_a_damaged_value_of_the_log_does_not_hide_the_others(tmp_path: Path, runtime: Clock, column: str) -> None:
    async with open_backends(Settings(directory=tmp_path, changelog="sqlite"), runtime) as backends:
        await backends.log.write_values({"a": b"1", "b": b"1", "c": b"1"}, 1)
        spoil(tmp_path, f"UPDATE log_values SET {column} WHERE key = 'b'")
        found = dict((await backends.log.scan_values("", "z", 10)).values)
        assert {"a": b"1", "c": b"1"}.items() <= found.items()
        assert {"a": b"1", "c": b"1"}.items() <= dict(await backends.log.read_values(["a", "b", "c"])).items()
        await backends.log.write_values({"a": b"2", "b": b"2", "c": b"2"}, 2)
        assert dict(await backends.log.read_values(["a", "b", "c"])) == {"a": b"2", "b": b"2", "c": b"2"}


async def test_a_kept_entry_that_cannot_be_read_can_be_parked_among_good_ones(tmp_path: Path, runtime: Clock) -> None:
    async with open_backends(Settings(directory=tmp_path, changelog="sqlite"), runtime) as backends:
        good, bad = [await backends.log.record(Change(ChangeId.new(runtime), IDS[0].path), "me") for _ in range(2)]
        assert await backends.log.keep(good) and await backends.log.keep(bad)
        spoil(tmp_path, "UPDATE changes SET value = '{' WHERE key = ?", (bad.key,))
        everything = KeyRange(LOG_PREFIX, LOG_END)
        found = {entry.key: entry for entry in (await backends.log.kept(everything, 10)).entries}
        unreadable = found[bad.key]
        assert found[good.key] == good and isinstance(unreadable, Unreadable)
        assert await backends.log.park(unreadable, unreadable.error) is True
        assert (await backends.log.kept(everything, 10)).entries == (good,)
