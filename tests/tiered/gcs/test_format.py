"""A blob as a GCS object: golden bytes of what is written, and everything that is read."""

from __future__ import annotations

import base64
import json
import re
import zlib
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from tests.conformance.rules import CUSTOM, HEADER, KNOWN_THERE
from tests.given.caller_values import media_types
from tiered.buckets.blob_entries import decode_duration, encode_duration
from tiered.gcs.format import (
    decode_listing,
    decode_listing_by_item,
    decode_resource,
    decode_time,
    differing,
    encode_brought_back,
    encode_resource,
    encode_set_aside,
    encode_time,
)
from tiered.metadata import FIELDS, METADATA_BYTES_MAX, NS_PER_S, Metadata, TimeToIdle, TimeToLive, encode_metadata, refuse_unicode_in
from tiered.services.scans import BlobInfo

LISTING = "storage#objects"
NAME = "attachments/org.17/project.42/objects/abc123/018bcfe5-6800-7000-8000-000000000001"
DAY_NS = 86_400 * NS_PER_S
FULL = Metadata(
    TimeToLive(ns=3600 * NS_PER_S), 1_700_000_000_123_456_789, 1_700_003_600_123_000_000, "text/plain", "Zstd", "203.0.113.42", "größe.txt",
    custom={"build_id": "a/b", "a": ""}, unknown={"newer": [1, None]},
)  # fmt: skip
FULL_BYTES = (
    '{"name":"attachments/org.17/project.42/objects/abc123/018bcfe5-6800-7000-8000-000000000001","contentType":"text/plain",'
    '"contentEncoding":"zstd","contentDisposition":"inline; created-ns=1700000000123456789","customTime":"2023-11-14T23:13:20.123Z",'
    '"metadata":{"x-sn-expiration":"ttl:1h","x-sn-origin":"203.0.113.42",'
    '"x-sn-filename":"größe.txt","x-snme-Tiered-Unknown":"{\\"newer\\":[1,null]}",'
    '"x-snme-a":"","x-snme-build_id":"a/b"}}'
).encode()
TOLD = {"size": "5", "generation": "7", "metageneration": "2", "timeCreated": "2023-11-14T22:13:20.5Z", "crc32c": "AAAAAA=="}


def values(blob: BlobInfo) -> tuple[object, ...]:
    return blob.name, blob.size, blob.created_ns, blob.deadline_ns, blob.generation


def stored(**resource: Any) -> dict[str, Any]:
    return {"name": NAME, "contentType": "text/plain", **TOLD, **resource}


# --- what is written -----------------------------------------------------------------------------


def test_a_plain_blob_is_its_name_and_type() -> None:
    assert encode_resource("u/objects/k", Metadata()) == b'{"name":"u/objects/k","contentType":"application/octet-stream","metadata":{}}'


@pytest.mark.parametrize("metadata", [Metadata(), FULL, replace(FULL, expiration=TimeToIdle(ns=1))])
def test_no_key_is_written_that_other_software_fails_on(metadata: Metadata) -> None:
    beside = json.loads(encode_resource(NAME, metadata))["metadata"]
    assert beside.keys() <= KNOWN_THERE | {f"x-snme-{key}" for key in (*metadata.custom, "Tiered-Unknown")}


few = st.text("aB7 %~\u00e4\u65e5", max_size=4).map(lambda text: text.strip(" "))
few_metadata = st.builds(
    Metadata, origin=few, filename=few, custom=st.dictionaries(st.sampled_from(["a", "B-", "c_!"]), few), unknown=st.just({"newer": [1]}),
    time_created_ns=st.none() | st.just(5), expiration=st.none() | st.just(TimeToIdle(ns=1)), content_type=media_types,
)  # fmt: skip
LEGAL_VALUE = re.compile(r"[\x20-\x7e]*")
TEXTS = {name: row.key or name for name, row in FIELDS.items() if row.kind is str}
"""The key of each field that is a text."""


