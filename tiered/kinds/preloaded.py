"""Imports the clients of all services whose packages are installed, for a process from which others are forked.

It opens none of them: no client survives a fork once it is used.
"""

from contextlib import suppress

with suppress(ImportError):
    import tiered.bigtable.rows
with suppress(ImportError):
    import tiered.postgres.rows
with suppress(ImportError):
    import tiered.gcs.owned
with suppress(ImportError):
    import tiered.s3.owned  # noqa: F401
