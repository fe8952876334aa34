"""One local Spark for all tests here, because each start costs seconds of a core. One worker of xdist runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from recovery.audit.running.cluster import SparkEngine, open_spark
from recovery.sources import spark as tables
from tests.conftest import s3_credentials
from tests.given.spark_workers import count


@pytest.fixture(scope="session")
def counting() -> Iterator[SparkEngine]:
    """Returns the engine that the session was opened for. Its work is `count`. Executors may talk to S3's servers."""
    with s3_credentials(), open_spark(count, slots=2) as engine:
        yield engine


@pytest.fixture(scope="session")
def spark(counting: SparkEngine) -> SparkSession:
    session = SparkSession.getActiveSession()
    assert session is not None
    session.conf.set("spark.sql.shuffle.partitions", "4")
    tables.register(session)
    return session
