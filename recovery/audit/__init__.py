"""The audit compares every blob with every tombstone and every entry of the changelog, while the store is in use.

    sweeping/            begin here: one range of names is compared
    finding_classes.py   what a blob or a row is: decision tables without I/O
    finding.py           what the audit of a range yields
    names.py             how names are read, and which rows may name a blob of a range
    manifest.py          what a run is, and what it found
    errors.py            the only error of its own
    files/               what a run leaves in its directory, and whether that may be believed
    reporting/           what people read of a run
    running/             a whole audit: the plan, the engines (processes of this machine, Spark), interruptions
    deleting/            deletes what a run found if an operator asks for it, and brings it back

Only `deleting/` deletes; all else reads. Knows nothing of the recovery loop and of the command line.
"""
