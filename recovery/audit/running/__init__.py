"""A whole audit: what is compared, by which workers, and how it goes on after it was interrupted.

    run.py           begin here: a whole audit, new or interrupted
    plan.py          which ranges there are, up to what time they are judged, and whether a run is of this store
    cuts.py          where the names of a bucket can be cut, so that many workers share them
    jobs.py          what an engine receives and returns
    local.py         an engine: worker processes of this machine
    cluster.py       an engine: Spark; java.py, spark_daemon.py: the Java and the daemon of a local one
    canary.py        one small task first, if workers are on other machines
    stuck.py         entries of the changelog that wait for an operator
    interrupts.py    SIGINT and SIGTERM

Knows nothing of the command line and of deletions.
"""
