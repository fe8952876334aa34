"""What listings show: entries, typed prefixes, folders, pages that go on later, metadata, and what is refused."""

from __future__ import annotations

import base64
from contextlib import aclosing
from datetime import timedelta
from itertools import chain
from typing import Any

import anyio
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, UnavailableError
from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, fails
from tiered import Folder, ListEntry, Metadata, ObjectId, ObjectPrefix, Tier, TieredStorage, TimeToIdle, TimeToLive
from tiered.protocol.listing import HEADS_LISTED_MIN, ListRequest
from tiered.services.backends import Inline
from tiered.services.scans import CorruptRow, RowPage, ScannedRow

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
ALL = ObjectPrefix()
KEYS = [
    "photos/objects/2025/x", "photos/objects/2026/01/a", "photos/objects/2026/01/b", "photos/objects/2026/c", "photos/objects/2026-d",
    "photos/objects/z", "photos/org.1/objects/a", "photos/org.1/project.2/objects/b", "photos/org.17/objects/a", "photos2/objects/a",
]  # fmt: skip


async def put_all(storage: TieredStorage, paths: list[str], payload: bytes = b"") -> None:
    for path in paths:
        await storage.put(ObjectId.parse(path), payload)


def names(entries: Any) -> list[str]:
    return [entry.prefix.path if isinstance(entry, Folder) else entry.object_id.path for entry in entries]


async def listed(storage: TieredStorage, prefix: ObjectPrefix = ALL, **values: Any) -> list[str]:
    return names([entry async for entry in storage.list(prefix, **values)])


async def paged(storage: TieredStorage, limit: int, **values: Any) -> list[list[str]]:
    """All pages of a listing."""
    pages, token = [], None
    while True:
        page = await storage.list_page(limit=limit, page_token=token, **values)
        pages.append(names(page.entries))
        if (token := page.next_page_token) is None:
            return pages


# --- entries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [HEADS_LISTED_MIN, HEADS_LISTED_MIN - 1])
async def test_many_large_objects_of_a_page_are_looked_at_in_one_call_if_the_service_has_one(world: TappedWorld, large: int) -> None:
    many = [f"photos/objects/{number:02}" for number in range(large)]
    listing: list[int] = []

    async def heads(names: list[str]) -> dict[str, Any]:
        listing.append(len(names))
        return {name: head for name in names[1:] if (head := await world.blobs.target.head(name)) is not None}

    world.blobs.heads = heads  # type: ignore[attr-defined]
    async with world.store() as storage:
        await put_all(storage, many, LARGE)
        await put_all(storage, ["photos/objects/small"], SMALL)
        world.forget_described()
        expected = [await storage.head(ObjectId.parse(path)) for path in many]
        world.calls.clear()
        found = [entry async for entry in storage.list(metadata=True)][:large]
    assert [entry.metadata for entry in found] == [head.metadata for head in expected if head is not None]
    assert [entry.size for entry in found] == [len(LARGE)] * large
    if large >= HEADS_LISTED_MIN:
        assert listing == [large] and world.calls.count("head") == 1, "the one that was left out is looked at alone"
    else:
        assert listing == [] and world.calls.count("head") == large


async def test_who_may_not_list_blobs_looks_at_each(world: TappedWorld) -> None:
    async def heads(names: list[str]) -> dict[str, Any]:
        raise ConfigurationError("grant storage.objects.list")

    world.blobs.heads = heads  # type: ignore[attr-defined]
    async with world.store() as storage:
        await put_all(storage, [f"photos/objects/{number}" for number in range(HEADS_LISTED_MIN)], LARGE)
        world.forget_described()
        assert [entry.size async for entry in storage.list(metadata=True)] == [len(LARGE)] * HEADS_LISTED_MIN


