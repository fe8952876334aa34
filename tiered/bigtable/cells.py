"""The names of the cells in a Bigtable row, and the filters that find a tombstone; see `tiered/bigtable/rows.py`."""

from __future__ import annotations

from changelog.bigtable.channel import chain, column_is, value_begins_with

EXPIRING, MANUAL, MARKS = "fg", "fm", "ff"
DATA_FAMILIES = (EXPIRING, MANUAL)
LEGACY_FAMILIES = {"fpg": EXPIRING, "fpm": MANUAL}
"""Families in which other software was to keep payloads, each with the family that its payload belongs to.

That form was given up, and hardly a table has them. Bigtable refuses a request that names a family which the table does
not have.
"""

PAYLOAD, METADATA, TARGET, POLICY, TOKEN, CONDITIONAL, DESCRIBED = b"p", b"m", b"r", b"t", b"v", b"c", b"d"
LEGACY_TOMBSTONE = b'{"is_redirect_tombstone":true'
TARGETS = [column_is(family, TARGET) for family in DATA_FAMILIES]
LEGACY_TOMBSTONES = [chain(column_is(family, METADATA), value_begins_with(LEGACY_TOMBSTONE)) for family in DATA_FAMILIES]

NS_PER_US = 1000
