"""Text that callers give: what a name or a header can carry, and how a wrong value is shown. Pure.

    plain           any text that is valid Unicode, as `str` itself: a subclass may print as something else
    header_value    also without control characters, and without a space at its ends, which HTTP takes away
    header_name     an HTTP token (RFC 9110)

What breaks a rule is an `InvalidRequestError` that names the part. These are the rules of *writing*; stored text is read as it is.
"""

from __future__ import annotations

import re

from changelog.base.errors import InvalidRequestError

SHOWN_MAX = 200

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


def plain(part: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{part} is {shown(value)}, not text")
    text = str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{part} {shown(text)} is not valid Unicode: {error.reason}") from None
    return text


def header_value(part: str, value: object) -> str:
    text = plain(part, value)
    refuse_control_characters(part, text)
    if text.startswith(" ") or text.endswith(" "):
        raise InvalidRequestError(f"{part} {shown(text)} begins or ends with a space, which HTTP takes away: strip it")
    return text


def header_name(part: str, value: object) -> str:
    text = plain(part, value)
    if not _TOKEN.fullmatch(text):
        raise InvalidRequestError(f"{part} {shown(text)} is no HTTP token: use A-Z a-z 0-9 and !#$%&'*+-.^_`|~")
    return text


def refuse_control_characters(part: str, text: str) -> None:
    if found := _CONTROL.search(text):
        raise InvalidRequestError(f"{part} {shown(text)} has control character U+{ord(found[0]):04X} at position {found.start()}")


def shown(value: object) -> str:
    """For a message, of bounded length. Of what cannot be printed, as a number of thousands of digits, only its type."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever a caller's own `__repr__` raises
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