@pytest.mark.parametrize("described", [True, False])
async def test_an_entry_tells_what_the_row_tells_and_the_rest_if_metadata_are_asked_for(world: TappedWorld, described: bool) -> None:
    small, large = ObjectId.create("a", "small"), ObjectId.create("b", "large")
    metadata = Metadata(TimeToLive(HOUR), content_type="text/plain")
    async with world.store() as storage:
        results = [await storage.put(small, SMALL, metadata), await storage.put(large, LARGE, metadata)]
        if not described:
            world.forget_described()
        heads = [await storage.head(small), await storage.head(large)]
        plain = [entry async for entry in storage.list()]
        world.calls.clear()
        whole = [entry async for entry in storage.list(metadata=True)]
        asked = list(world.calls)
    assert [entry.revision for entry in plain] == [entry.revision for entry in whole] == [result.revision for result in results]
    assert [entry.tier for entry in plain] == [entry.tier for entry in whole] == [Tier.HIGH_VOLUME, Tier.LONG_TERM]
    told = [(entry.size, entry.time_created_ns is None, entry.metadata) for entry in plain]
    assert told == [(len(SMALL), False, None), (len(LARGE), False, None) if described else (None, True, None)]
    for entry, head in zip(whole, heads, strict=True):
        assert head is not None
        assert (entry.object_id, entry.size, entry.metadata) == (head.object_id, head.size, head.metadata)
        assert (entry.time_created, entry.time_expires) == (head.metadata.time_created, head.metadata.time_expires)
    assert [entry.time_expires_ns for entry in plain] == [entry.time_expires_ns for entry in whole]
    assert asked == (["scan"] if described else ["scan", "head"]), "a small object's metadata come with its row"


async def test_an_object_that_is_overwritten_or_deleted_between_row_and_blob_is_listed_as_it_is_then(world: TappedWorld) -> None:
    paths = [f"a/objects/{number}" for number in range(3)]
    async with world.store() as storage:
        await put_all(storage, paths, LARGE)
        world.forget_described()

        async def change_after(real: Any, *args: Any) -> Any:
            page = await real(*args)
            await storage.put(ObjectId.parse(paths[0]), SMALL)
            await storage.delete(ObjectId.parse(paths[1]))
            await world.runtime.sleep(5)
            return page

        world.rows.hooks["scan"] = change_after
        found = [entry async for entry in storage.list(metadata=True)]
    assert [(entry.object_id.path, entry.size, entry.tier) for entry in found] == [
        (paths[0], len(SMALL), Tier.HIGH_VOLUME), (paths[2], len(LARGE), Tier.LONG_TERM),
    ]  # fmt: skip


