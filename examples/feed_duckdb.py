"""Shows what a change feed in files references, by DuckDB alone: only what is complete.

    python examples/feed_duckdb.py /var/feed            # the folder with the folders generation-…; files are JSON

The folder with the greatest number is the feed. Until its frontier is past 1, its first pass is not complete, and the
folder before it is shown.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

SHOWN = (Path(__file__).parent / "feed_view.sql").read_text()

RELATIONS = """
    CREATE OR REPLACE TEMP VIEW message AS FROM read_json(getvariable('files'),
        format = 'newline_delimited', maximum_object_size = 67108864, columns = {
            'array': 'STRUCT(data STRUCT(object VARCHAR, blob VARCHAR), "time" BIGINT, diff BIGINT)[]',
            'com.materialize.cdc.progress':
                'STRUCT(lower BIGINT[], upper BIGINT[], counts STRUCT("time" BIGINT, "count" BIGINT)[])'});
    CREATE OR REPLACE TEMP VIEW feed_update AS
        SELECT DISTINCT u.data.object AS object, u.data.blob AS blob, u.time AS t, u.diff
        FROM (SELECT unnest("array") AS u FROM message);
    CREATE OR REPLACE TEMP VIEW feed_interval AS
        SELECT DISTINCT p.lower[1] AS begins, p.upper[1] AS ends
        FROM (SELECT "com.materialize.cdc.progress" AS p FROM message) WHERE p IS NOT NULL;
    CREATE OR REPLACE TEMP VIEW feed_count AS
        SELECT DISTINCT c.time AS t, c.count AS declared
        FROM (SELECT unnest("com.materialize.cdc.progress".counts) AS c FROM message);
"""


def references(feed: Path) -> tuple[int, dict[str, str]]:
    """Returns the frontier, and the blob of each object. Frontier 0: nothing is complete yet."""
    if not (generations := sorted(feed.glob("generation-*"), reverse=True)):
        raise FileNotFoundError(f"there is no folder generation-… in {feed}: give the place of the feed, and not one of its folders")
    frontier, found = 0, {}
    with duckdb.connect() as connection:
        for generation in generations:
            connection.execute("SET VARIABLE files = ?", [str(generation / "*.json")])
            connection.execute(RELATIONS)
            rows = connection.execute(SHOWN).fetchall()
            frontier, found = rows[0][0], {name: blob for _, name, blob in rows if name is not None}
            if frontier > 1:
                break
    return frontier, found


if __name__ == "__main__":
    until, live = references(Path(sys.argv[1]))
    print(f"{len(live)} references, complete up to {until}")
    for name, blob in live.items():
        print(name, blob)
