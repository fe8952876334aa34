"""What is noted in the changelog besides changes, so that it stays known.

    dangling.py     what readers found lost
    feed_off.py     that a process keeps nothing for the change feed
    note_fields.py  reads a note strictly
"""
