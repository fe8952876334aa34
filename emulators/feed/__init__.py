"""What a failed transaction leaves behind in a change feed: a model of its writer, with the real readers.

    transactions.py    begin here: a writer that dies at any step, in the two orders of its steps
    table.py           channels and readers, what a reader got wrong, and the table of docs/feed.md
    reference.py       the reference reader, which refuses nothing
    __main__.py        `python -m emulators.feed` runs 3,000 schedules and prints the table

It knows `recovery.feed`, and nothing of a store: what the live references are is made up from a seed.
"""
