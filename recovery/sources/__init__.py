"""What a store, its audits and change feeds hold, as tables of Spark: `spark.read.format("tiered.blobs")`.

    spark.py              begin here: `register(session)`, the six formats and their options
    consistent.py         the view and the frontier of a change feed, from all its rows at once
    stored_objects.py     reads the objects of a store; parquet.py: writes them to files, for `tiered export table`
    reading.py            reads pages of one partition through the backends that the audit uses; knows nothing of Spark
    findings_of_run.py    reads the findings of a run; feed_files.py: the files of a feed; they know no Spark, either
    columns.py            the schemas with their units, and how rows become Arrow batches

Everything here only reads the store. It serves notebooks and reports. The audit itself does not use it: these tables
promise no order of reading, so a join of them proves nothing about an orphan.
"""
