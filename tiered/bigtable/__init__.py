"""The high-volume tier in a Bigtable table.

    rows.py         `BigtableRows`: begin here
    redirects.py    tombstones in bulk, for audits
    spans.py        which keys may be of objects
    cells.py        names of families and columns, and filters

Requests go through `changelog/bigtable/channel.py`, which also turns Bigtable's errors into ours. Knows nothing of GCS.
"""
