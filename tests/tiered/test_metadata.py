"""Metadata: its stored JSON to the byte, what is refused, and the arithmetic of expiry."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from tests.given.caller_values import KNOWN, Loud, headers, odd_metadata
from tiered.buckets.blob_entries import encode_entries
from tiered.metadata import (
    CONTENT_TYPE_DEFAULT,
    DEADLINE_MAX_NS,
    FIELDS,
    METADATA_BYTES_MAX,
    NESTED_MAX,
    NS_PER_MS,
    NS_PER_S,
    Expiration,
    Metadata,
    TimeToIdle,
    TimeToLive,
    decode_metadata,
    encode_metadata,
    is_expired,
    no_metadata,
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

almost_metadata = st.recursive(
    st.none() | st.integers() | headers,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KNOWN), inner, max_size=4),
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


def test_unknown_keys_are_kept_after_the_known_ones() -> None:
    raw = b'{"newer":{"x":[1,null]},"size":5,"also":"kept"}'
    assert decode_metadata(raw).unknown == {"newer": {"x": [1, None]}, "also": "kept"}
    rewritten = b'{"content_type":"application/octet-stream","size":5,"newer":{"x":[1,null]},"also":"kept"}'
    assert encode_metadata(decode_metadata(raw)) == rewritten


@pytest.mark.slow
@given(value=odd_metadata)
@settings(max_examples=150)
def test_whatever_can_be_built_is_read_back_equal(value: Metadata | None) -> None:
    assert value is None or decode_metadata(encode_metadata(value)) == value


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
        (b'{"expiration_policy":{"TimeToLive":{"secs":-1,"nanos":0}}}', "expiration_policy"),
        (b'{"expiration_policy":{"TimeToLive":{"secs":["a"],"nanos":0}}}', "expiration_policy"),
        (b'{"expiration_policy":{"TimeToLive":{"secs":true,"nanos":0}}}', "expiration_policy"),
        (b'{"newer":NaN}', "not JSON: NaN is no number"),
        (b'{"filename":"\\ud800"}', "not JSON: .*surrogates"),
        (b'{"newer":' + b"[" * 100_000, "not JSON: maximum recursion"),
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


@pytest.mark.slow
@given(raw=st.binary(max_size=40) | almost_metadata.map(lambda value: json.dumps(value).encode()))
def test_any_stored_bytes_are_metadata_that_can_be_rewritten_or_corrupt(raw: bytes) -> None:
    with suppress(CorruptRecordError):
        assert decode_metadata(encode_metadata(decode_metadata(raw))) == decode_metadata(raw)


@pytest.mark.parametrize("kind", [TimeToLive, TimeToIdle])
def test_a_stored_lifetime_of_zero_is_expired_and_not_corrupt(kind: type[TimeToLive | TimeToIdle]) -> None:
    raw = b'{"expiration_policy":{"%s":{"secs":0,"nanos":0}},"content_type":"a/b"}' % kind.__name__.encode()
    found = decode_metadata(raw)
    assert found.expiration == kind.stored(0) and encode_metadata(found) == raw
    assert touch_deadline(found.expiration, NOW_NS, NOW_NS) is None


def test_what_older_software_stored_is_read_though_it_could_not_be_written() -> None:
    raw = (
        '{"content_type":"a\\r\\nb","compression":"gzip","origin":" x ","filename":"a\\u0000b","custom":{"Ä":"\x7f","k":"","K":""},"n":""}'
    ).encode()
    found = decode_metadata(raw)
    assert (found.content_type, found.compression, found.origin, found.filename) == ("a\r\nb", "gzip", " x ", "a\0b")
    assert found.custom == {"Ä": "\x7f", "k": "", "K": ""}
    assert decode_metadata(encode_metadata(found.with_facts(size=5))) == found.with_facts(size=5)
    assert pickle.loads(pickle.dumps(found)) == deepcopy(found) == found
    with pytest.raises(InvalidRequestError, match=r"content_type .* control character"):
        replace(found)


def test_no_metadata_is_what_a_call_without_arguments_makes_with_mappings_of_its_own() -> None:
    assert no_metadata() == Metadata()
    assert no_metadata().content_type is CONTENT_TYPE_DEFAULT
    assert no_metadata().custom is not no_metadata().custom and no_metadata().unknown is not no_metadata().unknown


def test_a_stored_time_beyond_the_years_of_datetime_is_shown_as_the_last_that_it_can_tell() -> None:
    found = decode_metadata(b'{"time_created":{"secs_since_epoch":-99999999999999},"time_expires":{"secs_since_epoch":99999999999999}}')
    assert found.time_created == datetime.min.replace(tzinfo=UTC) and found.time_expires == datetime.max.replace(tzinfo=UTC)


# --- what a caller may set -----------------------------------------------------------------------

NESTED: Any = None
for _ in range(NESTED_MAX):
    NESTED = [NESTED]
LAUGHS: Any = ["ha"]
for _ in range(30):
    LAUGHS = [LAUGHS, LAUGHS]
HUGE = 10**5000


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"content_type": ""}, "content_type '' is no media type in ASCII, such as 'text/plain; charset=utf-8'"),
        ({"content_type": "text"}, "content_type 'text' is no media type"),
        ({"content_type": "text/"}, "content_type 'text/' is no media type"),
        ({"content_type": "/plain"}, "content_type '/plain' is no media type"),
        ({"content_type": "a b/c"}, "content_type 'a b/c' is no media type"),
        ({"content_type": "a/b/c"}, "content_type 'a/b/c' is no media type"),
        ({"content_type": "a/b c"}, "content_type 'a/b c' is no media type"),
        ({"content_type": "a~/b"}, "content_type 'a~/b' is no media type"),
        ({"content_type": "a/b+"}, "content_type 'a/b.' is no media type"),
        ({"content_type": "a/b+c"}, "content_type 'a/b.c' is no media type"),
        ({"content_type": "a/b;;c=d"}, "content_type 'a/b;;c=d' is no media type"),
        ({"content_type": "a/b;c"}, "content_type 'a/b;c' is no media type"),
        ({"content_type": None}, "content_type is None, not text"),
        ({"content_type": 5}, "content_type is 5, not text"),
        ({"content_type": "text/plain\r\nx: y"}, r"content_type .* control character U\+000D at position 10"),
        ({"content_type": "text/größe"}, "content_type .* is no media type in ASCII"),
        ({"content_type": "a/b; c=é"}, "content_type .* is no media type in ASCII"),
        ({"content_type": "text/plain "}, "content_type .* ends with a space"),
        ({"compression": "gzip"}, "compression 'gzip' is not known"),
        ({"origin": "a\nb"}, r"origin .* U\+000A"),
        ({"filename": "a\0b"}, r"filename .* U\+0000"),
        ({"filename": "a\tb"}, r"filename .* U\+0009"),
        ({"filename": "a\x7f"}, r"filename .* U\+007F"),
        ({"filename": "a\x85"}, r"filename .* U\+0085"),
        ({"filename": " a"}, "filename ' a' begins or ends with a space"),
        ({"filename": "\ud800"}, "filename .* not valid Unicode"),
        ({"filename": b"a"}, "filename is b'a', not text"),
        ({"size": -1}, "size is -1, not a number of bytes"),
        ({"size": 1.5}, "size is 1.5"),
        ({"size": True}, "size is True"),
        ({"size": 1 << 63}, "size is 9223372036854775808"),
        ({"size": HUGE}, "size is a value of type int"),
        ({"custom": {"key": 5}}, "custom value of 'key' is 5, not text"),
        ({"custom": {5: "x"}}, "custom key is 5, not text"),
        ({"custom": {"a\nb": "x"}}, "custom key .* is no HTTP token"),
        ({"custom": {"a b": "x"}}, "custom key .* is no HTTP token"),
        ({"custom": {"ä": "x"}}, "custom key .* is no HTTP token"),
        ({"custom": {"": "x"}}, "custom key .* is no HTTP token"),
        ({"custom": {"a": "x\n"}}, r"custom value of 'a' .* U\+000A"),
        ({"custom": {"a": "x "}}, "custom value of 'a' .* ends with a space"),
        ({"custom": {"key": "1", "KEY": "2"}}, "differ only in case"),
        ({"custom": {"k": "v" * 9000}}, "at most 8192 fit"),
        ({"custom": None}, "custom is a mapping of text to text, not None"),
        ({"custom": [("a", "b")]}, "custom is a mapping"),
        ({"unknown": None}, "unknown is a mapping"),
        ({"unknown": {"size": 7}}, "unknown has the key 'size'.*set the field of that name"),
        ({"unknown": {"a": float("nan")}}, "unknown holds nan"),
        ({"unknown": {"a": float("inf")}}, "unknown holds inf"),
        ({"unknown": {"a": b"x"}}, "unknown holds b'x'"),
        ({"unknown": {"a": {1}}}, "unknown holds {1}"),
        ({"unknown": {"a": (1, 2)}}, r"unknown holds \(1, 2\), which JSON would not give back"),
        ({"unknown": {"a": {1: 2}}}, "a key in unknown is 1, not text"),
        ({"unknown": {1: 2}}, "a key in unknown is 1, not text"),
        ({"unknown": {"a": "\ud800"}}, "a text in unknown .* not valid Unicode"),
        ({"unknown": {"a": "\x7f"}}, r"unknown .* U\+007F"),
        ({"unknown": {"a": HUGE}}, "unknown cannot be stored as JSON: .*digits"),
        ({"unknown": {"a": [NESTED]}}, "unknown is nested more than 32 levels"),
        ({"unknown": {"a": LAUGHS}}, "unknown takes more than the 8192 bytes"),
        ({"unknown": {"a": "x" * 9000}}, "at most 8192 fit"),
        ({"time_created_ns": 1.5}, "time_created_ns is 1.5, not nanoseconds from 1970 to the year 9999"),
        ({"time_created_ns": True}, "time_created_ns is True"),
        ({"time_created_ns": "5"}, "time_created_ns is '5'"),
        ({"time_created_ns": -1}, "time_created_ns is -1"),
        ({"time_created_ns": DEADLINE_MAX_NS + 1}, "time_created_ns is"),
        ({"time_created_ns": HUGE}, "time_created_ns is a value of type int"),
        ({"time_expires_ns": datetime(2030, 1, 1, tzinfo=UTC)}, "time_expires_ns is datetime"),
        ({"expiration": HOUR}, "expiration is TimeToLive"),
        ({"expiration": TimeToLive.stored(0)}, "expiration is TimeToLive"),
        ({"expiration": type("Mine", (TimeToLive,), {})(HOUR)}, "expiration is TimeToLive"),
    ],
)
def test_metadata_that_cannot_be_stored_are_refused_by_name(wrong: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        Metadata(**wrong)


def test_the_widest_metadata_are_valid() -> None:
    assert replace(FULL_METADATA) == FULL_METADATA
    wide = Metadata(
        time_created_ns=0, time_expires_ns=DEADLINE_MAX_NS, filename="größe 🙂", custom={"Key-1": "", "!#$%&'*+-.^_`|~": "a\u2028b"},
        size=0, unknown={"a": NESTED, "b": 1 << 200, "c": 1.5, "d": {"e": [True, None]}},
    )  # fmt: skip
    assert decode_metadata(encode_metadata(wide)) == wide
    assert wide.time_expires == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize("letter", ["a", "é"])
@pytest.mark.parametrize("name", [name for name, row in FIELDS.items() if row.kind is str and row.header is None])
def test_the_longest_text_of_a_field_fits_beside_a_blob_also_where_it_is_escaped(name: str, letter: str) -> None:
    longest = None
    for length in range(0, METADATA_BYTES_MAX, 64):
        with suppress(InvalidRequestError):
            longest = Metadata(**{name: letter * length})  # type: ignore[arg-type]
    assert longest is not None and len(getattr(longest, name)) > 1000
    assert sum(len(key) + len(text.encode()) for key, text in encode_entries(longest).items()) <= METADATA_BYTES_MAX


def test_an_empty_text_is_an_absent_one() -> None:
    assert Metadata(origin="", filename="", compression="") == Metadata()


def test_what_its_owner_does_with_a_mapping_later_changes_nothing() -> None:
    custom, inner = {"k": "v"}, [1]
    value = Metadata(custom=custom, unknown={"newer": inner})
    custom["k"] = "\n"
    inner.append(2)
    assert value == Metadata(custom={"k": "v"}, unknown={"newer": [1]})


def test_text_of_a_subclass_is_kept_as_the_text_that_it_is() -> None:
    value = Metadata(filename=Loud("a.txt"), custom={Loud("k"): Loud("v")}, unknown={Loud("n"): Loud("x")})
    assert value == Metadata(filename="a.txt", custom={"k": "v"}, unknown={"n": "x"}) and type(value.filename) is str


def test_the_message_about_a_long_value_is_short() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Metadata(filename="x" * 1_000_000 + "\n")
    assert len(str(caught.value)) < 400 and METADATA_BYTES_MAX < 1_000_000


@pytest.mark.parametrize("wrong", [timedelta(0), timedelta(seconds=-1)])
@pytest.mark.parametrize("kind", [TimeToLive, TimeToIdle])
def test_a_lifetime_is_longer_than_nothing(kind: type[TimeToLive | TimeToIdle], wrong: timedelta) -> None:
    with pytest.raises(InvalidRequestError, match="longer than nothing"):
        kind(wrong)


@pytest.mark.parametrize("kind", [TimeToLive, TimeToIdle])
@pytest.mark.parametrize("wrong", [DEADLINE_MAX_NS + 1, HUGE], ids=["one", "huge"])
def test_a_lifetime_that_ends_after_the_year_9999_is_refused(kind: type[TimeToLive | TimeToIdle], wrong: int) -> None:
    assert kind(ns=DEADLINE_MAX_NS).ns == DEADLINE_MAX_NS
    with pytest.raises(InvalidRequestError, match="ends after the year 9999"):
        kind(ns=wrong)


@pytest.mark.parametrize("wrong", [-HUGE, True, 1.5, "5", timedelta(days=1)], ids=["huge", "bool", "float", "text", "timedelta"])
def test_a_lifetime_is_a_whole_number_of_nanoseconds(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="longer than nothing"):
        TimeToLive(ns=wrong)


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


def test_a_stored_lifetime_of_any_length_is_renewed_until_the_last_deadline_at_most() -> None:
    endless = TimeToIdle.stored(10**40)
    assert touch_deadline(endless, NOW_NS, NOW_NS) == whole_ms(DEADLINE_MAX_NS)
    assert touch_deadline(endless, DEADLINE_MAX_NS, NOW_NS) is None
