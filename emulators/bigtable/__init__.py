"""Bigtable without Google, for tests, simulations and the demo.

    emulator.py          begin here: runs Google's own emulator, and makes tables in it
    faulty_channel.py    a gRPC channel that cuts, delays and duplicates calls
    memory.py            answers the requests that the adapters send, from memory, in any event loop
    filters.py           Bigtable's filters, for memory.py
    stack.py             puts the real adapters over memory.py into a simulated world: linked.py is a process's
                         connection, adapters.py what it has on it

Knows nothing of GCS. Only stack.py knows what the adapters store in their rows.
"""
