"""What a store needs before it is opened: `tiered provision` makes it, `tiered check` looks at it.

    schema.py               families, GC rules, the bucket's rules (pure)
    tables.py, bucket.py, s3.py     look at one service each, and mend what may be mended
    postgres.py             the schema in PostgreSQL, and the rights of roles
    embedded_store.py       an embedded store
    findings.py             begin here: what a look finds, in words

A store that is open does not use this folder. `tiered/kinds/` uses it, also while it opens one.
"""
