"""Texts of metadata that are not ASCII: refused on every way in, unless the store may have them; kept where they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from urllib.parse import quote

import pytest

from tests.given.signed_links import LINKS
from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, head_of
from tests.given.ways_to_write import by_appending, by_parts, by_put, by_put_many, by_stream, by_writer
from tiered import InvalidRequestError, Metadata, ObjectId, TieredStorage
from tiered.links import content_disposition

pytestmark = pytest.mark.anyio

SIZES = pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["small", "large"])
NAMED = Metadata(filename="Übersicht.pdf", origin="Köln", custom={"k": "日本", "a": "b"})
OTHER = ObjectId.create("notes", "other")
ALLOWED = {"unicode_metadata": True}


async def by_a_link(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    signed = await storage.sign_put(OBJECT, timedelta(hours=1), metadata)
    await signed.upload.upload_part(1, payload)
    await signed.upload.complete()


async def at_the_end(storage: TieredStorage, payload: bytes, metadata: Metadata) -> None:
    await storage.put(OBJECT, payload, replace(metadata, custom={}), custom_at_end=lambda: metadata.custom)


async def update(storage: TieredStorage, payload: bytes, metadata: Metadata) -> None:
    await storage.put(OBJECT, payload)
    await storage.update_metadata(OBJECT, lambda now: metadata)


WAYS = [by_put, by_put_many, by_stream, by_writer, by_parts, by_appending, by_a_link, at_the_end, update]


@SIZES
@pytest.mark.parametrize("way", WAYS)
async def test_text_that_is_not_ascii_is_refused_on_every_way_in_and_stored_where_it_may_be(
    world: TappedWorld, way: Callable[[TieredStorage, bytes, Metadata], Awaitable[None]], payload: bytes
) -> None:
    async with world.store(changelog="sqlite", links=LINKS) as storage:
        with pytest.raises(InvalidRequestError, match=r"custom value of 'k' '日本' has '日' \(U\+65E5\) at position 0, and other software"):
            await way(storage, payload, Metadata(custom={"a": "b", "k": "日本"}))
        head = await storage.head(OBJECT)
        assert head is None or (way is update and head.metadata.custom == {})
        encoded = Metadata(filename=quote("Übersicht.pdf"), custom={"k": quote("日本")})
        await way(storage, payload, encoded)
        head = await head_of(storage)
        assert (head.metadata.filename, head.metadata.custom) == (encoded.filename, encoded.custom)
        assert content_disposition("inline", head).endswith("filename*=UTF-8''%C3%9Cbersicht.pdf")
    async with world.store(changelog="sqlite", links=LINKS, store=ALLOWED) as storage:
        await way(storage, payload, NAMED)
        head = await head_of(storage)
        assert (head.metadata.filename, head.metadata.origin, head.metadata.custom) == (NAMED.filename, NAMED.origin, NAMED.custom)
        assert content_disposition("inline", head).endswith("filename*=UTF-8''%C3%9Cbersicht.pdf")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (Metadata(filename="a b Ü.pdf"), r"filename 'a b Ü.pdf' has 'Ü' \(U\+00DC\) at position 4"),
        (Metadata(origin="x\u2028"), r"origin 'x\\u2028' has '\\u2028' \(U\+2028\) at position 1"),
        (Metadata(custom={"K": "\U0001f600"}), r"custom value of 'K' .* \(U\+1F600\) at position 0.*quote.*store.unicode_metadata"),
    ],
)
async def test_the_error_names_the_text_its_character_and_both_ways_out(world: TappedWorld, metadata: Metadata, words: str) -> None:
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match=words):
            await storage.put(OBJECT, SMALL, metadata)
    assert world.calls == []


@SIZES
async def test_what_was_stored_before_is_read_copied_and_renamed_and_keeps_its_texts(world: TappedWorld, payload: bytes) -> None:
    async with world.store(store=ALLOWED) as storage:
        await storage.put(OBJECT, payload, NAMED)
    async with world.store() as storage:
        await storage.copy(OBJECT, OTHER)
        await storage.rename(OTHER, third := ObjectId.create("notes", "third"))
        await storage.set_expiry(third, from_creation=timedelta(days=1))
        result = await storage.update_metadata(third, lambda now: replace(now, content_type="a/b", custom={**now.custom, "more": "x"}))
        stored = await storage.get(third)
        assert stored is not None and result is not None and await stored.read() == payload
        assert (stored.metadata.filename, stored.metadata.origin, stored.revision) == (NAMED.filename, NAMED.origin, result.revision)
        assert stored.metadata.custom == {**NAMED.custom, "more": "x"}
        listed = [entry async for entry in storage.list(metadata=True)]
        assert [entry.metadata is not None and entry.metadata.filename for entry in listed] == [NAMED.filename] * 2
    assert await world.is_clean()


async def test_a_text_that_is_changed_or_moved_is_checked(world: TappedWorld) -> None:
    async with world.store(store=ALLOWED) as storage:
        await storage.put(OBJECT, SMALL, NAMED)
    async with world.store() as storage:
        for changes, part in (
            ({"filename": "Köln"}, "filename"), ({"custom": {"new": "日本"}}, "custom value of 'new'"), ({"custom": {"k": "日"}}, "'k'"),
        ):
            with pytest.raises(InvalidRequestError, match=part):
                await storage.update_metadata(OBJECT, partial(replace, **changes))
        head = await head_of(storage)
        assert head.metadata.filename == NAMED.filename and head.metadata.custom == NAMED.custom
        with pytest.raises(InvalidRequestError, match="origin 'Köln'"):  # bytes that come from outside, whatever their metadata come from
            await storage.put(OTHER, SMALL, head.metadata)
