"""The status of a store: does recovery keep up, is anything wrong, what should an operator type?

    known.py        Status: all that is known of a store              begin here
    judgement.py    judge(status) -> level, answer, what to type, exit code: the table of all that may be so
    look.py         gather(backends, settings, runtime) -> Status     reads the store, and writes nothing
    opened.py       open_to_look: the backends for that, also while a service is down
    feed.py         the state of the change feed
    as_json.py      status and judgement as plain JSON, for programs and for the status page

It claims only what it has seen: what could not be read is None and not 0, and a sentence in `Status.problems` says why.
"""
