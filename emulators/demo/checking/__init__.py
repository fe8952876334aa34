"""The independent check: what must be true of what is stored, and of what callers were told. It runs no product code.

    check.py           begin here: compares rows with blobs, and what is stored with what callers were told
    stored_files.py    reads what is stored in a directory
    google.py          reads what is stored in the emulators, with Google's own clients
    servers.py         reads what is stored in PostgreSQL and S3
    published.py       reads what the change feed published
"""
