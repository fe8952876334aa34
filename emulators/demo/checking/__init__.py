"""The independent check: what must be true of what is stored, and of what callers were told.

It runs no code of the store. What may be seen after what was told, it judges as `tiered prove` does: by the rules of
`recovery/prove/judge.py`, which know nothing of the store, either.

    check.py           begin here: compares rows with blobs, and what is stored with what callers were told
    stored_files.py    reads what is stored in a directory
    google.py          reads what is stored in the emulators, with Google's own clients
    servers.py         reads what is stored in PostgreSQL and S3
    told.py            what callers were told, as a history that others can judge
    published.py       reads what the change feed published
"""