@given(few_metadata)
def test_what_a_store_writes_by_default_is_legal_in_the_headers_of_other_software(value: Metadata) -> None:
    texts = [*(getattr(value, name) or "" for name in TEXTS), *value.custom.values()]
    try:
        refuse_unicode_in(value)
    except InvalidRequestError:
        assert not all(LEGAL_VALUE.fullmatch(text) for text in texts)
        return
    resource = json.loads(encode_resource(NAME, value))
    assert all(key in KNOWN_THERE or (key.startswith(CUSTOM) and HEADER.fullmatch(key)) for key in resource["metadata"])
    assert all(map(LEGAL_VALUE.fullmatch, resource["metadata"].values()))
    assert LEGAL_VALUE.fullmatch(resource["contentType"]) and "/" in resource["contentType"].partition(";")[0].strip("/")
    row = json.loads(encode_metadata(value))
    assert all(LEGAL_VALUE.fullmatch(row.get(key, "")) for key in TEXTS.values())
    assert all(LEGAL_VALUE.fullmatch(text) for text in row.get("custom", {}).values())


def test_an_entry_of_ours_that_a_service_loses_is_found_and_one_of_others_is_not_looked_at() -> None:
    told = json.loads(FULL_BYTES)
    told["metadata"] = {key: text for key, text in told["metadata"].items() if key != "x-snme-a"} | {"x-other": "y"}
    del told["metadata"]["x-snme-build_id"], told["contentDisposition"]
    assert differing(NAME, FULL, json.loads(FULL_BYTES)) == []
    assert differing(NAME, FULL, told) == ["contentDisposition", "x-snme-build_id"]


def test_custom_entries_may_have_our_prefix_but_no_key_of_ours() -> None:
    custom = {"tiered-created": "1", "tiered-quarantined-deadline": "", "created": "x"}
    written = json.loads(encode_resource(NAME, replace(FULL, custom=custom)))
    assert decode_resource(NAME, written | TOLD).metadata == replace(FULL, custom=custom, size=5)
    for key in ("tiered-packed", "Tiered-Packed", "tiered-unknown", "Tiered-Unknown"):
        with pytest.raises(InvalidRequestError, match=f"'{key.lower()}' is this software's own"):
            Metadata(custom={key: "1"})


@pytest.mark.parametrize("said", ["", "inline", "attachment; created-ns=5", "inline; created-ns=soon", "inline; created-ns=5; filename=a"])
def test_a_content_disposition_of_others_tells_no_time_of_creation(said: str) -> None:
    assert decode_resource(NAME, stored(contentDisposition=said)).metadata.time_created_ns == 1_700_000_000_500_000_000
    assert decode_resource(NAME, stored(contentDisposition="inline; created-ns=-5")).metadata.time_created_ns == -5


@pytest.mark.parametrize("entries", [1, 100, 700])
@pytest.mark.parametrize("metadata", [Metadata(), replace(FULL, time_expires_ns=None), Metadata(TimeToIdle(ns=10**18 + 1))])
def test_metadata_that_pass_for_a_row_fit_beside_a_blob(metadata: Metadata, entries: int) -> None:
    longest, largest = 0, replace(metadata, custom=dict.fromkeys((f"{n:04d}" for n in range(entries)), ""))
    for step in (1 << power for power in range(12, -1, -1)):
        with suppress(InvalidRequestError):
            largest = replace(metadata, custom={f"{n:04d}": "x" * (longest + step) for n in range(entries)})
            longest += step
    beside = json.loads(encode_resource(NAME, largest.stamped(1_700_000_000_123_456_789)))["metadata"]
    assert sum(len(key.encode()) + len(value.encode()) for key, value in beside.items()) <= METADATA_BYTES_MAX


def test_a_blob_with_everything_has_these_bytes() -> None:
    assert encode_resource(NAME, FULL) == FULL_BYTES


