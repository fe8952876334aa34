"""Both tiers in one directory: rows in SQLite, blobs in files.

    blobs.py      the long-term tier in `blobs/`: begin here
    blob_files.py, part_files.py, blob_listing.py     the blocking parts of blobs.py, which run in threads
    rows.py       the high-volume tier in `tiered.db`
    file.py       a blob's path and bytes (pure); crc32.py: the checksum of these
    garbage.py    finds and removes the files that nothing names

Knows nothing of Bigtable and GCS, and loads none of Google's packages.
"""
