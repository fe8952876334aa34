"""What was explored is said at the end of a test run, whether or not anything was found."""

from __future__ import annotations

import pytest

EXPLORED = pytest.StashKey[list[str]]()


@pytest.fixture
def said_at_the_end(request: pytest.FixtureRequest) -> list[str]:
    """Lines for the terminal's summary."""
    return request.config.stash.setdefault(EXPLORED, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(EXPLORED, []):
        terminalreporter.write_line(line)
