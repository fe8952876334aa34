"""librdkafka's mock cluster: brokers of Kafka in this process, with errors on demand; and a topic of it as a place.

The Python package does not offer it, but brings the library that has it. Topics are made when they are first used.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, TopicPartition

from changelog.base.runtime import SystemRuntime
from recovery.feed.sinks.open import open_sink
from recovery.feed.sinks.sink import Sink
from tests.given.sink_place import RecordPlace

PRODUCE = 0
"""The number of this request in Kafka's protocol."""
_PRODUCER = 0


class KafkaMock:
    """The cluster. `brokers`: where it listens, for `kafka://`."""

    def __init__(self, library: Any, cluster: Any) -> None:
        self._library = library
        self._cluster = cluster
        self.brokers: str = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()

    def fail(self, codes: list[int]) -> None:
        """Makes the next produce requests fail with these codes, one after another."""
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(PRODUCE), ctypes.c_size_t(len(codes)), (ctypes.c_int * len(codes))(*codes)
        )

    def forget_failures(self) -> None:
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, ctypes.c_int16(PRODUCE))

    def set_down(self, down: bool) -> None:
        change = self._library.rd_kafka_mock_broker_set_down if down else self._library.rd_kafka_mock_broker_set_up
        change(self._cluster, ctypes.c_int32(1))

    def records(self, topic: str) -> list[confluent_kafka.Message]:
        """Returns all records of the topic: those of a segment in their order, and segments in the order of their keys.

        Segments are in several partitions, and these answer in any order.
        """
        consumer = Consumer({
            "bootstrap.servers": self.brokers, "group.id": "reader", "enable.partition.eof": True, "fetch.wait.max.ms": 10, "log_level": 0,
        })  # fmt: skip
        try:
            partitions = consumer.list_topics(topic, timeout=5).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            found, ended = [], 0
            while ended < len(partitions):
                record = consumer.poll(5)
                assert record is not None, "the mock cluster does not answer"
                error = record.error()
                if error is None:
                    found.append(record)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended += 1
            return sorted(found, key=lambda record: record.key() or b"")
        finally:
            consumer.close()


@contextmanager
def kafka_mock() -> Iterator[KafkaMock]:
    """Runs a cluster of one broker."""
    [path] = glob(str(Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs" / "librdkafka-*.so*"))
    library = ctypes.CDLL(path)
    for name in ("rd_kafka_new", "rd_kafka_conf_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    why = ctypes.create_string_buffer(200)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(conf, b"log_level", b"0", why, len(why))
    owner = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, conf, why, len(why)))
    assert owner, why.value
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(owner, 1))
    try:
        yield KafkaMock(library, cluster)
    finally:
        # The library waits for its threads, and these may call Python's logger: not from this thread.
        ending = threading.Thread(target=lambda: (library.rd_kafka_mock_cluster_destroy(cluster), library.rd_kafka_destroy(owner)))
        ending.start()
        ending.join()


class TopicPlace(RecordPlace):
    large = 4 * 2**20  # the mock cluster keeps 5 MB

    def __init__(self, kafka: KafkaMock, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic

    def sink(self) -> Sink:
        return open_sink(f"kafka://{self._kafka.brokers}/{self._topic}", SystemRuntime())

    def values(self) -> list[bytes]:
        return [record.value() or b"" for record in self._kafka.records(self._topic)]


def place(given: Callable[[str], Any]) -> TopicPlace:
    return TopicPlace(given("started")(kafka_mock), given("topic"))
