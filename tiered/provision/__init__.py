"""What a store needs before it is opened: `tiered provision` makes it, `tiered check` looks at it.

    schema.py               families, GC rules, the bucket's rules (pure)
    tables.py, bucket.py, s3.py     look at one service each, and mend what may be mended
    owner.py                whose blobs a bucket holds, and how it is given to a store (pure)
    probes.py               how a service is tried, by a table of probes: held, not held, not tried
    s3_probes.py            tries what a service of S3 does, by a table
    gcs_probes.py           the same of GCS, only for `tiered prove`
    s3_bench.py             where it tries: names, requests, and the end of all that it made
    postgres.py             the schema in PostgreSQL, and the rights of roles
    embedded_store.py       an embedded store
    findings.py             begin here: what a look finds, in words

A store that is open does not use this folder. `tiered/kinds/` uses it, also while it opens one.
"""
