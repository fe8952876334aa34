"""The long-term tier in a bucket of Google Cloud Storage.

    blobs.py     `GcsBlobs`: begin here
    upload.py    uploads under way
    format.py    a blob's metadata as the service's JSON (pure)
    http.py      requests, and the one place where the service's errors become ours
    auth.py      credentials

Knows nothing of Bigtable.
"""
