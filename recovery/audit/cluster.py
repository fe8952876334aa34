"""Spark carries the ranges out: each is one task of one job, and only its outcome, a line of JSON, comes back to the driver.

    driver      spark.range(0, n, 1, n) --mapInArrow--> n lines          the job is pickled into the function, once
    executors   id --order--> range --carry_out--> RUN/findings/range-000017.parquet

    open_spark()                      a local Spark of our own: quiet, small, on the loopback, gone at the end
    open_spark(master="spark://…")    a session of our own on a cluster, configured as that cluster is
    under spark-submit, in a notebook the session that is there, as it is

The session's lifetime is the `with` block's. Neighbouring ranges are dealt out far apart, so that tasks that run at once read
different tablets. Nothing but `spark.range`, `mapInArrow` and `collect` is used, so Spark Connect serves too.

*Crash* of a Python worker, an executor or a machine: Spark runs its task again. The file of a range appears whole or not at all, under
one name, so a task may run twice. A range whose worker dies each time is given up before Spark gives up the job: its outcome
is an error, and the other ranges go on. Of the driver: the JVM that it started ends with it, whatever ended it.

*Failure*: `ConfigurationError` where something is missing or packed wrongly, here or on the executors; `UnavailableError` where Spark
gave up. What is done stays done.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changelog.base.errors import ConfigurationError, UnavailableError
from recovery.audit.java import find_java
from recovery.audit.work import Job, Outcome, collect_less

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: tuple[tuple[str, tuple[int, int], int | None], ...] = (("pyspark", (3, 5), None), ("pyarrow", (18, 0), None), ("pandas", (2, 2), 3))
"""Package, least version, and the first major one that is too new."""

ATTEMPTS = 4
"""How often Spark tries a task unless told otherwise (`spark.task.maxFailures`); the last one is ours, to say that the others failed."""

SLOTS_UNKNOWN = 16
"""Spark Connect does not say how many tasks run at once."""

SUBMITTED, REMOTE = "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"
"""Variables by which spark-submit and Spark Connect say that they are there."""

STOP_POLL_S = 0.2
GONE_S = 20.0
"""How long a JVM may take to end once its input is closed, until it is killed."""

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.catalogImplementation": "in-memory",
}
"""Of a local session. The JVM only hands out numbers: it starts fast, stays small, listens to nobody else, and writes nothing."""

CarryOut = Callable[[Job, int], Outcome]

_GOLDEN = 0.618
_GIVEN_UP = "Spark's workers died, or failed without a word, {} times over it: see the executors' log, and give them more memory"
_UNIMPORTABLE = re.compile(r"No module named '([\w.]+)'")
_PYTHONS = re.compile(r"different version:? ?\(?([\d.]+)\)? than that in driver:? ?\(?([\d.]+)")


class SparkEngine:
    """Implements `Engine` on a session. `carry_out` has to be importable on the executors. One `run` at a time.

    `slots`: how many tasks run at once, as far as Spark says. `attempts`: how often it tries a task.
    """

    def __init__(self, session: SparkSession, carry_out: CarryOut, *, slots: int, attempts: int, versions: Mapping[str, str]) -> None:
        self.name = f"spark {session.version}, {session.conf.get('spark.master', 'connect')}"
        self.versions = versions
        self.slots = slots
        self._session = session
        self._carry_out = carry_out
        self._attempts = attempts
        self._group = f"tiered-audit-{id(self)}"
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[Outcome]:
        """Outcomes come together at the end of Spark's job. Until then, progress is what the run's directory shows."""
        if not numbers or self._stopped.is_set():
            return
        tasks = partial(_carry_out_each, self._carry_out, job, spread(numbers), self._attempts)
        found: list[str] = []
        failed: list[Exception] = []
        submission = threading.Thread(target=self._submit, args=(tasks, len(numbers), found, failed), name="spark-job", daemon=True)
        submission.start()
        try:
            while submission.is_alive():
                # Again and again: the job that is to be ended may only be on its way to Spark.
                if self._stopped.is_set():
                    self._interrupt()
                submission.join(STOP_POLL_S)
        finally:
            if submission.is_alive():
                self._interrupt()
        if failed and not self._stopped.is_set():
            raise _explained(failed[0]) from failed[0]
        for line in found:
            yield Outcome(**json.loads(line))

    def _submit(self, tasks: partial[Iterator[Any]], number: int, found: list[str], failed: list[Exception]) -> None:
        """In a thread of its own: what names a job in Spark belongs to the thread, and the caller's may have names of its own."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            if _is_connect(self._session):
                self._session.addTag(self._group)
            else:
                self._session.sparkContext.setJobGroup(self._group, "tiered audit", interruptOnCancel=True)
            lines = self._session.range(0, number, 1, number).mapInArrow(tasks, "outcome string").collect()
            found += [line["outcome"] for line in lines]
        except (PySparkException, Py4JError, OSError) as error:
            failed.append(error)

    def _interrupt(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        with suppress(PySparkException, Py4JError, OSError):  # whatever is wrong, the submission meets it too
            if _is_connect(self._session):
                self._session.interruptTag(self._group)
            else:
                self._session.sparkContext.cancelJobGroup(self._group)


def spread(numbers: Sequence[int]) -> tuple[int, ...]:
    """The same numbers, such that those near each other in the answer are far apart in the question."""
    step = max(1, round(len(numbers) * _GOLDEN))
    while gcd(step, len(numbers)) != 1:
        step += 1
    return tuple(numbers[position * step % len(numbers)] for position in range(len(numbers)))


def _carry_out_each(carry_out: CarryOut, job: Job, order: Sequence[int], attempts: int, batches: Iterable[Any]) -> Iterator[Any]:
    """On an executor. A batch makes the answer's: a column of text in pyarrow's words, which this module has no other use for."""
    from pyspark import TaskContext

    collect_less()
    context = TaskContext.get()
    last = context is not None and context.attemptNumber() >= attempts - 1 > 0
    for batch in batches:
        for number in (order[position] for position in batch.column(0).to_pylist()):
            outcome = Outcome(number, error=_GIVEN_UP.format(attempts - 1), retryable=True) if last else carry_out(job, number)
            yield batch.from_pydict({"outcome": [json.dumps(asdict(outcome))]})


# --- sessions ---------------------------------------------------------------------------------------


@contextmanager
def open_spark(carry_out: CarryOut, master: str | None = None, slots: int | None = None) -> Iterator[SparkEngine]:
    """The session that is there (spark-submit, a notebook, Connect), else one on `master`, else a local one.

    `slots`: how many tasks at once; a local session has so many, of another it is only believed. What was started is stopped when
    the block ends, however it ends. Raises `ConfigurationError`: a package or Java is missing or does not fit, or Spark does not start.
    """
    versions = check_packages()
    from pyspark.sql import SparkSession

    present = SparkSession.getActiveSession() is not None
    if master is not None and (present or SUBMITTED in os.environ):
        raise ConfigurationError(f"there is a Spark session already: leave --master {master} out, or start without it")
    with ExitStack() as stack:
        if present or SUBMITTED in os.environ or REMOTE in os.environ or (master is not None and not _is_local(master)):
            session = _session_on(master)
            if not present:
                stack.callback(_end_session, session)
            attempts = int(session.conf.get("spark.task.maxFailures", str(ATTEMPTS)) or ATTEMPTS)
        else:
            slots = slots or _slots_of(master) or _processors()
            session = stack.enter_context(_local_session(slots, versions))
            attempts = ATTEMPTS
        if slots is None:
            slots = SLOTS_UNKNOWN if _is_connect(session) else session.sparkContext.defaultParallelism
        yield SparkEngine(session, carry_out, slots=slots, attempts=attempts, versions=versions)


def check_packages() -> dict[str, str]:
    """The versions of what is needed here. Raises `ConfigurationError`: one is missing, too old or too new."""
    found: dict[str, str] = {}
    for package, least, beyond in NEEDED:
        wanted = f"{package}>={least[0]}.{least[1]}" + (f",<{beyond}" if beyond else "")
        try:
            found[package] = _pyspark_version() if package == "pyspark" else version(package)
        except ImportError:
            raise ConfigurationError(
                f"an audit on Spark needs {wanted}, which is not installed: pip install 'tiered[spark]', or audit with --engine local"
            ) from None
        number = tuple(int(part) for part in re.findall(r"\d+", found[package])[:2])
        if number < least or (beyond is not None and number >= (beyond,)):
            raise ConfigurationError(
                f"an audit on Spark needs {wanted}, and {found[package]} is installed: pip install '{wanted}', or audit with --engine local"
            )
    return found


def _pyspark_version() -> str:
    """Of the one that is imported: a cluster's is not installed by pip, and comes before one that is."""
    from pyspark import __version__

    return __version__


def _session_on(master: str | None) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("tiered audit")
    if master is not None:
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    try:
        with _interruptible():
            return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise ConfigurationError(f"Spark does not start{f' on {master}' if master else ''}: {_reason(str(error))}") from error


@contextmanager
def _local_session(slots: int, versions: dict[str, str]) -> Iterator[SparkSession]:
    """A Spark inside one JVM of our own. What it says goes to a file, which is only read where it does not start."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    java = find_java()
    versions["java"] = str(java.version)
    # py4j logs when a connection breaks off. That of a JVM that we end does.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiered-spark-", ignore_cleanup_errors=True)))
        said = scratch / "stderr"
        conf = SparkConf(loadDefaults=False).setAppName("tiered audit").setMaster(f"local[{slots},{ATTEMPTS}]").setAll(list(LOCAL.items()))
        conf.set("spark.local.dir", str(scratch)).set("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        variables = {
            "JAVA_HOME": str(java.home_in(scratch / "java")), "SPARK_LOCAL_IP": "127.0.0.1",
            # Workers import what is imported here.
            "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }  # fmt: skip
        try:
            with _environment(variables), _interruptible(), said.open("wb") as output:
                gateway = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
                stack.callback(_end_jvm, gateway)
                SparkContext(conf=conf, gateway=gateway)
                session = SparkSession.builder.getOrCreate()
                stack.callback(_end_session, session)
        except (PySparkException, OSError) as error:
            reason = _reason(said.read_text(errors="replace").strip() or str(error))
            raise ConfigurationError(f"Spark does not start with the Java in {java.home}: {reason}; audit with --engine local") from error
        yield session


def _end_session(session: SparkSession) -> None:
    """Whatever became of Spark: if it is gone, that is what was wanted, and how it went is told by the run."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with suppress(PySparkException, Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session.stop()


def _end_jvm(gateway: Any) -> None:
    """PySpark would keep it for the next session. It ends when its input does."""
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(GONE_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """While the JVM starts, which takes its environment from ours."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _interruptible() -> Iterator[None]:
    """A new session takes Ctrl-C for itself, and would raise in the middle of an event loop. What was there comes back."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _is_connect(session: SparkSession) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


def _is_local(master: str) -> bool:
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _slots_of(master: str | None) -> int | None:
    number = re.fullmatch(r"local\[(\d+)(,.*)?\]", master or "")
    return int(number[1]) if number else None


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- what went wrong --------------------------------------------------------------------------------


def _explained(error: Exception) -> ConfigurationError | UnavailableError:
    from py4j.protocol import Py4JNetworkError

    text = "its JVM ended" if isinstance(error, Py4JNetworkError | OSError) else str(error)
    if missing := _UNIMPORTABLE.search(text):
        return ConfigurationError(
            f"Spark's workers cannot import {missing[1]}: pack the environment and send it along with --archives env.tar.gz#env "
            "--conf spark.executorEnv.PYTHONPATH=./env, as docs/audit.md shows"
        )
    if pythons := _PYTHONS.search(text):
        return ConfigurationError(
            f"Spark's workers run Python {pythons[1]}, and this is {pythons[2]}: name a Python {pythons[2]} of theirs in PYSPARK_PYTHON"
        )
    return UnavailableError(f"Spark gave the job up: {_reason(text)}; what is done stays done, and another run goes on from there")


def _reason(text: str) -> str:
    """The line of an error that says most: of its many, with traces of two languages."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it does not say why"]
    telling = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception): ", line) or "ExecutorLostFailure" in line]
    return (telling or lines)[0][:500]