@pytest.mark.parametrize("metadata", [FULL, Metadata(), Metadata(TimeToIdle(ns=30 * DAY_NS), 0, 0)])
def test_what_was_written_is_read_with_its_size(metadata: Metadata) -> None:
    found = decode_resource(NAME, json.loads(encode_resource(NAME, metadata)) | TOLD)
    created_ns = found.created_ns if metadata.time_created_ns is None else metadata.time_created_ns
    assert found.metadata == replace(metadata, size=5, time_created_ns=created_ns)
    assert (found.size, found.generation, found.metageneration, found.crc32c) == (5, "7", 2, "AAAAAA==")


# --- what is read --------------------------------------------------------------------------------


def test_a_blob_of_older_software_was_created_when_the_service_says_and_its_strange_keys_are_ignored() -> None:
    old = {"x-sn-expiration": "tti:2months 29days 2h 52m 48s", "x-snme-k": "v", "x-sn-newer": "?", "goog-reserved": "x"}
    found = decode_resource(NAME, stored(contentEncoding="gzip", customTime="2023-11-14T23:13:20Z", metadata=old)).metadata
    written = Metadata(
        TimeToIdle(ns=90 * DAY_NS), 1_700_000_000_500_000_000, 1_700_003_600 * NS_PER_S, "text/plain", size=5, custom={"k": "v"}
    )
    assert found.compression == "gzip" and replace(found, compression=None) == written
    with pytest.raises(InvalidRequestError, match="compression 'gzip' is not known"):
        replace(found)


@pytest.mark.parametrize("text", ["ttl:0s", "tti:0s"])
def test_a_lifetime_of_zero_is_expired_and_not_corrupt(text: str) -> None:
    found = decode_resource(NAME, stored(customTime="2023-11-14T22:13:20Z", metadata={"x-sn-expiration": text})).metadata
    assert found.expiration is not None and found.expiration.ns == 0 and found.time_expires_ns == 1_700_000_000 * NS_PER_S


def test_text_that_no_header_could_carry_is_still_read() -> None:
    odd = {"x-sn-filename": " a\n", "x-snme-ärger": "\x7f", "x-snme-Ärger": ""}
    found = decode_resource(NAME, stored(contentType="a\r\nb", metadata=odd)).metadata
    assert (found.content_type, found.filename, found.custom) == ("a\r\nb", " a\n", {"ärger": "\x7f", "Ärger": ""})


@pytest.mark.parametrize(("told", "created_ns"), [("-5", -5), ("none", 1_700_000_000_500_000_000)])
def test_keys_that_we_wrote_once_are_read(told: str, created_ns: int) -> None:
    once = {"x-sn-created": told, "x-sn-unknown": '{"newer":[1,null]}', "x-snme-k": "v"}
    found = decode_resource(NAME, stored(metadata=once)).metadata
    expected = Metadata(content_type="text/plain", size=5, custom={"k": "v"}, unknown={"newer": [1, None]})
    assert found == expected.with_facts(time_created_ns=created_ns)


@pytest.mark.parametrize(
    "custom",
    [
        {"tiered-created": "1700000000000000000"}, {"tiered-unknown": "{}"}, {"tiered-packed": "x"}, {"tiered-other": "5"},
        {"Tiered-Unknown": "[]"}, {"Tiered-Unknown": "{"}, {"Tiered-Unknown": "[" * 100_000},
    ],
)  # fmt: skip
def test_custom_entries_of_other_software_under_our_keys_are_custom_entries(custom: dict[str, str]) -> None:
    found = decode_resource(NAME, stored(metadata={f"x-snme-{key}": value for key, value in custom.items()})).metadata
    assert (found.custom, found.unknown, found.time_created_ns) == (custom, {}, 1_700_000_000_500_000_000)


def test_what_came_packed_is_read_and_what_only_looks_so_is_a_custom_entry() -> None:
    packed = {"x-sn-filename": "größe", "x-snme-Upper": "x"}
    text = base64.b64encode(zlib.compress(json.dumps(packed).encode())).decode()
    found = decode_resource(NAME, stored(metadata={"x-snme-tiered-packed": text, "x-snme-k": "v"})).metadata
    assert (found.filename, found.custom) == ("größe", {"Upper": "x", "k": "v"})
    odd = base64.b64encode(zlib.compress(b'{"x-sn-filename":5}')).decode()
    assert decode_resource(NAME, stored(metadata={"x-snme-tiered-packed": odd})).metadata.custom == {"tiered-packed": odd}


