"""Messages as Avro: the union of CDC v2 exactly as Materialize decodes it, and the frame of Confluent's registry.

    union     0: array of com.materialize.cdc.update {data, time: long, diff: long}
              1: com.materialize.cdc.progress {lower, upper: array of long, counts: array of {time, count: long}}
    framed    byte 0, the id of the schema in 4 bytes (big-endian), then one message; written only
    container an object container file: a header with the schema, then blocks of messages

What `data` looks like is the caller's choice, as an Avro schema. Its values are those of Avro-JSON: a value of a union
is null, or an object with the name of its type, such as `{"long": 5}`. A logical type is read as the number or the text
that it is stored as. A schema is refused if its values have no JSON form (`bytes`, `fixed`), if a union has two types
that look alike in JSON (`int` and `long`), if a record holds itself, or if few bytes could become very many values. A
number that would be read back as another one is refused, too: 5 as a `double` would come back as 5.0, another record.

The same messages always give the same bytes, in a container, too. fastavro does the encoding; its errors become
`FeedError`. Nothing else imports it. `blocks.py` bounds the memory that a message or a block can take.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, BinaryIO, Literal, NamedTuple, cast

from changelog.base.errors import ConfigurationError, InvalidRequestError
from changelog.base.extras import installing
from recovery.feed.blocks import CODECS, MARKER_BYTES, Limited, Unpacked
from recovery.feed.errors import FeedError, Rule, SchemaMismatchError
from recovery.feed.messages import Json, Message, Progress, Update, Updates
from recovery.feed.unions import Types
from tiered.text import quoted

try:
    import fastavro
    from fastavro.schema import SchemaParseException, to_parsing_canonical_form
    from fastavro.write import Writer
except ImportError:
    raise ConfigurationError(f"Avro needs fastavro, which is not installed: {installing('feed')}") from None

NAMESPACE = "com.materialize.cdc"
MAGIC = b"Obj\x01"
"""Begins an object container file."""
SCHEMA_ID_MAX = 2**31 - 1

KNOWN_CHARACTERS = 64 * 1024
"""A schema up to this size is remembered, and need not be checked again in the next file."""

_WHAT_FASTAVRO_RAISES = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, SchemaParseException, StopIteration, TypeError,
    ValueError, zlib.error,
)  # fmt: skip
"""On foreign bytes: it documents no error of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """The schema of a feed's messages, made by `schema`. Two are equal if their canonical forms are.

    `data`: the schema of the records, as it was given. `union`: the whole schema, as JSON values.
    """

    data: Json
    union: Json
    canonical: str
    parsed: Any
    types: Types

    def __eq__(self, other: object) -> bool:
        return self.canonical == other.canonical if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.canonical)


def schema(data: Json) -> Schema:
    """Returns the schema of a feed whose records have the Avro schema `data`, such as `"string"` or a record.

    Raises `InvalidRequestError` if `data` is no Avro schema, or one that the top of this file refuses.
    """
    union: Json = [
        {"type": "array", "items": {"type": "record", "name": "update", "namespace": NAMESPACE, "fields": [
            {"name": "data", "type": data}, {"name": "time", "type": "long"}, {"name": "diff", "type": "long"},
        ]}},
        {"type": "record", "name": "progress", "namespace": NAMESPACE, "fields": [
            {"name": "lower", "type": {"type": "array", "items": "long"}},
            {"name": "upper", "type": {"type": "array", "items": "long"}},
            {"name": "counts", "type": {"type": "array", "items": {"type": "record", "name": "counts", "fields": [
                {"name": "time", "type": "long"}, {"name": "count", "type": "long"},
            ]}}},
        ]},
    ]  # fmt: skip
    try:
        plain = _without_logical_types(union)
        parsed = fastavro.parse_schema(plain)
        canonical = to_parsing_canonical_form(parsed)
        types = Types(json.loads(canonical)[0]["items"]["fields"][0]["type"])
    except _WHAT_FASTAVRO_RAISES as error:
        raise InvalidRequestError(f"{quoted(data)} is no Avro schema of records: {type(error).__name__}: {_reason(error)}") from None
    if {f"{NAMESPACE}.{name}" for name in ("progress", "counts")} & set(types.named):  # fastavro would not notice
        raise InvalidRequestError(f"{quoted(data)} is no Avro schema of records: the names progress and counts are taken by the union")
    if types.refused:
        raise InvalidRequestError(f"the schema {quoted(data)} cannot be used: {types.refused}")
    return Schema(data, union, canonical, parsed, types)


def _without_logical_types(value: Json) -> Json:
    """The same schema, whose values are what is stored: fastavro would make them dates and decimals."""
    if isinstance(value, dict):
        return {key: _without_logical_types(each) for key, each in value.items() if key != "logicalType"}
    return [_without_logical_types(each) for each in value] if isinstance(value, list) else value


