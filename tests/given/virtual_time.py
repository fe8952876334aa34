"""Async tests in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from emulators.world.runtime import run_world


def simulated(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Runs an async test on trio, in virtual time."""
    def run() -> None:
        run_world(test, seed=1)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
