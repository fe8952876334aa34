"""For each service that can hold rows or blobs: what opens it, names it, looks at it and makes what it needs.

    chosen.py                begin here: which kinds the settings choose, and what is done with both
    kind.py                  what a kind must do: `RowsKind` and `BlobsKind`
    directory.py             SQLite and files
    bigtable.py, postgres.py rows in a service, and the changelog beside them
    gcs.py, s3.py            blobs in a bucket; bucket.py: what both have in common
    preloaded.py             imports their clients ahead, for processes that are forked

Nothing else in this project names a service to choose what is done. So a kind of somebody else's package, an entry
point of the group `tiered.kinds`, works with all commands, the daemon and the audit.
"""
