"""What a user would write instead of the audit, each in a process of its own: `python -m benchmarks.audit_peers PEER NAMES HOST URL DIR`.

    sets      google-cloud-storage's `list_blobs` with `fields`, Bigtable's data client with a filter, two Python sets
    duckdb    an anti-join each way of two Parquet files that somebody has exported: no listing, no scan

Nobody fixes a cut-off here, reads the changelog, or looks again: what is written right now they would call an orphan. Each prints
`ready` when it has loaded what it needs, then how many orphans and dangling tombstones there are.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.servers import INSTANCE, PROJECT

Found = tuple[int, int]
"""Orphans, and dangling tombstones."""

BLOBS, ROWS = "blobs.parquet", "rows.parquet"


def ready() -> None:
    print("ready", flush=True)


def by_sets(names: int, host: str, url: str, directory: Path) -> Found:
    os.environ["BIGTABLE_EMULATOR_HOST"] = host
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from google.cloud.bigtable.data import BigtableDataClient, ReadRowsQuery
    from google.cloud.bigtable.data.row_filters import CellsColumnLimitFilter, ColumnQualifierRegexFilter, RowFilterChain

    client = storage.Client(PROJECT, AnonymousCredentials(), client_options={"api_endpoint": url})  # type: ignore[no-untyped-call]
    with BigtableDataClient(project=PROJECT) as data, data.get_table(INSTANCE, f"names-{names}") as table:
        ready()
        fields = "items(name,size,generation,timeCreated),nextPageToken"
        blobs = {blob.name for blob in client.list_blobs(f"names-{names}", fields=fields)}
        query = ReadRowsQuery(row_filter=RowFilterChain([ColumnQualifierRegexFilter(b"r"), CellsColumnLimitFilter(1)]))
        targets = {row.cells[0].value.decode() for row in table.read_rows_stream(query)}
    return len(blobs - targets), len(targets - blobs)


def by_duckdb(names: int, host: str, url: str, directory: Path) -> Found:
    import duckdb

    database = duckdb.connect()
    database.execute("SET threads = 1")
    ready()
    blobs, rows = (f"'{directory / f'{names}-{each}'}'" for each in (BLOBS, ROWS))
    orphans = database.sql(f"SELECT count(*) FROM {blobs} b ANTI JOIN {rows} r ON b.name = r.name").fetchall()
    dangling = database.sql(f"SELECT count(*) FROM {rows} r ANTI JOIN {blobs} b ON b.name = r.name").fetchall()
    return orphans[0][0], dangling[0][0]


def export(names: int, directory: Path) -> None:
    """What DuckDB is given."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    from benchmarks.audit_world import NAME_BYTES, PER_PROJECT, World, blobs_among, names_of, rows_among

    for file, among in ((BLOBS, blobs_among), (ROWS, rows_among)):
        with parquet.ParquetWriter(directory / f"{names}-{file}", pa.schema([("name", pa.string())])) as writer:
            for start in range(0, World(names).names, PER_PROJECT):
                lines = names_of(among(np.arange(start, min(names, start + PER_PROJECT))))
                fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(NAME_BYTES), len(lines), [None, pa.py_buffer(lines.tobytes())])
                writer.write_table(pa.table({"name": fixed.cast(pa.binary()).cast(pa.string())}))


PEERS: dict[str, Callable[[int, str, str, Path], Found]] = {"sets": by_sets, "duckdb": by_duckdb}

if __name__ == "__main__":
    peer, how_many, address, endpoint, place = sys.argv[1:]
    print(json.dumps(PEERS[peer](int(how_many), address, endpoint, Path(place))), flush=True)
