"""The long-term tier in a bucket of an S3 service: AWS, or what speaks its API.

    blobs.py     `S3Blobs`: begin here
    owned.py     `OwnedS3Blobs`: those of one store, below its prefix (`tiered/buckets/owned.py`)
    upload.py    an upload that is one request
    parts.py     uploads in parts: S3's multipart uploads
    listings.py  objects, versions, uploads and parts, page by page
    amendments.py   metadata that were known only at the end of a session
    arrival.py   what the service is asked about bytes that arrived
    copies.py    copies that the service makes itself, part by part
    garbage.py   what has expired, and what lies beside blobs that are gone
    format.py    a blob's metadata as headers, its generation, the names beside it (pure)
    bucket_files.py   small files that are no blobs, such as those of a change feed
    client.py    requests; the only module that knows aiobotocore
    answers.py   whether an answer is the service's own, by its shape (pure)
    errors.py    what the service's refusals mean (pure)

Uploads in lanes are `tiered/transfer`'s, and ownership is `tiered/buckets`'. Knows nothing of other tiers. Credentials
are found by aiobotocore's usual chain.
"""
