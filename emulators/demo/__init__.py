"""The demo: real processes are killed while they work, and an independent check says whether anything was lost.

    command.py         begin here: one run from its options to its verdict
    director.py        one run step by step: which process is started, killed or stopped, and when
    soak.py            processes that are spared, and must not grow
    status_check.py    compares the status with what is stored, meanwhile
    audit.py           the audit at the end

    players/           what the processes run: writers, daemons, commands; their journal
    checking/          compares what is stored with what callers were told; it runs no code of the store
    staging/           the directory, the processes and the services of a run; the faults of the services

The modules here use all rooms, staging uses checking and players, and checking reads the journal of the players.
Nothing imports this folder but `emulators.__main__`, `emulators/power` and the tests.
"""
