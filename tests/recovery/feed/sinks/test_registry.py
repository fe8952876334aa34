"""Confluent's frame on Kafka: a real registry (Apicurio), Confluent's own reader, and registries that fail."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import anyio
import fastavro
import httpx
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from examples import feed_confluent
from recovery.feed import Message, Progress, Update, Updates
from recovery.feed.avro import REFERENCES, encode, frame, schema
from recovery.feed.sinks.kafka import KafkaSink
from recovery.feed.sinks.open import open_sink
from recovery.feed.sinks.records import RECORD_BYTES_MAX
from recovery.feed.sinks.registry import SchemaRegistry
from recovery.feed.spelling import from_line
from tests.given.kafka import KafkaMock
from tests.given.maven import NotFetchedError
from tests.given.registry import apicurio
from tests.given.segments import expected, large, segments, viewed

pytestmark = pytest.mark.anyio



@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    try:
        with apicurio() as url:
            yield url
    except NotFetchedError as error:
        pytest.skip(str(error))


def opened(kafka: KafkaMock, topic: str, option: str) -> KafkaSink:
    one = open_sink(f"kafka://{kafka.brokers}/{topic}?{option}", SystemRuntime())
    assert isinstance(one, KafkaSink)
    return one


def read_by_confluent(kafka: KafkaMock, topic: str, url: str) -> list[Message]:
    """What a consumer of Confluent gets that knows the registry and no schema."""
    with SchemaRegistryClient({"url": url}) as client:
        deserialize = AvroDeserializer(client)
        values: list[Any] = [deserialize(each.value(), SerializationContext(topic, MessageField.VALUE)) for each in kafka.records(topic)]
    return list(map(made, values))


def made(value: Any) -> Message:
    """The message of what Avro made of it."""
    if isinstance(value, list):
        return Updates(tuple(Update(each["data"], each["time"], each["diff"]) for each in value))
    return Progress(value["lower"], value["upper"], tuple((each["time"], each["count"]) for each in value["counts"]))


def unframed(value: bytes) -> Message:
    return made(fastavro.schemaless_reader(BytesIO(value[5:]), REFERENCES.parsed, None))


async def said(registry: str, method: str, path: str, body: object = None) -> Any:
    """What the registry answers to somebody else."""
    async with httpx.AsyncClient() as client:
        return (await client.request(method, f"{registry}/{path}", json=body)).raise_for_status().json()


# --- a real registry -------------------------------------------------------------------------------


@pytest.mark.night
async def test_confluents_own_reader_reads_the_feed(kafka: KafkaMock, registry: str, topic: str) -> None:
    """Whatever form the files have: a feed that began as JSON goes on."""
    one = opened(kafka, topic, f"schema.registry.url={registry}")
    sent = [*segments("json")[:2], *segments("avro")[2:]]
    for each in sent:
        await one.deliver(each)
    await one.aclose()
    again = opened(kafka, topic, f"schema.registry.url={registry}")  # a new start asks again
    await again.deliver(sent[1])
    await again.aclose()
    assert viewed(read_by_confluent(kafka, topic, registry)) == expected(sent)
    assert (await said(registry, "GET", f"subjects/{topic}-value/versions")) == [1]
    assert {dict(each.headers() or [])["content-type"] for each in kafka.records(topic)} == {b"application/avro; frame=confluent"}


@pytest.mark.night
async def test_a_subject_with_another_schema_stops_the_sink_until_somebody_removes_it(
    kafka: KafkaMock, registry: str, topic: str
) -> None:
    await said(registry, "POST", f"subjects/{topic}-value/versions", {"schema": json.dumps("string")})
    await said(registry, "PUT", f"config/{topic}-value", {"compatibility": "BACKWARD"})
    one = opened(kafka, topic, f"schema.registry.url={registry}")
    with pytest.raises(ConfigurationError, match=rf"answered POST of subjects/{topic}-value/versions with 409: the subject has a schema"):
        await one.deliver(segments()[0])
    assert one._producer is None, "nothing was sent"
    await said(registry, "DELETE", f"subjects/{topic}-value")
    for each in segments():
        await one.deliver(each)
    await one.aclose()
    assert viewed(read_by_confluent(kafka, topic, registry)) == expected(segments())


@pytest.mark.night
async def test_a_registry_keeps_a_subject_for_each_generation(kafka: KafkaMock, registry: str, topic: str) -> None:
    one = opened(kafka, topic + "-{generation}", f"schema.registry.url={registry}")
    for generation in (7, 8):
        for each in segments("avro", generation):
            await one.deliver(each)
    await one.aclose()
    for name in (f"{topic}-{7:016d}", f"{topic}-{8:016d}"):
        assert viewed(read_by_confluent(kafka, name, registry)) == expected(segments())


@pytest.mark.night
async def test_the_program_of_the_guide_shows_the_latest_generation(
    kafka: KafkaMock, registry: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one has `a` and `b`, the second one `b` alone. The first one's writer repeats a part at the end."""
    one = opened(kafka, topic, f"schema.registry.url={registry}")
    for each in [*segments("avro", 7)[:2], *segments("json", 8), segments("avro", 7)[1]]:
        await one.deliver(each)
    await one.aclose()
    assert feed_confluent.consume(kafka.brokers, topic, registry, once=True).references == {"b": "b/1"}
    assert "1 references\n" in capsys.readouterr().out


