"""A world to crash in: simulated tiers, log, clock and network, the faults they may have, and the checker of I1-I7.

    run_world     one seeded run: virtual time, one repeatable schedule               (runtime)
    World         rows, blobs and log, and the processes that work on them            (world; rows, blobs, log)
    Link          a process's connection: each call may fail, be late, or be the last  (faults)
    Watch         I1 and I2 after every effect                                         (checker)
    History       what callers were told, and whether an order of effects explains it   (history)

Nothing imports this package from below: the product does not know that it is simulated.
"""
