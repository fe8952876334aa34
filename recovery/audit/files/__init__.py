"""What a run leaves in its directory, and whether that may be believed when it is read back.

    ledger.py        begin here: the files of a run; a part of a range is done if its file is there and valid
    directory.py     the directory itself: local, or on an object store
    partitions.py    how the files of a run cover the names: which parts are done, and which are missing
    conclusion.py    what the manifest says when the ranges have ended: totals, doubts, notes, and where the orphans are
    evidence.py      whether what a run found may be acted on
    examine.py       reads a file of findings to its end, and says what is wrong with it
    arrow.py         columns of Arrow from Python values

Knows nothing of how a range is compared and by whom, except the names of the counts that `conclusion.py` sums up.
"""