def test_a_blob_without_metadata_is_read_with_defaults() -> None:
    bare = {key: value for key, value in stored().items() if key not in ("contentType", "crc32c")}
    found = decode_resource(NAME, bare)
    assert found.metadata == Metadata(time_created_ns=1_700_000_000_500_000_000, size=5)
    assert found.crc32c is None


@pytest.mark.parametrize(
    ("key", "resource"),
    [
        ("x-sn-expiration", {"metadata": {"x-sn-expiration": "1h"}}),
        ("x-sn-expiration", {"metadata": {"x-sn-expiration": "ttl:"}}),
        ("x-sn-expiration", {"metadata": {"x-sn-expiration": "ttl:1fortnight"}}),
        ("x-sn-created", {"metadata": {"x-sn-created": "yesterday"}}),
        ("contentDisposition", {"contentDisposition": 1}),
        ("x-sn-unknown", {"metadata": {"x-sn-unknown": "[]"}}),
        ("x-sn-unknown", {"metadata": {"x-sn-unknown": "{"}}),
        ("x-sn-unknown", {"metadata": {"x-sn-unknown": '{"a":' + "[" * 8000}}),
        ("metadata", {"metadata": {"x-sn-origin": 1}}),
        ("metadata", {"metadata": ["x"]}),
        ("customTime", {"customTime": "soon"}),
        ("customTime", {"customTime": "2023-13-14T23:13:20Z"}),
        ("timeCreated", {"timeCreated": 5}),
        ("size", {"size": None}),
        ("size", {"size": "-1"}),
        ("generation", {"generation": 7}),
        ("contentType", {"contentType": 1}),
    ],
)
def test_what_breaks_the_format_is_corrupt_and_named(key: str, resource: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecordError, match=f"{NAME}.*{key} is") as caught:
        decode_resource(NAME, stored(**resource))
    assert len(str(caught.value).splitlines()) == 1


def test_a_listing_tells_name_size_times_and_generation() -> None:
    page = {"kind": LISTING, "items": [stored(customTime="2023-11-14T23:13:20.123456Z"), stored()], "nextPageToken": "token"}
    quick, slow = decode_listing(json.dumps(page).encode()), decode_listing_by_item(page)
    for listing in (quick, slow):
        assert listing is not None and (list(listing.oddities), listing.names[-1], listing.token) == ([], NAME, "token")
        assert [values(blob) for blob in listing.blobs] == [
            (NAME, 5, 1_700_000_000_500_000_000, 1_700_003_600_123_456_000, "7"), (NAME, 5, 1_700_000_000_500_000_000, None, "7")
        ]


@pytest.mark.parametrize("key", ["size", "generation", "timeCreated"])
def test_a_blob_that_breaks_the_format_is_an_oddity_of_its_listing_and_costs_no_other(key: str) -> None:
    for broken in ({name: value for name, value in stored().items() if name != key}, stored(**{key: "soon"}), stored(**{key: ["x"]})):
        page = {"kind": LISTING, "items": [stored(name="a"), broken, stored(name="z")]}
        assert decode_listing(json.dumps(page).encode()) is None
        listing = decode_listing_by_item(page)
        assert ([blob.name for blob in listing.blobs], listing.names[-1], listing.token) == (["a", "z"], "z", None)
        [odd] = listing.oddities
        assert (odd.name, odd.is_blob) == (NAME, True) and key in odd.fault


