"""Servers of the S3 API that others wrote and keep; the adapter runs against each, because each has its own bugs.

    servers.py    starts them
    faults.py     a proxy before one, which answers as an S3 service does when it fails

Knows nothing of the tier. How they differ from S3 is said where that matters, in tests/contracts/conftest.py.
"""
