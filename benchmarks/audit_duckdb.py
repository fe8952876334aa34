"""What an analyst would do with two exports: an anti-join each way, in DuckDB on one thread.

Nothing is listed or scanned.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from benchmarks.audit_side import Found, Ready, SideRequest
from benchmarks.audit_world import PER_PROJECT, blobs_among, names_of, rows_among

BLOBS, ROWS = "blobs", "rows"


def find(asked: SideRequest, ready: Ready) -> Found:
    import duckdb  # imported here, because a process that only exports does not need it, and it complains when Python ends

    database = duckdb.connect()
    database.execute("SET threads = 1")
    ready()
    counted = [
        database.sql(f"SELECT count(*) FROM '{asked.exported(left)}' ANTI JOIN '{asked.exported(right)}' USING (name)").fetchall()[0][0]
        for left, right in ((BLOBS, ROWS), (ROWS, BLOBS))
    ]
    return counted[0], counted[1]


def export(asked: SideRequest) -> None:
    """Writes what DuckDB is given."""
    for file, among in ((BLOBS, blobs_among), (ROWS, rows_among)):
        with parquet.ParquetWriter(asked.exported(file), pa.schema([("name", pa.string())])) as writer:
            for start in range(0, asked.names, PER_PROJECT):
                lines = names_of(among(np.arange(start, min(asked.names, start + PER_PROJECT))))
                writer.write_table(pa.table({"name": [line.tobytes().decode() for line in lines]}))
