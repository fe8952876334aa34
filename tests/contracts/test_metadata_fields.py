"""What a row of `Metadata` names is carried by every backend, and shown by every link.

`tests/test_planted_field.py` runs these tests again with rows for which nobody has written another line.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.given.metadata_fields import CARRIED, OTHERS, carried
from tests.given.signed_links import opened
from tiered import Metadata, ObjectId, ObjectPrefix, TieredStorage
from tiered.gcs.format import decode_resource
from tiered.metadata import FIELDS, encode_metadata
from tiered.services.backends import LongTermBackend
from tiered.testing.contracts.long_term import metadata_of
from tiered.testing.contracts.parts import PartsTier, put_all
from tiered.testing.contracts.whole_blobs import store as store_blob

pytestmark = pytest.mark.anyio

OBJECT, COPY = ObjectId.create("notes", "key"), ObjectId.create("notes", "copy")
NAME = "notes/objects/key/018bcfe5-6800-7000-8000-000000000001"
ALL = Metadata(**CARRIED)


@pytest.mark.parametrize("payload", [b"small", b"large" * 100])
async def test_a_store_gives_every_field_back_also_after_a_copy_and_a_change(store: TieredStorage, payload: bytes) -> None:
    await store.put(OBJECT, payload, ALL)
    await store.copy(OBJECT, COPY)
    for object_id in (OBJECT, COPY):
        head = await store.head(object_id)
        assert head is not None and carried(head.metadata) == CARRIED
    await store.update_metadata(OBJECT, lambda now: replace(now, **OTHERS))
    await store.update_metadata(COPY, lambda now: replace(now, custom={"a": "b"}))
    listed = [entry async for entry in store.list(ObjectPrefix(), metadata=True)]
    assert [carried(entry.metadata) for entry in listed] == [CARRIED, OTHERS]


async def test_a_link_shows_every_field_that_is_a_header(store: TieredStorage) -> None:
    await store.put(OBJECT, b"small", ALL)
    got = await opened(store, await store.sign_get(OBJECT, timedelta(hours=1)), "HEAD", Accept_Encoding="zstd")
    headers = {row.header: row.tell(CARRIED[name]) for name, row in FIELDS.items() if row.header is not None}
    assert {header: got.headers.get(header) for header in headers} == headers


async def test_every_field_is_beside_a_blob_and_beside_its_copy(long_term: LongTermBackend) -> None:
    await store_blob(long_term, NAME, b"payload", ALL)
    head = await long_term.head(NAME)
    assert head is not None and carried(head.metadata) == CARRIED == carried(await metadata_of(long_term, NAME))
    await (await long_term.open_copy(NAME, head.generation, f"{NAME}-copy", replace(head.metadata, **OTHERS))).finalise()
    assert carried(await metadata_of(long_term, f"{NAME}-copy")) == OTHERS


async def test_every_field_is_beside_a_blob_that_is_made_of_parts(parts_tier: PartsTier) -> None:
    session = await parts_tier.begin_parts(NAME, ALL)
    await parts_tier.complete_parts(NAME, session, await put_all(parts_tier, NAME, session, [b"only"]))
    assert carried(await metadata_of(parts_tier, NAME)) == CARRIED


@pytest.mark.parametrize("name", [name for name, row in FIELDS.items() if row.header is not None])
def test_a_field_that_is_a_header_refuses_what_no_header_carries(name: str) -> None:
    for wrong in ("é", "a\nb"):
        with pytest.raises(ValueError, match=name):
            Metadata(**{name: wrong})  # type: ignore[arg-type]


TOLD = {"size": "7", "generation": "1", "metageneration": "1", "timeCreated": "2023-11-14T22:13:20.5Z"}


def beside_with_unknown(kept: dict[str, object], **more: str) -> Metadata:
    entries = {"x-snme-Tiered-Unknown": json.dumps(kept), **more}
    return decode_resource(NAME, {"name": NAME, **TOLD, "metadata": entries}).metadata


def test_a_field_that_older_software_kept_with_the_unknown_keys_was_lost_and_its_object_could_not_be_changed() -> None:
    """A release that does not know a field keeps it with the unknown keys when it copies a row to a blob."""
    found = beside_with_unknown({**json.loads(encode_metadata(ALL)), "newer": 1})
    assert carried(found) == CARRIED and found.unknown == {"newer": 1}
    assert carried(replace(found, custom={"a": "b"})) == CARRIED


def test_what_has_a_place_of_its_own_beside_a_blob_is_not_read_from_the_unknown_keys() -> None:
    kept = {"size": 9, "time_created": {"secs_since_epoch": 1}, "custom": {"x": "y"}, "origin": "older"}
    kept |= {"expiration_policy": {"TimeToLive": {"secs": 1}}}
    found = beside_with_unknown(kept, **{"x-sn-origin": "here", "x-snme-a": "b"})
    assert (found.size, found.origin, found.custom, found.expiration, found.unknown) == (7, "here", {"a": "b"}, None, {})
    assert found.time_created_ns == 1_700_000_000_500_000_000
