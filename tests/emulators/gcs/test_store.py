"""The GCS emulator's listings and sessions against models, without a server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from emulators.gcs.answers import GcsError
from emulators.gcs.sessions import GRANULE, ContentRange, Session
from emulators.gcs.store import Bucket

KIB = 1024

some_names = st.lists(st.text(st.sampled_from("aAb/é😀~"), min_size=1, max_size=5), max_size=12, unique=True)


@given(stored=some_names, prefix=st.sampled_from(["", "a", "a/", "é"]), start=st.sampled_from(["", "a", "b", "é"]),
       end=st.sampled_from(["", "b", "~", "😀"]), delimiter=st.sampled_from(["", "/", "é"]), limit=st.integers(1, 4))  # fmt: skip
def test_pages_put_together_are_the_listing_of_a_model(
    stored: list[str], prefix: str, start: str, end: str, delimiter: str, limit: int
) -> None:
    bucket = Bucket("bucket", {})
    for name in stored:
        bucket.insert(name, b"", {}, {}, [], 0)
    expected: list[str] = []
    for name in sorted(stored, key=str.encode):
        if name.startswith(prefix) and name.encode() >= start.encode() and (not end or name.encode() < end.encode()):
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            expected.append(prefix + head + found if found else name)
    query = {"prefix": prefix, "startOffset": start, "endOffset": end, "delimiter": delimiter, "maxResults": str(limit)}
    listed: list[str] = []
    token: str | None = ""
    while token is not None:
        page = bucket.page({**query, "pageToken": token})
        assert 0 < len(page.objects) + len(page.prefixes) <= limit or page.next_token is None
        listed += sorted([*page.prefixes, *(each.name for each in page.objects)], key=str.encode)
        token = page.next_token
    assert listed == list(dict.fromkeys(expected))


@given(total=st.integers(0, 5 * 256), requests=st.lists(st.tuples(st.integers(0, 1300), st.integers(0, 1300), st.booleans()), max_size=6))
def test_whatever_is_sent_and_breaks_off_a_session_holds_the_start_of_its_object(
    total: int, requests: list[tuple[int, int, bool]]
) -> None:
    payload = bytes(n % 251 for n in range(total * KIB))
    session = Session("id", "bucket", "a", {}, {}, 0, None)
    for first, count, whole in requests:
        start, stop = first * KIB, min((first + count) * KIB, len(payload))
        if stop <= start:
            continue
        sent = ContentRange.parse(f"bytes {start}-{stop - 1}/{len(payload)}")
        before = len(session.arrived)
        try:
            session.begin(sent)
        except GcsError:
            assert start > before
            continue
        session.take(start, payload[start:stop])
        if whole:
            session.end(sent, stop - start)
        else:
            session.break_off()
        assert payload.startswith(session.arrived)
        assert session.complete or len(session.arrived) % GRANULE == 0
        assert len(session.arrived) >= before
