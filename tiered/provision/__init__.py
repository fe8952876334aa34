"""What a store needs before it is opened: `tiered provision` makes it, `tiered check` looks at it.

    production.py   begin here: Bigtable and GCS together
    schema.py       families, GC rules, the bucket's rules (pure)
    tables.py, bucket.py     one look at each service, and what may be mended
    directory.py    an embedded store
    findings.py     what a look finds, in words

Stores that are open do not import this folder; opening one (`tiered/production.py`) does.
"""
