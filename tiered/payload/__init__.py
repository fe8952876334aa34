"""What a caller passes to `put`, as a stream of pieces of bytes.

    streams.py      begin here: every kind of payload becomes an async iterator of pieces
    pieces.py       small pieces are joined; the head that may be stored inline is split off
    files.py        files and synchronous iterators, in threads
    own_thread.py   a thread of its own for what may block for ever

Knows nothing of rows and blobs.
"""
