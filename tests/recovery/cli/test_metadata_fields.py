"""What a row of `Metadata` names has an option of the command, and a column of each table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.given.command_line import OBJECT, Command
from tests.given.metadata_fields import CARRIED, OTHERS
from tiered import Metadata, ObjectId, Settings
from tiered.filesystem.implementation import TieredFileSystem
from tiered.metadata import COLUMNS, FIELDS
from tiered.sync import open_storage

BY_OPTION = [name for name, row in FIELDS.items() if row.option is not None]
IN_TABLES = {name: CARRIED[name] for name in COLUMNS}


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    return Command(tmp_path)


def options(values: dict[str, str]) -> list[str]:
    return [word for name in BY_OPTION for word in (f"--{name.replace('_', '-')}", values[name])]


def told(tiered: Command) -> dict[str, str]:
    metadata = json.loads(tiered("head", OBJECT, "--json"))["metadata"]
    return {name: metadata[FIELDS[name].key or name] for name in BY_OPTION}


def test_every_option_of_a_field_is_kept_and_changed(tiered: Command) -> None:
    tiered("put", OBJECT, "-", *options(CARRIED), stdin=b"cat")
    assert told(tiered) == {name: CARRIED[name] for name in BY_OPTION}
    tiered("update-metadata", OBJECT, *options(OTHERS))
    assert told(tiered) == {name: OTHERS[name] for name in BY_OPTION}


def test_every_column_of_a_field_is_in_the_tables_and_in_the_file_system(tiered: Command) -> None:
    with open_storage(Settings(directory=tiered.store)) as storage:
        storage.put(ObjectId.parse(OBJECT), b"cat", Metadata(**CARRIED))
        assert columns(TieredFileSystem(storage=storage, skip_instance_cache=True).info(OBJECT)) == IN_TABLES
    tiered("export", "objects", "--to", "exported")
    tiered("export", "table", "--to", "table")
    for table in ("exported/manifest", "table"):
        (part,) = (tiered.directory / table).glob("*.parquet")
        (row,) = pq.read_table(part).to_pylist()
        assert columns(row) == IN_TABLES, table


def columns(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in COLUMNS}
