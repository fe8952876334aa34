"""A simulated deployment: tiers, changelog, clock and network in memory, the faults they may have, and what judges it.

    deployment.py   `World`: begin here
    runtime.py      virtual time, and one repeatable schedule per seed
    services.py     the services: those of `tiered/testing`, behind the network (stack.py chooses which)
    faults.py       processes that die or stall, and the network between them and the services
    code.py         which code a process runs: this checkout's, or another's beside it
    inside.py       what a process opens
    client.py       a store and its caller; rewrite.py: what a copy, a rename or a change of metadata does;
                    by_link.py: a part that is sent to a link
    checker.py      checks I1 and I2 after every effect; ghost.py knows what really took effect
    history.py, linear.py         whether some order of effects explains what callers were told

The judges use the product's data types and read its formats. They run none of its protocol code.
"""
