"""The demo: real processes are killed while they work, and an independent check says whether anything was lost.

    command.py     begin here: one run from its options to its verdict
    director.py    one run step by step: which process is started, killed or stopped, and when
    stage.py       the options, the directory of a run, and the embedded backend
    emulators.py   the same on the emulators of Bigtable and GCS; gcs.py runs one of them
    troupe.py      the processes; writer.py and daemon.py are what they run
    soak.py        processes that are spared, and must not grow; status_check.py compares the status with what is stored
    product.py     runs a command of the product as a process
    load.py        which operations a writer does
    feed.py        the change feed: its processes; published.py reads what they published, for the check
    journal.py     what callers were told, written down by each process
    check.py       compares what is stored with what callers were told; it runs no product code
    files.py, google.py    read what is stored, for the check: from files, and with Google's own client
    weather.py     faults of the services; relay.py, network.py: what they do to connections and calls
    unfenced.py    the published protocol, for comparison
    audit.py       the audit at the end

Begin with command.py. Nothing imports this folder but `emulators.__main__` and the tests.
"""
