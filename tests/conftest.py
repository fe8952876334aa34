"""What every test has in common: no settings of the machine it runs on, and examples that repeat."""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import re
import shutil
import signal
import tempfile
from asyncio import BaseEventLoop, Handle
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from anyio.from_thread import start_blocking_portal
from google.cloud.bigtable_admin_v2.types import ColumnFamily, CreateTableRequest, Table
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, insecure_channel
from changelog.change import ChangeId
from emulators.bigtable.emulator import EmulatorNotFoundError, start_bigtable
from emulators.gcs.fake_gcs_server import FakeGcsNotFoundError, start_fake_gcs
from emulators.lacking import lacking
from emulators.postgres.server import QUICK, SAFE, PostgresNotFoundError, PostgresServer, postgres_server
from emulators.s3.servers import CREDENTIALS, MINIO, S3ServerNotFoundError, start_minio, start_moto, start_versitygw
from tests.given.held_directory import held_directory
from tests.given.installed import build_wheel
from tests.suites import MATRICES, begin, is_in, left_to_other_commits, left_to_the_night, said_of_shares
from tiered.bigtable.cells import LEGACY_FAMILIES
from tiered.provision.schema import FAMILIES
from tiered.settings import ENV_OTHERS, ENV_PREFIX

# Derandomised: a submission is judged by its own change, not by the examples it happened to draw; `make sim`
# looks further. No deadline: other work may share the machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

T = TypeVar("T")
NOBODY = 65534
ENDING_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
MEMORY, MEMORY_BYTES_MIN = Path("/dev/shm"), 6 << 30
"""Where files are in memory, and how many bytes must be free. One test stores a gibibyte."""
SAID_AT_THE_END = "said at the end"
TEMPORARY = pytest.StashKey[tuple[Path, int]]()
"""The directory of a test, and how many tests had failed before it."""

