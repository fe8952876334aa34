"""Explores worlds of the real code under virtual time: many seeds, all invariants (docs/simulation.md).

Each run can be replayed.

    recipe.py       what a seed chooses: who does what, when, and what goes wrong
    actors.py       what each kind of actor does in a `World`
    run.py          the run of one recipe, from the first call to the quiet end, and what was found
    leaks.py        what a store that still runs holds
    coverage.py     what a run exercised, and what it must exercise
    decisions.py    counts the product's decisions from outside
    explore.py      many seeds on all cores (worker.py, totals.py, seed_report.py)
    beside.py       worlds with processes of the last release beside those of this checkout
    ledger.py       the runs that are on record, and what they add up to
    minimise.py     makes a failing run small
    bounded.py      every schedule with few delays (schedules.py names them, conductor.py keeps to them)
    guards.py       the protocol with one guard knocked out at a time
    guard_search.py after how many seeds a missing guard is found
    published.py    the published protocol's failures as schedules; unfenced.py is that protocol
    replaced.py     how parts of the product are replaced or wrapped from outside
    __main__.py     the command line
"""
