"""The protocol: how two tiers that share no transaction lose nothing. docs/architecture.md tells it in words.

    backends.py     what a put and a get need of the two tiers; begin here to add a backend
    scans.py        what listings and audits need of them besides
    capabilities.py what only some backends can do
    writing.py      the life of a write, step by step; begin here to follow a put
    conditions.py   what must be there for a write to take effect
    assembling.py   uploads that stay open, until somebody completes them
    appending.py, completed.py   how far one has come that is appended to; what one was completed with (pure)
    under_way.py    the tasks in which writes run, the answer to the caller, the drain
    finishing.py    what is left to do after the answer, by the writer or by recovery
    reading.py      from the row, through its tombstone, past an overwrite
    lanes.py        the bytes of a large object, in several ranges at once
    checked_ranges.py  compares what was read with the crc32c that a service keeps
    dangling.py     what readers found lost, noted so that it stays known
    note_fields.py  reads a note of the changelog strictly
    feed_off.py     notes that a process keeps nothing for the change feed
    listing.py      entries of a prefix, folders, pages and their tokens
    paging.py       what each listing of a service must keep; what does not is no evidence
    admission.py    how many operations run at once, and how many wait
    policies.py     what the settings allow a usecase: lifetimes, sizes, and rates; rate.py: a token bucket
    breaker.py      which services are away, so that calls to them fail at once
    guarded.py      the services as the store asks them: breaker and retries around each call, built once
    upload_lanes.py one stream that goes up in parts, several at once, to a service that takes parts
    part_lists.py   lists of parts: what a caller, the service and the blob say of them must agree (pure)
    arrival.py      what says that bytes arrived as they were sent
    resuming.py     what an upload goes on with after a cut
    blob_entries.py a blob's metadata as entries beside it (pure)
    owners.py       whose blobs a bucket holds: the markers (pure)
    owned.py        the blobs of one store in a bucket, below its prefix
    retry.py, concurrent.py, row_keys.py     what these need

Knows no backend by name: `embedded`, `bigtable`, `gcs` and `s3` implement what stands in `backends.py`.
"""
