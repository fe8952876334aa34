"""The audit of an inventory report: the blobs come from files of the service, and not from a listing.

    report.py     begin here: what a report is, and why one is refused; knows nothing of Spark
    insights.py   reads the manifest of a report of Google's, and knows its columns
    s3.py         the same of a report of S3 Inventory
    arrays.py     text and numbers of columns
    shards.py     reads its files, and those of an export of the table, with Arrow
    lines.py      what tasks give to the join, with counts; and the names of what it leaves; knows nothing of Spark
    join.py       what the report and the table do not have in common, found by Spark
    candidates.py judges what the join left, by point reads in the services
    engine.py     an engine of `recovery.audit.running.run`: the join, then the judging of each range

The join accuses nobody. It only says what is to be looked at in the services themselves. So a report that is old, an
export that is older and two names with one hash can hide an orphan, and can never make one.
"""
