"""What RFC 9110 says of ranges, conditions, encodings and digests, for something that has one strong ETag (pure).

A link shows one revision, whose ETag it says itself. What is not well-formed is ignored, as the RFC wants it, however
long it is.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

from changelog.change import ChangeId
from tiered.metadata import NS_PER_S
from tiered.services.backends import ByteRange
from tiered.text import check_flags, plain

BEYOND = 1 << 62
"""Beyond the end of every object."""

_RANGE = re.compile(r"bytes=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.IGNORECASE)
_ZERO = re.compile(r"q=0(\.0*)?")
_VERIFIED = {"sha-256": ("sha256", 32), "md5": ("md5", 16)}
_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


def etag_of(revision: ChangeId, variant: str | None = None) -> str:
    return f'"{revision}"' if variant is None else f'"{revision}-{variant}"'


def accepts_encoding(header: str | None, encoding: str) -> bool:
    """Whether a client asks for this encoding (`Accept-Encoding`). Who says nothing may be sent any, but is not."""
    weights: dict[str, str] = {}
    for each in (header or "").lower().split(","):
        name, _, weight = each.partition(";")
        weights[name.strip()] = weight.replace(" ", "").replace("\t", "")
    weight = weights.get(encoding, weights.get("*", "q=0"))
    return not _ZERO.fullmatch(weight)


def http_date(ns: int | None) -> str | None:
    """A time (nanoseconds since 1970) as a header says it, to the second. None: there is none, or it cannot be said."""
    if ns is None:
        return None
    try:
        return format_datetime(datetime.fromtimestamp(ns // NS_PER_S, UTC), usegmt=True)
    except (ValueError, OverflowError, OSError):  # other software may have stored any number
        return None


def wanted_range(header: str | None) -> ByteRange | None:
    """The range that a request wants, for `get`. `header`: its `Range`.

    None: all, which HTTP allows also if several are wanted, or something that is no range. A range beyond the end of
    the object is a `RangeNotSatisfiableError` of `get`: answer with 416.
    """
    found = _RANGE.fullmatch("" if header is None else plain("the header Range", header))
    if found is None or found[1] == found[2] == "":
        return None
    first, last = (None if not digits else _number(digits) for digits in found.groups())
    if first is None:
        return ByteRange(-last) if last else ByteRange(BEYOND)
    if last is None:
        return ByteRange(first)
    return None if last < first else ByteRange(first, last + 1)


def length_of(headers: Mapping[str, str]) -> int | None:
    """How many bytes a body shall have. None: nobody has said so, or nothing that is a number."""
    told = headers.get("content-length", "")
    return _number(told) if told.isascii() and told.isdecimal() else None


def _number(digits: str) -> int:
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= 18 else BEYOND


def range_is_for(if_range: str | None, etag: str, modified: str | None) -> bool:
    """Whether the range is wanted of what is there (`If-Range`). None: of whatever is there."""
    return if_range is None or if_range.strip() in (etag, modified)


def precondition(headers: Mapping[str, str], etag: str | None, modified: str | None = None, *, reads: bool = True) -> int | None:
    """Judges the conditions of a request by what is there, in the order of RFC 9110, 13.2.2.

    `If-Match` compares strongly, so a weak tag (`W/"…"`) is never meant; `If-None-Match` compares weakly. Both take
    lists and `*`. Of a change, judge a head, and pass its revision as `if_revision`: what comes between is found then.
    Returns the status to answer with: 412, or 304 of one that reads. None: go on.

    Args:
        headers: By their names, in any case. Several lines of one name are joined by commas.
        etag: The ETag of what is there, with its quotes. None: nothing is there. Empty: something that has none.
        modified: When it was modified, as `Last-Modified` says it. None: nobody says so.
        reads: False of a request that changes something.
    """
    check_flags(reads=reads)
    told: dict[str, str] = {}
    for name, value in headers.items():
        known = told.get(name.lower())
        told[name.lower()] = value if known is None else f"{known},{value}"
    if (match := told.get("if-match")) is not None:
        if not _names(match, etag, weakly=False):
            return 412
    elif (since := _compared(told.get("if-unmodified-since"), modified)) is not None and since > 0:
        return 412
    if (none_match := told.get("if-none-match")) is not None:
        return (304 if reads else 412) if _names(none_match, etag, weakly=True) else None
    since = _compared(told.get("if-modified-since"), modified)
    return 304 if reads and since is not None and since <= 0 else None


def declared_digests(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The digests that a client says its body has, in base64, by the names that a put has for them.

    `Content-MD5`, and `Content-Digest` or `Repr-Digest` (RFC 9530), which are the same for a body that is whole and not
    encoded. `ValueError`: one is no digest, or none of a header can be verified, so that nobody would.
    """
    digests: dict[str, str] = {}
    if (md5 := headers.get("content-md5")) is not None:
        digests["md5"] = _digest("Content-MD5", md5.strip(), 16)
    for name in ("content-digest", "repr-digest"):
        if (header := headers.get(name)) is None:
            continue
        found = {key: _digest(name, digest, size) for key, size, digest in _known(header)}
        if not found:
            raise ValueError(f"{name} has no digest that is verified here: send sha-256=:…:")
        if any(digests.get(key, digest) != digest for key, digest in found.items()):
            raise ValueError("two digests of the same kind are declared")
        digests |= found
    return digests


def _known(header: str) -> Iterator[tuple[str, int, str]]:
    for item in header.split(","):
        algorithm, _, digest = item.strip().partition("=")
        if (known := _VERIFIED.get(algorithm.lower())) is not None:
            yield *known, digest.removeprefix(":").removesuffix(":")


def _digest(name: str, text: str, size: int) -> str:
    try:
        if len(b64decode(text, validate=True)) == size:
            return text
    except ValueError:
        pass
    raise ValueError(f"{name} has no {size} bytes in base64")


def _names(header: str, etag: str | None, *, weakly: bool) -> bool:
    if header.strip() == "*":
        return etag is not None
    return any(f'"{tag}"' == etag and (weakly or not weak) for weak, tag in _TAG.findall(header))


def _compared(header: str | None, modified: str | None) -> float | None:
    """How many seconds later than the date in the header the object was modified. None: nobody can say."""
    if header is None or modified is None:
        return None
    try:
        told = parsedate_to_datetime(header.strip())
        return (parsedate_to_datetime(modified) - told.replace(tzinfo=told.tzinfo or UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
