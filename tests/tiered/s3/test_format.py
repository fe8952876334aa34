"""A blob as an object of S3: metadata, generations, names beside it."""

from __future__ import annotations

import base64
import json
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from tiered.metadata import Metadata, TimeToIdle, TimeToLive
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.s3.copies import COPIED_BYTES_MAX, GIB, extents, other_layout
from tiered.s3.format import METADATA_BYTES_MAX, Beside, before, decode_object, encode_metadata, ms_of
from tiered.testing.contracts.long_term import FULL_METADATA

BESIDE = Beside("a/b/")
TIME = datetime(2026, 11, 27, 12, 0, 0, 654321, tzinfo=UTC)


def answer(named: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"LastModified": TIME, "ETag": '"tag"', "ContentLength": 5, **named, **more}


def test_an_object_as_it_is_stored() -> None:
    metadata = Metadata(
        expiration=TimeToIdle(timedelta(hours=1)), time_expires_ns=7_000_000_001, content_type="text/plain", compression="Zstd",
        filename="größe", custom={"build": "7", "UPPER": "x"},
    )  # fmt: skip
    named = encode_metadata("u/x", metadata, nonce="00ff", crc32c="GNEjNQ==")
    packed = named["Metadata"].pop("x-snme-tiered-packed")
    assert named == {
        "ContentType": "text/plain",
        "ContentEncoding": "zstd",
        "Metadata": {
            "x-sn-expiration": "tti:1h", "x-snme-build": "7", "x-snme-tiered-expires": "7000000001", "x-snme-tiered-nonce": "00ff",
            "x-snme-tiered-crc32c": "GNEjNQ==", "x-snme-tiered-name": encode_crc(extend_crc(0, b"u/x")),
        },
    }  # fmt: skip
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == {"x-sn-filename": "größe", "x-snme-UPPER": "x"}
    stored = decode_object("u/x", answer(encode_metadata("u/x", metadata, nonce="00ff", crc32c="GNEjNQ==")))
    assert stored.generation == "tag@1795780800" and stored.created_ns == 1_795_780_800 * 10**9
    assert (stored.nonce, stored.checksum, stored.source) == ("00ff", "crc32c=GNEjNQ==", None)
    assert stored.metadata.custom == metadata.custom and stored.metadata.filename == "größe"
    assert stored.metadata.time_expires_ns == 7_000_000_001 and stored.metadata.expiration == metadata.expiration


def test_metadata_of_every_kind_are_read_as_they_were_written_whatever_case_the_service_gives_their_keys() -> None:
    named = encode_metadata("u/x", FULL_METADATA)
    named["Metadata"] = {key.title(): value for key, value in named["Metadata"].items()}
    read = decode_object("u/x", answer(named)).metadata
    assert read == FULL_METADATA.with_facts(size=5)


def test_metadata_that_fit_when_they_are_packed_are_packed_and_others_refused_with_the_limit() -> None:
    fits = encode_metadata("u/x", Metadata(custom={"key": "x" * 5000}))["Metadata"]
    assert sum(len(key) + len(value) for key, value in fits.items()) <= METADATA_BYTES_MAX
    noise = "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(2000))
    with pytest.raises(InvalidRequestError, match="2048"):
        encode_metadata("u/x", Metadata(custom={"key": noise}))


@pytest.mark.parametrize("expires", ["soon", "-1", "9" * 29])
def test_a_deadline_that_is_none_breaks_the_format(expires: str) -> None:
    with pytest.raises(CorruptRecordError, match=r"u/x.*expires"):
        decode_object("u/x", answer({"Metadata": {"x-snme-tiered-expires": expires}}))


