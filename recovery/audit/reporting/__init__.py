"""What people read of a run.

    run_verdict.py   begin here: the result of a run in words and figures, for the report and for the terminal
    report.py        `report.html`, from `report.html.j2`
    since.py         what changed since an earlier run
    one_name.py      all that is known about one name now: the row, its blobs, the changelog, an earlier finding

Decides nothing: what a finding is, and whether a run is complete, was decided before. Knows nothing of the terminal.
"""
