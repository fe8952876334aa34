"""Signed links: nobody but who has a key makes or changes one, and each ends."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.change import ChangeId
from tiered import InvalidRequestError, Metadata, ObjectHead, ObjectId, Tier
from tiered.links import (
    CLOCKS_DIFFER_S,
    TOKEN_CHARS_MAX,
    Links,
    SignedLink,
    checked_content_type,
    checked_disposition,
    checked_life,
    content_disposition,
    content_type_of,
)
from tiered.metadata import no_metadata
from tiered.settings import LinkSettings
from tiered.testing.clock import Clock

KEYS = [f"{letter}-key-by-chance-0123456789-{letter * 8}" for letter in "abc"]
BASE = "https://files.example.com/links"
REVISION = ChangeId("018bcfe5-6800-7000-8000-000000000001")
NOW_S = 1_770_091_506
LINK = SignedLink("GET", ObjectId.create("photos", "2026/a cat ü😀.jpg", {"org": "17"}), REVISION, NOW_S + 60)


class StoppedClock(Clock):
    def wall_ns(self) -> int:
        return NOW_S * 10**9


def links(*keys: str) -> Links:
    return Links(LinkSettings.model_validate({"base_url": f"{BASE}/", "keys": keys}), StoppedClock())


def token(link: SignedLink = LINK, key: str = KEYS[0]) -> str:
    url = links(key).sign(link)
    assert url.startswith(f"{BASE}/") and url.isascii()
    return url.removeprefix(f"{BASE}/")


def claims_of(text: str) -> dict[str, Any]:
    told = text.partition(".")[0]
    claims: dict[str, Any] = json.loads(urlsafe_b64decode(told + "=" * (-len(told) % 4)))
    return claims


def with_claims(text: str, **changed: object) -> str:
    """The same link, with other claims and the same signature."""
    raw = json.dumps({**claims_of(text), **changed}, ensure_ascii=False, separators=(",", ":")).encode()
    return f"{urlsafe_b64encode(raw).rstrip(b'=').decode()}.{text.partition('.')[2]}"


def test_what_is_signed_is_read() -> None:
    for link in (LINK, replace(LINK, content_type="text/plain", disposition="attachment"), replace(LINK, method="PUT")):
        assert links(KEYS[0]).read(token(link)) == link


def test_the_signature_is_hmac_sha256_of_all_claims() -> None:
    claims, _, signature = token().partition(".")
    wanted = hmac.new(KEYS[0].encode(), b"tiered link 1\n" + claims.encode(), hashlib.sha256).digest()
    assert urlsafe_b64decode(f"{signature}=") == wanted
    assert claims_of(token()) == {
        "method": "GET", "object": LINK.object_id.path, "revision": REVISION, "expires": NOW_S + 60, "type": None, "disposition": "inline",
    }  # fmt: skip


def test_no_claim_can_be_changed() -> None:
    other = ChangeId("018bcfe5-6800-7000-8000-000000000002")
    for changed in (
        {"method": "PUT"}, {"object": "photos/org.17/objects/dog"}, {"object": "photos/org.18/objects/2026/a cat ü😀.jpg"},
        {"object": f"{LINK.object_id.path}/../dog"}, {"revision": other}, {"expires": NOW_S + 61}, {"type": "text/html"},
        {"disposition": "attachment"}, {"more": 1},
    ):  # fmt: skip
        assert links(*KEYS).read(with_claims(token(), **changed)) is None, changed
    assert links(*KEYS).read(with_claims(token())) == LINK


def test_every_truncation_and_every_other_character_is_refused() -> None:
    good, known = token(), links(KEYS[0])
    assert known.read(good) == LINK
    assert [known.read(good[:stop]) for stop in range(len(good))] == [None] * len(good)
    for place in range(len(good)):
        for other in "A-.=é\x00":
            if good[place] != other:
                assert known.read(good[:place] + other + good[place + 1 :]) is None
    for spelling in (f"{good}=", f"{good}A", f" {good}", f"{good} ", f"{good}.", f".{good}", good.upper(), f"{good}/", good * 2):
        assert known.read(spelling) is None


@given(st.text(max_size=200))
def test_no_text_is_a_link_or_an_error(text: str) -> None:
    known = links(*KEYS)
    claims = token().partition(".")[0]
    assert [known.read(each) for each in (text, f"{token()}{text or '.'}", f"{text}.{text}", f"{claims}.{text}")] == [None] * 4


def test_what_is_too_long_is_not_even_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.links.hmac.compare_digest", lambda *_: pytest.fail("compared"))
    assert links(*KEYS).read("a" * TOKEN_CHARS_MAX + ".a") is None


def test_a_link_that_nobody_would_read_is_not_signed() -> None:
    long = replace(LINK, content_type="a/" + "b" * TOKEN_CHARS_MAX)
    with pytest.raises(InvalidRequestError, match="content_type"):
        links(*KEYS).sign(long)
    longest = replace(LINK, object_id=ObjectId("photos", (), '"' * 973), content_type="a/" + "b" * 255)
    assert links(*KEYS).read(links(*KEYS).sign(longest).rpartition("/")[2]) == longest


def test_claims_of_another_version_that_a_key_of_ours_signed_are_no_link() -> None:
    more = json.dumps({**claims_of(token()), "from": "10.0.0.0/8"})
    for claims in ("[]", "{}", "null", '{"object":1}', "no json", more):
        told = urlsafe_b64encode(claims.encode()).rstrip(b"=").decode()
        mac = hmac.new(KEYS[0].encode(), b"tiered link 1\n" + told.encode(), hashlib.sha256).digest()
        assert links(KEYS[0]).read(f"{told}.{urlsafe_b64encode(mac).rstrip(b'=').decode()}") is None


def test_a_key_is_rotated_without_a_link_that_fails() -> None:
    a, b, _ = KEYS
    old, new = token(key=a), token(key=b)
    assert [links(a, b).read(each) for each in (old, new)] == [LINK, LINK]
    assert links(a, b).sign(LINK) == f"{BASE}/{old}"
    assert links(b, a).sign(LINK) == f"{BASE}/{new}"
    assert [links(b).read(each) for each in (old, new)] == [None, LINK]


def test_a_link_ends() -> None:
    known = links(KEYS[0])
    assert known.refusal(LINK) is None
    assert known.refusal(replace(LINK, expires_s=NOW_S + 7 * 86_400 + CLOCKS_DIFFER_S)) is None
    assert known.refusal(replace(LINK, expires_s=NOW_S)) == "the link has expired"
    assert known.refusal(replace(LINK, expires_s=0)) == "the link has expired"


def test_a_link_of_a_signer_whose_clock_is_far_ahead_is_not_good_for_years() -> None:
    late = replace(LINK, expires_s=NOW_S + 7 * 86_400 + CLOCKS_DIFFER_S + 2)
    assert "the clock of its signer" in str(links(KEYS[0]).refusal(late))


def test_how_long_a_link_is_good_is_from_a_second_to_seven_days() -> None:
    assert [checked_life(timedelta(seconds=s)) for s in (1, 1.9, 604_800)] == [1, 1, 604_800]
    wrong: list[Any] = [timedelta(0), timedelta(seconds=-1), timedelta(milliseconds=999), timedelta(days=7, seconds=1), timedelta.max]
    for expires_in in wrong:
        with pytest.raises(InvalidRequestError, match="1 second to 7 days"):
            checked_life(expires_in)
    wrong = [60, 1.5, True, None, "1h"]
    for expires_in in wrong:
        with pytest.raises(InvalidRequestError, match=r"timedelta\(hours=1\)"):
            checked_life(expires_in)


def test_what_a_browser_shall_do_is_one_of_two() -> None:
    for wrong in ("", "Inline", None, 1, 'inline; filename="x"'):
        with pytest.raises(InvalidRequestError, match="disposition is 'inline'"):
            checked_disposition(wrong)


def test_a_content_type_fits_into_a_header() -> None:
    assert [checked_content_type(each) for each in (None, "text/html; charset=utf-8")] == [None, "text/html; charset=utf-8"]
    for wrong in ("", "a\r\nSet-Cookie: b", "é", " a", 1):
        with pytest.raises(InvalidRequestError, match="content_type"):
            checked_content_type(wrong)


def head(filename: str | None, key: str = "2026/cat.jpg", content_type: str = "image/jpeg") -> ObjectHead:
    """As older software may have stored it: without our rules for text."""
    metadata = no_metadata().with_facts(content_type=content_type, filename=filename)
    return ObjectHead(ObjectId("photos", (), key), metadata, 1, Tier.HIGH_VOLUME, REVISION)


@pytest.mark.parametrize(
    ("filename", "said"),
    [
        (None, 'inline; filename="cat.jpg"'),
        ("a cat.jpg", 'inline; filename="a cat.jpg"'),
        ("ü.jpg", "inline; filename=\"_.jpg\"; filename*=UTF-8''%C3%BC.jpg"),
        ('a"; filename=b', "inline; filename=\"a_; filename=b\"; filename*=UTF-8''a%22%3B%20filename%3Db"),
        ("../../etc/passwd", 'inline; filename=".._.._etc_passwd"'),
        ("a\\b", 'inline; filename="a_b"'),
        ("a\r\nSet-Cookie: b", 'inline; filename="a__Set-Cookie: b"'),
        ("%C3%9Cber%20uns.jpg", "inline; filename=\"_ber uns.jpg\"; filename*=UTF-8''%C3%9Cber%20uns.jpg"),
        ("100%25.jpg", "inline; filename=\"100_.jpg\"; filename*=UTF-8''100%25.jpg"),
        ("100%.jpg", "inline; filename=\"100_.jpg\"; filename*=UTF-8''100%25.jpg"),
        ("100%ff", "inline; filename=\"100_ff\"; filename*=UTF-8''100%25ff"),
        ("a%0D%0ASet-Cookie:%20b%2F", 'inline; filename="a__Set-Cookie: b_"'),
    ],
)
def test_the_name_of_the_file_stays_within_its_quotes(filename: str | None, said: str) -> None:
    assert content_disposition("inline", head(filename)) == said


def test_a_key_that_ends_with_a_slash_is_a_name_too() -> None:
    assert content_disposition("attachment", head(None, "a/b/")) == 'attachment; filename="a_b_"'


@given(st.text(max_size=50))
def test_no_name_leaves_the_header(name: str) -> None:
    header = content_disposition("attachment", head(name, "k"))
    assert header.isascii() and header.isprintable()
    assert header.count('"') == 2


def test_a_stored_content_type_that_no_header_can_carry_is_not_sent() -> None:
    assert content_type_of(head(None)) == "image/jpeg"
    for damaged in ("", " ", "a\r\nb", "é"):
        assert content_type_of(head(None, content_type=damaged)) == "application/octet-stream"


def test_metadata_of_ours_are_said_as_they_are() -> None:
    said = ObjectHead(LINK.object_id, Metadata(filename="cat.jpg"), 1, Tier.LONG_TERM, REVISION)
    assert content_disposition("inline", said) == 'inline; filename="cat.jpg"'
