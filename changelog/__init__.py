"""The write-ahead log of changes, and what everything else rests on.

    log.py        begin here: what every changelog must do
    key_values.py the small key-value store beside its entries
    change.py     a change, its id, and its entry in the log
    lease.py      who may go on with an entry, who may take it over (pure); heartbeat.py renews
    noop.py       the changelog that keeps nothing
    base/         time and chance, errors, events, tasks, threads
    sqlite/       the changelog of embedded mode, and its database
    bigtable/     the changelog in Bigtable, and the client of Bigtable's data API
    postgres/     the changelog in PostgreSQL, and the pool of connections to it
    google/       the tokens that all clients of Google's services need

Nothing here knows of rows, blobs or recovery.
"""

PART_OF = "tiered"
"""Tells this package from another's of the same name (`tiered/own.py`)."""
