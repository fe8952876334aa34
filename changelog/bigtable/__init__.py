"""The changelog in Bigtable, and the client that it shares with the rows of `tiered/bigtable`.

    log.py            `BigTableChangeLog`: begin here
    channel.py        one table: raw calls, and the one place where Bigtable's errors become ours
    pool.py           warm connections, replaced as they age
    row_merge.py, row_scan.py     ReadRows answers become rows; no I/O
    group_commit.py   single writes that come at the same time share a call

Only here, in `tiered/provision` and in `tiered/gcs/auth.py` may Google's packages be imported.
"""
