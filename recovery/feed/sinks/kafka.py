"""`KafkaSink`: each message of a segment is one record of a topic, in the order of the segment's file.

    key       0001795000000000/0001795000000012345    generation/time: all of a segment goes to one partition
    value     the message: a line of JSON; with a schema registry, or the id of a schema: Avro in Confluent's frame

*Generations*: they share the topic, and the key tells them apart: of all records, those with the greatest generation in
the key are the feed. Records of an older one may still come after it has begun. Where the topic's name has
`{generation}` in it, each generation has a topic of its own.

`records.py` makes the values and the headers. A segment is acknowledged when the brokers have confirmed every record of
it (acks=all). The producer is idempotent, so its own repetitions do not double a record.

A topic has no names, so nothing here can refuse other bytes under the same name, and nothing tells what is there: two
feeds in one topic are not noticed. The header `feed` tells them apart. A segment that is delivered again is
there twice. Readers of CDC v2 ignore that. A segment of which only a part arrived has no progress message yet, because
that comes last. So readers do not see it.

*Failure*: the records that still wait are dropped, and the writer delivers the segment again. Blocking calls are in a
thread and last at most `POLL_S`, so that a cancellation does not wait for a broker.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote

import anyio
from confluent_kafka import KafkaError, KafkaException, Producer

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from recovery.display import escape_controls
from recovery.feed.avro import REFERENCES, SCHEMA_ID_MAX, encode, frame
from recovery.feed.messages import Message
from recovery.feed.sinks.records import records_of, topic_of
from recovery.feed.sinks.registry import SchemaRegistry
from recovery.feed.sinks.sink import Owner, Segment
from tiered.settings import Settings
from tiered.sinks import Place

ANSWER_TIMEOUT_S = 30.0
POLL_S = 0.1
FRAMED_TYPE = "application/avro; frame=confluent"
REGISTRY, SCHEMA_ID = "schema.registry.url", "schema.id"
"""Options of ours: whose frame the values have."""
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OPTION = re.compile(r"(security|sasl|ssl)\.[a-z0-9.]+")
_OPTION_SHOWN = re.compile(r"[A-Za-z0-9._-]{1,60}")
"""What may be shown as the name of an option."""
_ID = re.compile(r"[0-9]{1,10}")
_FOR_PEOPLE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.POLICY_VIOLATION, KafkaError.INVALID_RECORD,
    KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE, KafkaError._SSL,
}  # fmt: skip
"""Errors that no repetition cures before somebody changes something."""
_NOT_SECRET = ("security.protocol", "sasl.mechanism")
_silent = logging.getLogger("tiered.kafka")
"""The library would print its log on stderr. What went wrong is in the errors here."""
_silent.propagate = False
_silent.addHandler(logging.NullHandler())


def open_at(place: Place, runtime: Runtime, settings: Settings | None) -> KafkaSink:
    topic = unquote(place.path.removeprefix("/"))
    plain = topic_of(topic, 0)
    if not _TOPIC.fullmatch(plain) or plain in (".", ".."):
        raise place.no_target()
    query = place.text.partition("?")[2]
    options = dict(parse_qsl(query, keep_blank_values=True))
    if wrong := [name for name in options if name not in (REGISTRY, SCHEMA_ID) and not _OPTION.fullmatch(name)]:
        shown = f"the option {wrong[0]!r}" if _OPTION_SHOWN.fullmatch(wrong[0]) else "an option that has no name"
        raise ConfigurationError(f"kafka://… has {shown}: options begin with security., sasl. or ssl., or are {REGISTRY} or {SCHEMA_ID}")
    url, number = options.pop(REGISTRY, None), options.pop(SCHEMA_ID, None)
    if url is not None and number is not None:
        raise ConfigurationError(f"kafka://… has {REGISTRY} and {SCHEMA_ID}: the registry knows the id, so give one of them")
    if number is not None and (not _ID.fullmatch(number) or int(number) > SCHEMA_ID_MAX):
        raise ConfigurationError(f"{SCHEMA_ID} of kafka://… is no id of a schema: give an integer from 0 to {SCHEMA_ID_MAX}")
    schema = int(number) if number is not None else None if url is None else _registry(query)
    return KafkaSink(place.authority, topic, runtime, options, schema=schema)


def _registry(query: str) -> SchemaRegistry:
    """The URL is taken as it was written: its own escapes belong to its user and its password."""
    raw = next(value for name, _, value in (each.partition("=") for each in reversed(query.split("&"))) if unquote(name) == REGISTRY)
    try:
        return SchemaRegistry(raw if "://" in raw else unquote(raw))
    except ConfigurationError:
        raise ConfigurationError(
            f"{REGISTRY} of kafka://… is no URL of a schema registry: give one such as https://user:password@host:8081, without a"
            " query, and write / as %2F, ? as %3F, # as %23, @ as %40 and & as %26 in the user and the password"
        ) from None


class KafkaSink:
    """A `Sink`. `brokers`: host:port, several with commas between. `topic`: may have `{generation}` in its name.

    `options`: of librdkafka, for TLS and passwords. `schema`: a registry, or the id of a schema, for Confluent's frame;
    None: values have no frame. A registry is asked before the first record of a topic, and again by each new sink.
    `ConfigurationError`: the library does not take an option; it is raised by the first delivery.
    """

    def __init__(
        self, brokers: str, topic: str, runtime: Runtime, options: Mapping[str, str] | None = None, timeout_s: float = ANSWER_TIMEOUT_S,
        schema: SchemaRegistry | int | None = None,
    ) -> None:  # fmt: skip
        self.name = f"kafka://{brokers}/{topic}"
        self._topic = topic
        self._schema = schema
        self._schema_ids: dict[str, int] = {}
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._thread = anyio.CapacityLimiter(1)
        self._turn = anyio.Lock()
        self._producer: Producer | None = None
        self._heard: KafkaError | None = None
        self._owner: Owner | None = None
        self._options = dict(options or {})
        self._settings: dict[str, Any] = {
            **self._options, "bootstrap.servers": brokers, "client.id": "tiered-feed", "enable.idempotence": True, "acks": "all",
            "linger.ms": 5, "message.timeout.ms": int(timeout_s * 1000), "message.max.bytes": 64 * 2**20,
        }  # fmt: skip

    async def deliver(self, segment: Segment) -> None:
        async with self._turn:
            topic = topic_of(self._topic, segment.generation)
            delivery, confirmed = _Delivery(segment, topic, await self._schema_id(topic), self._owner), False
            began_s = self._runtime.monotonic()
            try:
                await self._call(partial(self._hand_over, delivery))
                while delivery.waiting and delivery.refused is None:
                    await self._call(self._poll)
                    if self._runtime.monotonic() - began_s > self._timeout_s + POLL_S:
                        break
                if delivery.waiting or delivery.refused is not None:
                    raise self._refusal(delivery)
                confirmed = True
            finally:
                if not confirmed:  # so that nothing of it is sent later, behind the next segment
                    await self._drop()

    async def look(self, generation: int, since: int) -> None:
        """Returns None: who may write to a topic need not be allowed to read it."""

    async def claim(self, owner: Owner) -> bool:
        """Remembers the owner, for the header of each record. A topic takes no mark."""
        self._owner = owner
        return False

    async def aclose(self) -> None:
        await self._drop()
        if self._schema is not None and not isinstance(self._schema, int):
            await self._schema.aclose()

    async def _schema_id(self, topic: str) -> int | None:
        if self._schema is None or isinstance(self._schema, int):
            return self._schema
        if topic not in self._schema_ids:
            self._schema_ids = {topic: await self._schema.schema_id(topic)}
        return self._schema_ids[topic]

    async def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with anyio.CancelScope(shield=True):
                await self._call(partial(_end, producer))

    async def _call(self, function: Any) -> None:
        await in_thread(function, self._thread)

    # --- in a thread

    def _hand_over(self, delivery: _Delivery) -> None:
        if self._producer is None:
            self._heard = None
            try:
                self._producer = Producer({**self._settings, "error_cb": self._hear, "logger": _silent})
            except (KafkaException, ValueError, TypeError) as error:
                raise ConfigurationError(f"{self.name} cannot be used: {self._said(error)}") from None
        for value, headers in delivery.records():
            delivery.waiting += 1
            try:
                self._producer.produce(delivery.topic, value, delivery.key, headers=headers, on_delivery=delivery.reported)
            except (BufferError, KafkaException) as error:
                raise UnavailableError(f"{self.name} cannot take {delivery.segment.path} of the feed: {self._said(error)}") from None

    def _poll(self) -> None:
        assert self._producer is not None
        self._producer.poll(POLL_S)

    def _hear(self, error: KafkaError) -> None:
        self._heard = error

    def _refusal(self, delivery: _Delivery) -> UnavailableError | ConfigurationError:
        what = f"{self.name} did not confirm {delivery.segment.path} of the feed"
        error = delivery.refused
        if error is None or error.code() in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT):
            error = self._heard
        if error is None:
            return UnavailableError(f"{what} within {self._timeout_s:g} s")
        kind = ConfigurationError if error.code() in _FOR_PEOPLE else UnavailableError
        return kind(f"{what}: {self._said(error)}").coded(error.name())

    def _said(self, error: Exception | KafkaError) -> str:
        """What the library says. It may quote an option, and most of them are secret."""
        text = _said(error)
        for name, value in self._options.items():
            if value and not name.startswith(_NOT_SECRET):
                text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text)
        return text


class _Delivery:
    """One segment under way. `schema_id`: of the frame; None: values have none. `waiting`: how many records are not
    confirmed yet. `refused`: the first error.
    """

    def __init__(self, segment: Segment, topic: str, schema_id: int | None, owner: Owner | None) -> None:
        self.segment = segment
        self.topic = topic
        self._schema_id = schema_id
        self._owner = owner
        self.key = f"{segment.generation:016d}/{segment.time:019d}".encode()
        self.waiting = 0
        self.refused: KafkaError | None = None

    def records(self) -> Iterator[tuple[bytes, list[tuple[str, str | bytes | None]]]]:
        """Yields the value and the headers of each record."""
        if self._schema_id is None:
            records = records_of(self.segment, self._owner)
        else:
            records = records_of(self.segment, self._owner, partial(_framed, self._schema_id), FRAMED_TYPE)
        for value, headers in records:
            yield value, [(name, text.encode()) for name, text in headers.items()]

    def reported(self, error: KafkaError | None, _: object) -> None:
        """Takes the report about one record."""
        self.waiting -= 1
        if error is not None and self.refused is None:
            self.refused = error


def _framed(schema_id: int, message: Message) -> bytes:
    return frame(encode(message, REFERENCES), schema_id)


def _end(producer: Producer) -> None:
    """Drops what was not sent, and lets go of the brokers."""
    producer.purge()
    producer.poll(0)
    producer.close()


def _said(error: Exception | KafkaError) -> str:
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        error = error.args[0]
    return escape_controls(error.str() if isinstance(error, KafkaError) else str(error))
