"""The path that a blob's name becomes and the bytes of its file, pinned down to the byte."""

from __future__ import annotations

import string
import zlib
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from tests.given.caller_values import headers
from tiered.embedded.file import (
    BLOCK_BYTES,
    BLOCK_CRC_BYTES,
    FOOTER_BYTES,
    Checksums,
    check_block,
    check_block_crcs,
    decode_footer,
    decode_name,
    decode_stored_metadata,
    encode_deadline,
    encode_name,
    encode_trailer,
    is_component,
    microseconds,
    path_of,
)
from tiered.metadata import Metadata, TimeToLive

DEADLINE_NS = 1_700_003_600_123_000_000
WRITTEN_NS = 1_700_000_000_123_456_789
MORTAL = Metadata(expiration=TimeToLive(timedelta(hours=1)), time_expires_ns=DEADLINE_NS, content_type="text/plain")
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
long_names = names | st.builds(str.__mul__, names, st.integers(1, 100))


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("abcxyz0189", "abcxyz0189"),
        ("../a", "%2e%2e%2fa"),
        ("Key", "=4bey"),
        ("a:@[`", "a=3a=40=5b=60"),
        ("{~\x7f", "~7b~7e~7f"),
        ("ü🙂", "~c3~bc~f0~9f~99~82"),
        ("\0 %+=/", "%00%20%25%2b=3d%2f"),
    ],
)
def test_a_name_becomes_this_text(name: str, text: str) -> None:
    assert encode_name(name) == text
    assert decode_name(text) == name


@given(left=names, right=names)
@example(left="a", right="a/")
@example(left="a9", right="a:")
@example(left="az", right="a{")
def test_the_text_sorts_and_begins_as_the_bytes_of_the_name_do(left: str, right: str) -> None:
    texts, raws = (encode_name(left), encode_name(right)), (left.encode(), right.encode())
    assert (texts[0] < texts[1]) == (raws[0] < raws[1])
    assert texts[1].startswith(texts[0]) == raws[1].startswith(raws[0])


@given(name=long_names)
def test_a_name_is_told_from_its_path_and_stays_below_it(name: str) -> None:
    *directories, file = path_of(name).parts
    assert all(is_component(part, directory=True) for part in directories)
    assert is_component(file, directory=False)
    assert decode_name("".join(part.removesuffix("+") for part in (*directories, file))) == name
    assert set("".join((*directories, file))) <= set(string.ascii_lowercase + string.digits + "%=~+")


@given(names=st.lists(long_names | st.sampled_from(["k" * 199, "k" * 200, "k" * 398, "k" * 399]), unique=True))
def test_paths_sort_as_the_bytes_of_their_names_do(names: list[str]) -> None:
    by_path = sorted(names, key=lambda name: path_of(name).parts)
    assert by_path == sorted(names, key=str.encode)


def test_a_name_of_1024_bytes_fits_whatever_its_bytes() -> None:
    for name in ("k" * 1024, "/" * 1024, "\x7f" * 1024):
        assert all(len(part) <= 200 for part in path_of(name).parts)
        assert len(str(path_of(name))) < 3200


def test_a_name_of_exactly_one_component_is_a_file_beside_the_directory_of_longer_ones() -> None:
    assert path_of("k" * 199).parts == ("k" * 199,)
    assert path_of("k" * 200).parts == ("k" * 199 + "+", "k")


@pytest.mark.parametrize("text", ["", "README", "a.txt", "%2", "%zz", "%2F", "%61", "=2f", "~2f", "~ff", "~c3", "ü", "a+", "\udcff"])
def test_text_that_no_name_becomes_is_told_apart(text: str) -> None:
    assert decode_name(text) is None


@given(text=st.text(st.sampled_from("0afgz%=~/A"), max_size=9) | long_names.map(encode_name))
def test_every_text_is_told_apart_from_what_a_name_becomes(text: str) -> None:
    name = decode_name(text)
    assert name is None or encode_name(name) == text


def test_every_ascii_character_comes_back_in_its_one_form_only() -> None:
    for byte in range(128):
        texts = [chr(byte), *(f"{mark}{byte:02x}" for mark in "%=~")]
        assert [decode_name(text) for text in texts if text == encode_name(chr(byte))] == [chr(byte)]
        assert {decode_name(text) for text in texts if text != encode_name(chr(byte))} == {None}


