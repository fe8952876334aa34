"""A side of the audit's figures, in a process of its own: `python -m benchmarks.audit_side audit_sets '{"names": …}'`.

    audit_sweep    `audit_range` over all names, in one task of one process
    audit_local    its ranges as in `tiered audit run`, in `slots` worker processes; findings go to Parquet
    audit_spark    the same on a local Spark with `slots` slots
    audit_join     the same sources as two DataFrames (mapInArrow), a full outer join on the name,
                   a local Spark with `slots` slots
    audit_sets     google-cloud-storage's `list_blobs` with `fields`, Bigtable's data client with a filter,
                   two Python sets
    audit_duckdb   an anti-join each way of two Parquet files that somebody has exported: nothing is listed or scanned

Only the first three fix a cut-off, read the changelog and look again. The others would call a blob an orphan that is
being written. A side is a module with `find(asked, ready)`. It prints `ready` when `find` calls that: all is loaded,
and a Spark session is open. Then it prints what it found, and its own CPU since.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from benchmarks.servers import INSTANCE, PROJECT
from tiered.settings import BigtableSettings, GcsSettings, Settings

Found = tuple[int, int]
"""The number of orphans and of dangling tombstones."""

Ready = Callable[[], None]
GRACE_S = 86_400.0
RANGE_NAMES = 100_000


@dataclass(frozen=True)
class SideRequest:
    """What a side is asked to do. `host` and `url`: of Bigtable and GCS.

    `directory`: for other files that it reads or writes.
    """

    names: int
    host: str
    url: str
    directory: str
    slots: int = 1

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

    def exported(self, what: str) -> Path:
        return Path(self.directory) / f"{self.world}-{what}.parquet"


class AuditCpuClock:
    """Measures this process's CPU, in seconds since `start`."""

    def __init__(self) -> None:
        self._started_s = 0.0

    def start(self) -> None:
        print("ready", flush=True)
        self._started_s = time.process_time()

    def seconds(self) -> float:
        return time.process_time() - self._started_s


def main(side: str, told: str) -> None:
    clock = AuditCpuClock()
    find: Callable[[SideRequest, Ready], Found] = import_module(f"benchmarks.{side}").find
    found = find(SideRequest(**json.loads(told)), clock.start)
    print(json.dumps({"found": found, "cpu_s": clock.seconds()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
