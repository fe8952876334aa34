"""The table of all objects tells what the store's own listing tells, and leaves nothing out."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from recovery.sources.columns import OBJECTS, us_of
from recovery.sources.stored_objects import read_objects
from tests.given.audit_grounds import BEGINS_NS, DAY_NS, OLD_NS, AuditGround, SimulatedGround, ground_of
from tests.given.planted_world import plant
from tiered.metadata import Metadata, TimeToIdle, TimeToLive, is_expired
from tiered.services.backends import Inline, RowState, Tiers, Tombstone
from tiered.services.scans import RowPage
from tiered.settings import Settings
from tiered.storage import TieredStorage
from tiered.stored import ListEntry

pytestmark = [pytest.mark.anyio]

HOUR_NS = 3600 * 10**9
ENDS = b"", b"media/objects/b", b"refs/", b"small/objects/n", b"unicode/objects/\xf0", b"zzz"


@pytest.fixture(params=["simulated", "embedded", pytest.param("emulators", marks=pytest.mark.night)])
async def ground(request: pytest.FixtureRequest, anyio_backend: object, tmp_path: Path) -> AsyncIterator[AuditGround]:
    async with ground_of(request.param, request, tmp_path) as ground:
        yield ground


async def table(ground: AuditGround, limit: int = 5000, start: bytes = b"", end: bytes | None = None, **how: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    following: bytes | None = start
    while following is not None:
        page = await read_objects(ground.tiers, ground.clock, following, end, limit=limit, **how)
        found += [dict(zip(OBJECTS, row, strict=True)) for row in page.rows]
        following = page.next_start
    return found


async def listed(ground: AuditGround) -> dict[str, ListEntry]:
    settings = Settings(directory=Path("unused"))
    async with TieredStorage(ground.tiers, ground.log, ground.clock, settings, writes=False) as storage:
        return {str(each.object_id): each async for each in storage.list(metadata=True) if isinstance(each, ListEntry)}


async def plant_small(
    ground: AuditGround, path: str, expiration: TimeToLive | TimeToIdle | None, deadline_ns: int | None, size: int
) -> None:
    metadata = Metadata(expiration, OLD_NS, deadline_ns, "text/plain", size=size)
    token = ground.clock.at(OLD_NS)
    assert await ground.tiers.high_volume.put_inline(path, token, Inline(metadata, b"x" * size, token))


async def test_it_tells_what_a_listing_tells_and_also_what_a_listing_leaves_out(ground: AuditGround) -> None:
    planted = await plant(ground)
    await plant_small(ground, "small/objects/a", None, None, 7)
    await plant_small(ground, "small/org.17/objects/idle", TimeToIdle(ns=HOUR_NS), BEGINS_NS + HOUR_NS, 8)
    if isinstance(ground, SimulatedGround) or hasattr(ground, "root"):  # a cell that has expired is gone from a table
        await plant_small(ground, "small/objects/old", TimeToLive(ns=HOUR_NS), BEGINS_NS - HOUR_NS, 9)
    await ground.tiers.high_volume.put_inline("strange name", ground.clock.at(OLD_NS), Inline(Metadata(size=1), b"x"))
    if hasattr(ground, "sql"):
        await ground.sql("INSERT INTO rows (path, payload, metadata) VALUES (x'6162', x'', x'7b7d'), (NULL, x'', x'7b7d')")
    ground.clock.now_ns = BEGINS_NS

    whole = await table(ground)
    rows = {row["path"]: row for row in whole}
    assert len(rows) == len(whole) > 100 and set(Counter(row["tier"] for row in whole)) >= {"high-volume", "long-term"}
    for limit in (7,):
        assert sorted(map(str, await table(ground, limit))) == sorted(map(str, whole)), "whatever a page holds"
    parts = [await table(ground, 50, start, end) for start, end in zip(ENDS, [*ENDS[1:], None], strict=True)]
    assert sorted(str(row) for part in parts for row in part) == sorted(map(str, whole)), "however the keys are cut"

    shown = await listed(ground)
    assert not set(shown) - set(rows)
    for path, entry in shown.items():
        row = rows[path]
        if entry.fault is not None:
            assert row["error"] is not None, path
            continue
        assert row["size"] == entry.size and row["tier"] == entry.tier.value and row["revision"] == entry.revision, path
        assert (row["created"], row["expires"]) == (us_of(entry.time_created_ns), us_of(entry.time_expires_ns)), path
        assert entry.metadata is not None and row["content_type"] == entry.metadata.content_type
        assert (row["usecase"], row["key"]) == (entry.object_id.usecase, entry.object_id.key)
        assert tuple((each["name"], each["value"]) for each in row["scopes"]) == entry.object_id.scopes
        assert row["expired"] is False and (row["policy"] == "manual") == (entry.metadata.expiration is None)
    for path in set(rows) - set(shown):
        assert rows[path]["error"] is not None or rows[path]["expired"], path
    assert {row["path"] for row in whole if row["expired"]} and rows["strange name"]["error"].startswith("nobody finds it by its key")
    assert (rows["small/objects/a"]["size"], rows["small/objects/a"]["lifetime_s"]) == (7, None)
    idle = rows["small/org.17/objects/idle"]
    assert (idle["policy"], idle["lifetime_s"], idle["scopes"]) == ("time_to_idle", 3600.0, [{"name": "org", "value": "17"}])
    lost = {name for kind, name in planted.expected if kind.value == "dangling"}
    assert lost and {row["blob"] for row in whole if "its data is lost" in (row["error"] or "")} >= lost, "each lost blob"
    if hasattr(ground, "sql"):
        assert {"ab", "", "\\xff/"} <= set(rows) and rows["ab"]["error"] == "its key is of type blob, not text, so nobody finds it"

    bare = {row["path"]: row for row in await table(ground, blobs=False)}
    assert bare.keys() == rows.keys()
    large = [row for row in bare.values() if row["tier"] == "long-term"]
    assert large and all(row["size"] is row["created"] is row["content_type"] is row["policy"] is None for row in large)
    assert bare["small/objects/a"] == rows["small/objects/a"]


class Overtaken:
    """A high-volume tier in which something happens after each scan."""

    def __init__(self, rows: Any, happens: Callable[[], Awaitable[None]]) -> None:
        self._rows = rows
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    async def scan(self, *asked: Any) -> RowPage:
        page: RowPage = await self._rows.scan(*asked)
        await self._happens()
        return page


async def test_an_object_that_changes_between_its_row_and_its_blob_is_told_as_it_is_now() -> None:
    ground = SimulatedGround()
    rows, blobs = ground.tiers.high_volume, ground.tiers.long_term
    paths = [f"media/objects/{name}" for name in ("deleted", "expires", "lost", "shrinks", "stays", "swapped")]
    old: dict[str, str] = {}
    for path in paths:
        old[path] = f"{path}/{ground.clock.at(OLD_NS)}"
        await ground.blob(old[path], 10, OLD_NS, None)
        await ground.row(path, old[path], None)
    new = f"{paths[5]}/{ground.clock.at(OLD_NS)}"
    await ground.blob(new, 20, OLD_NS, None)

    async def change(path: str, state: RowState) -> None:
        assert await rows.swap(path, ground.clock.at(BEGINS_NS), old[path], state, ground.clock.boot_time() + 60)

    async def happens() -> None:
        await change(paths[0], None)
        await change(paths[1], Tombstone(old[paths[1]], TimeToLive(ns=1), OLD_NS + DAY_NS))
        await change(paths[3], Inline(Metadata(size=3), b"abc"))
        await change(paths[5], Tombstone(new))
        for path in paths:
            if path != paths[4]:
                await blobs.delete(old[path])
        ground.clock.now_ns = BEGINS_NS

    ground.tiers = Tiers(Overtaken(rows, happens), blobs)
    found = {row["path"].rpartition("/")[2]: row for row in await table(ground)}
    assert {name: (row["tier"], row["size"], row["expired"]) for name, row in found.items()} == {
        "expires": ("long-term", None, True), "lost": ("long-term", None, False), "shrinks": ("high-volume", 3, False),
        "stays": ("long-term", 10, False), "swapped": ("long-term", 20, False),
    }  # fmt: skip
    assert [name for name, row in found.items() if row["error"] is not None] == ["lost"]
    assert is_expired(OLD_NS + DAY_NS, BEGINS_NS) and found["swapped"]["blob"] == new
