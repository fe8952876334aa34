"""The checksum of payloads is zlib's, whoever computes it."""

from __future__ import annotations

import subprocess
import sys
import zlib

from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32 as quick

from tests.given.repository import ROOT
from tiered.embedded.crc32 import crc32

WITHOUT = """
import sys, zlib
sys.modules["isal"] = None
from tiered.embedded.crc32 import crc32
assert crc32 is zlib.crc32
"""


@given(st.binary(), st.binary())
def test_it_is_the_same_of_any_bytes_and_goes_on_from_any_part(first: bytes, second: bytes) -> None:
    for data in (first, bytearray(first), memoryview(first)):
        assert crc32(data) == zlib.crc32(data)
    assert crc32(memoryview(second), crc32(first)) == crc32(second, zlib.crc32(first)) == zlib.crc32(first + second)


def test_the_quick_one_is_taken_and_zlib_where_it_cannot_be_had() -> None:
    assert crc32 is quick
    subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, check=True, timeout=60)
