"""What a store or recovery that still runs holds when nothing is under way.

It must be nothing, or it slowly stops working.

    writes, tasks        a write that never ends, a task that never ends
    leases               an entry that is renewed for ever, so that nobody may clean it up
    slots, waiters       a place that nobody gives back: in the end every operation is `AtCapacityError`
    touching             an object that is never touched again, and expires while it is read

These functions read private state from outside. Nothing in the product knows of them.
"""

from __future__ import annotations

from typing import Any

from recovery.loop import RecoveryLoop
from tiered.storage import TieredStorage


def held_by_store(storage: TieredStorage) -> list[str]:
    """Returns what the store holds, one line for each kind."""
    tasks: Any = storage._under_way._tasks
    held = {
        "writes": len(storage._under_way._writes),
        "tasks beside the heartbeat": 0 if tasks is None else _count(tasks) - 1,
        "leases": len(storage._under_way._heartbeat._leases),
        "objects being touched": len(storage._touching),
    }
    for name, admission in (("read", storage._reads), ("write", storage._writes), ("touch", storage._touches)):
        held[f"{name} operations"] = admission._under_way
        held[f"{name} slots"] = admission.held
        held[f"{name} waiters"] = len(admission._normal) + len(admission._bulk)
    return [f"{count} {name}" for name, count in held.items() if count]


def _count(tasks: Any) -> int:
    """Counts the tasks of the group, on trio or asyncio."""
    return len(tasks._nursery.child_tasks if hasattr(tasks, "_nursery") else tasks._tasks)


def held_by_recovery(recovery: RecoveryLoop) -> list[str]:
    """Returns what the recovery holds between its passes."""
    held = {"leases": len(recovery._heartbeat._leases), "entries to release": len(recovery._held)}
    return [f"{count} {name}" for name, count in held.items() if count]
