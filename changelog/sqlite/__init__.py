"""Embedded mode's database, and the changelog in it.

    log.py         `SqliteChangeLog`: begin here
    database.py    `Database`: one SQLite file, which the rows of `tiered/embedded` share

What `Database` is made of, each of what stands below it:

    write_thread.py    writes that wait at the same time go to one transaction, in one thread
    transactions.py    several writes in it, of which each fails alone; what a full disk allows
    connections.py     the file is opened, signed and closed
    checkpoints.py     when SQLite's log is copied into the file, so that no SQLite loses a commit
    schema.py          whose file it is, its format, the tables that it must have
    result_codes.py    the one table that translates SQLite's codes
    disk.py            its directory, its free space, its reserve
    forks.py           what a forked process must not open

And for others: temporary.py has tables that do not fit into memory.
"""
