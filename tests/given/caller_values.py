"""What callers may pass, as strategies: values that can be stored, and almost anything else.

    object_ids, metadata        what may be put, of every kind that the types allow
    constructed(kind)           a value of the type, or None where its constructor raised an `InvalidRequestError`
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from hypothesis import strategies as st

from changelog.base.errors import InvalidRequestError
from tiered.metadata import DEADLINE_MAX_NS, FIELDS, SIZE_MAX, Metadata, TimeToIdle, TimeToLive
from tiered.object_id import ObjectId

T = TypeVar("T")


class CallerWord(StrEnum):
    PHOTOS = "photos"


class Loud(str):
    """Text that prints as other text."""

    def __str__(self) -> str:
        return "other/objects/"

    def __format__(self, spec: str) -> str:
        return "other/objects/"


# --- what can be stored ----------------------------------------------------------------------------

_PLAIN = st.characters(exclude_categories=["Cs", "Cc"])
headers = st.text(_PLAIN, max_size=10).map(lambda text: text.strip(" "))
tokens = st.text("abzABZ09!#$%&'*+-.^_`|~", min_size=1, max_size=8)
customs = st.dictionaries(tokens, headers, max_size=4).map(lambda custom: {key.lower(): text for key, text in custom.items()})
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(1 << 200), 1 << 200) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(_PLAIN, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(_PLAIN, max_size=5), inner, max_size=3), max_leaves=6,
)  # fmt: skip
KNOWN = [*(row.key or name for name, row in FIELDS.items()), "custom"]
unknowns = st.dictionaries(st.text(_PLAIN, max_size=6).filter(lambda key: key not in KNOWN), json_values, max_size=3)
times = st.none() | st.integers(0, DEADLINE_MAX_NS)
lifetimes = st.integers(1, 1 << 66)
expirations = st.none() | lifetimes.map(lambda ns: TimeToLive(ns=ns)) | lifetimes.map(lambda ns: TimeToIdle(ns=ns))
_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.-]{0,9}(\+[a-z]{2,4})?", fullmatch=True)
media_types = st.builds("{}/{}{}".format, _names, _names, st.sampled_from(["", ";", "; charset=utf-8", ' ;a="b / c"']))
_TEXTS = [name for name, row in FIELDS.items() if row.kind is str]


def field_texts(of_any: st.SearchStrategy[str]) -> dict[str, st.SearchStrategy[str | None]]:
    """A strategy for each field that is text: `of_any`, in ASCII if it is a header, unless its check differs."""
    texts = {name: st.none() | (of_any if FIELDS[name].header is None else of_any.filter(str.isascii)) for name in _TEXTS}
    return {**texts, "content_type": media_types, "compression": st.sampled_from([None, "Zstd"])}


metadata = st.builds(
    Metadata, expiration=expirations, time_created_ns=times, time_expires_ns=times, size=st.none() | st.integers(0, SIZE_MAX),
    custom=customs, unknown=unknowns, **field_texts(headers),
)  # fmt: skip

# --- almost anything -------------------------------------------------------------------------------

_ODD_TEXTS = [
    "", " ", ".", "..", "~", "~changelog", "objects", "uploads", "a/b", "a.b", "a/objects/b", "/", "//", "a/", " a", "a ", "\t", "a\nb",
    "\0", "\x7f", "\x85", "é", "e\u0301", "\u2028", "\ufeff", "日本", "\U0001f600", "\ud800", "x" * 990, "x" * 5000, "é" * 600,
    CallerWord.PHOTOS,
    Loud("photos"), "018bcfe5-6800-7000-8000-000000000001", "k/018bcfe5-6800-7000-8000-000000000001", "%2e%2e", "a?b#c", "K", "k",
]  # fmt: skip
texts = st.sampled_from(_ODD_TEXTS) | st.text(max_size=6)
numbers = st.sampled_from([0, 1, -1, 5, 1 << 62, SIZE_MAX, 1 << 63, 1 << 64, DEADLINE_MAX_NS, DEADLINE_MAX_NS + 1, True]) | st.builds(
    lambda: 10**5000  # built, not sampled: nobody can print it
)
anything = st.recursive(
    st.none() | numbers | texts | st.booleans() | st.floats() | st.binary(max_size=4) | st.sampled_from([timedelta(1), object(), {1}, int]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(texts | numbers, inner, max_size=3), max_leaves=5,
)  # fmt: skip


def _deep() -> object:
    found: object = None
    for _ in range(2000):
        found = [found]
    return found


odd_json = anything | st.builds(_deep) | st.sampled_from([{1: 2}, (1, 2), float("nan"), float("inf"), b"x", "\ud800"])


def constructed(kind: Callable[..., T], *arguments: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]) -> st.SearchStrategy[T | None]:
    def build(*given: Any, **given_named: Any) -> T | None:
        try:
            return kind(*given, **given_named)
        except InvalidRequestError:
            return None

    return st.builds(build, *arguments, **named)


odd_scopes = st.lists(st.tuples(texts, texts), max_size=2).map(tuple) | st.dictionaries(texts, texts, max_size=2) | anything
odd_ids = constructed(ObjectId, texts | anything, odd_scopes, texts | anything)
odd_lifetimes = constructed(TimeToLive, anything) | constructed(TimeToIdle, ns=numbers | anything)
odd_metadata = constructed(
    Metadata, expiration=st.none() | odd_lifetimes | anything, time_created_ns=st.none() | numbers | anything,
    time_expires_ns=st.none() | numbers, size=st.none() | numbers, **{
        **dict.fromkeys(_TEXTS, st.none() | texts | anything), "content_type": st.just("a/b") | texts | anything,
        "compression": st.none() | st.just("Zstd") | texts,
    },
    custom=st.just({}) | st.dictionaries(texts | tokens, texts | headers, max_size=3) | anything,
    unknown=st.just({}) | st.dictionaries(texts | st.sampled_from(KNOWN), odd_json, max_size=2) | anything,
)  # fmt: skip