def test_names_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        encode_name("a\ud800")
    with pytest.raises(InvalidRequestError, match="empty"):
        path_of("")


# --- bytes ---------------------------------------------------------------------------------------


def stored(payload: bytes, metadata: Metadata) -> bytes:
    checksums = Checksums()
    checksums.add(memoryview(payload))
    return payload + encode_trailer(metadata, checksums, WRITTEN_NS)


def loaded(raw: bytes) -> Metadata:
    footer = decode_footer(raw[-FOOTER_BYTES:], len(raw))
    return decode_stored_metadata(raw[footer.size : footer.size + footer.metadata_bytes], footer)


def checked(raw: bytes) -> bytes:
    """The payload of a file, checked block by block."""
    footer = decode_footer(raw[-FOOTER_BYTES:], len(raw))
    crcs = raw[footer.block_crcs_at :][: footer.blocks * BLOCK_CRC_BYTES]
    check_block_crcs(crcs, footer)
    for number in range(footer.blocks):
        block = raw[number * BLOCK_BYTES : min((number + 1) * BLOCK_BYTES, footer.size)]
        check_block(block, number, crcs[number * BLOCK_CRC_BYTES :][:BLOCK_CRC_BYTES])
    return raw[: footer.size]


def test_golden_bytes_of_a_blob_that_never_expires() -> None:
    assert stored(b"hello", Metadata()) == (
        b"hello"
        b'{"content_type":"application/octet-stream","size":5}   '
        + bytes.fromhex("3610a686")
        + b"tiered\x00\x02"
        + bytes.fromhex("0000000000000000" "00060a2418202240" "0000000000000005" "00000037" "14a4e66b" "857c51ca")
    )


def test_golden_bytes_of_a_blob_with_a_deadline() -> None:
    assert stored(b"", MORTAL) == (
        b'{"expiration_policy":{"TimeToLive":{"secs":3600,"nanos":0}},'
        b'"time_expires":{"secs_since_epoch":1700003600,"nanos_since_epoch":123000000},"content_type":"text/plain","size":0}  '
        b"tiered\x00\x02"
        + bytes.fromhex("00060a24eeb3c478" "00060a2418202240" "0000000000000000" "000000b0" "00000000" "83d287ec")
    )


