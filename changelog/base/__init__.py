"""What every other folder rests on. Imports nothing of the project.

    errors.py         begin here: what each kind of error tells a caller
    runtime.py        clocks, sleep, ids, randomness
    observe.py        what core code tells about its work, and to whom; events.py: log lines with stable names
    capability.py     what only some backends can do, and how callers ask for it
    deprecation.py    how this software warns of what the next release will not have; extras.py: how to install an extra
    tasks.py          tasks that run beside a block; own_waits.py: time that a call waited for this process itself
    home_loop.py      that what was opened in one event loop is not used in another
    threads.py        blocking calls in threads; connections.py: those of aiohttp, without answers that nobody asked for
    directories.py    syncs files and directories, so that bytes and names survive a power cut
"""
