"""The audit: compares every blob with every reference while the store is in use, and is right about it.

    verdicts    what a blob or a row is: pure tables
    names       how names are read, and which rows may name a blob of a range
    sweep       one range of names: list, read the log, scan the rows, merge, look again
    plan        which ranges; ledger, manifest: what a run leaves in its directory
    local, cluster (Spark): who carries the ranges out; run: all of it; report, words, show: what a person reads
"""
