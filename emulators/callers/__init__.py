"""Seeded callers of the real code: what an application may do to the store, and to the command, wrongly too (docs/callers.md).

    values.py      arguments: good, wrong, and odd        payloads.py    everything that `put` takes, and what it must refuse
    recipe.py      what a seed chooses                    interrupt.py   cancellation at the k-th await, by scope or by task
    model.py       what a read may return                 oracle.py      what a call may raise, and what may be left behind
    ground.py      embedded stores, simulated tiers       episode.py     one seed is carried out
    command.py     the command line                       explore.py     many seeds, on all cores
"""
