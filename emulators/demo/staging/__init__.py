"""What a run stands on: its directory, its processes and its services, and what makes these fail.

    stage.py             begin here: the options, the directory of a run, and the embedded backend
    troupe.py            the processes: started, killed, stopped and started again
    interpreters.py      which code a process runs: this checkout's, or the last release's
    feed_processes.py    the change feed's processes, and what they published in the end
    emulators.py         the backend on the emulators of Bigtable and GCS; gcs.py runs one of them
    servers.py           the backend in PostgreSQL and S3
    weather.py           the faults of the services; relay.py does them to connections
"""
