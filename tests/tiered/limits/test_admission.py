"""Shares of an admission. What callers see of both is in tests/store/test_bounds.py and test_many.py."""

from __future__ import annotations

import anyio
import pytest

from tiered.errors import AtCapacityError
from tiered.limits.admission import Admission, Share, Slot

pytestmark = pytest.mark.anyio


async def test_share_is_whole_again_when_its_waiter_was_cancelled() -> None:
    whole = Admission(1, 0, 1, anyio.current_time)
    share = Share(whole, 1)
    others = await whole.enter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(share.enter)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    others.release()
    with anyio.fail_after(10):
        slot = await share.enter()
        slot.release()
        await whole.wait_idle()


async def test_share_has_no_more_slots_than_it_was_given() -> None:
    whole = Admission(3, 0, 1, anyio.current_time)
    share = Share(whole, 2)
    slots = [await share.enter(), await share.enter()]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(share.enter)
        await anyio.wait_all_tasks_blocked()
        with await whole.enter():  # at once: who waits for the share is not in line yet
            pass
        slots.pop().release()


async def test_a_later_step_waits_as_long_as_it_must_and_not_behind_bulk_work() -> None:
    whole = Admission(2, 0, 0, anyio.current_time, bulk_max=1)
    bulk = await Share(whole, 1).enter()
    slots: list[Slot] = []

    async def later() -> None:
        slots.append(await whole.enter_later())

    async with anyio.create_task_group() as tasks:
        with whole.in_steps():
            await later()
            assert (whole.held, whole.waiting) == (2, 0), "a slot was free, which bulk work may not take"
            with pytest.raises(AtCapacityError):
                await whole.enter()
            tasks.start_soon(later)
            await anyio.wait_all_tasks_blocked()
            assert (whole.held, whole.waiting) == (2, 1)
            bulk.release()
            await anyio.wait_all_tasks_blocked()
            for slot in slots:
                slot.release()
            tasks.start_soon(whole.wait_idle)
            await anyio.wait_all_tasks_blocked()
            assert (whole.held, len(slots)) == (0, 2)
    assert whole.waiting == 0


async def test_who_waits_until_nothing_is_under_way_sleeps_meanwhile() -> None:
    """Also where there was nothing under way before: what told so then tells nothing now."""
    admission = Admission(2, 0, 1, anyio.current_time)
    (await admission.enter()).release()
    await admission.wait_idle()
    slot = await admission.enter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(admission.wait_idle)
        with anyio.fail_after(10):
            await anyio.wait_all_tasks_blocked()
        slot.release()


async def test_who_waits_for_a_share_is_waited_for() -> None:
    whole = Admission(2, 0, 1, anyio.current_time)
    share = Share(whole, 1)
    slot = await share.enter()
    events = []

    async def wait_idle() -> None:
        await whole.wait_idle()
        events.append("idle")

    async def enter() -> None:
        with await share.enter():
            events.append("entered")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_idle)
        tasks.start_soon(enter)
        await anyio.wait_all_tasks_blocked()
        slot.release()
    assert events == ["entered", "idle"]


async def test_it_tells_who_runs_and_who_waits() -> None:
    whole = Admission(2, 5, 10, anyio.current_time)
    share = Share(whole, 1)
    assert (whole.slots, whole.held, whole.waiting) == (2, 0, 0)
    slots = [await whole.enter(), await share.enter()]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(whole.enter)
        tasks.start_soon(share.enter)
        await anyio.wait_all_tasks_blocked()
        assert (whole.slots, whole.held, whole.waiting) == (2, 2, 2), "one waits for a slot, and one for its share"
        tasks.cancel_scope.cancel()
    for slot in slots:
        slot.release()
    assert (whole.held, whole.waiting) == (0, 0)


