"""Photos whose rows are in a database of the service's, and whose bytes are in a store. The database is SQLite here.

    python examples/own_rows.py save ID FILE      stores a photo, or replaces it
    python examples/own_rows.py remove ID
    python examples/own_rows.py sweep             each night: removes what no row names, and prints what is lost
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from tiered import ConditionFailedError, ObjectId, ObjectPrefix
from tiered.sync import Payload, SyncTieredStorage, open_storage

PHOTOS = ObjectPrefix.create("photos")
TABLES = """
    CREATE TABLE IF NOT EXISTS photo (id TEXT PRIMARY KEY, object TEXT NOT NULL UNIQUE);
    CREATE TABLE IF NOT EXISTS gone (object TEXT PRIMARY KEY);
"""


# --8<-- [start:rows]
def save(storage: SyncTieredStorage, database: sqlite3.Connection, photo: str, payload: Payload) -> None:
    stored = ObjectId.create("photos", f"{photo}/{uuid4()}")
    storage.put(stored, payload)  # first the object, under a key that was never used
    with database:  # then the row that names it, in one transaction with what it named before
        database.execute("INSERT INTO gone SELECT object FROM photo WHERE id = ?", [photo])
        database.execute("REPLACE INTO photo VALUES (?, ?)", [photo, str(stored)])
    clear(storage, database)


def remove(storage: SyncTieredStorage, database: sqlite3.Connection, photo: str) -> None:
    with database:  # first the row
        database.execute("INSERT INTO gone SELECT object FROM photo WHERE id = ?", [photo])
        database.execute("DELETE FROM photo WHERE id = ?", [photo])
    clear(storage, database)  # then the object


def clear(storage: SyncTieredStorage, database: sqlite3.Connection) -> None:
    """Deletes what rows do not name any more. After a failure or a kill, the next call goes on."""
    for (path,) in database.execute("SELECT object FROM gone").fetchall():
        storage.delete(ObjectId.parse(path))
        with database:
            database.execute("DELETE FROM gone WHERE object = ?", [path])
# --8<-- [end:rows]


# --8<-- [start:sweep]
def sweep(storage: SyncTieredStorage, database: sqlite3.Connection, grace: timedelta | None = None) -> list[str]:
    """Deletes the objects that no row names. Returns those that a row names and that are not there."""
    lost = []
    clear(storage, database)
    for each in storage.compare(PHOTOS, named(database), grace=grace):
        path = str(each.object_id)
        is_named = database.execute("SELECT 1 FROM photo WHERE object = ?", [path]).fetchone() is not None
        if each.entry is None and is_named:
            lost.append(path)
        elif each.entry is not None and each.entry.revision is not None and not is_named:
            with suppress(ConditionFailedError):  # another sweep was faster
                storage.delete(each.object_id, if_revision=each.entry.revision)
    return lost


def named(database: sqlite3.Connection) -> Iterator[ObjectId]:
    for (path,) in database.execute("SELECT object FROM photo"):
        yield ObjectId.parse(path)
# --8<-- [end:sweep]


def main(task: str, *arguments: str) -> None:
    with closing(sqlite3.connect("photos.db")) as database, open_storage("tiered.yaml") as storage:
        database.executescript(TABLES)
        match task, *arguments:
            case "save", photo, file:
                save(storage, database, photo, Path(file))
            case "remove", photo:
                remove(storage, database, photo)
            case "sweep",:
                for path in sweep(storage, database):
                    print(path)
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:] or [""])
