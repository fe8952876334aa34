"""Ranges, conditions and dates as RFC 9110 has them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from tiered import ByteRange, InvalidRequestError
from tiered.asgi.http_rules import BEYOND, accepts_encoding, http_date, precondition, range_is_for, wanted_range

TAG = '"018bcfe5-6800-7000-8000-000000000001"'
OTHER = '"018bcfe5-6800-7000-8000-000000000002"'
MODIFIED = "Tue, 03 Feb 2026 04:05:06 GMT"
BEFORE, AFTER = "Tue, 03 Feb 2026 04:05:05 GMT", "Tue, 03 Feb 2026 04:05:07 GMT"
NINES = "9" * 5000


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        (None, False), ("", False), ("gzip, br", False), ("zstd", True), ("gzip, ZSTD;q=0.5", True), ("br;q=1, *;q=0.1", True),
        ("zstd;q=0", False), ("zstd ; q=0.000 , *", False), ("*;q=0", False), ("*", True), ("zstd;q=0.001", True), ("zstdx, azstd", False),
        ("," * 10_000, False),
    ],
)  # fmt: skip
def test_an_encoding_is_for_who_asks_for_it(header: str | None, accepts: bool) -> None:
    assert accepts_encoding(header, "zstd") is accepts


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("bytes=0-9", ByteRange(0, 10)), ("bytes=7-", ByteRange(7)), ("bytes=-3", ByteRange(-3)), ("BYTES= 5-5 ", ByteRange(5, 6)),
        ("bytes=00000000000000000000000000000000-1", ByteRange(0, 2)), (f"bytes=0-{NINES}", ByteRange(0, BEYOND + 1)),
        (f"bytes={NINES}-", ByteRange(BEYOND)), (f"bytes=-{NINES}", ByteRange(-BEYOND)), ("bytes=-0", ByteRange(BEYOND)),
    ],
)  # fmt: skip
def test_one_range_is_read(header: str, wanted: ByteRange) -> None:
    assert wanted_range(header) == wanted


@pytest.mark.parametrize(
    "header",
    [None, "", "bytes", "bytes=", "bytes=-", "bytes=9-5", "bytes=0-1,4-5", "bytes=0-1, 0-1, 0-1", "items=0-1", "bytes=a-b", "bytes=1.5-2",
     "bytes=--1", "bytes=+1-2", "bytes=0x1-", "bytes=\u0661-\u0662", "bytes=0-1;", "bytes=0-1\x00", "bytes=" + "0-," * 10_000,
     f"bytes={NINES}-0"],
)  # fmt: skip
def test_several_ranges_and_what_is_none_are_ignored(header: str | None) -> None:
    assert wanted_range(header) is None


@pytest.mark.parametrize("header", [b"bytes=0-1", 5, ["bytes=0-1"]])
def test_a_range_that_is_no_text_is_refused(header: Any) -> None:
    """Of raw headers of ASGI it was a TypeError of our own call."""
    with pytest.raises(InvalidRequestError, match=r"the header Range is .*, not text"):
        wanted_range(header)


@given(st.text())
def test_no_header_is_an_error(text: str) -> None:
    wanted_range(f"bytes={text}")
    precondition({"if-match": text, "if-unmodified-since": text}, TAG, MODIFIED)
    precondition({"if-none-match": text}, TAG, MODIFIED)
    precondition({"if-modified-since": text}, TAG, MODIFIED)
    assert range_is_for(text, TAG, MODIFIED) is (text.strip() in (TAG, MODIFIED))


def test_a_range_is_of_what_the_client_has() -> None:
    assert [range_is_for(each, TAG, MODIFIED) for each in (None, TAG, MODIFIED, f" {TAG}")] == [True] * 4
    assert [range_is_for(each, TAG, MODIFIED) for each in (OTHER, f"W/{TAG}", AFTER, BEFORE, "", "*")] == [False] * 6
    assert not range_is_for(MODIFIED, TAG, None)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, None),
        ({"if-none-match": TAG}, 304), ({"if-none-match": f"W/{TAG}"}, 304), ({"if-none-match": f'{OTHER}, "", {TAG}'}, 304),
        ({"if-none-match": "*"}, 304), ({"if-none-match": OTHER}, None), ({"if-none-match": ""}, None), ({"if-none-match": TAG[:-1]}, None),
        ({"if-match": TAG}, None), ({"if-match": f"{OTHER},{TAG}"}, None), ({"if-match": "*"}, None),
        ({"if-match": OTHER}, 412), ({"if-match": f"W/{TAG}"}, 412), ({"if-match": ""}, 412),
        ({"if-match": OTHER, "if-none-match": TAG}, 412), ({"if-match": TAG, "if-none-match": TAG}, 304),
        ({"if-unmodified-since": BEFORE}, 412), ({"if-unmodified-since": MODIFIED}, None), ({"if-unmodified-since": "then"}, None),
        ({"if-match": TAG, "if-unmodified-since": BEFORE}, None),
        ({"if-modified-since": MODIFIED}, 304), ({"if-modified-since": AFTER}, 304), ({"if-modified-since": BEFORE}, None),
        ({"if-modified-since": "then"}, None), ({"if-none-match": OTHER, "if-modified-since": AFTER}, None),
        ({"if-modified-since": "Tuesday, 03-Feb-26 04:05:06 GMT"}, 304), ({"if-modified-since": "Tue Feb  3 04:05:06 2026"}, 304),
    ],
)  # fmt: skip
def test_conditions_are_judged_in_their_order(headers: dict[str, str], status: int | None) -> None:
    assert precondition(headers, TAG, MODIFIED) == status


@pytest.mark.parametrize(
    ("headers", "absent", "untagged"),
    [
        ({}, None, None), ({"if-match": "*"}, 412, None), ({"if-match": TAG}, 412, 412), ({"if-match": '""'}, 412, 412),
        ({"if-none-match": "*"}, None, 412), ({"if-none-match": f'W/"", {TAG}'}, None, None),
        ({"if-match": "*", "if-none-match": TAG}, 412, None), ({"if-match": TAG.strip('"')}, 412, 412),
    ],
)  # fmt: skip
def test_of_a_change_it_counts_whether_anything_is_there_also_what_has_no_tag(
    headers: dict[str, str], absent: int | None, untagged: int | None
) -> None:
    assert [precondition(headers, etag, reads=False) for etag in (None, "")] == [absent, untagged]


def test_conditions_are_found_in_any_case_and_in_several_lines() -> None:
    """A condition that was not found was none, so that a change was made."""
    for name in ("If-Match", "IF-MATCH"):
        assert precondition({name: OTHER}, TAG, reads=False) == 412
    lines = Headers(raw=[(b"if-match", OTHER.encode()), (b"if-match", TAG.encode())])
    assert precondition(lines, TAG, reads=False) is None and precondition(lines, '"third"', reads=False) == 412


def test_what_has_no_date_keeps_no_condition_with_one() -> None:
    assert precondition({"if-modified-since": AFTER, "if-unmodified-since": BEFORE}, TAG, None) is None


def test_a_time_is_said_if_it_can_be() -> None:
    assert http_date(1_770_091_506_999_999_999) == MODIFIED
    assert [http_date(each) for each in (None, 10**30, -(10**30))] == [None] * 3
