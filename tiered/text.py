"""Checks of text that callers give, and how a message shows a wrong value. Pure.

    plain           any text that is valid Unicode, as `str` itself: a subclass may print as something else
    header_value    also without control characters, and without a space at its ends, which HTTP takes away
    header_name     an HTTP token (RFC 9110)
    check_flags     True or False
    refuse_password a URI holds no password, because messages, notes and pages repeat it
    media_type      a type and a subtype (RFC 6838), and maybe parameters, all in ASCII

Text that breaks a rule raises `InvalidRequestError`, which names the part. These rules hold for writing. Stored text is
read as it is.
"""

from __future__ import annotations

import re

from changelog.base.errors import InvalidRequestError

SHOWN_MAX = 200

_URI = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*)://|((?i:gs|gcs|s3a?|hdfs|viewfs|abfss?|https?)):/?)([^/?#]*)(.*)", re.DOTALL)
"""Also with a slash too few: then it is a typing error, and the password is there all the same."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9!#$&^_.-]|\+[A-Za-z0-9]{2}){0,126}"
"""A name of RFC 6838. Clients of Objectstore fail on any other, and on a `+` without two letters or digits after it."""
_PARAMETER = rf" *; *{_NAME}=(?:[A-Za-z0-9!#$%&'*+.^_-]*|\"(?:[ !#-\[\]-~]|\\[ -~])*\")"
_MEDIA_TYPE = re.compile(rf"{_NAME}/{_NAME}(?:{_PARAMETER})*(?: *;)?")


def plain(part: str, value: object) -> str:
    """Returns `value` as a plain `str`. `part`: its name, for messages."""
    if not isinstance(value, str):
        raise InvalidRequestError(f"{part} is {quoted(value)}, not text")
    text = str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{part} {quoted(text)} is not valid Unicode: {error.reason}") from None
    return text


def check_flags(**flags: object) -> None:
    """Raises `InvalidRequestError` unless each is True or False: a text such as "no" would count as true."""
    for name, value in flags.items():
        if type(value) is not bool:
            raise InvalidRequestError(f"{name} is True or False, not {quoted(value)}")


def header_value(part: str, value: object) -> str:
    """Returns `value` if an HTTP header can carry it."""
    text = plain(part, value)
    refuse_control_characters(part, text)
    if text.startswith(" ") or text.endswith(" "):
        raise InvalidRequestError(f"{part} {quoted(text)} begins or ends with a space, which HTTP takes away: strip it")
    return text


def header_name(part: str, value: object) -> str:
    """Returns `value` if it is an HTTP token."""
    text = plain(part, value)
    if not _TOKEN.fullmatch(text):
        raise InvalidRequestError(f"{part} {quoted(text)} is no HTTP token: use A-Z a-z 0-9 and !#$%&'*+-.^_`|~")
    return text


def media_type(part: str, value: object) -> str:
    """Returns `value` if it is a media type, such as `text/plain; charset=utf-8`."""
    text = header_value(part, value)
    if not _MEDIA_TYPE.fullmatch(text):
        raise InvalidRequestError(f"{part} {quoted(text)} is no media type in ASCII, such as 'text/plain; charset=utf-8'")
    return text


def refuse_control_characters(part: str, text: str) -> None:
    """Raises `InvalidRequestError` if the text has a control character, with its code and position."""
    if found := _CONTROL.search(text):
        raise InvalidRequestError(f"{part} {quoted(text)} has control character U+{ord(found[0]):04X} at position {found.start()}")


def refuse_unicode(part: str, text: str) -> None:
    """Raises `InvalidRequestError` if text without control characters is not ASCII, with what to do about it."""
    if not text.isascii():
        place, odd = next((place, char) for place, char in enumerate(text) if not char.isascii())
        raise InvalidRequestError(
            f"{part} {quoted(text)} has {odd!r} (U+{ord(odd):04X}) at position {place}, and other software that shares this format"
            " garbles what is not ASCII: percent-encode it (urllib.parse.quote), or set store.unicode_metadata if there is none"
        )


def refuse_password(what: str, text: str) -> None:
    """Raises `InvalidRequestError` if a URI has a password or a key, or if nobody can tell. It shows only the scheme.

    A mere user may stand where it is no secret: the user of HDFS, the container of Azure, `anonymous` of GCS.
    """
    if (found := _URI.match(text)) is None:
        return
    scheme, authority, rest = (found[1] or found[2]).lower(), found[3], found[4]
    user, at, host = authority.rpartition("@")
    is_bucket = scheme in ("gs", "gcs", "s3", "s3a")
    may_name_user = user == "anonymous" if scheme in ("gs", "gcs") else scheme not in ("s3", "s3a", "http", "https")
    _, colon, port = host.rpartition("]")[2].partition(":")
    is_unclear = colon and (is_bucket or not port.isdecimal() or "@" in rest)
    if ":" in user or (at and not may_name_user) or is_unclear:
        raise InvalidRequestError(
            f"{what} {scheme}://… names a user or a password, which would be shown: leave it out, and set the credentials as the service's"
            " own tools want them, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def quoted(value: object) -> str:
    """The value as a message shows it, at most `SHOWN_MAX` characters and an ellipsis.

    Only the type, if the value cannot be printed. An example is a number with thousands of digits.
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever a caller's own `__repr__` raises
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
