"""What `tiered prove` tries of the store's three parts: one row for each assumption of docs/protocol.md.

    bench.py       begin here: both tiers and the log of a trial, opened twice, and what each call took
    rows.py, blobs.py, entries.py     the tables
        blob_calls.py, blob_uploads.py, blob_reads.py, blob_metadata.py     the probes of blobs
    calm.py        what each call takes where nobody else calls
"""
