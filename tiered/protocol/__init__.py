"""The protocol: how two tiers that share no transaction lose nothing. docs/architecture.md tells it in words.

    writing.py      the life of a write, step by step; begin here to follow a put
    conditions.py   what must be there for a write to take effect
    assembling.py   uploads that stay open, until somebody completes them
    open_upload.py  what their entries keep (pure)
    appending.py, completed.py   how far one has come that is appended to; what one was completed with (pure)
    under_way.py    the tasks in which writes run, the answer to the caller, the drain
    finishing.py    what is left to do after the answer, by the writer or by recovery
    reading.py      from the row, through its tombstone, past an overwrite
    listing.py      entries of a prefix, folders, pages and their tokens

What it needs of the tiers stands in `tiered/services`.
"""
