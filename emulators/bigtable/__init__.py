"""Bigtable without Google: `emulator.py` runs Google's emulator, and `memory.py` answers in memory.

`stack.py` puts the real adapters over `memory.py` into a simulated world. `faulty_channel.py` cuts, delays and
duplicates their calls.
"""
