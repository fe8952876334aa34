"""What the buckets of GCS and S3 have in common: whose they are, and how blobs and rows are named in them.

    owners.py       whose blobs a bucket holds: the markers (pure)
    owned.py        the blobs of one store in a bucket, below its prefix
    blob_entries.py a blob's metadata as entries beside it (pure)
    row_keys.py     ranges of rows in the order of their keys
"""
