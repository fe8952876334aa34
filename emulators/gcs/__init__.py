"""A server of GCS's JSON API in memory.

    server.py                  `GcsEmulator`: begin here
    service.py                 what each call does, without I/O; media.py: downloads
    xml.py, parts.py           a part of the XML API; its uploads of several parts
    signatures.py              V4 signatures of addresses
    store.py, sessions.py      buckets and objects; resumable uploads
    wire.py, wire_faults.py    requests and answers; what may go wrong between
    fake_gcs_server.py         runs the server of this kind that others keep
"""
