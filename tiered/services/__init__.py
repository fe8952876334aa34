"""What a tier must offer, and how it is asked. docs/architecture.md tells it in words.

    backends.py     what a put and a get need of the two tiers; begin here to add a backend
    scans.py        what listings and audits need of them besides
    capabilities.py what only some backends can do
    paging.py       what each listing of a service must keep; what does not is no evidence
    retry.py        which errors are tried again, and when
    breaker.py      which services are away, so that calls to them fail at once
    guarded.py      how the store asks each service: breaker and retries around a call
    concurrent.py   several things at once, of which the first error counts

Knows no backend by name: `embedded`, `bigtable`, `postgres`, `gcs` and `s3` implement what stands in `backends.py`.
"""
