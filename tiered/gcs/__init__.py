"""The long-term tier in a bucket of Google Cloud Storage.

    blobs.py           `GcsBlobs`: begin here
    owned.py           `OwnedBlobs`: those of one store, below its prefix (`tiered/buckets/owned.py`)
    upload.py          uploads under way
    pipe.py            the body of an upload on its way to its request
    stored.py          whether a new blob is what was sent
    parts.py           uploads in parts, which any process may go on with
    copies.py          copies that the service makes itself
    signed_urls.py     the signed address of a blob, or of a part of an upload (pure)
    answers.py         whose answer: what each call's looks like if it is the service's own (pure)
    format.py          a blob's metadata as the service's JSON (pure)
    batches.py         several calls in one request (pure)
    http.py            requests, and the errors that the service's answers become
    bucket_files.py    small files that are no blobs, such as those of a change feed

Other modules give some statuses another meaning: upload.py and parts.py to those of an upload, blobs.py to 404. Knows
nothing of Bigtable. Credentials are `changelog/google`'s.
"""
