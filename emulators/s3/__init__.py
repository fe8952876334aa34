"""Servers of the S3 API: those that others wrote and keep, each with its own bugs, and one in memory.

    servers.py    starts the first
    ceph.py       starts Ceph's gateway
    faults.py     a proxy before one, which answers as an S3 service does when it fails
    memory.py     `MemoryS3`, for any event loop and virtual time
    stack.py      the real adapter on it, in a simulated world: linked.py is a process's connection, and adapter.py
                  what it has on it

How they differ from S3 is said where that matters, in tests/contracts/conftest.py.
"""
