"""Messages as Avro: the published bytes, what comes back, and what is refused."""

from __future__ import annotations

import tracemalloc
from io import BytesIO

import fastavro
import pytest

from changelog.base.errors import InvalidRequestError
from recovery.feed import FeedError, Message, Progress, Rule, Update, Updates, blocks
from recovery.feed.avro import REFERENCES, ContainerReader, ContainerWriter, encode, frame, schema
from tests.given.feeds import in_a_container

RECORDS = schema({"type": "record", "name": "data", "fields": [{"name": "record", "type": "string"}]})


def record(number: int, time: int, diff: int) -> Update:
    return Update({"record": f"record{number}"}, time, diff)


PUBLISHED: list[tuple[str, Message]] = [
    ("00060e7265636f72643000040e7265636f72643100020e7265636f726432000200", Updates((record(0, 0, 2), record(1, 0, 1), record(2, 0, 1)))),
    ("0202000002020002000600", Progress((0,), (1,), ((0, 3),))),
    ("00040e7265636f72643102010e7265636f726432020200", Updates((record(1, 1, -1), record(2, 1, 1)))),
    ("0202020002040002020400", Progress((1,), (2,), ((1, 2),))),
    ("00040e7265636f72643004010e7265636f726432040100", Updates((record(0, 2, -1), record(2, 2, -1)))),
    ("0202040002060002040400", Progress((2,), (3,), ((2, 2),))),
    ("0202060002080000", Progress((3,), (4,), ())),
]


@pytest.mark.parametrize(("hexadecimal", "message"), PUBLISHED)
def test_the_published_example_has_these_bytes(hexadecimal: str, message: Message) -> None:
    assert encode(message, RECORDS).hex() == hexadecimal
    assert in_a_container(message, RECORDS) == message


def test_a_frame_carries_the_id_of_the_schema() -> None:
    message = encode(PUBLISHED[1][1], RECORDS)
    assert frame(message, 258) == b"\x00\x00\x00\x01\x02" + message


@pytest.mark.parametrize("schema_id", [-1, 2**31, True, "7"])
def test_a_schema_id_that_does_not_fit_is_refused(schema_id: int) -> None:
    with pytest.raises(InvalidRequestError, match="schema id"):
        frame(b"", schema_id)


@pytest.mark.parametrize("data", ["text", None, {}, {"record": 1}, {"record": None}, {"record": "a", "more": 1}, {"record": True}])
def test_data_that_does_not_fit_the_schema_is_refused(data: object) -> None:
    with pytest.raises(InvalidRequestError, match="does not fit the schema"):
        encode(Updates((record(0, 0, 1), Update(data, 0, 1))), RECORDS)


def test_a_bool_is_no_long() -> None:
    with pytest.raises(InvalidRequestError, match="data True does not fit the schema 'long'"):
        encode(Updates((Update(True, 0, 1),)), schema("long"))


