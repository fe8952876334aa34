"""One range of names is compared: its blobs with every tombstone that may name one of them, and with the changelog.

    sweep.py         begin here: one range, window by window, and why it reads in this order and no other
    window.py        a window of names: its blobs, and what the log says of them
    match.py         which of its blobs a row names
    judge.py         what each blob and each damaged row is; writes down the findings; no reads
    second_look.py   what is read again before a finding says so
    merge.py         which names of a window the rows of a scan name, many at a time; no I/O
    references.py    takes the references from a change feed instead of the rows, if that is wanted
    verify.py        reads payloads, if that is wanted
    beside_blobs.py  uploads that were left, deleted blobs that are kept; other writers
    tier_reads.py    reads of both tiers and of the log, repeated while a service is not available

It only reads, and uses the runtime's clock. Knows nothing of engines, of a run, and of its files.
"""
