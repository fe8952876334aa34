"""What happens after a crash: the recovery loop and its daemon, the audit, and the command line on top of everything.

    loop.py       begin here: claims the entries of processes that died, and finishes their changes
    daemon.py     runs the loop until a signal; collects the garbage of embedded mode
    entries.py    reads all entries of a changelog
    rate.py       how many entries may be begun per second
    visible.py    makes text of others safe for a terminal
    audit/        compares all blobs with all rows
    cli/          the `tiered` command

The loop and the daemon know no backend: they are given a store's tiers and its changelog. `audit/` and `cli/` open them
by `tiered.open`. The log and the store know nothing of this folder.
"""
