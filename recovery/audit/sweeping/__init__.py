"""One range of names is compared: its blobs with every tombstone that may name one of them, and with the changelog.

    sweep.py         begin here: one range of names: list, read the log, scan the rows, compare, look again
    merge.py         which names of a window the rows of a scan name, many at a time; no I/O
    references.py    takes the references from a change feed instead of the rows, if that is wanted
    verify.py        reads payloads, if that is wanted
    beside.py        what lies beside the blobs: uploads that were left, deleted blobs that are still kept

It only reads, and uses the runtime's clock. Knows nothing of engines, of a run, and of its files.
"""
