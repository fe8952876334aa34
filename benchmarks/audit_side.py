"""A side of the audit's figures, in a process of its own: `python -m benchmarks.audit_side audit_ours sweep '{…}'`.

It prints `ready` when all is loaded, and a Spark session is open. Then it prints what it found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from benchmarks.servers import INSTANCE, PROJECT
from tiered.settings import BigtableSettings, GcsSettings, Settings

Found = tuple[int, int]
"""The number of orphans and of dangling tombstones."""

Ready = Callable[[], None]
RANGE_NAMES = 100_000


@dataclass(frozen=True)
class SideRequest:
    """What a side is asked to do. `host` and `url`: of Bigtable and GCS. `directory`: for files that it writes."""

    names: int
    host: str
    url: str
    directory: str
    slots: int = 2

    @property
    def world(self) -> str:
        """The name of the bucket and of the table."""
        return f"names-{self.names}"

    @property
    def settings(self) -> Settings:
        bigtable = BigtableSettings(
            project=PROJECT, instance=INSTANCE, table=self.world, changelog_table=f"log-{self.names}", emulator_host=self.host
        )
        return Settings(bigtable=bigtable, gcs=GcsSettings(bucket=self.world, endpoint=self.url), changelog="bigtable")

    @property
    def ranges(self) -> int:
        return max(1, self.names // RANGE_NAMES)


if __name__ == "__main__":
    module, function, told = sys.argv[1:]
    find: Callable[[SideRequest, Ready], Found] = getattr(import_module(f"benchmarks.{module}"), function)
    print(json.dumps(find(SideRequest(**json.loads(told)), lambda: print("ready", flush=True))), flush=True)
