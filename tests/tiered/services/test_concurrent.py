"""Two things at once: the plain error of the one that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import product

import anyio
import anyio.lowlevel
import pytest

from changelog.base.errors import CancelledElsewhereError
from tiered.services.concurrent import run_both

pytestmark = pytest.mark.anyio


async def test_both_answers_come_back_in_the_order_of_the_calls() -> None:
    async def one() -> int:
        await anyio.lowlevel.checkpoint()
        return 1

    async def two() -> str:
        return "two"

    assert await run_both(one, two) == (1, "two")


@pytest.mark.parametrize("first", ["main", "beside"])
async def test_of_two_errors_the_first_is_raised_and_the_other_had_its_time_to_end(first: str) -> None:
    ended = []

    async def fails() -> None:
        raise ValueError("first")

    async def fails_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")
            raise KeyError("second")

    with pytest.raises(ValueError, match="first"):
        await run_both(*((fails, fails_when_cancelled) if first == "main" else (fails_when_cancelled, fails)))
    assert ended == ["cancelled"]


async def test_a_group_of_the_callers_own_stays_one() -> None:
    async def fails() -> None:
        raise ExceptionGroup("mine", [ValueError("inner")])

    with pytest.raises(ExceptionGroup, match="mine") as caught:
        await run_both(fails, anyio.sleep_forever)
    assert [str(each) for each in caught.value.exceptions] == ["inner"]


async def test_error_comes_out_as_it_was_with_its_cause() -> None:
    cause = KeyError("cause")

    async def fails() -> None:
        raise ValueError("mine") from cause

    for pair in ((fails, anyio.sleep_forever), (anyio.sleep_forever, fails)):
        with pytest.raises(ValueError, match="mine") as caught:
            await run_both(*pair)
        assert caught.value.__cause__ is cause


async def turns(count: int, *, shield: bool) -> int:
    with anyio.CancelScope(shield=shield):
        for _ in range(count):
            await anyio.lowlevel.checkpoint()
    return count


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("shielded", ["main", "beside", "run_both", "none"])
async def test_cancelled_at_any_moment_it_ends_with_both_answers_or_cancelled(shielded: str) -> None:
    """Though one of the two takes no notice, and ends as if nothing were."""
    for first, second, cancelled_after in product(range(5), range(5), range(10)):
        main = partial(turns, first, shield=shielded in ("main", "run_both"))
        beside = partial(turns, second, shield=shielded in ("beside", "run_both"))
        scope, answers = anyio.CancelScope(), list[tuple[int, int]]()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_both, main, beside, scope, answers)
            await turns(cancelled_after, shield=False)
            scope.cancel()
        assert answers == [(first, second)] or scope.cancelled_caught


async def ask_both(
    main: Callable[[], Awaitable[int]], beside: Callable[[], Awaitable[int]], scope: anyio.CancelScope, answers: list[tuple[int, int]]
) -> None:
    with scope:
        answers.append(await run_both(main, beside))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("first", ["main", "beside"])
async def test_cancellation_that_only_one_of_them_met_is_an_error(first: str) -> None:
    async def awaits_what_is_cancelled() -> None:
        task = asyncio.ensure_future(anyio.sleep_forever())
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    pair = (awaits_what_is_cancelled, anyio.sleep_forever)
    with pytest.raises(CancelledElsewhereError):
        await run_both(*(pair if first == "main" else reversed(pair)))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_task_beside_that_is_cancelled_by_name_is_an_error(anyio_backend: str) -> None:
    before = asyncio.all_tasks()

    async def cancel_all_others() -> None:
        await anyio.wait_all_tasks_blocked()
        for task in asyncio.all_tasks() - before:
            task.cancel()
        await anyio.sleep_forever()

    with pytest.raises(CancelledElsewhereError):
        await run_both(cancel_all_others, anyio.sleep_forever)
