"""The changelog in Bigtable, and the client of Bigtable that the rows of `tiered/bigtable` use, too.

    log.py            `BigtableChangeLog`: begin here
    channel.py        one table: raw calls, and the one place where Bigtable's errors become ours
    pool.py           warm connections, replaced as they age
    row_merge.py, row_scan.py, column_scan.py     ReadRows answers become rows, or columns of text; no I/O
    group_commit.py   single writes that come at the same time share a call
    shared_reads.py   and so do reads of single rows

Outside of the emulators, Google's packages may be imported only here, in `tiered/provision` and in
`changelog/google/tokens.py`; `google_crc32c` also in `tiered/payload/crc32c.py`.
"""
