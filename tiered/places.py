"""`Place`: where a change feed is delivered, as the setting `feed.to` says it. Pure.

    /path/to/feed, ./feed, ~/feed            a directory of this machine
    gs://bucket/prefix, s3://bucket/prefix   a bucket
    https://user:password@host/feed          a receiver of HTTP PUT; also http://
    kafka://broker:9092,other:9092/topic     Kafka; options of librdkafka after a `?`

A place may hold a password. So it is taken apart, and only parts that hold no secret are shown. What cannot be taken
apart for certain is refused, and nothing of it is shown but the scheme. `https://user:12/34@host/feed` is an example:
by the rules of URLs it is the path `/34@host/feed` on the host `user`, and somebody meant a password with a slash.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from changelog.base.errors import ConfigurationError

WANTED = "give the path of a directory, gs://bucket/prefix, s3://bucket/prefix, https://host/path or kafka://broker:9092/topic"
SCHEMES = ("gs", "http", "https", "kafka", "s3")
BUCKETS = ("gs", "s3")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,11}):(//)?")
_HOME = re.compile(r"~[A-Za-z0-9._-]*(/|$)")
_BROKER = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_BROKERS = re.compile(rf"{_BROKER}(?:,{_BROKER})*")
_HOST = re.compile(r"(?:[^\s,;:@/\[\]]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_NO_URL = re.compile(r"[\x00-\x20\x7f-\x9f\\]")


@dataclass(frozen=True, slots=True)
class Place:
    """A place. `scheme`: empty: a directory. `authority`: the host, the bucket or the brokers, without a user.

    `path`: of a directory as it was given. `secret`: whether a user or options were left out of what is shown. `text`:
    all of it, also the secrets.
    """

    scheme: str
    authority: str
    path: str
    secret: bool
    text: str

    def __repr__(self) -> str:
        return f"Place({self.shown!r})"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Takes a place apart. `ConfigurationError`: it is none, or nobody can tell where a password in it ends."""
        if not text.strip() or "\0" in text:
            raise ConfigurationError(f"the place of the feed is {'empty' if not text.strip() else 'no text of a path or a URL'}: {WANTED}")
        if text.startswith(("/", ".")) or _HOME.match(text):
            if "://" in text or (text.startswith("//") and "@" in text):
                raise ConfigurationError(f"a place of the feed begins like a path and goes on like a URL: {WANTED}")
            return cls("", "", text, False, text)
        scheme = _SCHEME.match(text)
        if scheme is None or scheme[2] is None:
            if not any(sign in text for sign in ":@~"):
                return cls("", "", text, False, text)
            begins = f"; a URL begins with {scheme[1].lower()}://" if scheme is not None and scheme[1].lower() in SCHEMES else ""
            raise ConfigurationError(
                f"a place of the feed is no path and no URL{begins}, and a path with such characters begins with ./ or /: {WANTED}"
            )
        return cls._of_url(scheme[1].lower(), text)

    @classmethod
    def _of_url(cls, scheme: str, text: str) -> Self:
        if scheme not in SCHEMES:
            raise ConfigurationError(f"{scheme}://… is no place for a feed: {WANTED}")
        try:
            parts = urlsplit(text)
        except ValueError:
            raise ConfigurationError(f"{scheme}://… is no URL: {WANTED}") from None
        user, at, authority = parts.netloc.rpartition("@")
        if "@" in user or "@" in parts.path or "#" in text or _NO_URL.search(text) or ("?" in text and scheme != "kafka"):
            raise ConfigurationError(
                f"{scheme}://… has a character that makes it unclear where a password ends: write / as %2F, ? as %3F, # as %23 and"
                " @ as %40 in a user, a password and a path; a URL of a feed has no query and no fragment"
            )
        if at and scheme == "kafka":
            raise ConfigurationError("kafka://… names a user: a user and a password are options after a ?, such as ?sasl.username=u")
        if scheme == "kafka" and not _BROKERS.fullmatch(authority):
            raise ConfigurationError(
                "kafka://… names no topic: give kafka://broker:9092/topic; a user and a password are options after a ?"
            )
        if scheme in BUCKETS and (at or not authority):
            raise ConfigurationError(f"{scheme}://… names no bucket: give {scheme}:// and its name, such as {scheme}://my-bucket/feed")
        if scheme != "kafka" and not _HOST.fullmatch(authority):
            raise ConfigurationError(f"{scheme}://… names no host: give a URL such as https://host/feed")
        return cls(scheme, authority, parts.path, bool(at or "?" in text), text)

    @property
    def name(self) -> str:
        """What a person calls it: a full path, or a URL without what is secret. The feed knows its sinks by it."""
        if not self.scheme:
            return os.path.abspath(os.path.expanduser(self.path))
        return f"{self.scheme}://{self.authority}{self.path}".rstrip("/")

    @property
    def shown(self) -> str:
        """The place as it was given. Where it holds a user or options, an ellipsis stands for them."""
        if not self.scheme:
            return self.path
        user = "…@" if self.secret and self.scheme != "kafka" else ""
        options = "?…" if self.secret and self.scheme == "kafka" else ""
        return f"{self.scheme}://{user}{self.authority}{self.path}{options}"
