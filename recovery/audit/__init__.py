"""The audit compares every blob with every tombstone and every entry of the changelog, while the store is in use.

    sweeping/        begin here: one range of names is compared. It uses no engine and no files
    finding_classes.py    what a blob or a row is: decision tables without I/O
    finding.py       what the audit of a range yields
    names.py         how names are read, and which rows may name a blob of a range
    plan.py          which ranges there are, and up to what time they are judged; cuts.py: where a bucket can be cut
    run.py           a whole audit, new or interrupted
    work.py          what an engine receives and returns; local.py and cluster.py (Spark) are the engines; java.py
    spark_daemon.py  the daemon from which the workers of a local Spark are forked
    canary.py        one small task first, if workers are on other machines
    manifest.py      what a run is, and what it found; files/: what else it leaves, and how that is believed
    reporting/       what people read of a run, and other programs of its findings
    stuck.py         entries that wait for an operator
    interrupts.py    SIGINT and SIGTERM; errors.py: the only error of its own
    inventory/       takes the blobs from a report instead of a listing: another engine
    deleting/        deletes what a run found, on an operator's word, and brings it back

Only `deleting/` deletes. Knows nothing of the recovery loop and of the command line.
"""
