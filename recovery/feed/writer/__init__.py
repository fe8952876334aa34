"""The writer of the change feed: a live, restartable stream of which object references which blob.

    writer.py       begin here: one transaction, from the hints to the commit
    changes.py      what is read for it: hints, the rows of their objects, a page of all rows; and what differs
    stored.py       what the writer keeps in the changelog: staged files, the journal, the published index
    checkpoint.py   one note, changed by compare-and-swap: what is committed
    delivery.py     each sink at its own pace; positions.py: how far each of them is; owner.py: whose feed it is
    cleaning.py     what the store left to do: old blobs are deleted once their -1 is committed
    source.py       the statistics of the feed
    supervisor.py   all of it as one process, and who of two writers works
    overdue.py      the bound: recovery cleans up what waited too long for a feed

Knows the store and the changelog; the rest of `recovery.feed` knows neither. docs/feed-writer.md explains the protocol.
"""
