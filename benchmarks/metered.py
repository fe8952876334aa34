"""What a command takes, with all that it starts.

`python -m benchmarks.metered command...` says it as JSON when all have ended.

    seconds, cpu_s     of all of it; CPU is user and system
    kinds_s            the CPU of each kind of process, as in `peaks_kib`, as far as it was seen
    peaks_kib          the largest that a process ever was: `main` (the command itself), `worker` (another Python),
                       `java` (any other)
    lines              what it printed, with seconds and CPU until then
    code               its exit code

All processes are looked at ten times a second, and the numbers of one that has ended are kept. The system's own sum is
not enough: nobody waits for Spark's Python workers, so it does not count them. Orphans are adopted (a subreaper). It
works on Linux only. When stdin ends, everything is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.processes import TICKS_PER_S, processes_below

SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER
LOOK_EVERY_S = 0.1
SHELLS = ("sh", "bash", "dash")


@dataclass
class MeteredLine:
    at_s: float
    cpu_s: float
    text: str


@dataclass
class Taken:
    """What a command took."""

    cpu_s: float = 0.0
    code: int = 0
    peaks_kib: dict[str, int] = field(default_factory=dict)
    kinds_s: dict[str, float] = field(default_factory=dict)
    lines: list[MeteredLine] = field(default_factory=list)

    def dumped(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def loaded(text: str) -> Taken:
        told = json.loads(text)
        return Taken(**told | {"lines": [MeteredLine(**line) for line in told["lines"]]})


def measure(command: list[str]) -> Taken:
    if ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this system has no subreapers")
    taken, began, before = Taken(), time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    assert running.stdout is not None
    threading.Thread(target=_kill_when_left_alone, args=[running.pid], daemon=True).start()
    ticks: dict[int, int] = {}
    kinds: dict[int, str] = {}
    rest, selector = b"", selectors.DefaultSelector()
    selector.register(running.stdout, selectors.EVENT_READ)
    while True:
        ready = selector.select(LOOK_EVERY_S)
        cpu_s = _look(running.pid, ticks, kinds, taken.peaks_kib)
        if not ready:
            continue
        if not (chunk := os.read(running.stdout.fileno(), 1 << 16)):
            break
        *lines, rest = (rest + chunk).split(b"\n")
        taken.lines += [MeteredLine(time.perf_counter() - began, cpu_s, line.decode()) for line in lines]
    with suppress(ChildProcessError):
        while True:
            pid, status = os.wait4(-1, 0)[:2]
            if pid == running.pid:
                taken.code = running.returncode = os.waitstatus_to_exitcode(status)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    waited_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    taken.cpu_s = max(waited_s, sum(ticks.values()) / TICKS_PER_S)
    for pid, kind in kinds.items():
        taken.kinds_s[kind] = taken.kinds_s.get(kind, 0.0) + ticks[pid] / TICKS_PER_S
    return taken


def _look(main: int, ticks: dict[int, int], kinds: dict[int, str], peaks_kib: dict[str, int]) -> float:
    """Returns the seconds of CPU that everything has taken until now, and updates the peaks.

    `ticks` keeps the CPU of each process, and `kinds` what it is.
    """
    for pid, (name, taken) in processes_below().items():
        ticks[pid] = taken
        # When a thread of Java starts a program, its child has for a moment the thread's name and Java's size.
        kind = "main" if pid == main else "worker" if name.startswith("python") else "java"
        kinds[pid] = kind
        if kind == "java" and name in SHELLS:
            continue
        peaks_kib[kind] = max(peaks_kib.get(kind, 0), _peak_kib(pid))
    return sum(ticks.values()) / TICKS_PER_S


def _peak_kib(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


def _kill_when_left_alone(group: int) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    print(measure(sys.argv[1:]).dumped(), flush=True)
