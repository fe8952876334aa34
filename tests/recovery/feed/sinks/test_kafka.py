"""Kafka as a sink: what a record has, what is cut, and what the errors of brokers become."""

from __future__ import annotations

import anyio
import pytest
from confluent_kafka import KafkaError

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from recovery.feed import Updates
from recovery.feed.sinks.kafka import KafkaSink
from recovery.feed.sinks.open import open_sink
from recovery.feed.sinks.records import RECORD_BYTES_MAX
from recovery.feed.sinks.sink import Owner
from recovery.feed.spelling import from_line
from tests.given.kafka import KafkaMock
from tests.given.segments import GENERATION, NOW, expected, large, segments, viewed

pytestmark = pytest.mark.anyio

FIRST, SECOND, *_ = segments()


def sink(kafka: KafkaMock, topic: str, timeout_s: float = 10) -> KafkaSink:
    return KafkaSink(kafka.brokers, topic, SystemRuntime(), timeout_s=timeout_s)


async def test_each_message_is_a_record_in_the_order_of_the_file(kafka: KafkaMock, topic: str) -> None:
    one = sink(kafka, topic)
    await one.deliver(SECOND)
    await one.aclose()
    records = kafka.records(topic)
    assert [from_line((each.value() or b"").decode()) for each in records] == list(SECOND.messages())
    assert {each.key() for each in records} == {f"{GENERATION:016d}/{NOW:019d}".encode()}
    assert [dict(each.headers() or []) for each in records] == [
        {
            "generation": str(GENERATION).encode(), "time": str(NOW).encode(), "part": part, "sha256": SECOND.sha256.encode(),
            "content-type": b"application/json",
        } for part in (b"1/2", b"2/2")
    ]  # fmt: skip


async def test_updates_that_are_too_many_for_a_broker_are_cut(kafka: KafkaMock, topic: str) -> None:
    whole = large(2 * 2**20)
    [longest] = {max(len(line) for line in whole.data.split(b"\n"))}
    assert longest > RECORD_BYTES_MAX
    one = sink(kafka, topic)
    await one.deliver(whole)
    await one.aclose()
    values = [each.value() or b"" for each in kafka.records(topic)]
    assert max(map(len, values)) <= RECORD_BYTES_MAX
    messages = [from_line(value.decode()) for value in values]
    assert len([each for each in messages if isinstance(each, Updates)]) >= longest // RECORD_BYTES_MAX
    assert viewed(messages) == expected([whole])


async def test_errors_that_pass_are_borne_and_double_nothing(kafka: KafkaMock, topic: str) -> None:
    """The producer repeats what failed. A request that ran into a timeout at the broker may have been carried out."""
    one = sink(kafka, topic)
    await one.deliver(FIRST)
    kafka.fail([KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.NOT_ENOUGH_REPLICAS])
    await one.deliver(SECOND)
    await one.aclose()
    assert [from_line((each.value() or b"").decode()) for each in kafka.records(topic)] == [*FIRST.messages(), *SECOND.messages()]


@pytest.mark.parametrize(("code", "kind", "told"), [
    (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigurationError, "Topic authorization failed"),
    (KafkaError.MSG_SIZE_TOO_LARGE, ConfigurationError, "Message size too large"),
    (KafkaError.NOT_ENOUGH_REPLICAS, UnavailableError, "within 0.5 s"),
])  # fmt: skip
async def test_errors_that_stay_are_raised_and_the_next_delivery_is_new(
    code: int, kind: type[TieredError], told: str, kafka: KafkaMock, topic: str
) -> None:
    one = sink(kafka, topic, timeout_s=0.5 if kind is UnavailableError else 10)
    kafka.fail([code] * 100)
    with pytest.raises(TieredError, match=told) as caught:
        await one.deliver(FIRST)
    kafka.forget_failures()
    assert type(caught.value) is kind
    again = sink(kafka, topic)
    await again.deliver(FIRST)
    await again.aclose()
    assert viewed(from_line((each.value() or b"").decode()) for each in kafka.records(topic)) == expected([FIRST])


async def test_a_broker_that_is_away_delays_and_a_cancellation_does_not_wait_for_it(kafka: KafkaMock, topic: str) -> None:
    one = sink(kafka, topic, timeout_s=0.3)
    await sink(kafka, topic).deliver(FIRST)
    kafka.set_down(True)
    try:
        with pytest.raises(UnavailableError, match="did not confirm"):
            await one.deliver(SECOND)
        patient = sink(kafka, topic, timeout_s=600)
        with anyio.fail_after(60), anyio.move_on_after(0.2) as scope:
            await patient.deliver(SECOND)
        assert scope.cancelled_caught
    finally:
        kafka.set_down(False)
    await patient.deliver(SECOND)
    for each in (one, patient):
        await each.aclose()
    messages = [from_line((each.value() or b"").decode()) for each in kafka.records(topic)]
    assert viewed(messages) == expected([FIRST, SECOND])
    assert len(messages) == len([*FIRST.messages(), *SECOND.messages()])  # what was given up was not sent later


async def test_nobody_listens_there() -> None:
    one, said = KafkaSink("127.0.0.1:9", "topic", SystemRuntime(), timeout_s=0.3), ""
    with anyio.fail_after(60):
        while "Connection refused" not in said:  # on a slow machine the limit may be over before the library has tried to connect
            with pytest.raises(UnavailableError, match=r"^kafka://127\.0\.0\.1:9/topic did not confirm ") as caught:
                await one.deliver(FIRST)
            said = str(caught.value)
    await one.aclose()


@pytest.mark.parametrize(("options", "told"), [
    ("security.protocol=CARRIER_PIGEON&sasl.password=word", r"cannot be used: .*security\.protocol"),
    ("security.protocol=SSL&ssl.ca.location=/no/such/word.pem", r"cannot be used: .*ssl\.ca\.location"),
])  # fmt: skip
async def test_an_option_that_the_library_refuses_is_told_without_what_it_was_given(options: str, told: str) -> None:
    one = open_sink(f"kafka://broker:9092/topic?{options}", SystemRuntime())
    assert one.name == "kafka://broker:9092/topic"
    with pytest.raises(ConfigurationError, match=told) as caught:
        await one.deliver(FIRST)
    assert "word" not in str(caught.value)
    await one.aclose()


async def test_each_record_names_its_feed(kafka: KafkaMock, topic: str) -> None:
    one = sink(kafka, topic)
    assert not await one.claim(Owner("f" * 32, "a store"))
    await one.deliver(FIRST)
    await one.aclose()
    [record] = kafka.records(topic)
    assert dict(record.headers() or [])["feed"] == b"f" * 32