# --- an id that somebody gives ---------------------------------------------------------------------


async def test_an_id_needs_no_registry_and_frames_each_part_of_a_large_transaction(kafka: KafkaMock, topic: str) -> None:
    one = opened(kafka, topic, "schema.id=258")
    for each in (segments("avro")[0], large(2 * 2**20)):
        await one.deliver(each)
    await one.aclose()
    values = [each.value() or b"" for each in kafka.records(topic)]
    assert values[0] == struct.pack(">bI", 0, 258) + encode(Progress((0,), (1,), ()), REFERENCES)
    assert {value[:5] for value in values} == {frame(b"", 258)} and max(map(len, values)) <= RECORD_BYTES_MAX + 5
    assert viewed(map(unframed, values[1:])) == expected([large(2 * 2**20)])


async def test_without_either_a_value_is_json_also_of_a_segment_in_avro(kafka: KafkaMock, topic: str) -> None:
    """A reader of Confluent would take Avro alone for a frame: byte 0 begins the union's array, too."""
    one = KafkaSink(kafka.brokers, topic, SystemRuntime())
    await one.deliver(segments("avro")[1])
    await one.aclose()
    records = kafka.records(topic)
    assert [from_line((each.value() or b"").decode()) for each in records] == list(segments()[1].messages())
    assert {dict(each.headers() or [])["content-type"] for each in records} == {b"application/json"}


# --- registries that fail ----------------------------------------------------------------------------

UNION = json.dumps(REFERENCES.union)
FOUND = {"subject": "live-value", "id": 7, "version": 1, "schema": UNION}
MISSING = httpx.Response(404, json={"error_code": 40401, "message": "Subject not found"})


def asked(answer: Callable[[httpx.Request], httpx.Response], timeout_s: float = 30) -> SchemaRegistry:
    return SchemaRegistry("https://us%40er:hush%2Fhush@registry:8081/api/", httpx.MockTransport(answer), timeout_s)


async def test_what_is_asked() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return MISSING if len(seen) == 1 else httpx.Response(200, json=FOUND if len(seen) == 3 else {"id": 7})

    one = asked(answer)
    assert await one.schema_id("live") == 7 and one.name == "https://registry:8081/api"
    await one.aclose()
    looked_up = "https://registry:8081/api/subjects/live-value"
    assert [str(each.url) for each in seen] == [looked_up, f"{looked_up}/versions", looked_up]
    for each in seen:
        assert json.loads(json.loads(each.content)["schema"]) == REFERENCES.union
        assert each.headers["content-type"] == "application/vnd.schemaregistry.v1+json"
        assert each.headers["authorization"] == httpx.BasicAuth("us@er", "hush/hush")._auth_header


def _raises(error: Exception) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return answer


