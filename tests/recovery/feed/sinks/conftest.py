"""Services for the tests of a module, of them a Kafka, and a topic of each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from random import Random
from typing import Any

import pytest

from tests.given.kafka import KafkaMock, kafka_mock

Started = Callable[[Callable[[], AbstractContextManager[Any]]], Any]


@pytest.fixture(scope="module")
def started() -> Iterator[Started]:
    """Starts a service of `tests/given/`, once for a module, and returns it."""
    with ExitStack() as stack:
        yield cache(lambda start: stack.enter_context(start()))


@pytest.fixture(scope="module")
def kafka(started: Started) -> KafkaMock:
    found: KafkaMock = started(kafka_mock)
    return found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"topic-{Random(request.node.nodeid).getrandbits(64):x}"
