"""Metadata: its stored JSON to the byte, what is refused, and the arithmetic of expiry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.errors import CorruptRecordError, InvalidRequestError
from tiered.metadata import (
    NS_PER_MS,
    NS_PER_S,
    Expiration,
    Metadata,
    TimeToIdle,
    TimeToLive,
    decode_metadata,
    encode_metadata,
    is_expired,
    touch_deadline,
    whole_ms,
)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOUR_NS, DAY_NS = 3600 * NS_PER_S, 86_400 * NS_PER_S
NOW_NS = 1_700_000_000_123_456_789

MINIMAL = b'{"content_type":"application/octet-stream","size":5}'
FULL = (
    b'{"expiration_policy":{"TimeToLive":{"secs":3600,"nanos":0}},'
    b'"time_created":{"secs_since_epoch":1700000000,"nanos_since_epoch":123456789},'
    b'"time_expires":{"secs_since_epoch":1700003600,"nanos_since_epoch":123456789},'
    b'"content_type":"text/plain","compression":"Zstd","origin":"203.0.113.42","filename":"hello.txt","size":5,'
    b'"custom":{"build_id":"a/b"}}'
)
FULL_METADATA = Metadata(
    expiration=TimeToLive(HOUR), time_created_ns=NOW_NS, time_expires_ns=NOW_NS + HOUR_NS, content_type="text/plain",
    compression="Zstd", origin="203.0.113.42", filename="hello.txt", size=5, custom={"build_id": "a/b"},
)  # fmt: skip

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
times = st.none() | st.integers(0, 1 << 66)
lifetimes = st.integers(1, 1 << 66)
known_keys = ["expiration_policy", "time_created", "time_expires", "content_type", "compression", "origin", "filename", "size", "custom"]
metadata = st.builds(
    Metadata,
    expiration=st.none() | st.builds(lambda ns: TimeToLive(ns=ns), lifetimes) | st.builds(lambda ns: TimeToIdle(ns=ns), lifetimes),
    time_created_ns=times, time_expires_ns=times, content_type=st.text("abc/", min_size=1), compression=st.sampled_from([None, "Zstd"]),
    origin=st.none() | texts, filename=st.none() | texts, size=st.none() | st.integers(0, 1 << 50),
    custom=st.dictionaries(texts, texts, max_size=4),
    unknown=st.dictionaries(texts.filter(lambda key: key not in known_keys), st.integers() | st.lists(texts, max_size=2), max_size=3),
)  # fmt: skip
almost_metadata = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(known_keys), inner, max_size=4),
)


# --- stored form ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "raw"), [(Metadata(size=5), MINIMAL), (FULL_METADATA, FULL)])
def test_golden_bytes_are_written_and_read(value: Metadata, raw: bytes) -> None:
    assert encode_metadata(value) == raw
    assert decode_metadata(raw) == value


def test_time_to_idle_is_written_under_its_name() -> None:
    raw = encode_metadata(Metadata(expiration=TimeToIdle(timedelta(seconds=1, milliseconds=500))))
    assert raw.startswith(b'{"expiration_policy":{"TimeToIdle":{"secs":1,"nanos":500000000}},')


def test_custom_entries_are_sorted_and_text_is_raw_utf8() -> None:
    raw = encode_metadata(Metadata(filename="größe 🙂", custom={"b": "2", "a": "1"}))
    assert raw == '{"content_type":"application/octet-stream","filename":"größe 🙂","custom":{"a":"1","b":"2"}}'.encode()


@given(value=metadata)
def test_whatever_is_written_is_read_back(value: Metadata) -> None:
    assert decode_metadata(encode_metadata(value)) == value


def test_unknown_keys_are_kept_after_the_known_ones() -> None:
    raw = b'{"newer":{"x":[1,null]},"size":5,"also":"kept"}'
    assert decode_metadata(raw).unknown == {"newer": {"x": [1, None]}, "also": "kept"}
    rewritten = b'{"content_type":"application/octet-stream","size":5,"newer":{"x":[1,null]},"also":"kept"}'
    assert encode_metadata(decode_metadata(raw)) == rewritten


def test_an_unknown_key_can_never_stand_in_for_a_known_one() -> None:
    assert json.loads(encode_metadata(Metadata(unknown={"size": 7, "origin": "x"}))) == {"content_type": "application/octet-stream"}


@pytest.mark.parametrize("raw", [b"{}", b'{"content_type":null}', b'{"content_type":"","custom":null,"size":null}'])
def test_what_is_absent_or_null_or_empty_has_its_default(raw: bytes) -> None:
    assert decode_metadata(raw) == Metadata()


def test_times_without_nanoseconds_are_whole_seconds() -> None:
    assert decode_metadata(b'{"time_expires":{"secs_since_epoch":5}}').time_expires_ns == 5 * NS_PER_S
    assert decode_metadata(b'{"expiration_policy":{"TimeToLive":{"secs":5}}}').expiration == TimeToLive(timedelta(seconds=5))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"size":', "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"size":"5"}', "'size' is '5', not int"),
        (b'{"size":true}', "'size' is True, not int"),
        (b'{"size":5.0}', "'size' is 5.0, not int"),
        (b'{"filename":["a"]}', "'filename'"),
        (b'{"content_type":{}}', "'content_type'"),
        (b'{"custom":["a"]}', "'custom'"),
        (b'{"custom":{"a":1}}', "'custom' holds something that is not text"),
        (b'{"expiration_policy":"TimeToLive"}', "'expiration_policy'"),
        (b'{"expiration_policy":{}}', "expiration_policy"),
        (b'{"expiration_policy":{"TimeToDie":{"secs":1,"nanos":0}}}', "TimeToDie"),
        (b'{"expiration_policy":{"TimeToLive":{"nanos":1}}}', "expiration_policy"),
        (b'{"expiration_policy":{"TimeToLive":{"secs":0,"nanos":0}}}', "expiration_policy"),
        (b'{"expiration_policy":{"TimeToLive":{"secs":"1","nanos":0}}}', "expiration_policy"),
        (b'{"expiration_policy":{"TimeToLive":{"secs":1,"nanos":0},"TimeToIdle":{"secs":1,"nanos":0}}}', "expiration_policy"),
        (b'{"time_created":5}', "'time_created'"),
        (b'{"time_created":{}}', "not a time"),
        (b'{"time_expires":{"secs_since_epoch":"5","nanos_since_epoch":0}}', "not a time"),
    ],
)
def test_stored_bytes_that_break_the_format_are_named_and_never_guessed(raw: bytes, words: str) -> None:
    with pytest.raises(CorruptRecordError, match=words):
        decode_metadata(raw)


@given(raw=st.binary(max_size=40) | almost_metadata.map(lambda value: json.dumps(value).encode()))
def test_any_stored_bytes_are_metadata_that_can_be_rewritten_or_corrupt(raw: bytes) -> None:
    with suppress(CorruptRecordError):
        assert decode_metadata(encode_metadata(decode_metadata(raw))) == decode_metadata(raw)


# --- what a caller may set -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"content_type": ""}, "content_type is empty; leave it out"),
        ({"content_type": 5}, "content_type is 5, not text"),
        ({"content_type": "text/plain\r\nx: y"}, "content_type .* line break or NUL"),
        ({"compression": "gzip"}, "compression 'gzip' is not known"),
        ({"origin": "a\nb"}, "origin .* line break"),
        ({"filename": "a\0b"}, "filename .* NUL"),
        ({"filename": "\ud800"}, "filename .* not valid Unicode"),
        ({"size": -1}, "size -1 is not a number of bytes"),
        ({"size": 1.5}, "size 1.5"),
        ({"size": True}, "size True"),
        ({"custom": {"key": 5}}, "custom value of 'key' is 5, not text"),
        ({"custom": {5: "x"}}, "custom key is 5, not text"),
        ({"custom": {"a\nb": "x"}}, "custom key .* line break"),
    ],
)
def test_metadata_that_cannot_be_stored_are_refused_by_name(wrong: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        Metadata(**wrong).validate()


def test_full_metadata_are_valid() -> None:
    FULL_METADATA.validate()
    Metadata(filename="größe 🙂", custom={"ä": ""}, size=0).validate()


@pytest.mark.parametrize("wrong", [timedelta(0), timedelta(seconds=-1)])
@pytest.mark.parametrize("kind", [TimeToLive, TimeToIdle])
def test_a_lifetime_is_longer_than_nothing(kind: type[TimeToLive | TimeToIdle], wrong: timedelta) -> None:
    with pytest.raises(InvalidRequestError, match="longer than nothing"):
        kind(wrong)


def test_a_lifetime_is_given_once_and_compared_by_its_kind_and_length() -> None:
    with pytest.raises(InvalidRequestError, match="either"):
        TimeToLive()
    with pytest.raises(InvalidRequestError, match="either"):
        TimeToLive(HOUR, ns=1)
    assert TimeToLive(HOUR) == TimeToLive(ns=HOUR_NS)
    live, idle = Metadata(expiration=TimeToLive(HOUR)), Metadata(expiration=TimeToIdle(HOUR))
    assert live != idle


def test_times_are_shown_to_the_microsecond_in_utc() -> None:
    assert FULL_METADATA.time_created == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    assert Metadata().time_expires is None


# --- expiry --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expiration", "deadline_ns"),
    [(None, None), (TimeToLive(HOUR), whole_ms(NOW_NS + HOUR_NS)), (TimeToIdle(DAY), whole_ms(NOW_NS + DAY_NS))],
)
def test_stamping_sets_creation_and_a_deadline_of_whole_milliseconds(expiration: Expiration, deadline_ns: int | None) -> None:
    stamped = Metadata(expiration=expiration).stamped(NOW_NS)
    assert stamped == Metadata(expiration=expiration, time_created_ns=NOW_NS, time_expires_ns=deadline_ns)
    assert deadline_ns is None or deadline_ns % NS_PER_MS == 0


def test_stamping_keeps_a_creation_that_was_given_and_computes_the_deadline_anew() -> None:
    stamped = replace(FULL_METADATA, time_created_ns=5).stamped(NOW_NS + DAY_NS)
    assert stamped.time_created_ns == 5
    assert stamped.time_expires_ns == whole_ms(NOW_NS + DAY_NS + HOUR_NS)


def test_a_deadline_without_a_policy_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="set expiration to TimeToLive or TimeToIdle"):
        Metadata(time_expires_ns=NOW_NS).stamped(NOW_NS)


def test_an_object_expires_at_its_deadline_not_after() -> None:
    assert not is_expired(None, NOW_NS)
    assert not is_expired(NOW_NS + 1, NOW_NS)
    assert is_expired(NOW_NS, NOW_NS)
    assert is_expired(NOW_NS - 1, NOW_NS)


@pytest.mark.parametrize(
    ("idle", "slack_ns"),
    [(HOUR, HOUR_NS // 4), (4 * DAY, DAY_NS), (30 * DAY, DAY_NS), (timedelta(seconds=1), NS_PER_S // 4)],
)
def test_an_idle_object_is_renewed_once_a_quarter_or_a_day_of_its_time_has_passed(idle: timedelta, slack_ns: int) -> None:
    expiration = TimeToIdle(idle)
    fresh_ns = NOW_NS + expiration.ns
    assert touch_deadline(expiration, fresh_ns, NOW_NS) is None
    assert touch_deadline(expiration, fresh_ns - slack_ns, NOW_NS) is None
    assert touch_deadline(expiration, fresh_ns - slack_ns - 1, NOW_NS) == whole_ms(fresh_ns)


@pytest.mark.parametrize(("expiration", "deadline_ns"), [(None, None), (TimeToLive(HOUR), NOW_NS), (TimeToIdle(HOUR), None)])
def test_only_time_to_idle_is_ever_renewed(expiration: Expiration, deadline_ns: int | None) -> None:
    assert touch_deadline(expiration, deadline_ns, NOW_NS) is None


@given(idle_ns=st.integers(NS_PER_S, 400 * DAY_NS), age_ns=st.integers(0, 800 * DAY_NS))
def test_a_renewal_never_shortens_and_is_not_wanted_again_at_once(idle_ns: int, age_ns: int) -> None:
    expiration = TimeToIdle(ns=idle_ns)
    deadline_ns = whole_ms(NOW_NS + idle_ns)
    renewed_ns = touch_deadline(expiration, deadline_ns, NOW_NS + age_ns)
    if renewed_ns is not None:
        assert renewed_ns > deadline_ns
        assert touch_deadline(expiration, renewed_ns, NOW_NS + age_ns) is None