async def test_heads_run_at_once_but_not_more_than_sixteen(world: TappedWorld) -> None:
    running = most = 0

    async def slow(real: Any, *args: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await world.runtime.sleep(1)
        running -= 1
        return await real(*args)

    async with world.store() as storage:
        await put_all(storage, [f"a/objects/{number:03}" for number in range(40)], LARGE)
        world.forget_described()
        world.blobs.hooks["head"] = slow
        began = anyio.current_time()
        assert len(await listed(storage, metadata=True)) == 40
    assert most == 16 and anyio.current_time() - began < 10


async def test_an_object_with_a_lost_blob_or_a_damaged_row_is_listed_with_its_fault(
    world: TappedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [f"a/objects/{number}" for number in range(3)]

    async def damaged(real: Any, *args: Any) -> RowPage:
        page = await real(*args)
        rows = [ScannedRow(row.path, None) if row.path == paths[1] else row for row in page.rows]
        return RowPage(rows, [CorruptRow(paths[1], "bytes have changed")], page.next_start)

    async with world.store() as storage:
        await put_all(storage, paths, LARGE)
        world.forget_described()
        world.rows.hooks["scan"] = damaged
        await world.blobs.target.delete((await world.blob_names())[0])
        found = [entry async for entry in storage.list(metadata=True)]
    assert [entry.object_id.path for entry in found] == paths
    assert "which does not exist" in str(found[0].fault) and found[1].fault == "bytes have changed" and found[2].fault is None
    assert (found[1].size, found[1].revision, found[1].metadata, found[2].size) == (None, None, None, len(LARGE))
    assert "corrupt_row" in caplog.text and "dangling_tombstone" in caplog.text


async def test_a_corrupt_blob_is_a_fault_and_a_service_that_is_away_or_denies_ends_the_listing(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        world.forget_described()
        world.blobs.hooks["head"] = fails(CorruptRecordError("no footer"))
        [entry] = [entry async for entry in storage.list(metadata=True)]
        assert entry.fault == "no footer" and entry.metadata is None
        world.blobs.hooks["head"] = fails(ConfigurationError("grant this process the permission"))
        with pytest.raises(ConfigurationError, match="permission"):
            await storage.list_page(metadata=True)
        world.blobs.hooks["head"] = fails(UnavailableError("down"))
        with pytest.raises(UnavailableError, match="down"):
            await storage.list_page(metadata=True)
        assert len((await storage.list_page()).entries) == 1


async def test_rows_of_older_software_have_no_revision_and_no_size_until_metadata_are_asked_for(world: TappedWorld) -> None:
    async def without_size(real: Any, *args: Any) -> RowPage:
        page = await real(*args)
        return RowPage([ScannedRow(row.path, None) for row in page.rows], (), page.next_start)

    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        world.rows.hooks["scan"] = without_size
        [entry] = [entry async for entry in storage.list()]
        assert entry == ListEntry(OBJECT, Tier.HIGH_VOLUME)
        [entry] = [entry async for entry in storage.list(metadata=True)]
        assert entry.size == len(SMALL) and entry.metadata is not None


async def test_a_listing_extends_no_time_to_idle(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE, Metadata(TimeToIdle(HOUR)))
        await world.runtime.sleep(3000)
        assert await listed(storage, metadata=True) == [OBJECT.path]
        await world.runtime.sleep(700)
        assert await listed(storage, metadata=True) == []


# --- prefixes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefix", "expected"), [
    (ObjectPrefix(), KEYS),
    (ObjectPrefix.create("photos"), KEYS[:-1]),
    (ObjectPrefix.create("photos", scopes={"org": "1"}), KEYS[6:8]),
    (ObjectPrefix.create("photos", "", {"org": "1"}), KEYS[6:7]),
    (ObjectPrefix.create("photos", "2026"), KEYS[1:5]),
    (ObjectPrefix.create("photos", "2026/"), KEYS[1:4]),
    (ObjectPrefix.create("photo"), []),
])  # fmt: skip
async def test_a_prefix_compares_usecase_and_scopes_as_a_whole_and_the_key_by_characters(
    world: TappedWorld, prefix: ObjectPrefix, expected: list[str]
) -> None:
    async with world.store() as storage:
        await put_all(storage, KEYS)
        assert await listed(storage, prefix) == sorted(expected)
        assert [path for path in sorted(KEYS) if ObjectId.parse(path) in prefix] == sorted(expected)
        assert await listed(storage, ObjectPrefix.parse(prefix.path)) == sorted(expected)


async def test_a_listing_goes_through_everything_in_byte_order_and_skips_what_is_no_object(world: TappedWorld) -> None:
    wanted = sorted((f"{'ä' if n % 7 == 0 else 'a'}/objects/{n}" for n in range(1100)), key=str.encode)
    async with world.store() as storage:
        await put_all(storage, wanted)
        await storage.put(ObjectId("no", (("upload", "s"),), "x"), b"")
        token = (await storage.put(OBJECT, SMALL)).revision
        await world.rows.target.put_inline("not-an-object", token, Inline(Metadata(), b""))
        assert await listed(storage, ObjectPrefix.create("a")) == [path for path in wanted if path.startswith("a/")]
        everything = await listed(storage)
    assert set(everything) == {*wanted, OBJECT.path, "no/upload.s/objects/x"}
    assert everything == sorted(everything, key=str.encode)


# --- folders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefix", "delimiter", "expected"), [
    ("", "/", ["photos/", "photos2/"]),
    ("photos", "/", ["photos/objects/", "photos/org.1/", "photos/org.17/"]),
    ("photos/org.1", "/", ["photos/org.1/objects/", "photos/org.1/project.2/"]),
    ("photos/objects/", "/", ["photos/objects/2025/", "photos/objects/2026-d", "photos/objects/2026/", "photos/objects/z"]),
    ("photos/objects/2026", "/", ["photos/objects/2026-d", "photos/objects/2026/"]),
    ("photos/objects/2026/", "/", ["photos/objects/2026/01/", "photos/objects/2026/c"]),
    ("photos/objects/", "6-", ["photos/objects/2025/x", "photos/objects/2026-", *KEYS[1:4], "photos/objects/z"]),
])  # fmt: skip
async def test_a_delimiter_makes_folders_that_can_be_listed_themselves(
    world: TappedWorld, prefix: str, delimiter: str, expected: list[str]
) -> None:
    async with world.store() as storage:
        await put_all(storage, KEYS)
        found = [entry async for entry in storage.list(ObjectPrefix.parse(prefix), delimiter=delimiter)]
        assert names(found) == expected
        below = [await listed(storage, entry.prefix) for entry in found if isinstance(entry, Folder)]
        objects = [entry.object_id.path for entry in found if isinstance(entry, ListEntry)]
        assert sorted([*chain(*below), *objects]) == await listed(storage, ObjectPrefix.parse(prefix))
        pages = await paged(storage, 1, prefix=ObjectPrefix.parse(prefix), delimiter=delimiter)
        assert pages == [[name] for name in expected]


