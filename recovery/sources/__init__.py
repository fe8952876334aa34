"""What a store and its audits hold, as tables of Spark: `spark.read.format("tiered.blobs")`.

    spark.py      begin here: `register(session)`, the four formats and their options
    reading.py    reads pages of one partition through the backends that the audit uses; knows nothing of Spark
    columns.py    the schemas with their units, and how rows become Arrow batches

Everything here only reads. It serves notebooks and reports. The audit itself does not use it: these tables promise no
order of reading, so a join of them proves nothing about an orphan.
"""
