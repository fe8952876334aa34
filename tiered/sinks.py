"""`SINKS`: the kinds of sinks of the change feed, a row for each. `Place`: where one is, as `feed.to` says it.

A place may hold a password. So it is taken apart, and only parts that hold no secret are shown. What cannot be taken
apart for certain is refused, and nothing of it is shown but the scheme. `https://user:12/34@host/feed` is an example:
by the rules of URLs it is the path `/34@host/feed` on the host `user`, and somebody meant a password with a slash.
Nothing here asks a service.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from changelog.base.errors import ConfigurationError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,11}):(//)?")
_HOME = re.compile(r"~[A-Za-z0-9._-]*(/|$)")
_NAME = r"[^\s,;:@/\[\]]+"
_BROKER = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_PORTS, PORT_MAX = re.compile(r":([0-9]+)(?:,|$)"), 65_535
_NO_URL = re.compile(r"[\x00-\x20\x7f-\x9f\\]")


@dataclass(frozen=True, slots=True)
class SinkKind:
    """What may stand in an address of this kind, and what is said of it. Its module opens it (`recovery/feed/sinks/`).

    `module`: the name of that module. `shape`: what a person gives. `extra`: what brings its packages; empty: it needs
    none. `schemes`: how its URLs begin; none: it is a path. `target`: what a URL names, and `authority` (a pattern) how
    it stands there; `fix`: what to do if it does not. `user`: a user and a password may stand there. `options`: options
    may follow after a ?. Neither is ever shown. `unasked`: why its writer may not learn whether another store
    delivers there, too, as the beginning of that clause; empty: it asks.
    """

    module: str
    shape: str
    extra: str = ""
    schemes: tuple[str, ...] = ()
    target: str = ""
    authority: str = ""
    fix: str = ""
    user: bool = False
    options: bool = False
    unasked: str = ""


DIRECTORY = SinkKind("directory", "the path of a directory")
SINKS = (
    DIRECTORY,
    SinkKind(
        "gcs", "gs://bucket/prefix", "gcp", ("gs",), "bucket", _NAME, "give gs:// and its name, such as gs://my-bucket/feed",
    ),
    SinkKind(
        "s3", "s3://bucket/prefix", "s3", ("s3",), "bucket", _NAME, "give s3:// and its name, such as s3://my-bucket/feed",
    ),
    SinkKind(
        "http", "https://host/path", "feed", ("http", "https"), "host", rf"(?:{_NAME}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?",
        "give a URL such as https://host/feed", user=True,
        unasked="only a receiver that lists its files tells",
    ),
    SinkKind(
        "kafka", "kafka://broker:9092/topic", "kafka", ("kafka",), "topic", rf"{_BROKER}(?:,{_BROKER})*",
        "give kafka://broker:9092/topic; a user and a password are options after a ?", options=True,
        unasked="a topic does not tell",
    ),
)  # fmt: skip


def shapes() -> str:
    """Returns what can be given as a place, as a list in words."""
    *others, last = (kind.shape for kind in SINKS)
    return f"{', '.join(others)} or {last}"


def kind_of(scheme: str) -> SinkKind | None:
    """Returns the kind whose URLs begin so. None: there is none, as for the path of a directory."""
    return next((kind for kind in SINKS if scheme in kind.schemes), None)


@dataclass(frozen=True, slots=True)
class Place:
    """A place. `scheme`: empty: a directory. `authority`: the host, the bucket or the brokers, without a user.

    `path`: of a directory as it was given. `shown`: the place as it was given, where an ellipsis stands for a user and
    for options. `text`: all of it, also the secrets.
    """

    kind: SinkKind
    scheme: str
    authority: str
    path: str
    shown: str
    text: str

    def __repr__(self) -> str:
        return f"Place({self.shown!r})"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Takes a place apart. `ConfigurationError`: it is none, or nobody can tell where a password in it ends."""
        if not text.strip() or "\0" in text:
            raise _no_place(f"the place of the feed is {'empty' if not text.strip() else 'no text of a path or a URL'}")
        if text.startswith(("/", ".")) or _HOME.match(text):
            if "://" in text or (text.startswith("//") and "@" in text):
                raise _no_place("a place of the feed begins like a path and goes on like a URL")
            return cls(DIRECTORY, "", "", text, text, text)
        scheme = _SCHEME.match(text)
        if scheme is None or scheme[2] is None:
            if not any(sign in text for sign in ":@~"):
                return cls(DIRECTORY, "", "", text, text, text)
            begins = f"; a URL begins with {scheme[1].lower()}://" if scheme is not None and kind_of(scheme[1].lower()) else ""
            raise _no_place(f"a place of the feed is no path and no URL{begins}, and a path with such characters begins with ./ or /")
        return cls._of_url(scheme[1].lower(), text)

    @classmethod
    def _of_url(cls, scheme: str, text: str) -> Self:
        if (kind := kind_of(scheme)) is None:
            raise _no_place(f"{scheme}://… is no place for a feed")
        try:
            parts = urlsplit(text)
        except ValueError:
            raise _no_place(f"{scheme}://… is no URL") from None
        user, at, authority = parts.netloc.rpartition("@")
        options = "?" in text
        if "@" in user or "@" in parts.path or "#" in text or _NO_URL.search(text) or (options and not kind.options):
            raise ConfigurationError(
                f"{scheme}://… has a character that makes it unclear where a password ends: write / as %2F, ? as %3F, # as %23 and"
                " @ as %40 in a user, a password and a path; a URL of a feed has no query and no fragment"
            )
        shown = f"{scheme}://{at and '…@'}{authority}{parts.path}{'?…' if options else ''}"
        place = cls(kind, scheme, authority, parts.path, shown, text)
        if at and not kind.user:
            raise ConfigurationError(f"{scheme}://… names a user, and must not: {kind.fix}")
        if not re.fullmatch(kind.authority, authority) or any(int(port) > PORT_MAX for port in _PORTS.findall(authority)):
            raise place.no_target()
        return place

    @property
    def name(self) -> str:
        """What a person calls it: a full path, or a URL without what is secret. The feed knows its sinks by it."""
        if not self.scheme:
            return os.path.abspath(os.path.expanduser(self.path))
        return f"{self.scheme}://{self.authority}{self.path}".rstrip("/")

    @property
    def identity(self) -> tuple[str, ...]:
        """Equal of two names of one place: behind links, in either case of a host, with the default port or without.

        It asks no service: two hosts may be one machine. The feed does not know sinks by it, because names are stored.
        """
        if not self.scheme:
            return ("", os.path.realpath(self.name))
        hosts = sorted(self.authority.lower().split(","))  # of brokers there may be several
        default = {"http": ":80", "https": ":443"}.get(self.scheme)
        return (self.scheme, self.path.rstrip("/"), *(each.removesuffix(default) if default else each for each in hosts))

    def no_target(self) -> ConfigurationError:
        """Returns the error of a URL that does not name what its kind needs."""
        return ConfigurationError(f"{self.scheme}://… names no {self.kind.target}: {self.kind.fix}")


def _no_place(why: str) -> ConfigurationError:
    return ConfigurationError(f"{why}: give {shapes()}")
