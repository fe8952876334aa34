"""How many updates a second the writer of the change feed publishes, and how many bytes each takes in a file.

Large objects are put, which leaves hints. Then the writer reads each row, publishes, delivers to a directory, and
forgets the hint. The CPU is that of its process, with the delivery and the clean-up; of Bigtable and GCS it is the
client's part. Nothing else does the same, so these are no ratios: they hold for this machine only.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from benchmarks.harness import RUNTIME, Figures, run_in_flight
from benchmarks.servers import started_servers
from benchmarks.sides import StoreSide
from recovery.feed.files import read_all
from recovery.feed.reader import CdcReader
from recovery.feed.sinks.directory import DirectorySink
from recovery.feed.view import FeedView
from recovery.feed.writer.supervisor import FeedRun
from tiered import ObjectId, Settings
from tiered.open import open_backends
from tiered.settings import FeedSettings, RecoverySettings

HINTS, IN_FLIGHT = 5_000, 16
LARGE, INLINE_BYTES_MAX = bytes(2), 1
STORES: dict[str, Literal["json", "avro"]] = {"embedded, JSON": "json", "embedded, Avro": "avro", "emulators, JSON": "json"}
COLUMNS = ["", "updates per s and core", "CPU, s", "all, s", "bytes per update", "updates read per s and core"]
NOTE = "Read: CdcReader and FeedView, from the files."


async def publish(settings: Settings, objects: int, directory: Path) -> list[str]:
    """Puts the objects, and publishes as `tiered feed run --once` does. Returns the cells.

    Raises `AssertionError` if the view has another size.
    """
    async with StoreSide.open(settings) as side, side.ready():
        await run_in_flight(lambda number: side.store.put(ObjectId.create("bench", f"{number:012}"), LARGE), range(objects), IN_FLIGHT)
    async with open_backends(settings, RUNTIME) as backends:
        run = FeedRun(backends, RUNTIME, settings, {"feed": DirectorySink(directory, RUNTIME)}, once=True)
        wall, cpu = time.perf_counter(), time.process_time()
        await run.run()
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    [folder] = (each for each in directory.iterdir() if each.is_dir())  # beside it lies what readers ask for
    files, updates = sorted(folder.iterdir()), run.written.updates
    began, view, reader = time.process_time(), FeedView(), CdcReader()
    for located in read_all(files):
        if (batch := reader.feed(located.message)) is not None:
            view.add(batch)
    read_s = time.process_time() - began
    assert len(view) == updates, f"the view has {len(view)} references, and {updates} were written"
    of_each = sum(each.stat().st_size for each in files) / updates
    return [f"{updates / cpu_s:,.0f}", f"{cpu_s:.2f}", f"{wall_s:.1f}", f"{of_each:,.0f}", f"{updates / read_s:,.0f}"]


async def figures(size: float) -> list[Figures]:
    rows, hints = [], max(20, round(HINTS * size))
    async with started_servers() as servers:
        for what, form in STORES.items():
            with TemporaryDirectory(prefix="tiered-bench-") as directory:
                where, feed = Path(directory), FeedSettings(enabled=True, to=("a directory",), format=form)
                settings = Settings(directory=where / "store", inline_bytes_max=INLINE_BYTES_MAX, feed=feed)
                if what.startswith("emulators"):
                    recovery, table = RecoverySettings(late_upload_grace_s=1.0), await servers.new_table()
                    settings = servers.settings(table, "bigtable", inline_bytes_max=INLINE_BYTES_MAX, feed=feed, recovery=recovery)
                rows.append([f"{hints:,} new objects, {what}", *await publish(settings, hints, where / "feed")])
    return [Figures("Writing the change feed", COLUMNS, rows, [NOTE])]
