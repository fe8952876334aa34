"""Golden rows and blobs of every form: what a reader must say, by our store and by the reader of `docs/format.md`."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from changelog.bigtable.channel import set_cell
from changelog.bigtable.row_merge import Cell
from changelog.noop import NoopChangeLog
from tests.conformance import reader
from tests.conformance.golden import FORMS, NOW_US, bytes_of, now_us, value_of
from tests.given.stored_bytes import StoredBytes, stored_bytes
from tiered.bigtable.rows import BigtableRows
from tiered.errors import DanglingTombstoneError
from tiered.metadata import encode_metadata
from tiered.object_id import ObjectId
from tiered.storage import TieredStorage
from tiered.stored import Tier

pytestmark = pytest.mark.anyio

LINES_MAX = 200


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- the reader of the page ----------------------------------------------------------------------------


def told_by_reader(form: dict[str, Any]) -> Any:
    blobs = {blob["name"]: blob for blob in form.get("blobs", ())}
    cells = [reader.ReadCell(family, column, at_us, bytes_of(value)) for family, column, at_us, value in form["cells"]]
    try:
        found = reader.read(form["key"].encode(), cells, blobs.get, now_us(form))
    except reader.BreaksFormatError:
        return "corrupt"
    except reader.BlobGoneError:
        return "lost"
    if found is None:
        return None
    where = {"payload": value_of(found.payload)} if found.payload is not None else {"blob": found.blob}
    return {"metadata": found.metadata, **where}, reader.renewed(found, now_us(form))


def renewed_us(form: dict[str, Any]) -> int | None:
    """The deadline after the read, by the cells and the blobs."""
    renewal = form.get("renewed", {"cells": [], "custom_times": {}})
    told = [at_us for family, _, at_us, _ in renewal["cells"] if family == "fg"]
    return max([*told, *map(reader._time_us, renewal["custom_times"].values())], default=None)


@pytest.mark.parametrize("name", FORMS)
def test_a_reader_that_was_written_from_the_page_alone_reads_every_form(name: str) -> None:
    form = FORMS[name]
    says = form["says"]
    assert told_by_reader(form) == ((says, renewed_us(form)) if isinstance(says, dict) else says)


def test_that_reader_is_small_and_imports_nothing_of_ours() -> None:
    source = Path(reader.__file__).read_text("utf-8")
    assert len(source.splitlines()) <= LINES_MAX
    imported = {
        name.partition(".")[0] for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or "."] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }  # fmt: skip
    assert imported <= sys.stdlib_module_names


# --- our store -----------------------------------------------------------------------------------------


async def plant(world: StoredBytes, form: dict[str, Any]) -> None:
    """Makes this form all that is stored, and its time the present."""
    world.runtime.now_ns = now_us(form) * 1000
    for key in list(world.held.rows):
        world.held.put(key, ())
    for name in list(world.bucket.objects):
        world.bucket.remove(name, {}, 0)
    cells = [set_cell(family, column.encode(), bytes_of(value), at_us) for family, column, at_us, value in form["cells"]]
    if cells:
        await world.table.mutate(form["key"].encode(), *cells)
    for blob in form.get("blobs", ()):
        resource = {key: value for key, value in blob.items() if key not in ("size", "timeCreated")}
        world.bucket.insert(blob["name"], b"big", resource, {}, (), reader._time_us(blob["timeCreated"]) * 1000)


async def told_by_store(storage: TieredStorage, key: str) -> Any:
    try:
        stored = await storage.get(ObjectId.parse(key), decompress=False)
    except InvalidRequestError:
        return None  # the key is no object's
    except CorruptRecordError:
        return "corrupt"
    except DanglingTombstoneError:
        return "lost"
    if stored is None:
        return None
    payload = value_of(await stored.read())
    metadata = json.loads(encode_metadata(stored.head.metadata))
    return {"metadata": metadata, "payload": payload} if stored.head.tier is Tier.HIGH_VOLUME else {"metadata": metadata, "read": payload}


async def test_our_store_reads_every_form_and_renews_the_blob_before_the_row() -> None:
    wrong: dict[str, Any] = {}
    blobs_at_change: list[dict[str, str]] = []
    async with stored_bytes(NOW_US * 1000) as world:
        world.on_change(lambda key: blobs_at_change.append(custom_times(world)))
        for name, form in FORMS.items():
            await plant(world, form)
            before = world.rows(), world.resources()
            blobs_at_change.clear()
            async with world.opened(NoopChangeLog()) as storage:  # its end waits for renewals
                said = await told_by_store(storage, form["key"])
            told = said, changes(world, before), list(blobs_at_change)
            if told != expectation(form):
                wrong[name] = told, expectation(form)
    assert wrong == {}


LISTED_ALL_THE_SAME = "half an object that Bigtable has begun to collect"
"""A listing reads no payloads, so it cannot know."""


async def test_what_only_reads_sees_the_same_and_changes_nothing() -> None:
    """A store that is opened to read, its listing, and what an audit reads."""
    changed, listed, named = [], set(), {}
    async with stored_bytes(NOW_US * 1000) as world:
        rows = BigtableRows(world.table, world.runtime)
        for name, form in FORMS.items():
            await plant(world, form)
            before = world.rows(), world.resources()
            async with world.opened(NoopChangeLog(), writes=False) as storage:
                assert await told_by_store(storage, form["key"]) == expectation(form)[0]
                if [entry async for entry in storage.list()]:
                    listed.add(name)
            named[name] = [(each.path, each.target) for each in (await rows.redirects(b"", None, 10)).redirects]
            if (world.rows(), world.resources()) != before:
                changed.append(name)
    assert changed == []
    assert listed == {name for name, form in FORMS.items() if form["says"] is not None or name == LISTED_ALL_THE_SAME}
    for name, says in ((name, form["says"]) for name, form in FORMS.items() if isinstance(form["says"], dict)):
        assert named[name] == ([(FORMS[name]["key"], says["blob"])] if "blob" in says else [])


def custom_times(world: StoredBytes) -> dict[str, str]:
    return {name: told["customTime"] for name, told in world.resources().items() if "customTime" in told}


def changes(world: StoredBytes, before: Any) -> Any:
    """The cells of all rows and the custom times of all blobs, if a read has changed them."""
    if (world.rows(), world.resources()) == before:
        return None
    return {"cells": sorted(listed_cell(cell) for cells in world.rows().values() for cell in cells), "custom_times": custom_times(world)}


def listed_cell(cell: Cell) -> list[Any]:
    return [cell.family, cell.column.decode(), cell.timestamp_us, value_of(cell.value)]


def expectation(form: dict[str, Any]) -> Any:
    """What the store says, what it changes, and the blobs' custom times at each change of the row."""
    says, renewal = form["says"], form.get("renewed")
    if isinstance(says, dict) and "blob" in says:
        says = {"metadata": says["metadata"], "read": "big"}
    changed = renewal and {"cells": sorted(renewal["cells"]), "custom_times": renewal["custom_times"]}
    is_rewritten = renewal is not None and renewal["cells"] != form["cells"]
    return says, changed, [form["renewed"]["custom_times"]] if is_rewritten else []
