"""A server of GCS's JSON and XML APIs in memory.

    server.py                      `GcsEmulator`: begin here
    service.py                     what each call does, without I/O, and the objects of the JSON API
    uploads.py, sessions.py        uploads in one request and in sessions
    buckets.py                     the buckets of the JSON API
    xml.py                         objects of the XML API
    parts.py                       uploads of several parts, by the XML API
    store.py, objects.py           what is stored: a bucket with all generations, and one generation
    listing.py, lifecycle.py       pages of a listing; what a rule deletes
    conditions.py, signatures.py   preconditions; V4 signatures of addresses
    media.py, shown.py             downloads; how an object is shown, and read from headers
    routes.py, wire.py             which calls there are, and what may be said in each; one request
    bodies.py, answers.py          bodies of the JSON API; answers, and refusals in either form
    wire_faults.py                 what may go wrong on the wire
    fake_gcs_server.py             runs the server of this kind that others keep
"""
