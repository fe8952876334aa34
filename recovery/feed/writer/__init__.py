"""The writer of a change feed: it finds out what has changed, commits it, and has it delivered.

    checkpoint.py   `Checkpoint`, how far the feed is: the note `feed`, changed by compare-and-swap
    positions.py    how far each sink is: one note for each
    overdue.py      what recovery does if the feed takes nothing up
    note_fields.py  the strict reading of what these notes store
"""
