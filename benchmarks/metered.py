"""What a command takes, with all that it starts, and tables of such commands that take turns.

`python -m benchmarks.metered command...` says it as JSON when all have ended.

    cpu_s        user and system time of all of it, in seconds
    peaks_kib    the largest that a process ever was: `main` (the command itself), `worker` (another Python),
                 `java` (any other)
    lines        what it printed, with seconds and CPU until then
    code         its exit code

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
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.harness import Cell, Figures, Ratio, take_turns
from benchmarks.servers import started

SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER
LOOK_EVERY_S = 0.1
SHELLS = ("sh", "bash", "dash")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
RUN_S = 3000.0


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
    lines: list[MeteredLine] = field(default_factory=list)

    @staticmethod
    def loaded(text: str) -> Taken:
        told = json.loads(text)
        return Taken(**told | {"lines": [MeteredLine(**line) for line in told["lines"]]})

    @property
    def work_s(self) -> float:
        """CPU from the first line, which says that all is loaded, until the last one, which has the result."""
        return self.lines[-1].cpu_s - self.lines[0].cpu_s

    @property
    def worker_mib(self) -> float:
        """The largest process that did the work: a worker, or the command itself if it has none."""
        return self.peaks_kib.get("worker", self.peaks_kib.get("main", 0)) / 1024

    @property
    def java_mib(self) -> float:
        return self.peaks_kib.get("java", 0) / 1024


async def run_metered(command: Sequence[str]) -> Taken:
    """Runs one of our modules, metered. It prints `ready`, and at the end what it found."""
    async with started("benchmarks.metered", sys.executable, "-m", *command, within_s=RUN_S) as line:
        taken = Taken.loaded(line)
    if taken.code or [each.text for each in taken.lines][:1] != ["ready"]:
        raise SystemExit(f"{' '.join(command)} failed with exit code {taken.code}")
    return taken


async def compare_metered(
    title: str, items: int, commands: Mapping[str, Sequence[str]], rounds: int, found: Mapping[str, object], ours: Container[str],
    notes: Sequence[str],
) -> Figures:  # fmt: skip
    """Compares commands, each of which works on so many items, with the first one, which is ours.

    `found`: what each command must find, by its name; the last line that it prints has it as JSON. `ours`: which of
    them are ours; these should become faster, and the others slower in comparison.
    """
    runs = await take_turns([partial(run_metered, command) for command in commands.values()], rounds)
    rows: list[list[Cell]] = []
    for what, each in zip(commands, runs, strict=True):
        for run in each:
            if (told := json.loads(run.lines[-1].text)) != found[what]:
                raise AssertionError(f"{what} found {told} and not {found[what]}")
        costs = [run.work_s for run in runs[0]], [run.work_s for run in each]
        beside: Cell = Ratio.of(*costs, more_is_better=what in ours) if rows else "1"
        rate, whole = (items / median(seconds) / 1000 for seconds in ([run.work_s for run in each], [run.cpu_s for run in each]))
        peaks = max(run.worker_mib for run in each), max(run.java_mib for run in each)
        rows.append([
            what, f"{rate:,.0f}", beside, f"{whole:,.0f}", f"{median(run.lines[-1].at_s for run in each):.1f}",
            *(f"{peak:,.0f}" if peak else "" for peak in peaks),
        ])  # fmt: skip
    columns = ["", "thousands per core-s", "of the first", "with the start", "all, s", "a worker, MiB", "Java, MiB"]
    return Figures(title, columns, rows, notes)


# --- the process that measures ---------------------------------------------------------------------


def measure(command: list[str]) -> Taken:
    if ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this system has no subreapers")
    taken, began, before = Taken(), time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    assert running.stdout is not None
    threading.Thread(target=_kill_when_left_alone, args=[running.pid], daemon=True).start()
    ticks: dict[int, int] = {}
    rest, selector = b"", selectors.DefaultSelector()
    selector.register(running.stdout, selectors.EVENT_READ)
    while True:
        ready = selector.select(LOOK_EVERY_S)
        cpu_s = _look(running.pid, ticks, taken.peaks_kib)
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
    return taken


def _look(main: int, ticks: dict[int, int], peaks_kib: dict[str, int]) -> float:
    """Returns the seconds of CPU that everything has taken until now, and updates the peaks.

    `ticks` keeps the CPU of each process.
    """
    for pid, (name, taken) in _processes_below().items():
        ticks[pid] = taken
        # When a thread of Java starts a program, its child has for a moment the thread's name and Java's size.
        kind = "main" if pid == main else "worker" if name.startswith("python") else "java"
        if kind != "java" or name not in SHELLS:
            peaks_kib[kind] = max(peaks_kib.get(kind, 0), _peak_kib(pid))
    return sum(ticks.values()) / TICKS_PER_S


def _processes_below() -> Mapping[int, tuple[str, int]]:
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
        found |= {pid: stats.pop(pid)[1:] for pid in below}
    return found


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
    print(json.dumps(asdict(measure(sys.argv[1:]))), flush=True)
