"""Embedded mode's database (`database.py`, which the rows of `tiered/embedded` share) and the changelog in it (`log.py`)."""
