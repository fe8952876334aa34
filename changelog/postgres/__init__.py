"""The changelog in PostgreSQL, and our pool of connections to it, which the rows use, too.

    log.py            begin here: the changelog, one statement for each call
    schema.py         its tables, as DDL
    group_commit.py   calls of many tasks that share one statement
    dsn.py            the parameters of libpq: each is taken or refused; TLS, the password
    pool.py           connections, each of them lent to one call at a time; deadlines
    session.py        what a session must be, whatever the role, the database or a pooler says: one table
    sqlstates.py      the errors of the server, of poolers and of the driver, in our terms: tables

It knows nothing of rows and blobs.
"""