async def test_the_rest_of_a_large_folder_is_skipped_and_not_read(world: TappedWorld) -> None:
    async with world.store() as storage:
        await put_all(storage, [f"a/objects/folder/{number:04}" for number in range(1100)])
        await put_all(storage, ["a/objects/last"])
        world.calls.clear()
        assert await listed(storage, ObjectPrefix.create("a", ""), delimiter="/") == ["a/objects/folder/", "a/objects/last"]
        assert world.calls == ["scan", "scan"]


async def test_a_folder_of_expired_objects_alone_is_no_folder(world: TappedWorld) -> None:
    async with world.store() as storage:
        for key in ("old/1", "old/2", "mixed/1"):
            await storage.put(ObjectId.create("a", key), SMALL, Metadata(TimeToLive(HOUR)))
        await storage.put(ObjectId.create("a", "mixed/2"), SMALL)
        await world.runtime.sleep(3601)
        assert await listed(storage, ObjectPrefix.create("a", ""), delimiter="/") == ["a/objects/mixed/"]


# --- pages, start and limit ------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 10, 11, 1000])
@pytest.mark.parametrize("metadata", [False, True])
async def test_pages_are_full_and_the_last_one_has_no_token(world: TappedWorld, limit: int, metadata: bool) -> None:
    async with world.store() as storage:
        await put_all(storage, KEYS)
        pages = await paged(storage, limit, metadata=metadata)
        assert [*chain(*pages)] == await listed(storage) == sorted(KEYS)
        assert {len(page) for page in pages[:-1]} <= {limit} and 1 <= len(pages[-1]) <= limit
        assert await listed(storage, limit=limit, metadata=metadata) == sorted(KEYS)[:limit]


async def test_a_service_that_gives_just_as_many_rows_as_the_page_has_does_not_end_the_listing(world: TappedWorld) -> None:
    async def two(real: Any, prefix: str, start: bytes, limit: int) -> RowPage:
        return await real(prefix, start, min(limit, 2))  # type: ignore[no-any-return]

    async with world.store() as storage:
        await put_all(storage, KEYS)
        world.rows.hooks["scan"] = two
        assert [*chain(*await paged(storage, 2))] == sorted(KEYS)


@pytest.mark.parametrize("delimiter", [None, "/"])
async def test_for_an_object_that_is_gone_meanwhile_the_next_one_is_listed_and_none_twice(
    world: TappedWorld, delimiter: str | None
) -> None:
    paths = [f"a/objects/{number}" for number in range(5)]

    async def gone(real: Any, name: str) -> Any:
        if not name.startswith(paths[0]):
            return await real(name)
        await storage.delete(ObjectId.parse(paths[0]))
        return None

    async with world.store() as storage:
        await put_all(storage, paths, LARGE)
        world.forget_described()
        world.blobs.hooks["head"] = gone
        assert await listed(storage, ObjectPrefix.create("a", ""), limit=3, metadata=True, delimiter=delimiter) == paths[1:4]


async def test_a_token_with_characters_that_no_token_has_is_refused(world: TappedWorld) -> None:
    async with world.store() as storage:
        await put_all(storage, KEYS)
        token = (await storage.list_page(limit=4)).next_page_token
        assert token is not None
        for odd in (f"{token}\n", f" {token}", f"{token[:4]}!!!!{token[4:]}"):
            with pytest.raises(InvalidRequestError, match="page_token"):
                await storage.list_page(limit=4, page_token=odd)


async def test_a_page_goes_on_in_another_process_and_past_what_was_deleted(world: TappedWorld) -> None:
    async with world.store() as storage:
        await put_all(storage, KEYS)
        first = await storage.list_page(limit=4)
        assert first.next_page_token is not None and first.objects == list(first.entries) and first.folders == []
        await storage.delete(first.objects[-1].object_id)
    async with world.store() as another:
        second = await another.list_page(limit=100, page_token=first.next_page_token)
    assert names(first.entries + second.entries) == sorted(KEYS) and second.next_page_token is None


async def test_a_page_without_objects_has_no_entries_and_no_token(world: TappedWorld) -> None:
    async with world.store() as storage:
        assert await storage.list_page() == await storage.list_page(limit=1, metadata=True)
        assert (await storage.list_page()).entries == () and (await storage.list_page()).next_page_token is None


