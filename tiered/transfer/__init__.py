"""Large payloads on their way: in ranges and parts, several at once, after a cut from where they were.

    lanes.py          the bytes of a large object, in several ranges at once
    reading.py        one stream of a blob in a bucket, or several ranges, compared with its crc32c
    counted.py        what every upload counts and refuses
    upload_lanes.py   one stream that goes up in parts, several at once, to a service that takes parts
    parts.py          uploads in parts, whose sessions and lists are alike in GCS and S3
    uploads.py        what the uploads of a bucket share, and those in parts that any process may go on with
    part_lists.py     lists of parts: what a caller, the service and the blob say of them must agree (pure)
    arrival.py        what says that bytes arrived as they were sent
    resuming.py       what an upload goes on with after a cut
"""
