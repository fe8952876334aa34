"""Both tiers in one directory: `rows.py` (SQLite) and `blobs.py` (files).

    rows.py       the high-volume tier in `tiered.db`
    blobs.py      the long-term tier in `blobs/`: begin here; what blocks is in tree.py and walk.py, and runs in threads
    file.py       a blob's path and bytes (pure)
    garbage.py    finds and removes the files that nothing names

Knows nothing of Bigtable and GCS, and loads none of Google's packages.
"""