def test_custom_entries_may_have_the_keys_of_ours() -> None:
    custom = {"tiered-expires": "soon", "tiered-nonce": "x", "tiered-crc32c": "", "tiered-source": "y", "tiered-created": "5"}
    stored = decode_object("u/x", answer(encode_metadata("u/x", Metadata(custom=custom), nonce="00ff", crc32c="GNEjNQ==")))
    assert (stored.metadata.custom, stored.nonce, stored.crc32c, stored.source) == (custom, "00ff", "GNEjNQ==", None)
    assert (stored.metadata.time_expires_ns, stored.metadata.time_created_ns) == (None, stored.created_ns)


def test_a_checksum_of_checksums_is_not_that_of_the_whole() -> None:
    parts = {"ETag": '"tag-2"', "ChecksumCRC32C": "GNEjNQ=="}
    assert decode_object("u/x", answer(parts)).crc32c is None
    assert decode_object("u/x", answer({**parts, "ChecksumCRC32C": "GNEjNQ==-2"})).crc32c is None
    assert decode_object("u/x", answer(parts, ChecksumType="FULL_OBJECT")).crc32c == "GNEjNQ=="


# --- names beside a blob -----------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=20), st.integers(0, 253_402_300_799 * 10**9))
def test_a_marker_tells_its_blob_and_its_deadline_to_the_millisecond(name: str, deadline_ns: int) -> None:
    marker = BESIDE.marker(f"a/b/{name}", deadline_ns)
    assert marker.startswith("a/b/~t/") and BESIDE.hides(marker)
    assert BESIDE.blob_of(marker) == (f"a/b/{name}", ms_of(deadline_ns) * 1_000_000)


def test_what_is_no_marker_is_none() -> None:
    assert BESIDE.marker("a/b/u/x", 1) == "a/b/~t/u/x/000000000001"
    for name in ("a/b/u/x", "~t/u/x/000000000001", "a/b/~t/u/x", "a/b/~t/u/x/0001", "a/b/~t/u/x/00000000000G", "a/b/~t/000000000001"):
        assert BESIDE.blob_of(name) is None


def test_a_name_that_is_too_long_is_refused_and_one_that_expires_may_be_shorter() -> None:
    expiring = Metadata(expiration=TimeToLive(ns=1), time_expires_ns=1)
    BESIDE.check("k" * 1024, Metadata())
    BESIDE.check("k" * 1008, expiring)
    for name, metadata, limit in (("k" * 1025, Metadata(), "1024"), ("k" * 1009, expiring, "1008"), ("ü" * 505, expiring, "1008")):
        with pytest.raises(InvalidRequestError, match=limit):
            BESIDE.check(name, metadata)
    assert len(Beside("").marker("k" * 1008, 1)) == 1024
    BESIDE.check(f"a/b/~quarantine/{'k' * 1008}", expiring)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6))
def test_a_listing_after_the_name_before_one_begins_with_it(name: str) -> None:
    assert before(name).encode() < name.encode()
    assert name.startswith(before(name)) or before(name)[:-1] == name[:-1] or before(name)[:-2] == name[:-1]


# --- copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 5 << 20, (5 << 20) + 1, 8 << 20, 9 << 20, 100 << 20, COPIED_BYTES_MAX, 6 * GIB, 5000 * GIB])
@pytest.mark.parametrize("parts", [0, 1, 2, 3, 7, 625, 1000])
def test_a_copy_that_is_laid_out_in_another_way_never_has_the_tag_of_the_first(size: int, parts: int) -> None:
    if parts < 2 and size > COPIED_BYTES_MAX:
        return  # neither a request nor a part brings so much
    layout = other_layout(size, parts)
    if layout is None:
        assert (parts == 1 and size <= 5 << 20) or (size == 0 and parts), "it is put whole, and its tag has no number"
        return
    whole = extents(size, layout)
    assert len(whole) != parts and len(whole) <= 10_000 and whole[0][0] == 0 and whole[-1][1] == size
    assert all(stop - start >= 5 << 20 for start, stop in whole[:-1]) and all(stop - start <= COPIED_BYTES_MAX for start, stop in whole)
