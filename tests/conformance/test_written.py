"""What a whole store writes keeps the rules: each row at each change of it, each blob as soon as it is there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.base.errors import InvalidRequestError
from changelog.bigtable.row_merge import Cell
from changelog.change import Change, ChangeId
from changelog.noop import NoopChangeLog
from tests.conformance import reader
from tests.conformance.rules import BLOB, ENTRY, KNOWN_THERE, RESOURCE, ROW, SENT_AS, WrittenEntry, as_written, broken
from tests.conformance.test_golden import told_by_store
from tests.given.metadata_fields import CARRIED
from tests.given.stored_bytes import StoredBytes, stored_bytes
from tiered.errors import ConditionFailedError
from tiered.metadata import FIELDS, NS_PER_S, Metadata, TimeToIdle, TimeToLive
from tiered.object_id import ObjectId
from tiered.storage import TieredStorage

pytestmark = pytest.mark.anyio

NOW_NS, HOUR, DAY = 1_764_295_200_123_456_789, timedelta(hours=1), timedelta(days=1)
SMALL, LARGE, LARGER = b"small", b"large" * 100, b"larger" * 100
TOLD = Metadata(**CARRIED, custom={"build_id": "a/b", "empty": ""})
IDLE, LIVES, STAYS = Metadata(TimeToIdle(HOUR)), Metadata(TimeToLive(DAY)), Metadata()
OWN_ROWS = {"~changelog/": {"c", "s"}, "~daemon/": {"c"}, "~notes/": {"n"}, "~values/": {"v"}}
"""The columns of the store's own rows, all of the family `fc`."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def named(key: str) -> ObjectId:
    return ObjectId.create("attachments", key, {"org": "17", "project": "42"})


class RuleWatch:
    """Judges each row at each change of it, and each blob that is new then or has changed."""

    def __init__(self, world: StoredBytes) -> None:
        self.faults: dict[str, list[str]] = {}
        self.seen: set[str] = set()
        """Which columns and which entries of blobs were there: what no test met proves nothing."""
        self._world = world
        self._judged: dict[str, str] = {}
        world.on_change(self.row)

    def row(self, key: str) -> None:
        cells = self._world.rows().get(key, ())
        self.seen |= {f"{cell.family}:{cell.column.decode()}"[:5] for cell in cells}
        self._note(key, faults_of_row(key, cells))
        self.blobs()

    def blobs(self) -> None:
        for name, told in self._world.resources().items():
            if self._judged.get(name) != told["etag"]:
                self._judged[name] = told["etag"]
                self.seen |= told.get("metadata", {}).keys() | told.keys() & SENT_AS.keys()
                self._note(name, broken(BLOB, {field: told[field] for field in RESOURCE & told.keys()}))

    def _note(self, name: str, broken: list[str]) -> None:
        if broken:
            self.faults[name] = broken


def faults_of_row(key: str, cells: Sequence[Cell]) -> list[str]:
    own = next((columns for start, columns in OWN_ROWS.items() if key.startswith(start)), None)
    if not cells:
        return []
    if own is None:
        return broken(ROW, as_written(key.encode(), cells))
    columns = {cell.column.decode(): cell.value for cell in cells}
    is_ours = columns.keys() <= own and {cell.family for cell in cells} == {"fc"}
    if not key.startswith("~changelog/"):
        return [] if is_ours else [f"a row of our own with {sorted(columns)}"]
    return broken(ENTRY, WrittenEntry(key, columns["c"], columns.get("s")))


