"""The bound of a wait for code of a caller's, beside cancellations by others."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from changelog.base.tasks import Patience

pytestmark = pytest.mark.anyio


class LateError(Exception):
    """It took too long."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_scope_that_was_cancelled_while_late_code_ended_did_not_know_its_own_cancellation() -> None:
    """A task group in that code needs some turns to end. The task then died of an error that no scope caught."""

    async def slow_to_end(scope: anyio.CancelScope) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                scope.cancel()
                for _ in range(5):
                    await checkpoint()

    async def wait(scope: anyio.CancelScope) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow_to_end, scope)
            await anyio.sleep_forever()

    with anyio.CancelScope() as scope, Patience(0.001, LateError, scoped=False) as patience:
        await patience.wait(lambda: wait(scope))
    assert scope.cancelled_caught
