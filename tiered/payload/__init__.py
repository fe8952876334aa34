"""What a caller passes to `put`, as a stream of chunks of bytes; and where `save` writes them.

    streams.py         begin here: every kind of payload becomes an async iterator of chunks
    chunks.py          joins small chunks; splits off the head, which may be stored inline
    in_threads.py      reads files and synchronous iterators in threads
    checksums.py       computes what the caller declared, and compares; crc32c.py: that of blobs
    zstd.py            compresses and decompresses; compressed.py: a payload that is compressed while it is read
    crcs.py            the checksum of a whole from those of its parts
    content_type.py    the content type that the name of a file tells
    destinations.py    files and buffers that `save` writes to
    own_thread.py      a thread of its own for a call that may block for ever

Knows nothing of rows and blobs.
"""
