"""CPU of the processes that this one has started, by what they run. It works on Linux only.

    cpu_s()   {"cbtemulator": 1.25, "benchmarks.relay": 0.5, "recovery.cli.main": 3.0}

Processes with the same name are added up. One that has ended is not counted any more, so look while all of them run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s() -> Mapping[str, float]:
    """Seconds of CPU, user and system, of all processes below this one."""
    stats: dict[int, tuple[int, int]] = {}  # parent, ticks
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError):  # it has ended
                told = (each / "stat").read_text().rpartition(")")[2].split()
                stats[int(each.name)] = int(told[1]), int(told[11]) + int(told[12])
    ours, found = {os.getpid()}, Counter[str]()
    while below := {pid for pid, (parent, _) in stats.items() if parent in ours}:
        ours = below
        for pid in below:
            with suppress(OSError):
                found[_name(Path(f"/proc/{pid}/cmdline").read_bytes())] += stats.pop(pid)[1]
    return {name: ticks / TICKS_PER_S for name, ticks in found.items()}


def _name(command: bytes) -> str:
    """The module that a Python runs, or the program."""
    words = command.decode(errors="replace").split("\0")
    return words[words.index("-m") + 1] if "-m" in words[:-1] else Path(words[0]).name
