"""Embedded mode's database, and the changelog in it.

    log.py         `SqliteChangeLog`: begin here
    database.py    one SQLite file, which the rows of `tiered/embedded` share
    forks.py       what a forked process must not open
"""
