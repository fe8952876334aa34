"""What a store needs before it is opened: `tiered provision` makes it, `tiered check` looks at it.

    bigtable_and_gcs.py     begin here: Bigtable and GCS together
    schema.py               families, GC rules, the bucket's rules (pure)
    tables.py, bucket.py    look at one service each, and mend what may be mended
    embedded_store.py       an embedded store
    findings.py             what a look finds, in words

A store that is open does not use this folder. `tiered/production.py` uses it while it opens one.
"""
