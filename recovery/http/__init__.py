"""What a recovery daemon shows over HTTP: health, metrics, its status as JSON, and a page for people. All read-only.

The receiver of a change feed is here, too: `tiered feed receive` runs it, and no daemon does.

    server.py         binds the port, runs uvicorn beside the loop, and stops with it; begin here
    app.py            the addresses, the headers, what is refused
    sampler.py        looks at the store every few seconds, and keeps the last look and its age
    history.py        the rates and the backlog of the last hours, thinned
    own.py            the memory and the calls of this process
    decisions.py      the last log lines of recovery
    server_view.py    what is shown of all that, as plain JSON
    audits.py         the runs of the audit in one directory
    receiver.py       takes the files of a change feed, and shows them again
    page/             the page: HTML, CSS, JavaScript, and the chart library uPlot

It knows nothing of how recovery works. Nothing that it does, and no failure of it, may stop the recovery loop.
"""
