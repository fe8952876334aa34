"""A store on Bigtable in memory and on our server of the GCS API, as lines and back. Rows and log share a table."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from changelog.bigtable.channel import BigtableTable
from changelog.bigtable.log import BigtableChangeLog
from changelog.bigtable.row_merge import Cell
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from emulators.gcs.objects import parse_time
from emulators.gcs.server import GcsEmulator
from emulators.gcs.store import Bucket
from tests.golden.clock import GoldenRuntime
from tests.golden.contents import INLINE_BYTES_MAX
from tiered import Settings, TieredStorage
from tiered.bigtable.rows import BigtableRows
from tiered.gcs.blobs import GcsBlobs
from tiered.open import Backends
from tiered.provision.schema import FAMILIES
from tiered.services.backends import Tiers

TABLE, BUCKET = "objects", "blobs"
SETTINGS = Settings(directory=Path("unused"), changelog="sqlite", inline_bytes_max=INLINE_BYTES_MAX)
"""Where the tiers are is nobody's business here: they are given."""


@dataclass(frozen=True, slots=True)
class Services:
    storage: TieredStorage
    backends: Backends
    server: MemoryBigtable
    bucket: Bucket

    def lines(self) -> list[dict[str, Any]]:
        """All cells of all rows, then all blobs with what the service tells of them."""
        rows = [
            {"row": key.decode(), "cells": [[each.family, each.column.decode(), each.timestamp_us, _text(each.value)] for each in cells]}
            for key, cells in sorted(self.server.tables[TABLE].rows.items())
        ]
        blobs = [
            {"blob": name, "resource": stored.resource(), "payload": _text(stored.payload)}
            for name, stored in sorted(self.bucket.objects.items())
        ]
        return [*rows, *blobs]


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()


@asynccontextmanager
async def services(runtime: GoldenRuntime, lines: Iterable[dict[str, Any]] = ()) -> AsyncIterator[Services]:
    """Opens a store. `lines`: what is in it."""
    server = MemoryBigtable(runtime, {TABLE: FAMILIES})
    table = BigtableTable(MemoryChannel(server), TABLE)
    async with GcsEmulator(runtime=runtime) as gcs:
        bucket = gcs.create_bucket(BUCKET)
        for line in lines:
            _load(line, server, bucket, runtime)
        async with GcsBlobs.connect(BUCKET, runtime, endpoint=gcs.url) as blobs:
            backends = Backends(Tiers(BigtableRows(table, runtime), blobs), BigtableChangeLog(table, runtime))
            async with TieredStorage(backends.tiers, backends.log, runtime, SETTINGS) as storage:
                yield Services(storage, backends, server, bucket)


def _load(line: dict[str, Any], server: MemoryBigtable, bucket: Bucket, runtime: GoldenRuntime) -> None:
    """Puts back a row or a blob. A blob keeps its times and its generation."""
    if "row" in line:
        cells = tuple(Cell(family, column.encode(), at_us, b64decode(value)) for family, column, at_us, value in line["cells"])
        server.tables[TABLE].put(line["row"].encode(), cells)
        return
    told = line["resource"]
    stored = bucket.insert(line["blob"], b64decode(line["payload"]), told, {}, (), runtime.wall_ns(), whole="md5Hash" in told)
    bucket.objects[line["blob"]] = replace(
        stored, generation=int(told["generation"]), metageneration=int(told["metageneration"]),
        created=parse_time(told["timeCreated"]), updated=parse_time(told["updated"]),
    )  # fmt: skip
