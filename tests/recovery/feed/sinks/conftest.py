"""A Kafka for the tests of a module, and a topic of each test."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.given.kafka import KafkaMock, kafka_mock


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaMock]:
    with kafka_mock() as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"topic-{Random(request.node.nodeid).getrandbits(64):x}"
