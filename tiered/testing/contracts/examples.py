"""How many examples the tests with examples try, and how long each may take: as long as the backend needs."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def examples(count: int) -> settings:
    """Returns the settings of a test that tries `count` examples, or fewer if the profile of hypothesis has fewer.

    A profile is heeded if it was loaded before the suite was imported, as in a `conftest.py`. There is no deadline: a
    service that answers in 80 ms is no worse than another.
    """
    # The suites' fixtures are made once for all examples, so each example uses names of its own.
    unmeant = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=min(count, settings().max_examples), deadline=None, suppress_health_check=unmeant)
