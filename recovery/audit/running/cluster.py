"""Lets Spark audit the ranges. Each range is one task of one Spark job.

Only its outcome, one line of JSON, comes back to the driver.

    driver      parallelize(range(n), n) --mapPartitions--> n lines      the job is pickled into the function, once
    executors   id --order--> range --carry_out--> RUN/findings/range-000017.parquet

    open_spark()                      a local Spark of our own: quiet, small, on the loopback, stopped at the end
    open_spark(master="spark://…")    a session of our own on a cluster, with that cluster's configuration
    under spark-submit, in a notebook the session that exists already, unchanged

A session that we start lives as long as the `with` block. Tasks that run at the same time get ranges that are far
apart, so that they read different tablets. Spark Connect has no RDDs: there it is `spark.range` and `mapInArrow`, which
cost the JVM two or three seconds more, for a plan and its compilation.

*Crash* of a Python worker, an executor or a machine: Spark runs its task again. That is safe: the file of a range has
one fixed name and appears whole or not at all. If the worker of a range dies each time, the last attempt reports an
error instead of trying again, so Spark does not give up the job and the other ranges go on. *Crash* of the driver: the
JVM that it started ends with it, whatever the cause.

*Failure*: `ConfigurationError` if something is missing or packed wrongly, on this machine or on the executors.
`UnavailableError` if Spark gave up. The ranges that are done stay done.
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
from changelog.base.events import text_of
from changelog.base.extras import installing
from recovery.audit.running.java import find_java
from recovery.audit.running.jobs import Job, PartResult, collect_less

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: tuple[tuple[str, tuple[int, int], int | None], ...] = (("pyspark", (3, 5), None), ("pyarrow", (18, 0), None), ("pandas", (2, 2), 3))
"""The package, the least version, and the first major version that is too new (None: there is no such limit)."""

ATTEMPTS = 4
"""How often Spark tries a task by default (`spark.task.maxFailures`).

We use the last attempt to report that the others failed.
"""

SLOTS_UNKNOWN = 16
"""The number of slots that we assume for Spark Connect, which does not say how many tasks run at once."""

SUBMITTED, REMOTE = "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"
"""Environment variables. If one is set, spark-submit or Spark Connect has started this process."""

STOP_POLL_S = 0.2
GONE_S = 20.0
"""The seconds that a JVM may take to end after its input is closed. Then it is killed."""

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "recovery.audit.running.spark_daemon",
    "spark.sql.catalogImplementation": "in-memory",
}
"""The settings of a local session. The JVM only hands out numbers, so it starts fast and stays small.

