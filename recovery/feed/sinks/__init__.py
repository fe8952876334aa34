"""Where a change feed is delivered. A sink keeps what it acknowledged, and readers read it there.

    sink.py         the protocol; begin here
    directory.py    a directory of this machine
    bucket.py       a bucket of any cloud
    gcs.py          one of Google Cloud Storage; needs the extra `gcp`
    s3.py           one of an S3 service; needs the extra `s3`
    http.py         a receiver of HTTP PUT; needs the extra `feed`. `recovery.http.receiver` is a small one
    client.py       its requests, and those of registry.py
    records.py      a segment as records, for sinks that keep no files
    kafka.py        a topic of Kafka; needs the extra `kafka`
    registry.py     the number of its schema
    open.py         which of them a text such as `gs://bucket/prefix` names

A sink knows nothing of the store, the changelog or the writer. `writer` decides what is delivered, and when again.
"""