REFERENCES = schema({
    "type": "record", "name": "data", "fields": [{"name": "object", "type": "string"}, {"name": "blob", "type": "string"}],
})  # fmt: skip
"""The schema of the live references: the storage path of an object, and the blob that its row names."""


# --- one message -----------------------------------------------------------------------------------


def encode(message: Message, schema: Schema) -> bytes:
    """Returns the bytes of a message alone. Raises `SchemaMismatchError` if its data does not fit the schema."""
    _check_schema(schema)
    to = BytesIO()
    try:
        fastavro.schemaless_writer(to, schema.parsed, _to_avro(message, schema), strict=True)
    except _WHAT_FASTAVRO_RAISES as error:
        raise _does_not_fit(message, schema, error) from None
    return to.getvalue()


def frame(message: bytes, schema_id: int) -> bytes:
    """Returns the bytes of a message in Confluent's frame. `schema_id`: what a registry gave to the schema."""
    if type(schema_id) is not int or not 0 <= schema_id <= SCHEMA_ID_MAX:
        raise InvalidRequestError(f"the schema id is {quoted(schema_id)}, not an integer from 0 to {SCHEMA_ID_MAX}")
    return b"\0" + schema_id.to_bytes(4, "big") + message


def _check_schema(value: object) -> None:
    if not isinstance(value, Schema):
        raise InvalidRequestError(f"{quoted(value)} is no schema of a feed: make one with recovery.feed.avro.schema")


def _to_avro(message: Message, schema: Schema) -> Json:
    if not isinstance(message, Updates | Progress):
        raise InvalidRequestError(f"{quoted(message)} is no message: use Updates or Progress")
    if isinstance(message, Updates):
        return [{"data": schema.types.to_avro(each.data), "time": each.time, "diff": each.diff} for each in message.updates]
    counts = [{"time": time, "count": count} for time, count in message.counts]
    return {"lower": message.lower, "upper": message.upper, "counts": counts}


def _from_avro(decoded: Any, schema: Schema) -> Message:
    try:
        if isinstance(decoded, list):
            convert = schema.types.from_avro
            return Updates(tuple([Update(convert(each["data"]), each["time"], each["diff"]) for each in decoded]))
        return Progress(decoded["lower"], decoded["upper"], tuple((each["time"], each["count"]) for each in decoded["counts"]))
    except InvalidRequestError as error:
        raise FeedError(Rule.VALUE, str(error)) from None


def _does_not_fit(message: Message, schema: Schema, error: Exception) -> SchemaMismatchError:
    for each in message.updates if isinstance(message, Updates) else ():
        try:
            fastavro.schemaless_writer(BytesIO(), schema.parsed, _to_avro(Updates((each,)), schema), strict=True)
        except _WHAT_FASTAVRO_RAISES:
            hint = ", whose unions are written as {type: value}" if schema.types.unions else ""
            return SchemaMismatchError(f"data {quoted(each.data)} does not fit the schema {quoted(schema.data)}{hint}")
    return SchemaMismatchError(f"a message does not fit the schema {quoted(schema.data)}: {_reason(error)}")


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"


# --- object container files ------------------------------------------------------------------------


class InContainer(NamedTuple):
    """A message in a container. `block`: at which byte its block begins."""

    message: Message
    block: int


class ContainerWriter:
    """Writes messages to a new object container file. `codec`: how blocks are compressed.

    `metadata`: more entries of the header. Call `flush` at the end; it does not close the file.
    """

    def __init__(
        self, to: BinaryIO, schema: Schema, codec: Literal["deflate", "null"] = "deflate", metadata: dict[str, str] | None = None
    ) -> None:
        if codec not in ("deflate", "null"):
            raise InvalidRequestError(f"the codec is {quoted(codec)}: use deflate or null")
        _check_schema(schema)
        self._schema = schema
        # Any 16 bytes will do. Random ones would make each file of the same messages a different one.
        marker = hashlib.sha256(schema.canonical.encode()).digest()[:MARKER_BYTES]
        self._writer = Writer(to, schema.parsed, codec=codec, metadata=metadata or {}, sync_marker=marker, options={"strict": True})

    def write(self, message: Message) -> None:
        """Writes one message. Raises `SchemaMismatchError` if it does not fit; then the file must be thrown away."""
        try:
            self._writer.write(_to_avro(message, self._schema))
        except _WHAT_FASTAVRO_RAISES as error:
            raise _does_not_fit(message, self._schema, error) from None

    def flush(self) -> None:
        """Writes the last block."""
        self._writer.flush()


