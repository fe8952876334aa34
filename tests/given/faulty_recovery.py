"""A process of `tiered prove` (recovery/prove/writer.py) whose recovery forgets entries without cleaning up."""

from __future__ import annotations

from typing import Any

from changelog.heartbeat import Heartbeat
from changelog.lease import Lease
from changelog.log import ChangeLog
from recovery import loop
from recovery.prove.writer import main
from tiered.protocol.finishing import Ending
from tiered.services.backends import Tiers


async def forget(tiers: Tiers, log: ChangeLog, heartbeat: Heartbeat, lease: Lease, *more: Any) -> Ending:
    await log.forget(lease.entry)
    return Ending.CLEANED


if __name__ == "__main__":
    vars(loop)["finish"] = forget
    main()
