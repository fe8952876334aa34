"""Shows what a change feed in a topic of Kafka references, by Spark's own Avro reader (the package spark-avro).

    topic = spark.read.format("kafka").option("kafka.bootstrap.servers", …).option("subscribe", "live").load()
    references(topic).show()
"""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import explode, expr
from pyspark.sql.functions import max as greatest

from recovery.feed.avro import REFERENCES

SHOWN = (Path(__file__).parent / "feed_view.sql").read_text()

# Spark takes no union as the whole of a message. A record with one field has the same bytes as the field.
SCHEMA = json.dumps({"type": "record", "name": "message", "fields": [{"name": "message", "type": REFERENCES.union}]})


def messages(topic: DataFrame) -> DataFrame:
    """Returns the updates and the progress of the latest generation, whose values have Confluent's frame."""
    value = expr("substring(value, 6)")  # the frame has five bytes
    generation = expr("substring(cast(key AS string), 1, 16)")
    latest = topic.select(greatest(generation)).first()
    records = topic.where(generation == (latest[0] if latest else "")).select(from_avro(value, SCHEMA).alias("m"))
    return records.select("m.message.member0", "m.message.member1").toDF("updates", "progress")


def references(topic: DataFrame) -> DataFrame:
    """Returns frontier, object and blob. With a frontier of 1 or less, the first pass is not complete yet."""
    spark: SparkSession = topic.sparkSession
    found = messages(topic).cache()
    update = found.select(explode("updates").alias("u")).selectExpr("u.data.object", "u.data.blob", "u.time AS t", "u.diff")
    interval = found.where("progress IS NOT NULL").selectExpr("progress.lower[0] AS begins", "progress.upper[0] AS ends")
    count = found.select(explode("progress.counts").alias("c")).selectExpr("c.time AS t", "c.count AS declared")
    for name, relation in {"feed_update": update, "feed_interval": interval, "feed_count": count}.items():
        relation.distinct().createOrReplaceTempView(name)
    return spark.sql(SHOWN)