@pytest.mark.parametrize(("data", "sentence"), [
    ("text", "is no Avro schema"), ({"type": "record"}, "is no Avro schema"), (None, "is no Avro schema"), ("bytes", "the type bytes"),
    ({"type": "fixed", "name": "f", "size": 4}, "the type fixed"),
    ({"type": "record", "name": "progress", "fields": []}, "names progress and counts are taken"),
    ({"type": "array", "items": ["null", {"type": "map", "values": "bytes"}]}, "the type bytes"),
    ({"type": "record", "name": "node", "fields": [{"name": "next", "type": ["null", "node"]}]}, "node holds itself"),
    (["int", "null", "long"], "a union has int and long, which look alike in JSON"),
    ({"type": "array", "items": ["string", {"type": "enum", "name": "e", "symbols": ["A"]}]}, "string and com.materialize.cdc.e"),
])  # fmt: skip
def test_a_schema_that_cannot_be_used_is_refused(data: object, sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        schema(data)


UNIONS = schema({"type": "record", "name": "row", "fields": [
    {"name": "size", "type": ["null", "double", "long"]}, {"name": "name", "type": ["string", "null"]},
    {"name": "tags", "type": ["null", {"type": "array", "items": ["null", "string"]}]},
    {"name": "kind", "type": ["null", {"type": "enum", "name": "kind", "symbols": ["A", "B"]}]},
    {"name": "again", "type": ["null", "kind"]},
    {"name": "more", "type": {"type": "map", "values": ["null", {"type": "record", "name": "in", "fields": [
        {"name": "kind", "type": ["null", "kind"]},
    ]}]}},
]})  # fmt: skip
ROW: dict[str, object] = {"size": None, "name": None, "tags": None, "kind": None, "again": None, "more": {}}


@pytest.mark.parametrize("data", [
    ROW, {**ROW, "size": {"long": 5}}, {**ROW, "size": {"double": 5.0}}, {**ROW, "name": {"string": "a"}},
    {**ROW, "tags": {"array": [{"string": "a"}, None]}}, {**ROW, "kind": {"com.materialize.cdc.kind": "B"}},
    {**ROW, "again": {"com.materialize.cdc.kind": "A"}},
    {**ROW, "more": {"b": {"com.materialize.cdc.in": {"kind": {"com.materialize.cdc.kind": "A"}}}, "c": None}},
])  # fmt: skip
def test_a_value_of_a_union_has_the_name_of_its_type_as_in_avro_json(data: object) -> None:
    message = Updates((Update(data, 0, 1),))
    assert in_a_container(message, UNIONS) == message


@pytest.mark.parametrize("data", [
    {**ROW, "size": 5}, {**ROW, "size": {"long": "5"}}, {**ROW, "size": {"int": 5}}, {**ROW, "size": {"long": 5, "double": 5.0}}, {},
    {**ROW, "extra": 1}, {**ROW, "kind": {"com.materialize.cdc.kind": "C"}}, {**ROW, "more": {"b": {"kind": None}}}, 5, None,
    {**ROW, "tags": [None]},
])  # fmt: skip
def test_a_value_of_a_union_without_its_name_is_refused(data: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"^data .* does not fit the schema .*unions are written as \{type: value\}"):
        encode(Updates((Update(data, 0, 1),)), UNIONS)


def test_a_logical_type_is_the_number_that_is_stored() -> None:
    days = schema({"type": "int", "logicalType": "date"})
    assert in_a_container(Updates((Update(20_000, 0, 1),)), days) == Updates((Update(20_000, 0, 1),))
    theirs = BytesIO()
    fastavro.writer(theirs, days.union, [[{"data": 20_000, "time": 0, "diff": 1}]])
    theirs.seek(0)
    assert [each.message for each in ContainerReader(theirs)] == [Updates((Update(20_000, 0, 1),))]


# --- object container files ------------------------------------------------------------------------


def container(codec: str = "deflate", **metadata: str) -> bytes:
    to = BytesIO()
    writer = ContainerWriter(to, RECORDS, codec, metadata)  # type: ignore[arg-type]
    for _, message in PUBLISHED:
        writer.write(message)
    writer.flush()
    return to.getvalue()


@pytest.mark.parametrize("codec", ["deflate", "null"])
def test_a_container_gives_back_its_messages_and_always_has_the_same_bytes(codec: str) -> None:
    written = container(codec, generation="3")
    assert written == container(codec, generation="3")
    reader = ContainerReader(BytesIO(written), RECORDS)
    assert [each.message for each in reader] == [message for _, message in PUBLISHED]
    assert (reader.schema, reader.metadata) == (RECORDS, {"generation": "3"})


def test_any_avro_reader_reads_a_container_and_any_writer_writes_one() -> None:
    values = list(fastavro.reader(BytesIO(container())))
    assert values[0] == [{"data": {"record": f"record{n}"}, "time": 0, "diff": 2 - min(n, 1)} for n in range(3)]
    assert values[1] == {"lower": [0], "upper": [1], "counts": [{"time": 0, "count": 3}]}
    theirs = BytesIO()
    fastavro.writer(theirs, RECORDS.union, values, codec="null")
    theirs.seek(0)
    assert [each.message for each in ContainerReader(theirs)] == [message for _, message in PUBLISHED]


def test_a_container_of_other_records_is_refused() -> None:
    with pytest.raises(FeedError, match=r"'record'.*was asked for") as raised:
        ContainerReader(BytesIO(container()), REFERENCES)
    assert raised.value.rule is Rule.SCHEMA


@pytest.mark.parametrize(
    "foreign",
    ["string", RECORDS.union[::-1], RECORDS.union[:1], [RECORDS.union[0], "null"], {"type": "array", "items": "long"}],
    ids=["text", "other order", "no progress", "null for progress", "numbers"],
)
def test_a_container_of_other_things_is_refused(foreign: object) -> None:
    to = BytesIO()
    fastavro.writer(to, foreign, [])  # type: ignore[arg-type]
    to.seek(0)
    with pytest.raises(FeedError) as raised:
        ContainerReader(to)
    assert raised.value.rule is Rule.SCHEMA


def test_a_container_that_is_cut_off_anywhere_or_damaged_is_refused() -> None:
    whole = container("null")
    first_block = len(container("null")) - len(b"".join(encode(each, RECORDS) for _, each in PUBLISHED)) - 16 - 3
    for end in [*range(0, first_block, 40), *range(first_block + 1, len(whole), 7)]:
        with pytest.raises(FeedError):
            list(ContainerReader(BytesIO(whole[:end])))
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    with pytest.raises(FeedError, match="damaged"):
        list(ContainerReader(BytesIO(bytes(damaged))))


# --- files that lie --------------------------------------------------------------------------------


def block_at(whole: bytes | bytearray) -> int:
    (first,) = {each.block for each in ContainerReader(BytesIO(whole))}
    return first


@pytest.mark.parametrize(("count", "sentence"), [(3, "goes on after its 3 messages"), (9, "damaged"), (-7, "says that it has -7")])
def test_a_block_with_another_count_of_messages_loses_none_in_silence(count: int, sentence: str) -> None:
    whole = bytearray(container("null"))
    whole[block_at(whole)] = count * 2 if count >= 0 else -count * 2 - 1  # as Avro writes a small number
    with pytest.raises(FeedError, match=sentence) as raised:
        list(ContainerReader(BytesIO(bytes(whole))))
    assert raised.value.rule is Rule.FORM


def test_a_container_that_ends_within_the_count_of_a_block_is_cut_off() -> None:
    whole = container("null")
    with pytest.raises(FeedError, match="in the middle of the block at byte") as raised:
        list(ContainerReader(BytesIO(whole + b"\x80")))
    assert raised.value.rule is Rule.WHOLE


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz"])
def test_a_small_block_that_unpacks_to_a_large_one_is_refused_before_it_takes_the_memory(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = BytesIO()
    fastavro.writer(to, RECORDS.union, [[{"data": {"record": " " * 2**24}, "time": 0, "diff": 1}]], codec=codec)
    assert len(to.getvalue()) < 20_000
    assert len(list(ContainerReader(BytesIO(to.getvalue())))) == 1
    monkeypatch.setattr(blocks, "BYTES_MAX", 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(FeedError, match=r"the block at byte \d+ unpacks to more than 1048576 bytes"):
            list(ContainerReader(BytesIO(to.getvalue())))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**24


def test_a_codec_that_is_not_known_is_named() -> None:
    whole = container("null").replace(b"\x08null", b"\x08lzma", 1)
    with pytest.raises(FeedError, match=r"'lzma'.*use bzip2, deflate, null or xz"):
        ContainerReader(BytesIO(whole))


def test_a_length_that_is_too_large_is_refused_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bytearray(container("null"))
    at = block_at(whole)
    with pytest.raises(FeedError, match=f"the block at byte {at} has {2**62} bytes, and may have"):
        list(ContainerReader(BytesIO(bytes(whole[: at + 1]) + b"\x80" * 8 + b"\x80\x01" + b"\0" * 40)))
    monkeypatch.setattr(blocks, "BYTES_MAX", 30)
    with pytest.raises(FeedError, match="the header of an Avro file has more than 30 bytes"):
        ContainerReader(BytesIO(bytes(whole)))


def _nested(depth: int) -> object:
    """Each record has the one before it twice, so the last one has 2 to the power of `depth` values."""
    fields: list[object] = [{"name": "r0", "type": {"type": "record", "name": "r0", "fields": [{"name": "x", "type": "null"}]}}]
    for n in range(1, depth):
        inner = [{"name": name, "type": f"r{n - 1}"} for name in "ab"]
        fields.append({"name": f"r{n}", "type": {"type": "record", "name": f"r{n}", "fields": inner}})
    return {"type": "record", "name": "all", "fields": fields}


def _chain(depth: int) -> object:
    fields: list[object] = [{"name": "r0", "type": {"type": "record", "name": "r0", "fields": [{"name": "x", "type": "string"}]}}]
    for n in range(1, depth):
        inner = [{"name": "x", "type": {"type": "array", "items": f"r{n - 1}"}}]
        fields.append({"name": f"r{n}", "type": {"type": "record", "name": f"r{n}", "fields": inner}})
    return {"type": "record", "name": "all", "fields": fields}


@pytest.mark.parametrize(("data", "sentence"), [
    ({"type": "array", "items": "null"}, "an array of null, which takes no bytes"),
    ({"type": "array", "items": {"type": "record", "name": "e", "fields": []}}, "an array of com.materialize.cdc.e, which takes no"),
    ({"type": "map", "values": {"type": "array", "items": "null"}}, "an array of null, which takes no bytes"),
    (_nested(40), "more than 10000 values"), (_chain(200), "nested more than 100 deep"), (_chain(3_000), "nested|recursion"),
], ids=["null", "nothing", "in a map", "twice as much each time", "a chain", "a long chain"])  # fmt: skip
def test_a_schema_by_which_few_bytes_become_very_much_is_refused(data: object, sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        schema(data)


def test_a_nested_schema_of_any_depth_is_used_or_refused() -> None:
    data: object = "string"
    for _ in range(1200):
        data = {"type": "array", "items": data}
        try:
            schema(data)
        except InvalidRequestError:
            break
    else:
        pytest.fail("a schema without a bound")


@pytest.mark.parametrize(
    ("data", "value"),
    [("double", 5), ("double", 2**60 + 1), ("float", 0.1), ("float", 1e300), ({"type": "array", "items": "double"}, [1.5, 2])],
)  # fmt: skip
def test_a_number_that_would_be_read_back_as_another_one_is_refused(data: object, value: object) -> None:
    """1 and 1.0 are two records. Written as a double, both would come back as 1.0."""
    with pytest.raises(InvalidRequestError, match="does not fit the schema"):
        encode(Updates((Update(value, 0, 1),)), schema(data))


@pytest.mark.parametrize(("data", "value"), [("double", 0.1), ("double", -0.0), ("float", 0.5), (["null", "float"], {"float": 2.0})])
def test_a_number_that_fits_comes_back(data: object, value: object) -> None:
    message = Updates((Update(value, 0, 1),))
    assert in_a_container(message, schema(data)) == message


def test_what_is_no_schema_of_a_feed_is_named() -> None:
    for call in (
        lambda: encode(Updates(()), "string"), lambda: ContainerWriter(BytesIO(), None),  # type: ignore[arg-type]
        lambda: ContainerReader(BytesIO(container()), "string"),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(InvalidRequestError, match="is no schema of a feed: make one with"):
            call()
    with pytest.raises(InvalidRequestError, match="is no message: use Updates or Progress"):
        encode({"array": []}, RECORDS)  # type: ignore[arg-type]


def test_two_containers_one_after_the_other_are_named() -> None:
    with pytest.raises(FeedError, match=f"another Avro file begins at byte {len(container())}: keep each in a file of its own"):
        list(ContainerReader(BytesIO(container() * 2)))
