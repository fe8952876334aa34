"""The high-volume tier in a Bigtable table: `rows.py` (begin here), `redirects.py` (tombstones in bulk), `cells.py` (names, filters).

It speaks through `changelog/bigtable/channel.py`, which also turns Bigtable's errors into ours. Knows nothing of GCS.
"""
