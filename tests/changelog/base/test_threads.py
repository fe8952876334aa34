"""Blocking work in threads: what becomes of it when its caller is cancelled, or no thread can be had."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest
from anyio import to_thread

from changelog.base.errors import UnavailableError
from changelog.base.threads import in_thread
from tests.given.no_threads import no_threads

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_result_and_error_come_out_plain() -> None:
    limiter = anyio.CapacityLimiter(1)
    assert await in_thread(lambda: 7, limiter) == 7
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="mine"):
            await in_thread(lambda error=error: _raise(error("mine")), limiter)  # type: ignore[misc]


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_thread_that_cannot_be_started_is_unavailable_and_its_place_is_free_again() -> None:
    limiter, called = anyio.CapacityLimiter(1), list[int]()
    idle = threading.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(in_thread, idle.wait, anyio.CapacityLimiter(1))  # the only thread that may be idle
        await anyio.wait_all_tasks_blocked()
        with no_threads():
            for _ in range(3):
                with pytest.raises(UnavailableError, match=r"no thread could be started.*can't start new thread"):
                    await in_thread(lambda: called.append(1), limiter)
        idle.set()
    assert called == []
    await in_thread(lambda: called.append(1), limiter)
    assert called == [1]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_task_that_is_cancelled_natively_again_and_again_waits_for_its_thread_and_its_result_is_undone() -> None:
    go_on, begun, undone = threading.Event(), threading.Event(), list[int]()

    def work() -> int:
        begun.set()
        assert go_on.wait(30)
        return 7

    task = asyncio.ensure_future(in_thread(work, anyio.CapacityLimiter(1), undo=undone.append))
    await to_thread.run_sync(begun.wait)
    for _ in range(3):
        task.cancel()
        await anyio.wait_all_tasks_blocked()
    assert not task.done()
    go_on.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert undone == [7]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_task_that_is_cancelled_before_its_turn_never_runs() -> None:
    limiter, called, busy = anyio.CapacityLimiter(1), list[int](), threading.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(in_thread, busy.wait, limiter)
        await anyio.wait_all_tasks_blocked()
        task = asyncio.ensure_future(in_thread(lambda: called.append(1), limiter))
        await anyio.wait_all_tasks_blocked()
        task.cancel()
        await asyncio.wait([task])
        busy.set()
    assert called == []


async def test_scope_that_ends_leaves_what_may_be_abandoned() -> None:
    go_on = threading.Event()
    try:
        with anyio.fail_after(30), anyio.move_on_after(0.05):
            await in_thread(go_on.wait, anyio.CapacityLimiter(1), abandon_on_cancel=True)
    finally:
        go_on.set()
