"""Two things at once: the plain error of the one that failed."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from tiered.concurrent import both

pytestmark = pytest.mark.anyio


async def test_both_answers_come_back_in_the_order_of_the_calls() -> None:
    async def one() -> int:
        await anyio.lowlevel.checkpoint()
        return 1

    async def two() -> str:
        return "two"

    assert await both(one, two) == (1, "two")


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
        await both(*((fails, fails_when_cancelled) if first == "main" else (fails_when_cancelled, fails)))
    assert ended == ["cancelled"]


async def test_a_group_of_the_callers_own_stays_one() -> None:
    async def fails() -> None:
        raise ExceptionGroup("mine", [ValueError("inner")])

    with pytest.raises(ExceptionGroup, match="mine") as caught:
        await both(fails, anyio.sleep_forever)
    assert [str(each) for each in caught.value.exceptions] == ["inner"]


async def test_error_comes_out_as_it_was_with_its_cause() -> None:
    cause = KeyError("cause")

    async def fails() -> None:
        raise ValueError("mine") from cause

    for pair in ((fails, anyio.sleep_forever), (anyio.sleep_forever, fails)):
        with pytest.raises(ValueError, match="mine") as caught:
            await both(*pair)
        assert caught.value.__cause__ is cause
