"""The protocol: how two tiers that share no transaction lose nothing. docs/architecture.md tells it in words.

    backends.py     what the two tiers must do; begin here to add a backend
    commit.py       the life of a change
    settle.py       what is left to do after a change, by its writer or by recovery
    reading.py      from the row, through its tombstone, past an overwrite
    admission.py, retry.py, concurrent.py, row_keys.py     what these need

Knows no backend by name: `embedded`, `bigtable` and `gcs` implement what stands in `backends.py`.
"""
