"""What the tests would let through: one line is broken, the tests of its area run, and one of them must fail.

    python -m benchmarks.mutants --area status --number 60 [--docs docs/mutants.md]    (make mutants AREA=status N=60)

The seed draws the sample from all breaks of the kinds in `_Breaks`: a statement left out, a condition turned round, a
comparison one off, a flag or a number changed, None returned, and some more. Each break is written into a copy of the
tree. Then those tests run that execute the line, the quickest first: one run with a trace, which `build/mutants` keeps,
shows which these are. After them come the area's other stages. A break that no stage notices *lives*. It changes
nothing, or a test is missing, and a person says which. Two maintained libraries (Cosmic Ray, mutmut) leave no statement
out, but a forgotten event or `await` is just that.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

from benchmarks.figures import Figures, put_into

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "mutants"


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
            "tiered/payload/[!_c]*.py", "tiered/protocol/[!_b]*.py", "tiered/protocol/breaker.py", "tiered/storage.py",
        ),
        ("tests/store", "tests/changelog/base", "tests/changelog/test_lease.py", "tests/tiered/payload", "tests/tiered/protocol"),
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
    "-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib",
    "-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", "not browser",
)  # fmt: skip
LOADED_ONCE = (
    "_pytest.assertion.rewrite", "aiohttp", "anyio", "duckdb", "fastavro", "google.cloud.bigtable_admin_v2", "google.cloud.bigtable_v2",
    "google.cloud.storage", "grpc.aio", "hypothesis", "opentelemetry.sdk.trace", "prometheus_client", "pyarrow", "starlette", "trio",
    "typer", "uvicorn", "xdist.scheduler",
)  # fmt: skip
"""Packages that each test process finds loaded already, because it is a fork of this one."""

OURS = ("benchmarks", "changelog", "emulators", "recovery", "tests", "tiered")
LIMIT_S = 900.0
TIMES_AS_LONG, AND_S = 3, 30
"""A stage that takes so many times as long as without a mutant, and so many seconds, hangs. That counts as noticed."""

MEMORY_BYTES = 6 << 30
THESE = "tests that run the line"
SURVIVED = "lives"


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

    def saved(self) -> str:
        lines = {where: sorted(tests) for where, tests in self.lines.items()}
        return json.dumps({"lines": lines, "seconds": self.seconds, "failed": sorted(self.failed)})

    def load(self, saved: str) -> None:
        data = json.loads(saved)
        self.lines = {where: set(tests) for where, tests in data["lines"].items()}
        self.seconds, self.failed = data["seconds"], set(data["failed"])


def _function(test: str) -> str:
    return test.partition("[")[0]


def passes(arguments: Sequence[str], tree: Path, limit_s: float, trace: Trace | None = None) -> bool:
    """Runs pytest, or python with `-m` or `-c`, on `tree` in a fork of this process. Ends all that it started."""
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            os._exit(_in_child(arguments, tree, trace))
        os._exit(1)
    ends = time.monotonic() + limit_s
    try:
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < ends:
            time.sleep(0.02)
        return ended[0] != 0 and ended[1] == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _in_child(arguments: Sequence[str], tree: Path, trace: Trace | None) -> int:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.chdir(tree)
    os.dup2(nothing := os.open(os.devnull, os.O_RDWR), 0)
    if "MUTANTS_OUTPUT" not in os.environ:
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
    sys.dont_write_bytecode = trace is None  # the traced run compiles the tree for all others
    os.environ |= {"PYTHONPATH": str(tree)} | ({} if trace else {"PYTHONDONTWRITEBYTECODE": "1"})
    if arguments[0] in ("-m", "-c"):
        os.execv(sys.executable, [sys.executable, *arguments])
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
    if trace is None:
        return int(pytest.main([*OPTIONS, *arguments]))
    if (code := pytest.main([*OPTIONS[1:], *arguments], plugins=[trace])) not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return int(code)
    (tree / "trace.json").write_text(trace.saved())
    return 0


def try_out(mutant: Mutant, tree: Path, stages: dict[str, tuple[Sequence[str], float]]) -> str:
    """Returns the stage that notices the mutant, or `SURVIVED`. A stage: arguments for `passes`, and its limit in s."""
    path = tree / mutant.path
    source = path.read_bytes()
    path.write_bytes(mutant.applied_to(source))
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()
    try:
        return next((stage for stage, (arguments, limit_s) in stages.items() if not passes(arguments, tree, limit_s)), SURVIVED)
    finally:
        path.write_bytes(source)


def traced(name: str, files: Sequence[str], tree: Path) -> tuple[Trace, dict[str, float]]:
    """Returns which tests run which lines, and how long each further stage takes. Kept until something changes."""
    area, trace, took_s = AREAS[name], Trace(tree, files), {}
    tests = sorted(path for place in area.near if (tree / place).exists() for path in [tree / place, *(tree / place).rglob("*.py")])
    content = b"".join(path.read_bytes() for path in [*(tree / path for path in files), *tests] if path.is_file())
    kept = KEPT / f"{name}-{hashlib.sha256(content + repr(area).encode()).hexdigest()[:12]}.json"
    if kept.exists():
        data = json.loads(kept.read_text())
        trace.load(data["trace"])
        return trace, data["took_s"]
    if not passes(area.near, tree, LIMIT_S, trace):
        raise SystemExit(f"the traced run of {name} takes longer than {LIMIT_S:g} s, or crashes")
    trace.load((tree / "trace.json").read_text())
    for arguments in area.then:
        began = time.monotonic()
        if not passes(arguments, tree, LIMIT_S):
            raise SystemExit(f"'{' '.join(arguments)}' fails without any mutant: mend that first")
        took_s[" ".join(arguments)] = time.monotonic() - began
    KEPT.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"trace": trace.saved(), "took_s": took_s}))
    return trace, took_s


def explore(name: str, files: Sequence[str], chosen: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Tries the mutants out, `jobs` at a time, each on a copy of the tree. Yields each with its stage as it ends."""
    for module in LOADED_ONCE:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as place:
        trees = [Path(place) / str(number) for number in range(jobs)]
        shutil.copytree(ROOT, trees[0], ignore=shutil.ignore_patterns(".*", "__pycache__", "build"))
        trace, took_s = traced(name, files, trees[0])
        if trace.failed:
            print(f"left out, as they fail without any mutant: {', '.join(sorted(trace.failed))}")
        for tree in trees[1:]:
            shutil.copytree(trees[0], tree)
        waiting = list(chosen)
        under_way: dict[int, tuple[Mutant, Path]] = {}
        names = [THESE, *(" ".join(arguments) for arguments in AREAS[name].then), SURVIVED]
        while waiting or under_way:
            if waiting and trees:
                mutant, tree = waiting.pop(0), trees.pop()
                tests = trace.tests(mutant)
                stages: dict[str, tuple[Sequence[str], float]] = {}
                if tests:
                    stages[THESE] = (tests, TIMES_AS_LONG * sum(trace.seconds[test] for test in tests) + AND_S)
                for arguments in AREAS[name].then:
                    stages[" ".join(arguments)] = (arguments, TIMES_AS_LONG * took_s[" ".join(arguments)] + AND_S)
                if (worker := os.fork()) == 0:
                    with contextlib.suppress(BaseException):
                        os._exit(names.index(try_out(mutant, tree, stages)))
                    os._exit(255)
                under_way[worker] = mutant, tree
                continue
            worker, status = os.wait()
            mutant, tree = under_way.pop(worker)
            trees.append(tree)
            yield mutant, names[os.waitstatus_to_exitcode(status)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--area", choices=AREAS, default="core", help="whose lines are broken")
    parser.add_argument("--number", type=int, default=60, help="how many mutants are tried; on the same code, a later run goes on")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--only", default="", help="only files whose path has this in it")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; one for each core unless given")
    parser.add_argument("--docs", type=Path, help="the page that takes the tables")
    chosen, load = parser.parse_args(), os.getloadavg()[0]
    if chosen.docs is not None and f"<!-- figures mutants-{chosen.area} -->" not in chosen.docs.read_text("utf-8"):
        raise SystemExit(f"{chosen.docs} has no place for it: add '<!-- figures mutants-{chosen.area} -->' and its end")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    files = sorted({path.relative_to(ROOT).as_posix() for glob in AREAS[chosen.area].files for path in ROOT.glob(glob)})
    everything = [mutant for path in files if chosen.only in path for mutant in mutants(path, (ROOT / path).read_bytes())]
    sample = Random(chosen.seed).sample(everything, min(chosen.number, len(everything)))
    KEPT.mkdir(parents=True, exist_ok=True)
    log = KEPT / f"{chosen.area}.jsonl"
    state = hashlib.sha256(b"".join(path.read_bytes() for top in OURS for path in sorted((ROOT / top).rglob("*.py")))).hexdigest()
    lines = map(json.loads, log.read_text().splitlines() if log.exists() else ())
    known = {Mutant(**each["mutant"]): each["stage"] for each in lines if each.get("state") == state}
    results = {mutant: known[mutant] for mutant in sample if mutant in known}
    missing = [mutant for mutant in sample if mutant not in results]
    for mutant, stage in explore(chosen.area, files, missing, chosen.jobs) if missing else ():
        results[mutant] = stage
        with log.open("a") as kept:
            kept.write(json.dumps({"mutant": asdict(mutant), "stage": stage, "state": state}) + "\n")
        print(f"{len(results)}/{len(sample)}  {mutant.path}:{mutant.line}  {mutant.what}: {stage}", flush=True)
    counted = Counter(results.values())
    counts = Figures(
        f"{chosen.area}: {len(sample)} of {len(everything)} one-line mutants (seed {chosen.seed})", ["noticed by", "mutants"],
        [[stage, str(count)] for stage, count in counted.most_common()], ["A stage sees only what the one before let through."],
    )  # fmt: skip
    living = sorted((mutant.path, mutant.line, mutant.what) for mutant, stage in results.items() if stage == SURVIVED)
    alive = Figures(f"{chosen.area}: what lives", ["where", "what"], [[f"{path}:{line}", what] for path, line, what in living])
    for figures in (counts, alive):
        figures.show()
    if chosen.docs is not None:
        put_into(chosen.docs, f"mutants-{chosen.area}", [counts, alive], chosen.number, load)


if __name__ == "__main__":
    main()
