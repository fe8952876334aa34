"""The audit's figures, beside what a user would write instead: blobs per core-second, and peak memory.

    two servers in a process <-- a side: a process and all that it starts (`metered`)

The servers' CPU is not counted. That of a side is measured from the moment when it says that it is ready until it has
found what it can, and also in all. Each must find exactly what was planted. Only ours fix a cut-off, read the changelog
and look again; the others would call a blob an orphan that is being written.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from tempfile import TemporaryDirectory

from benchmarks.audit_side import SideRequest
from benchmarks.audit_world import AuditWorld
from benchmarks.harness import Figures, few
from benchmarks.metered import compare_metered
from benchmarks.servers import started

NAMES, SMALLEST, ROUNDS = 1_000_000, 10_000, 3
SIDES = {
    "`audit_range`, one process": ("audit_ours", "sweep"),
    "its ranges in worker processes, 2": ("audit_ours", "workers"),
    "under Spark, local[2]": ("audit_ours", "spark"),
    "a join in Spark, local[2]": ("audit_join", "find"),
    "official clients, two Python sets": ("audit_official", "find"),
}
GOALS = "Goals: 400 k blobs per core-second by the first, and half of that under Spark; at most 200 MB a worker at any size."


async def figures(size: float) -> list[Figures]:
    world = AuditWorld(max(SMALLEST, round(NAMES * size)))
    async with started("benchmarks.audit_servers") as addresses:
        url, host = addresses.split()
        with TemporaryDirectory(prefix="tiered-bench-") as directory:
            told = json.dumps(asdict(SideRequest(world.names, host, url, directory)))
            commands = {what: ["benchmarks.audit_side", *side, told] for what, side in SIDES.items()}
            found = {what: [world.orphans, world.dangling] for what in commands}
            title = f"{world.names:,} names, as many blobs and tombstones"
            ours = {what for what, (module, _) in SIDES.items() if module == "audit_ours"}
            return [await compare_metered(title, world.names, commands, few(ROUNDS, size), found, ours, [GOALS])]
