"""What the tests would let through: one line is broken, the tests of its area run, and one of them must fail.

    python -m benchmarks.mutants --area status --number 60     (make mutants AREA=status N=60)

The seed draws the sample from all breaks of the kinds in `_Breaks`: a statement left out, a condition turned round, a
comparison one off, a flag or a number changed, None returned, and some more. Each break is written into a copy of the
tree. Then those tests run that execute the line, the quickest first: one run with a trace shows which these are. After
them come the area's other stages. A break that no stage notices *lives*. It changes nothing, or a test is missing, and
a person says which. docs/mutants.md says why this is no library's work.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from random import Random
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Area:
    """`files`: globs of what is broken. `near`: tests that are traced. `then`: arguments of pytest or of `python`."""

    files: tuple[str, ...]
    near: tuple[str, ...]
    then: tuple[tuple[str, ...], ...] = ()


CONTRACTS = ("tests/contracts", "-k", "memory or gcs and not fake-gcs or not contracts")  # `-k` chooses among all tests
AREAS = {
    "core": Area(
        (
            "changelog/base/t*.py", "changelog/heartbeat.py", "changelog/lease.py", "recovery/loop.py", "tiered/bulk.py",
            "tiered/limits/*.py", "tiered/notes/*.py", "tiered/payload/[!_c]*.py", "tiered/protocol/*.py", "tiered/services/*.py",
            "tiered/storage.py", "tiered/transfer/*.py",
        ),
        (
            "tests/store", "tests/changelog/base", "tests/changelog/test_lease.py", "tests/tiered/limits", "tests/tiered/payload",
            "tests/tiered/protocol", "tests/tiered/services",
        ),
        (("-m", "emulators.simulation", "run", "--first", "1", "--seeds", "400", "--jobs", "1"),),
    ),
    "status": Area(
        ("recovery/status/*.py", "recovery/statistics/*.py", "recovery/last_audit.py"),
        (
            "tests/recovery/status", "tests/recovery/statistics", "tests/recovery/http/test_app.py",
            "tests/recovery/cli/test_status_lines.py", "tests/recovery/cli/test_feed_status.py",
        ),
        (("tests/recovery/http", "tests/recovery/cli/test_status.py", "tests/recovery/test_daemon.py"),),
    ),
    "audit": Area(("recovery/audit/*.py", "recovery/audit/*/*.py"), ("tests/recovery/audit",), (("tests/recovery/cli", "tests/spark"),)),
    "feed": Area(("recovery/feed/*.py", "recovery/feed/*/*.py"), ("tests/recovery/feed",), (("tests/recovery/cli", "-k", "feed"),)),
    "adapters": Area(
        ("changelog/bigtable/*.py", "changelog/google/*.py", "tiered/bigtable/*.py", "tiered/gcs/*.py"),
        ("tests/changelog/bigtable", "tests/changelog/google", "tests/tiered/bigtable", "tests/tiered/gcs", *CONTRACTS),
    ),
    "embedded": Area(
        ("changelog/sqlite/*.py", "tiered/embedded/*.py"),
        ("tests/changelog/sqlite", "tests/tiered/embedded", "tests/contracts", "-k", "sqlite or filesystem or embedded or not contracts"),
        (("tests/changelog/sqlite", "tests/tiered/embedded"), ("tests/crash/test_crash_everywhere.py", "tests/crash/test_power_cuts.py")),
    ),
    "sync": Area(  # much of it runs in a thread of its own or in a child, which no trace sees: so its tests run as a whole, too
        ("tiered/sync/*.py",), ("tests/tiered/sync", "tests/tiered/filesystem"),
        (("tests/tiered/sync", "tests/tiered/filesystem"), ("tests/examples",)),
    ),
}  # fmt: skip
OPTIONS = (
    "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", "-W", "ignore::pytest.PytestAssertRewriteWarning",
    "-m", "not browser",
)  # fmt: skip
WITH_NIGHT = ("-m", "not browser and (night or not night)")
LIMIT_S = 3600.0
TIMES_AS_LONG, AND_S = 3, 30
"""A stage that takes so many times as long as without a mutant, and so many seconds, hangs. That counts as noticed."""

MEMORY_KIB = 6 << 20
THESE = "tests that run the line"
SURVIVED = "lives"
RUNNING: set[int] = set()
"""The process groups of stages that run, to be ended with this process."""

Stages = dict[str, tuple[Sequence[str], float]]
"""By its name, the arguments of `passes` and the limit in seconds."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One break. `start`, `end`: the byte offsets in the file of what `text` replaces."""

    path: str
    line: int
    start: int
    end: int
    text: str
    what: str

    def applied_to(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is",
    ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*"}


class _Breaks(ast.NodeVisitor):
    """Finds all breaks of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.AnnAssign():
                if node.value is not None:
                    self.visit(node.value)
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for each in (*node.args.kw_defaults, *node.args.defaults, *node.body):
                    if each is not None:
                        self.visit(each)
                return
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="logger")))):
                return  # a log message for people; no test depends on it
            case ast.Assert():
                return
            case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete():
                self._add(node, "pass", "left out")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                self._add(node, "pass", "left out")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                self._add(value, "None", "returns None")
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if not isinstance(test, ast.Constant):
                self._add(test, f"not ({self._text(test)})", "turned round")
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                self._between(left, right, _COMPARISONS[type(operator)])
            case ast.BoolOp(values=[first, *_, last]):
                self._add(node, self._text(first), "without its last part")
                self._add(node, self._text(last), "only its last part")
            case ast.BinOp(op=operator) if type(operator) in _ARITHMETIC:
                self._between(node.left, node.right, _ARITHMETIC[type(operator)])
            case ast.Constant(value=bool(value)):
                self._add(node, str(not value), "the other flag")
            case ast.Constant(value=int(value) | float(value)):
                self._add(node, repr(value + 1), "one more")
            case ast.ExceptHandler(type=ast.Tuple(elts=[_, *kept]) as types) if kept:
                self._add(types, f"({', '.join(self._text(each) for each in kept)},)", "without its first kind")
        self.generic_visit(node)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _add(self, node: ast.expr | ast.stmt, text: str, what: str) -> None:
        start, end = self._span(node)
        old = " ".join(self._source[start:end].decode().split())
        self.found.append(Mutant(self._path, node.lineno, start, end, text, f"`{old if len(old) < 90 else old[:87] + '...'}` {what}"))

    def _between(self, left: ast.expr, right: ast.expr, text: str) -> None:
        (_, start), (end, _) = self._span(left), self._span(right)
        old = self._source[start:end].decode()
        if "\n" in old or "(" in old or ")" in old:
            return  # there must be nothing but the operator between the two
        what = f"`{self._text(left)}{old}{self._text(right)}` becomes `{text}`"
        self.found.append(Mutant(self._path, left.lineno, start, end, f" {text} ", " ".join(what.split())))


def mutants(path: str, source: bytes) -> list[Mutant]:
    """Returns all breaks of one file, which is at `path`."""
    breaks = _Breaks(path, source)
    breaks.visit(ast.parse(source))
    return breaks.found


@dataclass(eq=False)  # pytest puts its plugins into sets
class Trace:
    """Which tests execute which lines, and how long each test takes: a plugin of pytest that one run fills in."""

    tree: Path
    files: Sequence[str]
    lines: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    failed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._paths = {str(self.tree / path): path for path in self.files}
        self._now: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if (path := self._paths.get(frame.f_code.co_filename)) is None:
            return None
        self._now.add((path, frame.f_lineno))
        return self

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._now = set()
        threading.settrace(self)
        sys.settrace(self)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            for path, line in self._now:
                self.lines[f"{path}:{line}"].add(_function(item.nodeid))
                self.lines[path].add(_function(item.nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[_function(report.nodeid)] += report.duration
        if report.failed:
            self.failed.add(_function(report.nodeid))

    def tests(self, mutant: Mutant) -> list[str]:
        """Returns the tests that execute the line, the quickest first: if only an import does, those of the file."""
        found = self.lines.get(f"{mutant.path}:{mutant.line}") or self.lines.get(mutant.path, set())
        return sorted(found - self.failed, key=lambda test: (self.seconds[test], test))


def _function(test: str) -> str:
    return test.partition("[")[0]


def write_trace(tree: str, files: Sequence[str], arguments: Sequence[str]) -> None:
    """Runs pytest in this process, and writes what it traced to trace.json in `tree`."""
    trace = Trace(Path(tree), files)
    code = pytest.main([*OPTIONS, *arguments], plugins=[trace])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(int(code))
    lines = {where: sorted(tests) for where, tests in trace.lines.items()}
    told = {"lines": lines, "seconds": trace.seconds, "failed": sorted(trace.failed)}
    Path(tree, "trace.json").write_text(json.dumps(told))


def traced(tree: Path, files: Sequence[str], arguments: Sequence[str]) -> Trace:
    """Returns which tests run which lines of `tree`. Ends the program if that cannot be known."""
    program = f"from benchmarks import mutants; mutants.write_trace({str(tree)!r}, {list(files)!r}, {list(arguments)!r})"
    if not passes(("-c", program), tree, LIMIT_S, compiles=True):
        raise SystemExit(f"the traced run of {' '.join(arguments)} takes longer than {LIMIT_S:g} s, or crashes")
    told = json.loads((tree / "trace.json").read_text())
    return Trace(tree, files, {where: set(tests) for where, tests in told["lines"].items()}, told["seconds"], set(told["failed"]))


def passes(arguments: Sequence[str], tree: Path, limit_s: float, *, compiles: bool = False) -> bool:
    """Runs pytest, or python with `-m` or `-c`, on `tree`. Ends what it started. `compiles`: leaves compiled files."""
    command = [*(() if arguments[0] in ("-m", "-c") else ("-m", "pytest", "-x", *OPTIONS)), *arguments]
    process = subprocess.Popen(
        ["sh", "-c", f'ulimit -v {MEMORY_KIB}; exec "$@"', "sh", sys.executable, *command], cwd=tree, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "" if compiles else "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    RUNNING.add(process.pid)
    try:
        return process.wait(limit_s) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        end(process.pid)
        RUNNING.discard(process.pid)
        process.wait()


def end(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def try_out(mutant: Mutant, tree: Path, stages: Stages) -> str:
    """Returns the stage that notices the mutant, or `SURVIVED`."""
    path = tree / mutant.path
    source = path.read_bytes()
    path.write_bytes(mutant.applied_to(source))
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()
    try:
        return next((stage for stage, (arguments, limit_s) in stages.items() if not passes(arguments, tree, limit_s)), SURVIVED)
    finally:
        path.write_bytes(source)


def unbroken(area: Area, tree: Path, night: Sequence[str]) -> Stages:
    """Returns the area's further stages, each of which passes as long as nothing is broken; else ends the program."""
    stages: Stages = {}
    for arguments in area.then:
        began, marked = time.monotonic(), (*arguments, *(() if arguments[0] == "-m" else night))
        if not passes(marked, tree, LIMIT_S):
            raise SystemExit(f"'{' '.join(arguments)}' fails without any mutant: mend that first")
        stages[" ".join(arguments)] = marked, TIMES_AS_LONG * (time.monotonic() - began) + AND_S
    return stages


def explore(area: Area, files: Sequence[str], sample: Sequence[Mutant], jobs: int, night: Sequence[str]) -> dict[Mutant, str]:
    """Tries the mutants out, `jobs` at a time, each on a copy of the tree. Returns each with its stage."""
    found: dict[Mutant, str] = {}
    with tempfile.TemporaryDirectory() as place:
        first, trees = Path(place) / "0", SimpleQueue[Path]()
        shutil.copytree(ROOT, first, ignore=shutil.ignore_patterns(".*", "__pycache__", "build"))
        trace = traced(first, files, [*area.near, *night])
        then = unbroken(area, first, night)
        if trace.failed:
            print(f"left out, as they fail without any mutant: {', '.join(sorted(trace.failed))}")
        for number in range(1, jobs):
            trees.put(shutil.copytree(first, Path(place) / str(number)))
        trees.put(first)

        def tried(mutant: Mutant) -> str:
            tests = trace.tests(mutant)
            limit_s = TIMES_AS_LONG * sum(trace.seconds[test] for test in tests) + AND_S
            tree = trees.get()
            try:
                return try_out(mutant, tree, ({THESE: ((*tests, *night), limit_s)} if tests else {}) | then)
            finally:
                trees.put(tree)

        pool = ThreadPoolExecutor(jobs)
        try:
            for mutant, stage in zip(sample, pool.map(tried, sample), strict=True):
                found[mutant] = stage
                print(f"{len(found)}/{len(sample)}  {mutant.path}:{mutant.line}  {mutant.what}: {stage}", flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for group in tuple(RUNNING):
                end(group)
            pool.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--area", choices=AREAS, default="core", help="whose lines are broken")
    parser.add_argument("--number", type=int, default=60, help="how many mutants are tried")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--night", action="store_true", help="also with the tests that are left to the night")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; one for each core unless given")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    area = AREAS[asked.area]
    files = sorted({path.relative_to(ROOT).as_posix() for glob in area.files for path in ROOT.glob(glob)})
    everything = [mutant for path in files for mutant in mutants(path, (ROOT / path).read_bytes())]
    sample = Random(asked.seed).sample(everything, min(asked.number, len(everything)))
    found = explore(area, files, sample, asked.jobs, WITH_NIGHT if asked.night else ())
    print(f"\n{asked.area}: {len(sample)} of {len(everything)} one-line mutants (seed {asked.seed}), by who noticed them first")
    for stage, count in Counter(found.values()).most_common():
        print(f"{count:>5}  {stage}")
    for mutant in sorted((mutant for mutant, stage in found.items() if stage == SURVIVED), key=lambda each: (each.path, each.line)):
        print(f"lives: {mutant.path}:{mutant.line}  {mutant.what}")


if __name__ == "__main__":
    main()
