"""Where a change feed is delivered. A sink keeps what it acknowledged, and readers read it there.

    sink.py     the protocol; begin here

A sink knows nothing of the store, the changelog or the writer. `writer` decides what is delivered, and when again.
"""