async def use(storage: TieredStorage) -> None:
    """Every way to write: by size, lifetime and condition, over nothing and over what is there."""
    for size, payload in (("small", SMALL), ("large", LARGE)):
        for lifetime, metadata in (("stays", STAYS), ("lives", LIVES), ("idle", IDLE), ("told", TOLD)):
            await storage.put(named(f"{size} {lifetime}"), payload, metadata)
            await storage.put(named(f"{size} {lifetime} gone"), payload, metadata)
            await storage.delete(named(f"{size} {lifetime} gone"))
            await storage.copy(named(f"{size} {lifetime}"), named(f"{size} {lifetime} copied"))
            await storage.rename(named(f"{size} {lifetime} copied"), named(f"{size} {lifetime} renamed"))
            await storage.put(named(f"{size} {lifetime} replaced"), payload, metadata)
            await storage.put(named(f"{size} {lifetime} replaced"), SMALL if payload is LARGE else LARGE, LIVES)
    for size in ("small", "large"):
        await storage.update_metadata(named(f"{size} told"), lambda told: Metadata(LIVES.expiration, filename="other.txt"))
        await storage.set_expiry(named(f"{size} stays"), from_creation=DAY)
        await storage.set_expiry(named(f"{size} lives"))
    result = await storage.put(named("conditional"), LARGE, STAYS, if_absent=True)
    assert result.revision is not None
    await storage.put(named("conditional"), LARGER, LIVES, if_revision=result.revision)
    with suppress(ConditionFailedError):
        await storage.put(named("conditional"), SMALL, if_revision=result.revision)
    await storage.put(named("told at the end"), LARGER, STAYS, custom_at_end=lambda: {"Sum": "1", "empty": ""})
    await storage.put(named("newer"), LARGER, Metadata(unknown={"newer": [1, None]}))
    upload = await storage.begin_multipart(named("in parts"), Metadata(LIVES.expiration, filename="a b", custom={"Upper": "x", "k": "v"}))
    await upload.upload_part(1, LARGE)
    await upload.complete()
    await storage.begin_multipart(named("left open"), TOLD)


SEEN = {
    *(f"{family}:{column}" for family in ("fg", "fm") for column in "pmrtvcd"), "ff:w:", "ff:r:", "ff:x", "fc:c", "fc:s", "fc:n", "fc:v",
    *KNOWN_THERE, *SENT_AS, "x-snme-build_id", "x-snme-empty", "x-snme-Sum", "x-snme-k", "x-snme-Upper", "x-snme-Tiered-Unknown",
}  # fmt: skip


async def test_whatever_a_store_writes_keeps_the_rules_at_every_moment() -> None:
    async with stored_bytes(NOW_NS) as world:
        watch = RuleWatch(world)
        async with world.opened() as storage:
            await use(storage)
        world.runtime.now_ns = NOW_NS + 1800 * NS_PER_S
        async with world.opened() as storage:  # its end waits for renewals
            for key in ("small idle", "large idle"):
                assert await storage.get(named(key)) is not None
        change = Change(ChangeId("018bcfe5-6800-7000-8000-0000000000ff"), named("parked").path)
        assert await world.log.park(await world.log.record(change, "store-1"), "it failed")
        await world.log.announce("daemon-1")
        await world.log.swap_note("note", None, b"1")
        await world.log.write_values({"key": b"1"}, 1)
        watch.blobs()
        assert watch.faults == {}
        assert watch.seen == SEEN
        await compare(world)


# --- what callers may try ------------------------------------------------------------------------------

anything = st.text(st.sampled_from([*'aZ0/;= -_.%"', "é", "日", "\t", "\n", "\0", "\x7f", "\x85", "\u2028"]), max_size=4)
tries = st.fixed_dictionaries({}, optional={
    **{name: anything | st.sampled_from([None, CARRIED[name]]) for name, row in FIELDS.items() if row.kind is str},
    "custom": st.dictionaries(anything | st.just("Key"), anything, max_size=2), "unknown": st.dictionaries(anything, anything, max_size=1),
})  # fmt: skip


async def written_at_all(drawn: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The faults of what a store with its defaults has written of this. It may refuse."""
    async with stored_bytes() as world, world.opened(NoopChangeLog()) as storage:
        watch = RuleWatch(world)
        for number, values in enumerate(drawn):
            for payload in (SMALL, LARGE):
                with suppress(InvalidRequestError):
                    await storage.put(named(f"{number} {len(payload)}"), payload, Metadata(**values))
        return watch.faults


@settings(max_examples=20)
@given(st.lists(tries, min_size=1, max_size=10))
def test_whatever_texts_callers_give_what_is_written_keeps_the_rules(drawn: list[dict[str, Any]]) -> None:
    assert anyio.run(written_at_all, drawn) == {}


async def compare(world: StoredBytes) -> None:
    """The reader of the page and our store read the same objects."""
    async with world.opened() as storage:
        for key, cells in world.rows().items():
            row = as_written(key.encode(), cells)
            found = reader.read(
                row.key, [reader.ReadCell(*cell) for cell in row.cells], world.resources().get, world.runtime.wall_ns() // 1000
            )
            ours = await told_by_store(storage, key)
            assert (ours and ours["metadata"]) == (found and found.metadata), key
