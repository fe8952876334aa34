"""The one reader of GCS and S3, by a table of what a body brings."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from changelog.base.errors import InvalidRequestError, UnavailableError
from tiered.metadata import Metadata
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.services.backends import ByteRange, DamagedError
from tiered.transfer.reading import BucketReader, header_of

pytestmark = pytest.mark.anyio

BYTES = b"first, last"
OTHER = encode_crc(extend_crc(0, b"other"))


@dataclass(frozen=True)
class FoundBlob:
    crc32c: str | None = encode_crc(extend_crc(0, BYTES))
    size: int = len(BYTES)
    metadata: Metadata = field(default_factory=Metadata)


@dataclass
class ScriptedBody:
    chunks: list[bytes]
    closed: int = 0

    async def read(self) -> bytes:
        return self.chunks.pop(0) if self.chunks else b""

    def close(self) -> None:
        self.closed += 1


async def gone(start: int, stop: int) -> BucketReader | None:
    return None


WHOLE = (0, len(BYTES))
EMPTY = FoundBlob("AAAAAA==", 0)
CASES: dict[str, tuple[FoundBlob, tuple[int, int], list[bytes], bytes | type[Exception]]] = {
    "whole": (FoundBlob(), WHOLE, [BYTES[:5], BYTES[5:]], BYTES),
    "nobody tells the crc32c": (FoundBlob(None), WHOLE, [BYTES], BYTES),
    "damaged": (FoundBlob(OTHER), WHOLE, [BYTES], DamagedError),
    "a range is not compared": (FoundBlob(OTHER), (2, 5), [BYTES[2:5]], BYTES[2:5]),
    "too few": (FoundBlob(), WHOLE, [BYTES[:5]], UnavailableError),
    "more at once": (FoundBlob(), WHOLE, [BYTES + b"x"], UnavailableError),
    "empty": (EMPTY, (0, 0), [], b""),
    "empty, and that is not what was stored": (FoundBlob(OTHER, 0), (0, 0), [], DamagedError),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_a_body_brings_is_counted_and_compared(case: str) -> None:
    found, extent, chunks, expected = CASES[case]
    body = ScriptedBody(list(chunks))
    reader = BucketReader("a", found, body, extent, gone)
    if isinstance(expected, bytes):
        assert b"".join([chunk async for chunk in reader.chunks()]) == expected
        assert body.closed == 1, "what was read to its end holds no connection"
    else:
        with pytest.raises(expected):
            [chunk async for chunk in reader.chunks()]
    await reader.aclose()
    assert body.closed == 1


async def test_a_reader_that_was_closed_gives_nothing_more() -> None:
    reader = BucketReader("a", FoundBlob(), ScriptedBody([BYTES]), WHOLE, gone)
    await reader.aclose()
    with pytest.raises(InvalidRequestError, match="was closed while it was read"):
        [chunk async for chunk in reader.chunks()]


@pytest.mark.parametrize(("extent", "is_compared"), [(WHOLE, True), ((2, 5), False)])
async def test_ranges_are_compared_as_a_whole_if_they_are_the_whole(extent: tuple[int, int], is_compared: bool) -> None:
    ranges = BucketReader("a", FoundBlob(), ScriptedBody([]), extent, gone).ranges()
    parts = [(ranges.extend(0, part), len(part)) for part in (BYTES[:5], BYTES[5:])]
    ranges.check(parts)
    damaged = [(ranges.extend(0, b"firsT"), 5), parts[1]]
    if is_compared:
        with pytest.raises(DamagedError):
            ranges.check(damaged)
    else:
        ranges.check(damaged)
    assert await ranges.open(0, 5) is None


HEADERS = [
    (None, {}), (ByteRange(2), {"Range": "bytes=2-"}), (ByteRange(2, 5), {"Range": "bytes=2-4"}), (ByteRange(-3), {"Range": "bytes=-3"}),
    (ByteRange(2, 2), None), (ByteRange(-3, 5), None),
]


@pytest.mark.parametrize(("range", "header"), HEADERS)
def test_what_http_cannot_say_has_no_header(range: ByteRange | None, header: dict[str, str] | None) -> None:
    assert header_of(range) == header
