"""The status of a store: does recovery keep up, is anything wrong, what should an operator type?

    look.py       gather(backends, settings, runtime) -> Status     reads the store, and writes nothing
    known.py      Status: all that is known of a store              begin here
    advice.py     headline: the answer, in one sentence; orders: what to type, and why; advice about a stuck entry
    feed.py       the same of the change feed
    as_json.py    the same as plain JSON, for programs and for the status page

It claims only what it has seen: what could not be read is None and not 0, and a sentence in `Status.problems` says why.
"""