It listens only on the loopback and writes no event log.
"""

CarryOut = Callable[[Job, int], PartResult]
Tasks = Callable[[Iterable[int]], Iterator[str]]

REASON_MAX = 500
"""How many characters of a reason are passed on."""

_GOLDEN = 0.618
_GIVEN_UP = "Spark's workers died, or failed without a word, {} times over it: see the executors' log, and give them more memory"
_TRACEBACK = "Traceback (most recent call last):"
_NO_REASON = re.compile(
    r"An error occurred while calling |at |\.\.\.|(NOTE: )?Picked up \w+: |WARNING: |.* VM warning: |\d\S* \S+ (WARN|INFO|DEBUG) "
    r"|Using Spark's default log4j profile|Setting default log level to |To adjust logging level use "
    r"|Error: (Could not create the Java Virtual Machine|A fatal exception has occurred)"
)
"""How a line begins that is no reason: of a stack, what Java and Spark print at every start, or after each reason."""
_EXCEPTION = re.compile(r'(?:Exception in thread "[^"]*" )?((?:[\w$]+\.)*[\w$]+(?:Error|Exception)(?:: .*|$))')
_RECENT = "most recent failure: "
_TASK = re.compile(r"^Lost task \S+ in stage \S+ \(TID \d+\) \(.*?\): ")
_UNIMPORTABLE = re.compile(r"No module named '([\w.]+)'")
_PYTHONS = re.compile(r"different version:? ?\(?([\d.]+)\)? than that in driver:? ?\(?([\d.]+)")


class SparkEngine:
    """An `Engine` on a Spark session. It allows one `run` at a time.

    `carry_out` must be importable on the executors. `slots`: how many tasks run at once, as far as Spark tells.
    `attempts`: how often Spark tries a task.
    """

    def __init__(self, session: SparkSession, carry_out: CarryOut, *, slots: int, attempts: int, versions: Mapping[str, str]) -> None:
        self.name = f"spark {session.version}, {session.conf.get('spark.master', 'connect')}"
        self.versions = versions
        self.slots = slots
        self.elsewhere = True
        self._session = session
        self._carry_out = carry_out
        self._attempts = attempts
        self._group = f"tiered-audit-{id(self)}"
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
        """Audits the ranges of these numbers, and yields their outcomes.

        All outcomes come together at the end of Spark's job. Until then, only the run's directory shows the progress.
        Raises `ConfigurationError` or `UnavailableError` if the job failed; the ranges whose files exist are done.
        """
        if not numbers or self._stopped.is_set():
            return
        tasks = partial(_carry_out_each, self._carry_out, job, spread(numbers), self._attempts)
        found: list[str] = []
        failed: list[Exception] = []
        submission = threading.Thread(target=self._submit, args=(tasks, len(numbers), found, failed), name="spark-job", daemon=True)
        submission.start()
        try:
            while submission.is_alive():
                # Repeat this: at the first attempt the job may still be on its way to Spark.
                if self._stopped.is_set():
                    self._interrupt()
                submission.join(STOP_POLL_S)
        finally:
            if submission.is_alive():
                self._interrupt()
        if failed and not self._stopped.is_set():
            raise explained(failed[0]) from failed[0]
        for line in found:
            yield PartResult(**json.loads(line))

    def _submit(self, tasks: Tasks, number: int, found: list[str], failed: list[Exception]) -> None:
        """Submits the job.

        This runs in its own thread, because Spark keeps a job's name per thread, and the caller's thread may already
        have a name.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            if _is_connect(self._session):
                self._session.addTag(self._group)
                rows = self._session.range(0, number, 1, number).mapInArrow(partial(_in_batches, tasks), "outcome string").collect()
                found += [row["outcome"] for row in rows]
                return
            context = self._session.sparkContext
            context.setJobGroup(self._group, "tiered audit", interruptOnCancel=True)
            found += context.parallelize(range(number), number).mapPartitions(tasks).collect()
        except (PySparkException, Py4JError, OSError) as error:
            failed.append(error)

    def _interrupt(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        with suppress(PySparkException, Py4JError, OSError):  # the submission meets the same error and reports it
            if _is_connect(self._session):
                self._session.interruptTag(self._group)
            else:
                self._session.sparkContext.cancelJobGroup(self._group)


def spread(numbers: Sequence[int]) -> tuple[int, ...]:
    """Returns the same numbers in an order that puts neighbours of the result far apart in the input."""
    step = max(1, round(len(numbers) * _GOLDEN))
    while gcd(step, len(numbers)) != 1:
        step += 1
    return tuple(numbers[position * step % len(numbers)] for position in range(len(numbers)))


def _carry_out_each(carry_out: CarryOut, job: Job, order: Sequence[int], attempts: int, positions: Iterable[int]) -> Iterator[str]:
    """Audits the ranges at these positions of the order, on an executor. Yields each outcome as a line of JSON."""
    from pyspark import TaskContext

    collect_less()
    context = TaskContext.get()
    last = context is not None and context.attemptNumber() >= attempts - 1 > 0
    for number in (order[position] for position in positions):
        outcome = PartResult(number, error=_GIVEN_UP.format(attempts - 1), retryable=True) if last else carry_out(job, number)
        yield json.dumps(asdict(outcome))


def _in_batches(tasks: Tasks, batches: Iterable[Any]) -> Iterator[Any]:
    """Does the tasks of batches with one column, their positions. The answers are batches with one column of text."""
    from recovery.audit.files.arrow import line_batch

    for line in tasks(position for batch in batches for position in batch.column(0).to_pylist()):
        yield line_batch("outcome", line)


# --- sessions ---------------------------------------------------------------------------------------


@contextmanager
def open_spark(carry_out: CarryOut, master: str | None = None, slots: int | None = None) -> Iterator[SparkEngine]:
    """Uses the session that exists (spark-submit, a notebook, Connect). Else starts one on `master`, or a local one.

    `slots`: how many tasks run at once. A local session gets this many. For any other session we believe the number.
    What we started is stopped when the block ends, however it ends. Raises `ConfigurationError` if a package or Java is
    missing or has the wrong version, or if Spark does not start.
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
    """Returns the versions of the packages that are needed here.

    Raises `ConfigurationError` if one is missing, too old or too new.
    """
    found: dict[str, str] = {}
    for package, least, beyond in NEEDED:
        wanted = f"{package}>={least[0]}.{least[1]}" + (f",<{beyond}" if beyond else "")
        try:
            found[package] = _pyspark_version() if package == "pyspark" else version(package)
        except ImportError:
            raise ConfigurationError(
                f"an audit on Spark needs {wanted}, which is not installed: {installing('spark')}, or audit with --engine local"
            ) from None
        number = tuple(int(part) for part in re.findall(r"\d+", found[package])[:2])
        if number < least or (beyond is not None and number >= (beyond,)):
            raise ConfigurationError(
                f"an audit on Spark needs {wanted}, and {found[package]} is installed: pip install '{wanted}', or audit with --engine local"
            )
    return found


def _pyspark_version() -> str:
    """Returns the version of the pyspark that is imported.

    A cluster's pyspark is not installed by pip and is imported before one that is.
    """
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
        raise ConfigurationError(f"Spark does not start{f' on {master}' if master else ''}: {_reason(text_of(error))}") from error


@contextmanager
def _local_session(slots: int, versions: dict[str, str]) -> Iterator[SparkSession]:
    """Starts Spark in a JVM of our own. Its output goes to a file. We read the file only if Spark does not start."""
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    java = find_java()
    versions["java"] = str(java.version)
    # py4j logs every broken connection, and we break one when we end the JVM.
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
        except (PySparkException, Py4JError, OSError) as error:
            reason = _reason(f"{said.read_text(errors='replace')}\n{text_of(error)}")
            raise ConfigurationError(f"Spark does not start with the Java in {java.home}: {reason}; audit with --engine local") from error
        yield session


def _end_session(session: SparkSession) -> None:
    """Stops the session and ignores every error. If Spark is gone already, that is the wanted result.

    The run reports how its job went.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with suppress(PySparkException, Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session.stop()


def _end_jvm(gateway: Any) -> None:
    """Ends the JVM, which PySpark would keep for the next session. The JVM ends when its input is closed."""
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
    """Sets these environment variables while the JVM starts. The JVM inherits them from this process."""
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
    """Restores the handler of SIGINT afterwards.

    A new session installs its own handler, which would raise in the middle of an event loop.
    """
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


def explained(error: Exception) -> ConfigurationError | UnavailableError:
    """Returns an error of ours for an error of Spark, with one sentence."""
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
    """Returns the line that says most. Such an error has many lines, with stack traces of two languages.

    Best is the last line of the last Python traceback: what a worker raised. Then what Spark says of a lost executor,
    then what follows "most recent failure", then the last cause that Java names, and then the first exception. The
    first line of an error that py4j passes on only names a method of ours, and a JVM begins with warnings.
    """
    if raised := _raised(text):
        return raised[:REASON_MAX]
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not _NO_REASON.match(line)] or ["it does not say why"]
    for line in lines:
        if "ExecutorLostFailure" in line:
            return line[line.index("ExecutorLostFailure") :][:REASON_MAX]
    for line in lines:
        if _RECENT in line:
            recent = _TASK.sub("", line.partition(_RECENT)[2]).strip()
            if recent:
                return recent[:REASON_MAX]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    exceptions = [found[1] for line in lines if (found := _EXCEPTION.match(line))]
    errors = [line for line in lines if line.startswith("Error: ")]
    return (causes[-1:] or exceptions or errors or lines)[0][:REASON_MAX]


def _raised(text: str) -> str | None:
    """Returns the line with the error of the last Python traceback, or None if there is no traceback."""
    found = None
    inside = False
    for line in text.splitlines():
        if line.strip().endswith(_TRACEBACK):
            inside = True
        elif inside and line and not line[0].isspace():
            inside, found = False, line.strip()
    return found
