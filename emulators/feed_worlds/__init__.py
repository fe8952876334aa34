"""Worlds of real stores, recoveries and feed writers under virtual time, and what judges the feed (docs/simulation.md).

    watch.py         begin here: what is checked at every effect, from outside
    sinks.py         sinks that are services in the world
    recipe.py        what a seed chooses: a recipe of `emulators.simulation`, with writers of the feed beside it
    recipe_run.py    the run of one recipe, from the first call to the quiet end
    inside.py        what its processes run, in the code that they have
    crashes.py       one history, with a crash of the writer at every call
    mutations.py     thousands of changes, while writers are killed
    guards.py        the feed with one guard knocked out at a time
    __main__.py      `python -m emulators.feed_worlds`

The watch reads the stored bytes and the sinks. It runs none of the writer's code. Readers are real ones.
"""