LONG_FIRST = (
    "spark/", "test_wheel.py", "crash/test_crash_on_emulators.py", "crash/test_crash_everywhere.py", "simulation/test_fresh_seeds.py",
    "callers/test_fresh_callers.py", "recovery/http/test_receiver.py", "recovery/http/test_page.py", "crash/test_power_cuts.py",
    "simulation/test_bounded.py", "production/test_two_stores_in_one_bucket.py", "claims/test_faults.py", "test_benchmarks.py",
    "recovery/feed/sinks/test_contract.py", "recovery/http/test_daemon.py", "recovery/test_inside.py", "recovery/test_backup.py",
    "contracts/", "tiered/gcs/test_blobs.py", "model/", "test_architecture.py", "deploy/test_files.py", "examples/test_fastapi_app.py",
    "simulation/", "recovery/audit/running/test_run.py", "recovery/audit/running/test_local_engine.py", "recovery/cli/", "crash/",
    "recovery/test_outages.py", "recovery/statistics/test_recovery_source.py", "recovery/feed/sinks/test_registry.py", "production/",
    "test_site.py", "recovery/", "tiered/filesystem/test_fsspec_suite.py", "tiered/embedded/", "changelog/sqlite/", "emulators/",
)  # fmt: skip
"""These files and folders run before all others, the longest first, because what comes last should be short."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thirds", action="store_true", help="of a test with many parameters, a third, which the commit chooses")


def pytest_configure(config: pytest.Config) -> None:
    """Temporary directories are in memory where there is much of it. A disk takes milliseconds for each fsync.

    No test looks at a disk that lost its power: `tests/crash/test_power_cuts.py` derives what is left from the calls.
    """
    begin(config.option.markexpr)
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        system = os.statvfs(MEMORY)
        unused = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
        room_bytes = min(system.f_bavail * system.f_frsize, int(unused[1]) << 10 if unused else 0)
        if room_bytes >= MEMORY_BYTES_MIN and not system.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_report_header() -> list[str]:
    """What this machine lacks is said once, first. The tests that need it fail in CI, and are skipped elsewhere."""
    return [f"not on this machine: {each}" for each in lacking()]


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    night = left_to_the_night(items)
    if "night" not in config.option.markexpr:
        other = left_to_other_commits(item.nodeid for item in items if item not in night) if config.option.thirds else ()
        left = night | {item for item in items if item.nodeid in other}
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
    for item in items:  # `make quick` leaves out what is slow
        if isinstance(item, pytest.Function):
            given = item.callspec.params.values() if hasattr(item, "callspec") else ()
            if {"bigtable_host", "postgres"} & set(item.fixturenames) or "emulators" in [each for each in given if isinstance(each, str)]:
                item.add_marker(pytest.mark.slow)

    @cache  # thousands of tests are in hundreds of files
    def place(path: Path) -> int:
        where = path.relative_to(Path(__file__).parent).as_posix()
        return next((number for number, start in enumerate(LONG_FIRST) if where.startswith(start)), len(LONG_FIRST))

    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: place(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for garbage seldom, because what is imported and collected stays to the end. To search it costs much CPU.

    The number is less than what workers of an audit set, so that a test can tell theirs from this one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()
        atexit.register(gc.unfreeze)  # duckdb complains about what is left in memory at the end


def pytest_xdist_auto_num_workers() -> int:
    """Three workers for two cores, because many tests wait. With four, each takes more CPU, and all take longer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2  # macOS has no affinity
    return max(2, cores * 3 // 2)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _ByFile(config, log)


class _ByFile(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Gives each file to one worker, and all files of Spark to one, because they share its session."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/spark" if nodeid.startswith("tests/spark/") else nodeid.partition("::")[0]


# --- what gRPC does ------------------------------------------------------------------------------

_call_soon_threadsafe = BaseEventLoop.call_soon_threadsafe


def _call_soon_unless_closed(self: BaseEventLoop, callback: Callable[..., Any], *args: Any, **named: Any) -> Handle | None:
    """Drops what grpc.aio has for an event loop that was closed.

    When a call was cancelled, its answer may come after its loop has ended. grpc.aio then raises an error in the loop
    that runs now, and that loop belongs to another test.
    """
    if self.is_closed() and getattr(callback, "__name__", "") == "_handle_callback_wrapper":
        return None
    return _call_soon_threadsafe(self, callback, *args, **named)


BaseEventLoop.call_soon_threadsafe = _call_soon_unless_closed  # type: ignore[assignment, method-assign]


# --- what is said at the end ---------------------------------------------------------------------


@pytest.fixture
def said_at_the_end(request: pytest.FixtureRequest) -> list[str]:
    """Lines for the terminal's summary: what fresh seeds explored, whether or not anything was found."""
    lines: list[str] = []
    request.node.user_properties.append((SAID_AT_THE_END, lines))  # travels with the report from the process that runs the test
    return lines


class _AtOnce:
    """Names each failure when it happens, with its reason: a run of hours may be ended before its summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.outcome == "rerun":  # type: ignore[comparison-overlap] # pytest-rerunfailures adds it
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = f"{crash.message if crash else report.longreprtext}".strip().partition("\n\n")[0][:1000]
            self.terminal.ensure_newline()
            self.terminal.write_line(f"failed at {report.when}: {report.nodeid}: {reason}")
            self.terminal.flush()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        session.config.pluginmanager.register(_AtOnce(terminal))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [each for reports in terminalreporter.stats.values() for each in reports if isinstance(each, pytest.TestReport)]
    for report in (each for each in reports if each.when == "call"):
        said: dict[str, Any] = dict(report.user_properties)
        for line in said.get(SAID_AT_THE_END, ()):
            terminalreporter.write_line(line)
    if terminalreporter.config.option.thirds or any(is_in(each.nodeid, MATRICES) for each in reports):
        terminalreporter.write_line(said_of_shares())


# --- fixtures ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_settings_from_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX) and not name.startswith(ENV_OTHERS)]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_signals_from_this_machine() -> Iterator[None]:
    """What a test starts ignores no signal, which it would after `nohup` or in a shell's background.

    No shell can trap what it ignores from its start. A handler is not passed on to it. SIGINT interrupts here, too.
    """
    before = {each: signal.getsignal(each) for each in ENDING_SIGNALS}
    for each, handler in before.items():
        if each is signal.SIGINT:
            signal.signal(each, signal.default_int_handler)
        elif handler is signal.SIG_IGN:
            signal.signal(each, lambda *_: None)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's own. That one is removed while `os` may still be patched."""
    path = tmp_path_factory.mktemp(re.sub(r"\W", "_", request.node.name)[:30])
    request.node.stash[TEMPORARY] = path, request.session.testsfailed
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Removes the directory of a test that passed."""
    yield
    path, failed = item.stash.get(TEMPORARY, (None, 0))
    if path is not None and item.session.testsfailed == failed:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[Path]:
    """A directory, and this process as a user whom the file system may refuse: to root it refuses nothing."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp())
    os.chown(directory, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield directory
    finally:
        os.seteuid(0)
        shutil.rmtree(directory)


@contextmanager
def server_of_others(start: Callable[[], AbstractAsyncContextManager[T]], lock: Path) -> Iterator[T]:
    """Runs a server that others wrote. It outlives every test's event loop.

    Each worker of pytest-xdist has its own. Where there is none, the test is skipped; where CI is set, it fails.
    """
    with start_blocking_portal() as portal, lock.open("w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)  # the first start on a machine builds the server, and one worker is enough for that
        try:
            with portal.wrap_async_context_manager(start()) as server:
                fcntl.flock(locked, fcntl.LOCK_UN)
                yield server
        except (EmulatorNotFoundError, FakeGcsNotFoundError, S3ServerNotFoundError) as missing:
            if os.environ.get("CI"):
                pytest.fail(str(missing))
            pytest.skip(str(missing))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def bigtable_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Returns the `address:port` of Google's emulator of Bigtable."""
    with server_of_others(start_bigtable, tmp_path_factory.getbasetemp().parent / "emulator-lock") as emulator:
        yield emulator.host


@pytest.fixture(scope="session")
def fake_gcs_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Returns the address of fake-gcs-server."""
    with server_of_others(start_fake_gcs, tmp_path_factory.getbasetemp().parent / "fake-gcs-lock") as url:
        yield url


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server, for tests that do not kill it. Each worker of pytest-xdist has its own."""
    with postgres_or_skip() as server:
        yield server


@pytest.fixture(scope="module")
def durable_postgres() -> Iterator[PostgresServer]:
    """A server as it should be set: with that of the other tests, `provision` and `check` find problems."""
    with postgres_or_skip(SAFE) as server:
        yield server


@contextmanager
def postgres_or_skip(options: tuple[str, ...] = QUICK) -> Iterator[PostgresServer]:
    """A server of its own. Where there is none, the test is skipped; where CI is set, it fails."""
    try:
        with postgres_server(options) as server:
            yield server
    except PostgresNotFoundError as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def moto_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Returns the address of moto's server of S3."""
    with s3_credentials(), server_of_others(start_moto, tmp_path_factory.getbasetemp().parent / "moto-lock") as url:
        yield url


@pytest.fixture(scope="session")
def versitygw_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Returns the address of versitygw. Its files are on the disk: those in memory have no attributes."""
    lock = tmp_path_factory.getbasetemp().parent / "versitygw-lock"
    with (
        held_directory("tiered-versitygw-") as directory, s3_credentials(),
        server_of_others(lambda: start_versitygw(directory), lock) as url,
    ):  # fmt: skip
        yield url


@pytest.fixture(scope="session")
def minio_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Returns the address of MinIO. It is skipped where it was not built before: `make night ARGS=minio`."""
    if MINIO.found() is None:
        pytest.skip("no MinIO: `make night ARGS=minio` builds it")
    lock = tmp_path_factory.getbasetemp().parent / "minio-lock"
    with (
        held_directory("tiered-minio-") as directory, s3_credentials(), server_of_others(lambda: start_minio(directory), lock) as url,
    ):  # fmt: skip
        yield url


@contextmanager
def s3_credentials() -> Iterator[None]:
    """The environment of whoever talks to these servers, for the length of the session."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield


FreshTable = Callable[[], AbstractAsyncContextManager[BigtableTable]]


@pytest.fixture
def fresh_table(bigtable_host: str) -> FreshTable:
    """Opens a new table with all families, without GC rules: nothing is collected in the middle of a test."""
    parent, name = "projects/test/instances/emulated", f"test-{ChangeId.new(SystemRuntime())}"

    @asynccontextmanager
    async def open_table() -> AsyncIterator[BigtableTable]:
        async with insecure_channel(bigtable_host) as channel:
            create = channel.unary_unary(
                "/google.bigtable.admin.v2.BigtableTableAdmin/CreateTable", CreateTableRequest.serialize, Table.deserialize
            )
            families = {family: ColumnFamily() for family in (*FAMILIES, *LEGACY_FAMILIES)}
            await create(CreateTableRequest(parent=parent, table_id=name, table=Table(column_families=families)), timeout=10)
            yield BigtableTable(channel, f"{parent}/tables/{name}")

    return open_table
