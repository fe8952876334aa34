"""Seeded callers of the real code, who use the API correctly and wrongly (docs/callers.md).

They call the store, or the command.

    episode_recipe.py    what a seed chooses: begin here
    values.py            arguments: good, wrong and odd
    payloads.py          everything that `put` takes, and what it must refuse
    episode.py           carries out one seed: its sessions and its calls
    ended.py             runs one call to its end, and cancels it; interrupt.py: at the k-th await, by scope or by task
    bulk_calls.py        one bulk call; ways_to_read.py: ways to read a stored object
    open_uploads.py      one upload in parts, or that is appended to
    oracle.py            what a call may answer and raise; model.py: what a read may return
    ground.py            where it takes place: embedded stores or simulated tiers; what is left behind
    episode_run.py       one seed in its event loop, and what shows only from outside
    verdict.py           what the run of a seed has shown
    explore.py           many seeds, on all cores, or one as small as possible; worker.py: one of its processes
    command_lines.py     callers of the command
"""
