"""Follows a change feed in a topic of Kafka with Confluent's consumer, and prints what it references.

    python examples/feed_confluent.py broker:9092 live http://registry:8081

Several generations may share the topic. The rule: of all records, those with the greatest generation in their key are
the feed. Until its frontier is past 1, its first pass is not complete, and what was shown before goes on.
"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from recovery.feed import CdcReader, Progress, Update, Updates
from recovery.feed.view import FeedView


class Topic:
    """What the records of a topic show, in whatever order they come. `references`: the blob of each object."""

    def __init__(self) -> None:
        self.references: dict[str, str] = {}
        self._generation = b""
        self._reader, self._view = CdcReader(), FeedView()

    def take(self, key: bytes, value: Any) -> None:
        """Takes a record, of which Avro made a list of updates or a dict of progress."""
        generation = key.partition(b"/")[0]
        if generation < self._generation:
            return
        if generation > self._generation:
            self._generation, self._reader, self._view = generation, CdcReader(), FeedView()
        if isinstance(value, list):
            message: Updates | Progress = Updates(tuple(Update(each["data"], each["time"], each["diff"]) for each in value))
        else:
            message = Progress(value["lower"], value["upper"], tuple((each["time"], each["count"]) for each in value["counts"]))
        if (batch := self._reader.feed(message)) is not None:
            self._view.add(batch)
            if batch.frontier > (1,):
                self.references = {row.record["object"]: row.record["blob"] for row in self._view}


def consume(brokers: str, topic: str, registry: str, *, once: bool = False) -> Topic:
    """Reads all partitions from their beginning. `once`: up to their ends as they are now; otherwise for ever."""
    shown = Topic()
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "unused", "enable.partition.eof": True})
    waited_for = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in waited_for])
    with SchemaRegistryClient({"url": registry}) as client:
        deserialize = AvroDeserializer(client)
        try:
            while waited_for or not once:
                if (record := consumer.poll(1)) is None:
                    continue
                if (error := record.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        waited_for.discard(record.partition())
                    continue
                shown.take(record.key() or b"", deserialize(record.value(), SerializationContext(topic, MessageField.VALUE)))
                print(f"{len(shown.references)} references")
        finally:
            consumer.close()
    return shown


if __name__ == "__main__":
    consume(*sys.argv[1:4])