class ContainerReader:
    """Reads the messages of an object container file, one block at a time.

    `expected`: the schema that the file must have; None: any union of CDC v2. `schema`, `metadata`: those of the
    header.
    Raises `FeedError` if the file has no such header.
    """

    def __init__(self, source: BinaryIO, expected: Schema | None = None) -> None:
        if expected is not None:
            _check_schema(expected)
        try:
            header: Any = fastavro.schemaless_reader(cast(BinaryIO, Limited(source, "the header of an Avro file")), _HEADER, None)
            if header["magic"] != MAGIC:
                raise FeedError(Rule.FORM, f"an Avro file begins with {quoted(MAGIC)}, not with {quoted(header['magic'])}")
            entries = {str(key): value.decode() for key, value in header["meta"].items()}
            text = entries["avro.schema"]
            self.schema: Schema = (_of_text if len(text) <= KNOWN_CHARACTERS else _of_text.__wrapped__)(text)
        except EOFError:
            raise FeedError(Rule.WHOLE, "the header of an Avro file cannot be read: the file ends in it") from None
        except _WHAT_FASTAVRO_RAISES as error:
            raise FeedError(Rule.FORM, f"the header of an Avro file cannot be read: {_reason(error)}") from None
        self.metadata: dict[str, str] = {key: value for key, value in entries.items() if not key.startswith("avro.")}
        if expected is not None and self.schema != expected:
            raise FeedError(
                Rule.SCHEMA, f"the file's records have the schema {quoted(self.schema.data)}, and {quoted(expected.data)} was asked for"
            )
        codec = entries.get("avro.codec", "null")
        if codec not in CODECS:
            raise FeedError(
                Rule.FORM, f"the blocks of the file are packed by {quoted(codec)}: use {', '.join(CODECS[:-1])} or {CODECS[-1]}"
            )
        self._unpacked = Unpacked(source, _header(self.schema, header["sync"]), codec, header["sync"])
        self._blocks = fastavro.block_reader(cast(BinaryIO, self._unpacked))

    def __iter__(self) -> Iterator[InContainer]:
        """Yields each message with its block. Raises `FeedError` where the file is cut off or damaged."""
        while (block := next(self._blocks, None)) is not None:
            at = self._unpacked.at
            yield from (InContainer(_from_avro(each, self.schema), at) for each in _records(block, at))


_HEADER = fastavro.parse_schema({"type": "record", "name": "org.apache.avro.file.Header", "fields": [
    {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
    {"name": "meta", "type": {"type": "map", "values": "bytes"}},
    {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": MARKER_BYTES}},
]})  # fmt: skip


def _header(schema: Schema, marker: bytes) -> bytes:
    """The header of a container whose blocks are not packed, and whose logical types are what is stored."""
    to = BytesIO()
    fastavro.schemaless_writer(to, _HEADER, {"magic": MAGIC, "meta": {"avro.schema": schema.canonical.encode()}, "sync": marker})
    return to.getvalue()


def _records(block: Any, at: int) -> Iterator[Any]:
    records = iter(block)
    while True:
        try:
            found = next(records)
        except StopIteration:
            break
        except _WHAT_FASTAVRO_RAISES as error:
            raise FeedError(Rule.FORM, f"the block at byte {at} is damaged: {_reason(error)}") from None
        yield found
    if block.bytes_.read(1):
        raise FeedError(Rule.FORM, f"the block at byte {at} is damaged: it goes on after its {block.num_records} messages")


def parse_union(text: str) -> Schema:
    """Returns the schema that this JSON is, such as a registry has it. `FeedError`: it is not the union of CDC v2."""
    try:
        union = json.loads(text)
    except (ValueError, RecursionError):
        raise FeedError(Rule.SCHEMA, f"the schema is no JSON: {quoted(text)}") from None
    return _of_union(union)


@lru_cache(maxsize=16)
def _of_text(text: str) -> Schema:
    """The same, of JSON; `ValueError`: it is none. The files of a feed have one schema, so a small one costs less."""
    return _of_union(json.loads(text))


def _of_union(union: Json) -> Schema:
    """The schema of a file, if it is the union of CDC v2, names and order included."""
    try:
        found = schema(next(field["type"] for field in union[0]["items"]["fields"] if field["name"] == "data"))
        written = to_parsing_canonical_form(fastavro.parse_schema(_without_logical_types(union)))
    except InvalidRequestError as error:
        raise FeedError(Rule.SCHEMA, str(error)) from None
    except _WHAT_FASTAVRO_RAISES:
        raise FeedError(Rule.SCHEMA, f"the file has other things than a change feed: {quoted(union)}") from None
    if written != found.canonical:
        raise FeedError(Rule.SCHEMA, f"the file's schema is not the union of CDC v2: {quoted(union)}")
    return found