@pytest.mark.parametrize("item", [{"size": "5"}, {**TOLD, "name": 5}, "text", None])
def test_an_item_without_a_name_is_an_oddity_that_is_no_blob(item: Any) -> None:
    page = {"kind": LISTING, "items": [stored(), item]}
    assert decode_listing(json.dumps(page).encode()) is None
    listing = decode_listing_by_item(page)
    assert (len(listing.blobs), listing.names[-1]) == (1, NAME)
    assert [odd.is_blob for odd in listing.oddities] == [False]


def test_a_page_without_items_is_empty() -> None:
    assert decode_listing(b'{"kind":"storage#objects"}') == decode_listing(b'{"kind":"storage#objects","items":[]}') == ([], (), [], None)
    assert decode_listing(b"{}") is None, "that is no listing"


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_of_a_listing_are_exact_to_the_microsecond(time: datetime) -> None:
    text = time.isoformat().replace("+00:00", "Z")
    listing = decode_listing(json.dumps({"kind": LISTING, "items": [stored(timeCreated=text)]}).encode())
    assert listing is not None and listing.blobs[0].created_ns == decode_time(text)


# --- durations, times, checksums -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "1s"), (90, "1m 30s"), (3600, "1h"), (86_400, "1day"), (30 * 86_400, "30days"), (90 * 86_400, "2months 29days 2h 52m 48s"),
        (365 * 86_400, "11months 30days 3h 50m 24s"), (1.5, "1s 500ms"), (0, "0s"), (31_557_600, "1year"), (2 * 31_557_600, "2years"),
        (2_630_016, "1month"),
    ],
)  # fmt: skip
def test_a_duration_reads_as_humantime_writes_it(seconds: float, text: str) -> None:
    assert encode_duration(round(seconds * NS_PER_S)) == text
    assert decode_duration(text) == round(seconds * NS_PER_S)


@given(st.integers(0, 2**80))
@example(1)
@example(1_001_001_001)
def test_every_duration_is_read_as_it_was_written(ns: int) -> None:
    text = encode_duration(ns)
    assert decode_duration(text) == ns
    assert all(part[0].isdigit() and "  " not in part for part in text.split(" "))


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2 weeks 1hour", 1_213_200 * NS_PER_S),
        ("1M", 2_630_016 * NS_PER_S),
        ("5min 2sec 3msec 4usec 5nsec", 302_003_004_005),
        ("1h1m", 3660 * NS_PER_S),
    ],
)
def test_other_spellings_of_a_duration_are_read_too(text: str, ns: int) -> None:
    assert decode_duration(text) == ns


@pytest.mark.parametrize("text", ["", " ", "1", "h", "1.5h", "-1h", "1h -1m", "1parsec", "1h,", "9" * 30 + "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        decode_duration(text)


@given(st.integers(0, 253_402_300_799_999_999))
def test_every_time_is_read_as_it_was_written_to_the_microsecond(us: int) -> None:
    assert decode_time(encode_time(us * 1000)) == us * 1000
    assert encode_time(us * 1000 + 999) == encode_time(us * 1000)


def test_times_are_read_to_the_nanosecond_and_with_any_offset() -> None:
    assert decode_time("2023-11-14T22:13:20.123456789Z") == 1_700_000_000_123_456_789
    assert decode_time("2023-11-15T00:13:20.5+02:00") == 1_700_000_000_500_000_000


@pytest.mark.parametrize("text", ["2023-11-14", "2023-11-14T22:13:20", "2023-11-14T22:13:20.Z", "2023-11-14T25:13:20Z", "x"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no RFC 3339|must be|unconverted|out of range|hour"):
        decode_time(text)


def test_a_blob_without_custom_metadata_is_set_aside_and_brought_back() -> None:
    """As other software may have written it."""
    copy = json.loads(encode_set_aside({"contentType": "text/plain", "customTime": "2023-11-14T22:13:20Z"}))
    assert "customTime" not in copy
    blob, deadline_ns = encode_brought_back("name", copy)
    assert json.loads(blob) == {"contentType": "text/plain", "customTime": "2023-11-14T22:13:20Z", "metadata": {}}
    assert deadline_ns == 1_700_000_000 * NS_PER_S