async def test_a_listing_begins_after_an_object_or_after_all_of_a_folder(world: TappedWorld) -> None:
    paths = sorted(KEYS)
    async with world.store() as storage:
        await put_all(storage, KEYS)
        for position, path in enumerate(paths):
            assert await listed(storage, start_after=ObjectId.parse(path)) == paths[position + 1 :]
        assert await listed(storage, start_after=ObjectId.create("a", "absent")) == paths
        page = await storage.list_page(ObjectPrefix.create("photos", ""), delimiter="/", limit=1)
        after = await listed(storage, ObjectPrefix.create("photos", ""), delimiter="/", start_after=page.folders[0].prefix)
        assert after == ["photos/objects/2026-d", "photos/objects/2026/", "photos/objects/z"]


async def test_a_small_limit_does_not_ask_for_each_expired_row_by_itself(world: TappedWorld) -> None:
    """Bigtable may take a week to collect them."""
    async with world.store() as storage:
        for number in range(30):
            await storage.put(ObjectId.create("photos", f"{number:02}"), SMALL, Metadata(TimeToLive(HOUR)))
        await storage.put(ObjectId.create("photos", "z"), SMALL)
        await world.runtime.sleep(3601)
        for list_one in (listed(storage, limit=1), paged(storage, 1)):
            world.calls.clear()
            assert await list_one in (["photos/objects/z"], [["photos/objects/z"]])
            assert world.calls.count("scan") <= 2


async def test_a_small_limit_reads_few_rows(world: TappedWorld) -> None:
    asked: list[int] = []

    async def scan(real: Any, prefix: str, start: bytes, limit: int) -> Any:
        asked.append(limit)
        return await real(prefix, start, limit)

    async with world.store() as storage:
        world.rows.hooks["scan"] = scan
        await listed(storage, limit=3)
        await storage.list_page(limit=3)
        await listed(storage, metadata=True)
        await listed(storage)
    assert asked == [3, 4, 100, 1000]


@pytest.mark.parametrize("size", [1, 500, 1000])
async def test_whatever_somebody_writes_into_a_token_only_the_prefix_is_listed(world: TappedWorld, size: int) -> None:
    async with world.store() as storage:
        await put_all(storage, KEYS)
        prefix = ObjectPrefix.create("photos", scopes={"org": "1"})
        token = (await storage.list_page(prefix, limit=1)).next_page_token
        assert token is not None
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        assert b"org" not in raw, "of the prefix, it has only a digest"
        for position in range(len(raw)):
            forged = raw[:position] + bytes((raw[position] ^ 1,)) + raw[position + 1 :]
            with pytest.raises(InvalidRequestError, match="page_token"):
                await storage.list_page(prefix, page_token=base64.urlsafe_b64encode(forged).decode(), limit=size)
        listing, begins = ListRequest(prefix, None, size, None, False), prefix.path.encode()
        for start in (b"", b"\0", b"\xff", b"objects/\xc3"):  # whoever knows how it is made can also name a place
            page = await storage.list_page(prefix, page_token=listing.token(begins + start), limit=size)
            assert all(name.startswith(prefix.path) for name in names(page.entries))
        with pytest.raises(InvalidRequestError, match="page_token"):
            await storage.list_page(prefix, page_token=listing.token(begins + b"k" * 5000), limit=size)


# --- what is refused -------------------------------------------------------------------------------


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"prefix": "photos/"}, "a prefix is ObjectPrefix"),
    "no prefix": ({"prefix": None}, "a prefix is ObjectPrefix"),
    "an id": ({"prefix": OBJECT}, "a prefix is ObjectPrefix"),
    "a limit of nothing": ({"limit": 0}, "from 1"),
    "a limit below nothing": ({"limit": -1}, "from 1"),
    "a limit that is true": ({"limit": True}, "from 1"),
    "a limit that is no whole number": ({"limit": 1.5}, "from 1"),
    "metadata that are some": ({"metadata": Metadata()}, "metadata is True or False"),
    "an empty delimiter": ({"delimiter": ""}, "the delimiter is empty"),
    "a delimiter of bytes": ({"delimiter": b"/"}, "the delimiter is b'/', not text"),
    "a delimiter without a key": ({"prefix": ObjectPrefix.create("a"), "delimiter": "-"}, "cuts keys only"),
    "a start that is text": ({"start_after": "photos/objects/a"}, "start_after is an ObjectId"),
    "a start that is all": ({"start_after": ObjectPrefix()}, "is not within the prefix"),
    "a start elsewhere": ({"prefix": ObjectPrefix.create("a"), "start_after": OBJECT}, "is not within the prefix 'a/'"),
}
REFUSED_PAGES: dict[str, tuple[dict[str, Any], str]] = {
    "no limit": ({"limit": None}, "from 1 to 1000"),
    "a limit that is too large": ({"limit": 1001}, "from 1 to 1000"),
    "a token of bytes": ({"page_token": b"AA"}, "page_token is b'AA', not text"),
    "a token that is none": ({"page_token": "x"}, "page_token 'x' is none"),
    "an empty token": ({"page_token": ""}, "page_token '' is none"),
    "a token of letters that are none": ({"page_token": "ä"}, "page_token 'ä' is none"),
    "a token and a start": ({"page_token": "x", "start_after": OBJECT}, "not both"),
}


