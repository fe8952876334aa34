"""Both tiers in one directory: rows in SQLite, blobs in files.

    rows.py       the high-volume tier in `tiered.db`
    blobs.py      the long-term tier in `blobs/`: begin here; its blocking parts are in tree.py and walk.py and run in threads
    file.py       a blob's path and bytes (pure)
    garbage.py    finds and removes the files that nothing names

Knows nothing of Bigtable and GCS, and loads none of Google's packages.
"""
