"""The audit compares every blob with every tombstone and every entry of the changelog, while the store is in use.

    verdicts    what a blob or a row is: decision tables without I/O
    names       how names are read, and which rows may name a blob of a range
    sweep       one range of names: list, read the log, scan the rows, compare, look again
    plan        which ranges there are
    manifest, ledger, directory      what a run leaves in its directory
    local, cluster (Spark), work     who audits the ranges
    run                              a whole audit
    conclusion, report, words, show  what a person reads
"""