@pytest.mark.parametrize("wrong", [*REFUSED, *REFUSED_PAGES])
async def test_a_wrong_argument_is_refused_in_one_sentence(world: TappedWorld, wrong: str) -> None:
    values, told = (REFUSED | REFUSED_PAGES)[wrong]
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match=told) as refused:
            await storage.list_page(**values)
        if wrong in REFUSED:
            with pytest.raises(InvalidRequestError, match=told):
                async with aclosing(storage.list(**values)) as entries:
                    await anext(entries)
    assert "\n" not in str(refused.value)


async def test_a_token_of_another_listing_is_refused(world: TappedWorld) -> None:
    async with world.store() as storage:
        await put_all(storage, KEYS)
        token = (await storage.list_page(ObjectPrefix.create("photos"), limit=1)).next_page_token
        for other, delimiter in ((ALL, None), (ObjectPrefix.create("photos2"), None), (ObjectPrefix.create("photos"), "/")):
            with pytest.raises(InvalidRequestError, match="page_token is of another listing: pass it with"):
                await storage.list_page(other, page_token=token, delimiter=delimiter)
        assert names((await storage.list_page(ObjectPrefix.create("photos"), page_token=token)).entries) == sorted(KEYS[:-1])[1:]


def test_no_two_listings_share_their_tokens() -> None:
    one = ListRequest(ObjectPrefix.create("photos", "a\0"), None, 1, "b", False)
    other = ListRequest(ObjectPrefix.create("photos", "a"), None, 1, "\0b", False)
    with pytest.raises(InvalidRequestError, match="of another listing"):
        other.start_of(one.token(b"photos/objects/a\0c"))


async def test_a_store_that_is_closed_lists_nothing(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
    for call in (storage.list_page(), anext(storage.list())):
        with pytest.raises(InvalidRequestError, match="not open"):
            await call


@pytest.mark.parametrize("inline_bytes_max", [1, 100, 10_000])
async def test_each_entry_is_from_one_write_while_others_write(world: TappedWorld, inline_bytes_max: int) -> None:
    """I7, also if the object moves between the tiers after its row was read."""
    paths, written = [f"a/objects/{number}" for number in range(5)], dict[str, str]()
    random, done = world.runtime.random, anyio.Event()

    async def late(real: Any, *args: Any) -> Any:
        found = await real(*args)
        await world.runtime.sleep(random.random())
        return found

    async def churn() -> None:
        for _ in range(60):
            size, path = random.choice((0, 50, 5000)), random.choice(paths)
            revision = (await storage.put(ObjectId.parse(path), b"x" * size, Metadata(custom={"size": str(size)}))).revision
            written[revision] = str(size)
            if random.random() < 0.3:
                await storage.delete(ObjectId.parse(path))
            await world.runtime.sleep(random.random())
        done.set()

    async with world.store(inline_bytes_max=inline_bytes_max) as storage:
        world.rows.hooks["scan"] = world.blobs.hooks["head"] = late
        seen = 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(churn)
            while not done.is_set():
                for entry in (await storage.list_page(metadata=True)).objects:
                    seen += 1
                    assert entry.fault is None and entry.metadata is not None and entry.revision is not None
                    assert entry.metadata.custom["size"] == str(entry.size) == str(entry.metadata.size) == written[entry.revision]
                    assert entry.tier is (Tier.LONG_TERM if (entry.size or 0) > inline_bytes_max else Tier.HIGH_VOLUME)
        assert seen > 20
