"""Shares of an admission. What callers see of both is in tests/store/test_bounds.py and test_many.py."""

from __future__ import annotations

import anyio
import pytest

from tiered.protocol.admission import Admission, Share

pytestmark = pytest.mark.anyio


async def test_share_is_whole_again_when_its_waiter_was_cancelled() -> None:
    whole = Admission(1, queue_max=0, queue_wait_s=1)
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
    whole = Admission(3, queue_max=0, queue_wait_s=1)
    share = Share(whole, 2)
    slots = [await share.enter(), await share.enter()]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(share.enter)
        await anyio.wait_all_tasks_blocked()
        with await whole.enter():  # at once: who waits for the share is not in line yet
            pass
        slots.pop().release()


async def test_who_waits_until_nothing_is_under_way_sleeps_meanwhile() -> None:
    """Also where there was nothing under way before: what told so then tells nothing now."""
    admission = Admission(2, queue_max=0, queue_wait_s=1)
    (await admission.enter()).release()
    await admission.wait_idle()
    slot = await admission.enter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(admission.wait_idle)
        with anyio.fail_after(10):
            await anyio.wait_all_tasks_blocked()
        slot.release()


async def test_who_waits_for_a_share_is_waited_for() -> None:
    whole = Admission(2, queue_max=0, queue_wait_s=1)
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
    whole = Admission(2, queue_max=5, queue_wait_s=10)
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