def _always(status: int, **content: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(status, **content)


@pytest.mark.parametrize(("answer", "kind", "told"), [
    (_raises(httpx.ConnectError("refused")), UnavailableError, "https://registry:8081/api cannot be reached: ConnectError refused"),
    (_always(503, text="no\nleader"), UnavailableError, "answered POST of subjects/live-value with 503 (no leader)"),
    (_always(429), UnavailableError, "with 429"),
    (_always(500, json={"error_code": 50001}), UnavailableError, "with 500"),
    (_always(401), ConfigurationError, "with 401: the user and the password in schema.registry.url are wrong or missing"),
    (_always(403, json={"error_code": 40301}), ConfigurationError, "with 403: it does not allow this to the user"),
    (_always(404, text="<html>"), ConfigurationError, "with 404: there is no such address: check the path"),
    (_always(404, json={"error_code": 40401}), ConfigurationError, "subjects/live-value/versions with 404"),
    (_always(409), ConfigurationError, "with 409: the subject has a schema that is not compatible"),
    (_always(422, json={"message": "READONLY"}), ConfigurationError, 'with 422: it does not take the schema ({"message":"READONLY"})'),
    (_always(418), ConfigurationError, "with 418: it does not take the request"),
    (_always(302, headers={"Location": "https://u:hush@sso/a?hush"}), ConfigurationError, "a redirection to https://…@sso/a; give"),
    (_always(200, text="<html>"), ConfigurationError, "is no schema registry by its answer to POST of subjects/live-value: it is no JSON"),
    (_always(200, text="[" * 100_000), ConfigurationError, "it is no JSON object"),
    (_always(200, json=[7]), ConfigurationError, "it is no JSON object"),
    (_always(200, json={"id": 7}), ConfigurationError, "it names no schema and its id"),
    (_always(200, json={**FOUND, "id": True}), ConfigurationError, "it names no schema and its id"),
    (_always(200, json={**FOUND, "id": -1}), ConfigurationError, "it names no schema and its id"),
    (_always(200, json={**FOUND, "id": 1 << 31}), ConfigurationError, "it names no schema and its id"),
    (_always(200, json={**FOUND, "id": "7"}), ConfigurationError, "it names no schema and its id"),
    (_always(200, json={**FOUND, "schema": '"string"'}), ConfigurationError, "and says that 7 is another one"),
    (_always(200, json={**FOUND, "schema": "{"}), ConfigurationError, "and says that 7 is another one"),
    (_always(200, json={**FOUND, "schema": json.dumps(schema("string").union)}), ConfigurationError, "and says that 7 is another one"),
    (_always(200, content=b" " * (2 << 20)), ConfigurationError, "it is no JSON object"),
])  # fmt: skip
async def test_what_a_registry_may_answer(answer: Callable[[httpx.Request], httpx.Response], kind: type[TieredError], told: str) -> None:
    one = asked(answer)
    sink = KafkaSink("127.0.0.1:9", "live", SystemRuntime(), schema=one)
    with pytest.raises(TieredError) as caught:
        await sink.deliver(segments()[0])
    assert type(caught.value) is kind and told in str(caught.value)
    assert "hush" not in str(caught.value) and "\n" not in str(caught.value)
    assert sink._producer is None, "nothing was sent"
    await sink.aclose()


class _Slow(httpx.AsyncBaseTransport):
    """Answers the first request never, and the others at once."""

    def __init__(self) -> None:
        self.requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        if self.requests == 1:
            await anyio.sleep_forever()
        return httpx.Response(200, json=FOUND)


async def test_each_generation_has_a_topic_and_a_subject_of_its_own(kafka: KafkaMock, topic: str) -> None:
    subjects: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        subjects.append(request.url.path.rpartition("/")[2])
        return httpx.Response(200, json=FOUND)

    one = KafkaSink(kafka.brokers, topic + "-{generation}", SystemRuntime(), schema=asked(answer))
    for generation in (7, 8):
        for each in segments("avro", generation):
            await one.deliver(each)
    await one.deliver(segments("avro", 7)[1])  # from a writer that does not know yet that it is fenced
    await one.aclose()
    names = [f"{topic}-{generation:016d}" for generation in (7, 8)]
    for name in names:
        assert viewed(unframed(each.value() or b"") for each in kafka.records(name)) == expected(segments())
    assert set(subjects) == {f"{name}-value" for name in names}


async def test_a_slow_registry_delays_and_doubles_nothing_and_is_asked_once(kafka: KafkaMock, topic: str) -> None:
    transport = _Slow()
    one = KafkaSink(kafka.brokers, topic, SystemRuntime(), schema=SchemaRegistry("http://registry", transport, timeout_s=0.05))
    with pytest.raises(UnavailableError, match=r"^http://registry gave no answer within 0\.05 s$"):
        await one.deliver(segments()[0])
    for each in segments():
        await one.deliver(each)
    await one.aclose()
    assert transport.requests == 2
    messages = [unframed(each.value() or b"") for each in kafka.records(topic)]
    assert messages == [message for each in segments() for message in each.messages()]


async def test_a_registration_that_does_not_show_yet_is_waited_for() -> None:
    one = asked(lambda request: httpx.Response(200, json={"id": 7}) if request.url.path.endswith("/versions") else MISSING)
    with pytest.raises(UnavailableError, match="has taken the schema of live-value, and does not show it yet"):
        await one.schema_id("live")
