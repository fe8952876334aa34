"""What the system tells of this process and of those that it has started. It works on Linux only.

    processes_below()   {4711: ("python3.11", 125)}
    cpu_s()             {"cbtemulator": 1.25, "benchmarks.relay": 0.5, "recovery.cli.main": 3.0}
    resident_bytes()    how much memory this process has now

A process that has ended is not told any more, so look while all of them run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processes_below() -> Mapping[int, tuple[str, int]]:
    """The name of each process below this one, and its ticks of CPU, user and system."""
    stats: dict[int, tuple[int, str, int]] = {}  # parent, name, ticks
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError):  # it has ended
                name, _, rest = (each / "stat").read_text().partition("(")[2].rpartition(")")
                told = rest.split()
                stats[int(each.name)] = int(told[1]), name, int(told[11]) + int(told[12])
    above, found = {os.getpid()}, dict[int, tuple[str, int]]()
    while below := {pid for pid, (parent, *_) in stats.items() if parent in above}:
        above = below
        for pid in below:
            _, name, ticks = stats.pop(pid)
            found[pid] = name, ticks
    return found


def cpu_s() -> Mapping[str, float]:
    """Seconds of CPU of all processes below this one, by what they run. Those that run the same are added up."""
    found = Counter[str]()
    for pid, (_, ticks) in processes_below().items():
        with suppress(OSError):
            found[_name(Path(f"/proc/{pid}/cmdline").read_bytes())] += ticks
    return {name: ticks / TICKS_PER_S for name, ticks in found.items()}


def _name(command: bytes) -> str:
    """The module that a Python runs, or the program."""
    words = command.decode(errors="replace").split("\0")
    return words[words.index("-m") + 1] if "-m" in words[:-1] else Path(words[0]).name


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
