"""`open_sink`: the sink that a text names, such as one of the setting `feed.to`. It does no I/O.

    /path/to/feed, ./feed, ~/feed            a directory of this machine
    gs://bucket/prefix                       a bucket; the section `gcs` of the settings has the endpoint and the limits
    s3://bucket/prefix                       the same with the section `s3`, and its region; without it, AWS's variables
    https://user:password@host/feed          a receiver of HTTP PUT; also http://
    kafka://broker:9092,other:9092/topic     Kafka; after a `?` options of librdkafka that begin with `security.`,
                                             `sasl.` or `ssl.`, such as ?security.protocol=SASL_SSL&sasl.username=u,
                                             and schema.registry.url=https://user:password@host or schema.id=7
                                             for Confluent's frame

Each sink has a module of its own, which is imported here when it is needed: a store without a feed needs none of their
packages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from recovery.display import escape_controls
from recovery.feed.sinks.directory import DirectorySink
from recovery.feed.sinks.sink import Sink
from tiered.places import Place
from tiered.settings import GcsSettings, S3Settings, Settings

if TYPE_CHECKING:
    from recovery.feed.sinks.registry import SchemaRegistry

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OPTION = re.compile(r"(security|sasl|ssl)\.[a-z0-9.]+")
_REGISTRY, _SCHEMA_ID = "schema.registry.url", "schema.id"
"""Options of ours: whose frame the values have."""
_ID = re.compile(r"[0-9]{1,10}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,60}")
"""What may be shown as the name of an option."""


def open_sink(text: str, runtime: Runtime, settings: Settings | None = None) -> Sink:
    """Returns the sink. Whether it can be reached is known at the first delivery.

    `settings`: of the store, for a bucket; None: the defaults. Raises `ConfigurationError`: the text names no sink, or
    a package is missing.
    """
    place = Place.parse(text)
    match place.scheme:
        case "":
            return _directory(text, runtime)
        case "gs":
            return _gcs(place, runtime, settings)
        case "s3":
            return _s3(place, settings)
        case "kafka":
            return _kafka(place, runtime)
        case _:
            return _http(place)


def _directory(text: str, runtime: Runtime) -> Sink:
    try:
        return DirectorySink(text, runtime)
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(f"{escape_controls(text)} is no path of a directory: {error}") from None


def _gcs(place: Place, runtime: Runtime, settings: Settings | None) -> Sink:
    prefix, at = _prefix(place), gcs_settings(place, settings)
    try:
        from recovery.feed.sinks.gcs import gcs_sink
    except ModuleNotFoundError as error:
        raise _missing(place, error, "gcp") from None
    return gcs_sink(at, prefix, runtime)


def _s3(place: Place, settings: Settings | None) -> Sink:
    prefix, at = _prefix(place), s3_settings(place, settings)
    try:
        from recovery.feed.sinks.s3 import s3_sink
    except ModuleNotFoundError as error:
        raise _missing(place, error, "s3") from None
    return s3_sink(at, prefix)


def gcs_settings(place: Place, settings: Settings | None) -> GcsSettings:
    """Returns those of the bucket of a place: its service and limits are the store's. `ConfigurationError`: it is none.
    """
    known = {} if settings is None or settings.gcs is None else settings.gcs.model_dump()
    try:
        return GcsSettings(**{**known, "bucket": place.authority})
    except ValueError:
        raise _no_bucket(place) from None


def s3_settings(place: Place, settings: Settings | None) -> S3Settings:
    """As `gcs_settings`, of a bucket of S3."""
    known = {} if settings is None or settings.s3 is None else settings.s3.model_dump()
    try:
        return S3Settings(**{**known, "bucket": place.authority})
    except ValueError:
        raise _no_bucket(place) from None


def _prefix(place: Place) -> str:
    prefix = unquote(place.path).strip("/")
    if "//" in prefix or any(part in (".", "..") for part in prefix.split("/")) or prefix != escape_controls(prefix):
        raise ConfigurationError(
            f"{escape_controls(place.shown)} is no prefix of objects: give one such as {place.scheme}://bucket/feeds/live"
        )
    return prefix


def _no_bucket(place: Place) -> ConfigurationError:
    return ConfigurationError(
        f"{escape_controls(place.shown)} names no bucket: give {place.scheme}:// and its name, such as {place.scheme}://my-bucket/feed"
    )


def _http(place: Place) -> Sink:
    try:
        from recovery.feed.sinks.http import HttpSink
    except ModuleNotFoundError as error:
        raise _missing(place, error, "feed") from None
    return HttpSink(place.text)


def _kafka(place: Place, runtime: Runtime) -> Sink:
    topic = unquote(place.path.removeprefix("/"))
    plain = topic.replace("{generation}", "0" * 16, 1)
    if not _TOPIC.fullmatch(plain) or plain in (".", ".."):
        raise ConfigurationError("kafka://… names no topic: give kafka://broker:9092/topic; a user and a password are options after a ?")
    raw = place.text.partition("?")[2]
    options = dict(parse_qsl(raw, keep_blank_values=True))
    if wrong := [name for name in options if name not in (_REGISTRY, _SCHEMA_ID) and not _OPTION.fullmatch(name)]:
        shown = f"the option {wrong[0]!r}" if _NAME.fullmatch(wrong[0]) else "an option that has no name"
        raise ConfigurationError(f"kafka://… has {shown}: options begin with security., sasl. or ssl., or are {_REGISTRY} or {_SCHEMA_ID}")
    try:
        from recovery.feed.sinks.kafka import KafkaSink
    except ModuleNotFoundError as error:
        raise _missing(place, error, "kafka") from None
    url, number = options.pop(_REGISTRY, None), options.pop(_SCHEMA_ID, None)
    if url is not None and number is not None:
        raise ConfigurationError(f"kafka://… has {_REGISTRY} and {_SCHEMA_ID}: the registry knows the id, so give one of them")
    if number is not None and (not _ID.fullmatch(number) or int(number) >= 1 << 31):
        raise ConfigurationError(f"{_SCHEMA_ID} of kafka://… is no id of a schema: give an integer from 0 to {2**31 - 1}")
    schema = int(number) if number is not None else None if url is None else _registry(place, raw)
    return KafkaSink(place.authority, topic, runtime, options, schema=schema)


def _registry(place: Place, query: str) -> SchemaRegistry:
    """The URL is taken as it was written: its own escapes belong to its user and its password."""
    raw = next(value for name, _, value in (each.partition("=") for each in reversed(query.split("&"))) if unquote(name) == _REGISTRY)
    try:
        from recovery.feed.sinks.registry import SchemaRegistry

        return SchemaRegistry(raw if "://" in raw else unquote(raw))
    except ModuleNotFoundError as error:
        raise _missing(place, error, "kafka") from None
    except ConfigurationError:
        raise ConfigurationError(
            f"{_REGISTRY} of kafka://… is no URL of a schema registry: give one such as https://user:password@host:8081, without a"
            " query, and write / as %2F, ? as %3F, # as %23, @ as %40 and & as %26 in the user and the password"
        ) from None


def _missing(place: Place, error: ModuleNotFoundError, extra: str) -> ConfigurationError:
    return ConfigurationError(
        f"to deliver to {escape_controls(place.shown)}, {error.name} is needed: pip install 'tiered[{extra}]'"
    )