@pytest.mark.parametrize(("raw", "metadata"), [
    (
        b"hello"
        b'{"content_type":"application/octet-stream","size":5}       '
        b"tiered\x00\x01"
        + bytes.fromhex("0000000000000000" "00060a2418202240" "0000000000000005" "0000003b" "3610a686" "7d073918"), Metadata(size=5),
    ),
    (
        b'{"expiration_policy":{"TimeToLive":{"secs":3600,"nanos":0}},'
        b'"time_expires":{"secs_since_epoch":1700003600,"nanos_since_epoch":123000000},"content_type":"text/plain","size":0}  '
        b"tiered\x00\x01"
        + bytes.fromhex("00060a24eeb3c478" "00060a2418202240" "0000000000000000" "000000b0" "00000000" "83d287ec"),
        replace(MORTAL, size=0),
    ),
])  # fmt: skip
def test_golden_bytes_of_version_1_are_still_read(raw: bytes, metadata: Metadata) -> None:
    written_ns = WRITTEN_NS // 1000 * 1000  # what counts as its creation, as none was told
    assert loaded(raw) == replace(metadata, time_created_ns=written_ns)
    footer = decode_footer(raw[-FOOTER_BYTES:], len(raw))
    assert (footer.version, footer.blocks, footer.crc) == (1, 0, zlib.crc32(raw[: footer.size]))
    assert footer.deadline_at % 8 == 0


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 17])
def test_every_block_has_its_checksum_whatever_the_chunks_it_came_in(size: int) -> None:
    payload = bytes(range(251)) * (size // 251 + 1)
    raw = stored(payload[:size], MORTAL)
    assert checked(raw) == payload[:size]
    assert decode_footer(raw[-FOOTER_BYTES:], len(raw)).deadline_at % 8 == 0
    for piece_bytes in (1000, BLOCK_BYTES - 1, BLOCK_BYTES + 1):
        checksums = Checksums()
        for start in range(0, size, piece_bytes):
            checksums.add(memoryview(payload[:size])[start : start + piece_bytes])
        assert size + len(encode_trailer(MORTAL, checksums, WRITTEN_NS)) == len(raw)
        assert checked(payload[:size] + encode_trailer(MORTAL, checksums, WRITTEN_NS)) == payload[:size]


@given(payload=st.binary(max_size=20), filename=headers)
def test_metadata_come_back_with_the_size_filled_in(payload: bytes, filename: str) -> None:
    metadata = replace(MORTAL, filename=filename)
    written_ns = WRITTEN_NS // 1000 * 1000  # what counts as its creation, as none was told
    assert loaded(stored(payload, metadata)) == replace(metadata, size=len(payload), time_created_ns=written_ns)


@given(payload=st.binary(max_size=20), filename=st.text(max_size=20, alphabet="abc"))
def test_the_deadline_lies_at_a_multiple_of_eight_so_that_no_write_of_it_is_torn(payload: bytes, filename: str) -> None:
    raw = stored(payload, replace(MORTAL, filename=filename))
    footer = decode_footer(raw[-FOOTER_BYTES:], len(raw))
    assert footer.deadline_at % 8 == 0
    assert raw[footer.deadline_at :][:8] == encode_deadline(DEADLINE_NS // 1000)


def test_a_deadline_that_was_extended_overrides_the_one_in_the_json() -> None:
    raw = bytearray(stored(b"hello", MORTAL))
    footer = decode_footer(bytes(raw[-FOOTER_BYTES:]), len(raw))
    raw[footer.deadline_at : footer.deadline_at + 8] = encode_deadline(microseconds(DEADLINE_NS + 5_000))
    assert loaded(bytes(raw)).time_expires_ns == DEADLINE_NS + 5_000


@pytest.mark.parametrize(
    ("metadata", "deadline_us"), [(MORTAL, 0), (MORTAL, DEADLINE_NS // 1000 - 1), (Metadata(), DEADLINE_NS // 1000)]
)
def test_a_deadline_that_no_touch_can_have_made_is_corruption(metadata: Metadata, deadline_us: int) -> None:
    raw = bytearray(stored(b"hello", metadata))
    footer = decode_footer(bytes(raw[-FOOTER_BYTES:]), len(raw))
    raw[footer.deadline_at : footer.deadline_at + 8] = encode_deadline(deadline_us)
    with pytest.raises(CorruptRecordError, match="deadline"):
        loaded(bytes(raw))


def test_a_file_cut_anywhere_is_corrupt() -> None:
    raw = stored(b"hello", MORTAL)
    for kept in range(len(raw)):
        with pytest.raises(CorruptRecordError):
            loaded(raw[:kept])


def test_a_file_with_any_byte_of_payload_metadata_checksums_or_sizes_changed_is_corrupt() -> None:
    raw = stored(b"hello", MORTAL)
    footer = decode_footer(raw[-FOOTER_BYTES:], len(raw))
    # Nothing covers the deadline and the time of writing.
    exempt = {*range(footer.deadline_at, footer.deadline_at + 16)}
    for position in set(range(len(raw))) - exempt:
        changed = bytearray(raw)
        changed[position] ^= 1
        with pytest.raises(CorruptRecordError):
            checked(bytes(changed)) + repr(loaded(bytes(changed))).encode()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "fewer than a footer"),
        (b"short", "fewer than a footer"),
        (b"somebody's holiday picture" * 10, "not written by this software"),
        (b"tiered\x00\x03" + bytes(36), "newer software wrote it, in version 3, and this one reads versions up to 2: install"),
        (b"tiered\x00\x00" + bytes(36), "version 0, and there is none below 1"),
        (b"more" + stored(b"hello", Metadata()), "where its footer says"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(raw: bytes, words: str) -> None:
    with pytest.raises(CorruptRecordError, match=words):
        loaded(raw)


def test_a_time_beyond_what_the_footer_holds_is_refused() -> None:
    assert microseconds(None) == 0
    with pytest.raises(InvalidRequestError, match="beyond the year"):
        encode_trailer(MORTAL.with_facts(time_expires_ns=1 << 80), Checksums(), 0)
