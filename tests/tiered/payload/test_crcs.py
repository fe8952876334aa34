"""The checksum of a whole is joined from those of its parts."""

from __future__ import annotations

import zlib

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.payload.crc32c import extend_crc
from tiered.payload.crcs import CRC32, CRC32C, join_crcs


@given(st.lists(st.binary(max_size=200) | st.binary(max_size=3).map(lambda some: some * 5000), max_size=6))
def test_joined_checksums_are_those_of_the_whole(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    assert join_crcs([(zlib.crc32(part), len(part)) for part in parts], CRC32) == zlib.crc32(whole)
    assert join_crcs([(google_crc32c.value(part), len(part)) for part in parts], CRC32C) == google_crc32c.value(whole)


def test_a_part_may_be_larger_than_a_disk() -> None:
    zeros = {1 << 20: zlib.crc32(bytes(1 << 20))}
    for power in range(20, 40):
        zeros[2 << power] = join_crcs([(zeros[1 << power], 1 << power)] * 2, CRC32)
    halves = [(zeros[1 << 39], 1 << 39), (zeros[1 << 20], 1 << 20), (zeros[1 << 39], 1 << 39)]
    others = [(zeros[1 << 20], 1 << 20), (zeros[1 << 40], 1 << 40)]
    assert join_crcs(halves, CRC32) == join_crcs(others, CRC32), "the same zeros, cut elsewhere"


def test_a_view_of_a_whole_buffer_is_not_copied_and_any_other_has_its_own_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bytes(range(256)) * 2000
    view = memoryview(whole)
    for part in (view, view[1:], view[:-1], view[::-1], view.cast("i"), memoryview(bytearray(whole))):
        assert extend_crc(7, part) == google_crc32c.extend(7, part.tobytes())
    taken: list[object] = []

    def extend(crc: int, chunk: bytes) -> int:
        taken.append(chunk)
        return 0

    monkeypatch.setattr(google_crc32c, "extend", extend)
    extend_crc(0, view)
    assert len(taken) == 1 and taken[0] is whole
