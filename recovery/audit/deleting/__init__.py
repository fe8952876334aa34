"""The deletion of orphans that a run of the audit found, and its way back: `tiered audit delete` and `restore`.

    candidates.py    begin here: one batch: the log, both rows, the settle, the deletion. No engine, no files
    gates.py         what is asked for, and whether anything may be deleted: one sentence for each reason why not
    journal.py       what is written before and after each deletion, in the run's directory
    deletion.py      a whole deletion, new or interrupted
    batch.py         one batch of the journal, carried out here or by a worker of Spark
    restoring.py     all copies of a run, or its lost blobs, brought back
    quarantine.py    copies that are kept of what is deleted, and how they are restored
    losses.py        lost blobs that the service still keeps, and how they are restored. No engine, no files
    loss_notes.py    what is written before and after they are restored

It knows nothing of the recovery loop and of the command line.
"""
