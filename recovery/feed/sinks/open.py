"""`open_sink`: the sink that a text names, such as one of the setting `feed.to`. It does no I/O.

    /path/to/feed, ./feed, ~/feed            a directory of this machine
    gs://bucket/prefix                       a bucket; the section `gcs` of the settings has the endpoint and the limits
    https://user:password@host/feed          a receiver of HTTP PUT; also http://
    kafka://broker:9092,other:9092/topic     Kafka; after a `?` options of librdkafka that begin with `security.`,
                                             `sasl.` or `ssl.`, such as ?security.protocol=SASL_SSL&sasl.username=u

Each sink has a module of its own, which is imported here when it is needed: a store without a feed needs none of their
packages.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from recovery.feed.sinks.directory import DirectorySink
from recovery.feed.sinks.sink import Sink
from recovery.visible import visible
from tiered.settings import GcsSettings, Settings

_BROKER = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_BROKERS = re.compile(rf"{_BROKER}(?:,{_BROKER})*")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OPTION = re.compile(r"(security|sasl|ssl)\.[a-z0-9.]+")
_MISTYPED = re.compile(r"(gs|https?|kafka|file):(?!//)", re.IGNORECASE)
_WANTED = "give the path of a directory, gs://bucket/prefix, https://host/path or kafka://broker:9092/topic"


def open_sink(text: str, runtime: Runtime, settings: Settings | None = None) -> Sink:
    """Returns the sink. Whether it can be reached is known at the first delivery.

    `settings`: of the store, for a bucket; None: the defaults. Raises `ConfigurationError`: the text names no sink, or
    a package is missing.
    """
    if not text.strip() or "\0" in text:
        raise ConfigurationError(f"the place of the feed is {visible(text)!r}: {_WANTED}")
    if (mistyped := _MISTYPED.match(text)) is not None:
        raise ConfigurationError(f"{_shown(text)} is no path and no URL: a URL begins with {mistyped[1]}://, and a path with ./ or /")
    if "://" not in text:
        return _directory(text, runtime)
    match urlsplit(text).scheme:
        case "gs":
            return _bucket(text, runtime, settings)
        case "http" | "https":
            return _http(text)
        case "kafka":
            return _kafka(text, runtime)
    raise ConfigurationError(f"{_shown(text)} is no place for a feed: {_WANTED}")


def _directory(text: str, runtime: Runtime) -> Sink:
    try:
        return DirectorySink(text, runtime)
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(f"{visible(text)} is no path of a directory: {error}") from None


def _bucket(text: str, runtime: Runtime, settings: Settings | None) -> Sink:
    parts = urlsplit(text)
    prefix = unquote(parts.path).strip("/")
    odd = "//" in prefix or any(part in (".", "..") for part in prefix.split("/")) or prefix != visible(prefix)
    if odd or parts.query or parts.fragment:
        raise ConfigurationError(f"{_shown(text)} is no prefix of objects: give one such as gs://bucket/feeds/live")
    known = {} if settings is None or settings.gcs is None else settings.gcs.model_dump()
    try:
        gcs = GcsSettings(**{**known, "bucket": parts.netloc})
    except ValueError:
        raise ConfigurationError(f"{_shown(text)} names no bucket: give gs:// and its name, such as gs://my-bucket/feed") from None
    try:
        from recovery.feed.sinks.bucket import BucketSink
    except ModuleNotFoundError as error:
        raise _missing(text, error, "gcp") from None
    return BucketSink(gcs, prefix, runtime)


def _http(text: str) -> Sink:
    try:
        from recovery.feed.sinks.http import HttpSink
    except ModuleNotFoundError as error:
        raise _missing(text, error, "feed") from None
    return HttpSink(text)


def _kafka(text: str, runtime: Runtime) -> Sink:
    parts = urlsplit(text)
    topic = parts.path.removeprefix("/")
    if not _BROKERS.fullmatch(parts.netloc) or not _TOPIC.fullmatch(topic) or topic in (".", "..") or parts.fragment:
        raise ConfigurationError(
            f"{_shown(text)} names no topic: give kafka://broker:9092/topic; a user and a password are options after a ?"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if wrong := [name for name in options if not _OPTION.fullmatch(name)]:
        raise ConfigurationError(f"{_shown(text)} has the option {visible(wrong[0])!r}: options begin with security., sasl. or ssl.")
    try:
        from recovery.feed.sinks.kafka import KafkaSink
    except ModuleNotFoundError as error:
        raise _missing(text, error, "kafka") from None
    return KafkaSink(parts.netloc, topic, runtime, options)


def _missing(text: str, error: ModuleNotFoundError, extra: str) -> ConfigurationError:
    return ConfigurationError(f"to deliver to {_shown(text)}, {error.name} is needed: pip install '.[{extra}]' in the checkout")


def _shown(text: str) -> str:
    """The text without what may be secret: a user, a password and the options."""
    return visible(re.sub(r"//[^/?#]*@", "//…@", text).partition("?")[0])
