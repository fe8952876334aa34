"""PostgreSQL, the real one: no emulator of it is needed.

    server.py    finds its programs, starts a server, kills it, makes a standby of it, promotes that
    pooler.py    PgBouncer before it, in transaction mode
"""