async def test_bulk_work_leaves_slots_to_single_operations_and_takes_turns_with_them() -> None:
    whole = Admission(2, 10, 10, anyio.current_time, bulk_max=1)
    first, second = Share(whole, 2), Share(whole, 2)
    entered: list[str] = []
    slots = {"held": await first.enter(), "normal": await whole.enter()}

    async def enter(name: str, line: Admission | Share) -> None:
        slots[name] = await line.enter()
        entered.append(name)

    async def after(name: str) -> list[str]:
        entered.clear()
        slots.pop(name).release()
        await anyio.wait_all_tasks_blocked()
        return list(entered)

    async with anyio.create_task_group() as tasks:
        for name, line in (("b1", first), ("b2", second), ("n1", whole), ("n2", whole), ("n3", whole)):
            tasks.start_soon(enter, name, line)
            await anyio.wait_all_tasks_blocked()
        assert await after("normal") == ["n1"], "bulk work holds its limit, so it passes"
        assert await after("held") == ["b1"], "a normal operation had the last turn"
        assert await after("n1") == ["n2"]
        assert await after("b1") == ["b2"]
        assert await after("b2") == ["n3"]
        for name in ("n2", "n3"):
            slots.pop(name).release()
    with anyio.fail_after(10):
        await whole.wait_idle()


async def test_bulk_work_that_has_reached_its_limit_does_not_hold_a_free_slot_back() -> None:
    whole = Admission(2, 0, 1, anyio.current_time, bulk_max=1)
    share = Share(whole, 2)
    held = await share.enter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(share.enter)
        await anyio.wait_all_tasks_blocked()
        with await whole.enter():
            pass
        tasks.cancel_scope.cancel()
    held.release()
    assert (whole.held, whole.waiting) == (0, 0)


async def test_whoever_is_refused_is_told_when_a_slot_may_be_free() -> None:
    clock = [100.0]
    whole = Admission(2, 0, 1, lambda: clock[0])

    async def refused_with() -> float | None:
        with pytest.raises(AtCapacityError) as refused:
            await whole.enter()
        return refused.value.retry_after_s

    slots = [await whole.enter(), await whole.enter()]
    clock[0] += 40.0
    assert await refused_with() is None, "none was ever given back, so nobody knows"
    for slot in slots:
        slot.release()
    clock[0] = 5000.0  # idle for long: this tells nothing
    for _ in range(120):
        slots = [await whole.enter(), await whole.enter()]
        clock[0] += 4.0
        for slot in slots:
            slot.release()
    slots = [await whole.enter(), await whole.enter()]
    assert await refused_with() == pytest.approx(2.0), "two slots are each held for 4 s"
    clock[0] += 10.0
    assert await refused_with() == pytest.approx(12.0, rel=0.1), "nothing has become free for 10 s: it said 5 s, as if all ended by turns"
    clock[0] += 1000.0
    assert await refused_with() == 30.0
    for slot in slots:
        slot.release()


async def test_a_slot_that_was_lent_is_free_and_its_operation_is_under_way() -> None:
    whole = Admission(1, 5, 10, anyio.current_time)
    slot = await whole.enter()
    slot.lend()
    slot.lend()
    assert (whole.held, whole.waiting) == (0, 0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(whole.wait_idle)
        other = await whole.enter()
        tasks.start_soon(slot.take_back)
        await anyio.wait_all_tasks_blocked()
        assert (whole.held, whole.waiting) == (1, 1)
        other.release()
        await anyio.wait_all_tasks_blocked()
        assert (whole.held, whole.waiting) == (1, 0)
        await slot.take_back()
        slot.release()
    assert (whole.held, whole.waiting) == (0, 0)


async def test_a_lent_slot_whose_return_was_cancelled_is_still_lent() -> None:
    whole = Admission(1, 5, 10, anyio.current_time)
    share = Share(whole, 1)
    for enter in (whole.enter, share.enter):
        slot = await enter()
        slot.lend()
        other = await whole.enter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slot.take_back)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        other.release()
        later = slot.hand_over()
        slot.release()
        assert (whole.held, whole.waiting) == (0, 0)
        with anyio.fail_after(10):
            await later.take_back()
            assert whole.held == 1
            later.release()
            await whole.wait_idle()


async def test_a_lent_slot_that_is_released_is_forgotten() -> None:
    whole = Admission(1, 5, 10, anyio.current_time)
    slot = await whole.enter()
    slot.lend()
    slot.release()
    slot.lend()
    await slot.take_back()
    with anyio.fail_after(10):
        await whole.wait_idle()
    assert (whole.held, whole.waiting) == (0, 0)
