"""The high-volume tier in PostgreSQL.

    open.py       begin here: opens the rows and the changelog of a store, and looks whether the schema is the right one
    rows.py       `PostgresRows`: one call of a function, or one SELECT, for each operation
    stored_row.py how a row's columns are read and written, and its checksum
    schema.py     tables and functions as DDL, the versions of the schema, and the proof of each function
    shape.py      what somebody has changed in that schema

Connections and errors are in `changelog/postgres/`. Knows nothing of where the blobs are.
"""
