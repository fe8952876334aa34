"""Changes, their ids and the stored form of their entries: golden bytes, round trips, and what cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime, uuid7
from changelog.change import LEGACY_OWNER, SHARDS_DEFAULT, Change, ChangeId, Entry, Stuck, Unreadable, decode, encode, encode_stuck

ID = ChangeId("018bcfe5-6800-7000-8000-000000000001")
PATH = "attachments/org.17/project.42/objects/abc123"
KEY = f"~changelog/01/{ID}"

FULL = Entry(
    Change(ID, PATH, f"{PATH}/{ID}", f"{PATH}/018bcfe5-6800-7000-8000-000000000000", "session", "00-4bf9-00f0-01"),
    KEY, "writer-3f9c", 2, 1_700_000_900_000, 7,
)
BARE = Entry(Change(ID, PATH), KEY, "")

GOLDEN = {
    FULL: b'{"v":1,"id":"attachments/org.17/project.42/objects/abc123",'
          b'"new":"attachments/org.17/project.42/objects/abc123/018bcfe5-6800-7000-8000-000000000001",'
          b'"old":"attachments/org.17/project.42/objects/abc123/018bcfe5-6800-7000-8000-000000000000",'
          b'"upload":"session","owner":"writer-3f9c","attempt":2,"cleanup_after":1700000900000,"trace":"00-4bf9-00f0-01"}',
    BARE: b'{"v":1,"id":"attachments/org.17/project.42/objects/abc123","new":null,"old":null,'
          b'"upload":null,"owner":"","attempt":0,"cleanup_after":null,"trace":null}',
}


class FixedChanceRuntime(SystemRuntime):
    def __init__(self, wall_ns: int, seed: int = 0) -> None:
        self.random = Random(seed)
        self._wall_ns = wall_ns

    def wall_ns(self) -> int:
        return self._wall_ns


# --- ids ---------------------------------------------------------------------------------------------


def test_a_change_id_knows_when_it_was_made() -> None:
    assert ChangeId.new(FixedChanceRuntime(1_700_000_000_123_456_789)).created_ms == 1_700_000_000_123
    assert ID.created_ms == 0x018BCFE56800


def test_ids_are_in_the_order_of_their_creation() -> None:
    ids = [ChangeId.new(FixedChanceRuntime(ms * 1_000_000, seed=ms)) for ms in range(1_700_000_000_000, 1_700_000_000_300)]
    assert ids == sorted(ids)


@given(st.integers(0, (1 << 48) - 1), st.integers())
def test_a_new_id_is_a_version_7_uuid_and_no_two_of_a_moment_are_equal(ms: int, seed: int) -> None:
    runtime = FixedChanceRuntime(ms * 1_000_000, seed)
    one, other = uuid7(runtime), uuid7(runtime)
    assert one.version == 7 and one.variant == "specified in RFC 4122" and one != other
    assert ChangeId(str(one)).created_ms == ms


@pytest.mark.parametrize("text", [
    "", "x", ID.upper(), f"{ID} ", f" {ID}", f"{ID}\n", ID.replace("-", ""), "018bcfe5-6800-4000-8000-000000000001",
    "018bcfe5-6800-7000-c000-000000000001", f"{{{ID}}}",
])
def test_what_is_no_lower_case_uuid7_is_no_change_id(text: str) -> None:
    assert not ChangeId.matches(text)
    with pytest.raises(InvalidRequestError, match="is not a change id"):
        ChangeId(text)


@pytest.mark.parametrize("value", [None, 5, True, b"018bcfe5-6800-7000-8000-000000000001", ["x"], "x" * 10_000])
def test_a_message_about_what_is_no_change_id_is_one_short_sentence(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="is not a change id") as raised:
        ChangeId(value)
    assert len(str(raised.value)) < 200


def test_the_shard_is_the_last_byte_modulo_the_number_of_shards() -> None:
    assert ID.row_key() == KEY
    last = ChangeId("018bcfe5-6800-7000-8000-0000000000ff")
    assert (last.row_key(), last.row_key(256)) == (f"~changelog/0f/{last}", f"~changelog/ff/{last}")
    shards = {ChangeId(f"018bcfe5-6800-7000-8000-0000000000{byte:02x}").row_key()[11:13] for byte in range(256)}
    assert shards == {f"{shard:02x}" for shard in range(SHARDS_DEFAULT)}


# --- entries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", GOLDEN, ids=["full", "bare"])
def test_an_entry_has_exactly_these_bytes(entry: Entry) -> None:
    assert encode(entry) == GOLDEN[entry]
    assert decode(KEY, GOLDEN[entry], entry.heartbeat_ms) == entry


def test_a_heartbeat_is_read_and_is_no_part_of_what_an_entry_is() -> None:
    read = decode(KEY, GOLDEN[FULL], 8)
    assert isinstance(read, Entry) and read.heartbeat_ms == 8 and read == replace(read, heartbeat_ms=9) == FULL


texts = st.text(st.characters(codec="utf-8"))
counts = st.integers(0, 1 << 62)
changes = st.builds(
    Change, st.just(ID), texts.filter(bool), st.none() | texts, st.none() | texts, st.none() | texts, st.none() | texts,
)
entries = st.builds(Entry, changes, st.just(KEY), texts, counts, st.none() | counts, counts, st.none() | st.builds(Stuck, texts, counts))


@given(entries)
def test_what_is_encoded_is_decoded_as_it_was(entry: Entry) -> None:
    state = None if entry.stuck is None else encode_stuck(entry.stuck)
    assert decode(KEY, encode(entry), entry.heartbeat_ms, state) == entry


@given(entries, texts)
def test_every_hand_over_changes_the_stored_value(entry: Entry, owner: str) -> None:
    claimed = entry.claimed_by(owner)
    assert encode(claimed) != encode(entry)
    assert (claimed.owner, claimed.attempt, claimed.change) == (owner, entry.attempt + 1, entry.change)


@given(entries.filter(lambda entry: entry.owner != ""), st.none() | counts)
def test_a_released_entry_differs_from_the_held_one(entry: Entry, after: int | None) -> None:
    released = entry.released(after)
    assert encode(released) != encode(entry)
    assert (released.owner, released.cleanup_after_ms, released.attempt) == ("", after, 0)


def test_an_orderly_release_is_no_failed_attempt() -> None:
    claimed_twice = BARE.claimed_by("one").claimed_by("other")
    assert claimed_twice.attempt == 2
    assert claimed_twice.released(None).claimed_by("third").attempt == 1


@pytest.mark.parametrize("key", [f"~changelog/{ID}", f"~changelog/ff/{ID}"])
def test_an_entry_of_older_software_is_held_while_it_beats(key: str) -> None:
    raw = json.dumps({"id": PATH, "new": f"{PATH}/{ID}", "old": PATH}).encode()
    assert decode(key, raw, 7) == Entry(Change(ID, PATH, f"{PATH}/{ID}", PATH), key, LEGACY_OWNER, heartbeat_ms=7)


def test_keys_that_this_software_does_not_know_are_ignored() -> None:
    assert decode(KEY, GOLDEN[FULL][:-1] + b',"later":{"x":1}}', 7) == FULL


@pytest.mark.parametrize(("raw", "names"), [
    (b"", "Expecting value"), (b"\xff", "decode"), (b"{", "Expecting"), (b"[]", "not a JSON object"), (b'"text"', "not a JSON object"),
    (b"{}", "'id' is missing"), (b'{"id":""}', "'id' is missing"), (b'{"id":1}', "'id' is 1, not text"),
    (b'{"v":2,"id":"x"}', "version 2"), (b'{"v":null,"id":"x"}', "version None"),
    (b'{"id":"x","new":[]}', "'new' is"), (b'{"id":"x","old":{}}', "'old' is"), (b'{"id":"x","upload":1}', "'upload' is"),
    (b'{"id":"x","owner":1}', "'owner' is"), (b'{"id":"x","trace":true}', "'trace' is"),
    (b'{"id":"x","attempt":-1}', "'attempt' is -1"), (b'{"id":"x","attempt":1.5}', "'attempt' is 1.5"),
    (b'{"id":"\\ud800"}', "surrogates not allowed"), (b"[" * 100_000, "recursion"),
    (b'{"id":"x","attempt":true}', "'attempt' is True"), (b'{"id":"x","cleanup_after":"1"}', "'cleanup_after' is '1'"),
])
def test_a_value_that_breaks_the_format_is_unreadable_and_says_why(raw: bytes, names: str) -> None:
    found = decode(KEY, raw, 7)
    assert isinstance(found, Unreadable) and (found.key, found.raw, found.stuck) == (KEY, raw, None)
    assert names in found.error and KEY in found.error
    assert found.newer is (b'"v":2' in raw)


@pytest.mark.parametrize("key", [
    "", "~changelog/", f"~changelog/1/{ID}", f"~changelog/0g/{ID}", f"~changelog/01/{ID}/x", f"~changelog/{ID.upper()}",
    f"~daemon/{ID}", "~changelog/01/018bcfe5-6800-4000-8000-000000000001", f"x~changelog/{ID}",
])
def test_a_key_that_names_no_change_is_unreadable(key: str) -> None:
    assert isinstance(decode(key, GOLDEN[BARE], 7), Unreadable)


@given(st.binary(max_size=200))
def test_no_bytes_make_decoding_fail(raw: bytes) -> None:
    assert isinstance(decode(KEY, raw, 7), Unreadable)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
names = st.sampled_from(["v", "id", "new", "old", "upload", "owner", "attempt", "cleanup_after", "trace"])


@pytest.mark.slow
@given(st.dictionaries(names, json_values))
def test_no_json_makes_decoding_fail_and_what_is_read_can_be_stored(value: dict[str, object]) -> None:
    found = decode(KEY, json.dumps(value).encode(), 7)
    if isinstance(found, Entry):
        assert decode(KEY, encode(found), 7) == found


# --- parked ------------------------------------------------------------------------------------------


def test_a_stuck_mark_has_exactly_these_bytes() -> None:
    assert encode_stuck(Stuck("héllo", 1_700_000_000_000)) == '{"state":"stuck","error":"héllo","at":1700000000000}'


def test_a_stuck_mark_is_read_beside_a_value_that_cannot_be() -> None:
    stuck = Stuck("why", 3)
    found = decode(KEY, b"{", 7, encode_stuck(stuck))
    assert isinstance(found, Unreadable) and found.stuck == stuck


def test_an_entry_kept_for_the_feed_is_not_stuck() -> None:
    assert decode(KEY, GOLDEN[FULL], 7, '{"state":"done"}') == FULL


@pytest.mark.parametrize("state", ["", "{", "[]", "null", "1", '{"state":"stuck"}', '{"state":"stuck","error":"x","at":"soon"}'])
def test_a_state_that_cannot_be_read_parks_the_entry(state: str) -> None:
    found = decode(KEY, GOLDEN[FULL], 7, state)
    assert isinstance(found, Entry) and found.stuck is not None and "its state cannot be read" in found.stuck.error


def test_an_upload_session_is_never_shown() -> None:
    change = Change(ChangeId("018bcfe5-6800-7000-8000-000000000001"), "a/objects/k", upload="https://capability")
    assert "capability" not in repr(change) and "capability" not in repr(Entry(change, "key", "owner"))
    assert change.upload == "https://capability"
