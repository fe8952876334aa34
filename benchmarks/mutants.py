"""What the tests would let through: one line of the core is broken, the tests run, and one of them must fail.

    python -m benchmarks.mutants --number 100 --seed 1 [--docs docs/mutants.md]        (make mutants N=100)

The seed draws the sample from all breaks of the kinds in `_Breaks`: a statement left out, a condition turned round, a
comparison one off, a flag or a number changed, None returned, and some more. Each break is written into a copy of the
tree, one after the other. Then the stages run on it until one fails. A break that no stage notices *lives*. It changes
nothing, or a test is missing, and a person says which. We looked at two maintained libraries for this (Cosmic Ray,
mutmut). They leave no statement out, but a forgotten event or `await` is just that.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import queue
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.figures import Figures, put_into

ROOT = Path(__file__).parents[1]
CORE = (
    "changelog/base/tasks.py", "changelog/base/threads.py", "changelog/heartbeat.py", "changelog/lease.py", "recovery/loop.py",
    "tiered/bulk.py", "tiered/payload/files.py", "tiered/payload/own_thread.py", "tiered/payload/pieces.py", "tiered/payload/streams.py",
    "tiered/protocol/admission.py", "tiered/protocol/breaker.py", "tiered/protocol/conditions.py", "tiered/protocol/listing.py",
    "tiered/protocol/writing.py", "tiered/protocol/concurrent.py", "tiered/protocol/under_way.py",
    "tiered/protocol/reading.py", "tiered/protocol/retry.py", "tiered/protocol/finishing.py", "tiered/storage.py",
)  # fmt: skip
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib")
UNIT = ["tests/changelog/base", "tests/changelog/test_lease.py", "tests/tiered/payload", "tests/tiered/protocol"]
STAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tests of the store, unit tests of the core", (*PYTEST, "tests/store", *UNIT)),
    ("400 worlds", (sys.executable, "-m", "emulators.simulation", "run", "--first", "1", "--seeds", "400", "--jobs", "1")),
)
LIMIT_S = 900.0
TIMES_AS_LONG = 3
"""If a stage takes this many times as long as without a mutant, it hangs. That counts as noticed."""

MEMORY_BYTES = 6 << 30
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


def try_out(mutant: Mutant | None, tree: Path, limits_s: dict[str, float]) -> str:
    """Returns the stage that notices the mutant, or `SURVIVED` if none does.

    `mutant` None: the tree as it is, which shows how long a stage may take.
    """
    source = b"" if mutant is None else (ROOT / mutant.path).read_bytes()
    if mutant is not None:
        (tree / mutant.path).write_bytes(mutant.applied_to(source))
    try:
        for stage, command in STAGES:
            began = time.monotonic()
            if not _passes(command, tree, limits_s.get(stage, LIMIT_S)):
                return stage
            if mutant is None:
                limits_s[stage] = TIMES_AS_LONG * (time.monotonic() - began)
        return SURVIVED
    finally:
        if mutant is not None:
            (tree / mutant.path).write_bytes(source)


def _passes(command: Sequence[str], tree: Path, limit_s: float) -> bool:
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )  # fmt: skip
    try:
        return process.wait(limit_s) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        _end_all_of(process)


def _end_all_of(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and everything that the tests started: it is all in the process's session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def explore(chosen: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Tries the mutants out, each worker on its own copy of the tree. Raises `SystemExit` if the unchanged tree fails.
    """
    with tempfile.TemporaryDirectory() as place:
        trees = [Path(place) / str(number) for number in range(jobs)]
        for tree in trees:
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        limits_s: dict[str, float] = {}
        if (failed := try_out(None, trees[0], limits_s)) != SURVIVED:
            raise SystemExit(f"'{failed}' fails without any mutant: mend that first")
        waiting: queue.SimpleQueue[Mutant | None] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[Mutant, str]] = queue.SimpleQueue()
        for mutant in (*chosen, *[None] * jobs):
            waiting.put(mutant)

        def work(tree: Path) -> None:
            while (mutant := waiting.get()) is not None:
                done.put((mutant, try_out(mutant, tree, limits_s)))

        threads = [threading.Thread(target=work, args=(tree,), daemon=True) for tree in trees]
        for thread in threads:
            thread.start()
        for _ in chosen:
            yield done.get()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--number", type=int, default=100, help="how many mutants are tried")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; one for each core unless given")
    parser.add_argument("--docs", type=Path, help="the page that takes the table")
    chosen = parser.parse_args()
    everything, load = [mutant for path in CORE for mutant in mutants(path, (ROOT / path).read_bytes())], os.getloadavg()[0]
    sample = Random(chosen.seed).sample(everything, min(chosen.number, len(everything)))
    began, results = time.monotonic(), []
    for number, (mutant, stage) in enumerate(explore(sample, chosen.jobs), 1):
        results.append((mutant, stage))
        print(f"{number}/{len(sample)}  {mutant.path}:{mutant.line}  {mutant.what}: {stage}", flush=True)
    counted = Counter(stage for _, stage in results)
    counts = Figures(
        f"{len(sample)} of {len(everything)} one-line mutants of the core (seed {chosen.seed})", ["noticed by", "mutants"],
        [[name, str(counted[name])] for name in (*(stage for stage, _ in STAGES), SURVIVED)],
        [f"{time.monotonic() - began:.0f} s on {chosen.jobs} processes. A stage sees only what the one before let through."],
    )  # fmt: skip
    living = sorted((mutant.path, mutant.line, mutant.what) for mutant, stage in results if stage == SURVIVED)
    alive = Figures("What lives", ["where", "what"], [[f"{path}:{line}", what] for path, line, what in living])
    for figures in (counts, alive):
        figures.show()
    if chosen.docs is not None:
        put_into(chosen.docs, "mutants", [counts, alive], chosen.number, load)


if __name__ == "__main__":
    main()
