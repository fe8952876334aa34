"""Recovery inside a service, `open_storage(settings, recover=True)`: on real directories, with real kills."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.log import ChangeLog
from recovery.daemon import Recovery
from recovery.loop import RecoveryLoop
from tests.given.embedded_store import files
from tests.given.processes import StartedProcess
from tests.given.tapped_store import OBJECT, read
from tiered import ObjectId, Settings, open_storage
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.open import open_backends
from tiered.services.backends import Tiers

pytestmark = pytest.mark.anyio

LARGE = b"x" * 3_000_000
WAIT_S = 20.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.night)])


MOMENT = {"expiry_s": 1.0}
"""Leases that the killed leave soon. A busy machine may stand for longer, so what lives must bear to lose one."""


@pytest.fixture(autouse=True)
def _full_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.loop.FULL_PASS_EVERY_S", 0.1)
    monkeypatch.setattr("recovery.daemon.FULL_PASS_EVERY_S", 0.1)


def hurried(directory: Path, **values: Any) -> Settings:
    """Passes without a pause. Leases are as usual: what was planted is nobody's, so it is taken over at once."""
    defaults: dict[str, Any] = {"directory": directory, "recovery": {"idle_s": 0.05, "shutdown_budget_s": 2.0}}
    return Settings(**(defaults | values))


async def plant(settings: Settings, count: int = 1) -> list[str]:
    """What a killed process left: blobs that no row names, and their entries. Returns the names of the blobs."""
    runtime = SystemRuntime()
    names = []
    async with open_backends(settings, runtime) as backends:
        for _ in range(count):
            token = ChangeId.new(runtime)
            names.append(name := blob_name(OBJECT.path, token))
            upload = await backends.tiers.long_term.open_upload(name, Metadata(), None)
            await upload.write(b"garbage")
            await upload.finalise()
            entry = await backends.log.record(Change(token, OBJECT.path, name, None, upload.session), "dead")
            assert await backends.log.release(entry)
    return names


async def entries(settings: Settings) -> list[Any]:
    async with open_backends(settings, SystemRuntime()) as backends:
        return list((await backends.log.entries("", 1000)).entries)


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what it looks at sets no event
            await anyio.sleep(0.02)


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[Any]:
    return [record for record in caplog.records if getattr(record, "event", None) == event]


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tiered")


# --- what it does ----------------------------------------------------------------------------------


async def test_a_store_that_recovers_cleans_up_while_it_works(tmp_path: Path, anyio_backend: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = hurried(tmp_path)
    await plant(settings, 5)
    async with open_storage(settings, recover=True) as storage:
        await storage.put(OBJECT, LARGE)
        await until(lambda: len(files(tmp_path)) == 1)
        assert await read(storage) == LARGE
    assert await entries(settings) == []
    [started], [stopped] = said(caplog, "recovery_started"), said(caplog, "recovery_stopped")
    assert started.fields["store"] == str(tmp_path) and started.fields["changelog"] == "sqlite"
    assert (stopped.fields["recovered"], stopped.fields["stuck"]) == (5, 0)


async def test_without_recover_nothing_is_cleaned_up(tmp_path: Path, anyio_backend: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = hurried(tmp_path)
    await plant(settings)
    async with open_storage(settings):
        await anyio.sleep(0.5)
    assert len(await entries(settings)) == 1 and said(caplog, "recovery_started") == []


async def test_a_store_without_a_changelog_collects_what_expired(tmp_path: Path, anyio_backend: str) -> None:
    settings = hurried(tmp_path, changelog="noop")
    async with open_storage(settings, recover=True):
        (stray := tmp_path / "uploads" / ChangeId.new(SystemRuntime())).parent.mkdir(exist_ok=True)
        stray.touch()
    (tmp_path / "uploads" / ChangeId.new(SystemRuntime())).touch()
    async with open_storage(settings, recover=True):
        await until(lambda: os.listdir(tmp_path / "uploads") == [])


async def test_the_store_and_its_recovery_have_two_names(tmp_path: Path, anyio_backend: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_storage(hurried(tmp_path, instance="web-1"), recover=True) as storage:
        assert storage.instance == "web-1"
    assert [record.fields["instance"] for record in said(caplog, "recovery_started")] == ["web-1-recovery"]


async def test_several_stores_in_one_process_recover_each_their_own(tmp_path: Path, anyio_backend: str) -> None:
    one, two = hurried(tmp_path / "one"), hurried(tmp_path / "two")
    await plant(one, 3)
    await plant(two, 3)
    async with open_storage(one, recover=True), open_storage(two, recover=True), open_storage(one, recover=True):
        await until(lambda: not files(tmp_path / "one") and not files(tmp_path / "two"))
    assert await entries(one) == await entries(two) == []


@pytest.mark.slow
async def test_a_store_that_collects_beside_its_writes_takes_none_of_its_own_uploads(tmp_path: Path, anyio_backend: str) -> None:
    """Between its creation and its lock the file of an upload looks abandoned."""
    settings, over = hurried(tmp_path, recovery={"idle_s": 0.01}, inline_bytes_max=1000), anyio.Event()
    async with open_storage(settings, recover=True) as storage:

        async def write(number: int) -> None:
            while not over.is_set():
                await storage.put(ObjectId.create("attachments", f"key-{number}"), bytes(2000))

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(write, number)
            for _ in range(6):  # collections, meanwhile
                (stray := tmp_path / "uploads" / ChangeId.new(SystemRuntime())).touch()
                await until(lambda: not stray.exists())
            over.set()


# --- what is refused -------------------------------------------------------------------------------


async def test_reading_only_and_recovery_exclude_one_another(tmp_path: Path, anyio_backend: str) -> None:
    with pytest.raises(ConfigurationError, match="recover=True deletes and writes, and writes=False forbids both"):
        async with open_storage(hurried(tmp_path), writes=False, recover=True):
            raise AssertionError("it opened")
    assert not (tmp_path / "tiered.db").exists()


@pytest.mark.parametrize("changelog", [None, "noop"])
async def test_without_a_changelog_there_is_nothing_to_recover_in_google(anyio_backend: str, changelog: Any) -> None:
    settings = Settings(bigtable={"project": "p-1234", "instance": "i"}, gcs={"bucket": "bucket"}, changelog=changelog)
    with pytest.raises(ConfigurationError, match="nothing to recover without a changelog: set changelog: bigtable"):
        async with open_storage(settings, recover=True):
            raise AssertionError("it opened")


# --- errors and cancellation -----------------------------------------------------------------------


async def test_an_error_of_the_block_is_raised_as_it_is(tmp_path: Path, anyio_backend: str) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_storage(hurried(tmp_path), recover=True):
            raise KeyError("mine")


@pytest.mark.parametrize("error", [CorruptRecordError("the log is damaged"), RuntimeError("a bug"), UnavailableError("down")])
async def test_an_error_of_the_loop_ends_nothing_and_it_works_again_later(
    tmp_path: Path, anyio_backend: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = hurried(tmp_path)
    await plant(settings)
    real = RecoveryLoop._run_next
    broken, calls = True, 0

    async def run_next(self: RecoveryLoop) -> Any:
        nonlocal calls
        calls += 1
        if broken:
            raise error
        return await real(self)

    monkeypatch.setattr(RecoveryLoop, "_run_next", run_next)
    event = "recovery_pass_failed" if isinstance(error, UnavailableError) else "recovery_restarts"
    async with open_storage(settings, recover=True) as storage:
        await until(lambda: calls > 3)
        assert (len(said(caplog, event)) == 1) == isinstance(error, UnavailableError), "an outage is one line"
        await storage.put(OBJECT, b"small")
        broken = False
        await until(lambda: not files(tmp_path))
        assert await read(storage) == b"small"
    assert len(said(caplog, "recovery_stopped")) == 1


async def test_an_error_beside_the_loop_ends_nothing(
    tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: Recovery) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Recovery, "_collect_for_ever", broken)
    async with open_storage(hurried(tmp_path), recover=True) as storage:
        await until(lambda: len(said(caplog, "work_beside_failed")) >= 2)
        await storage.put(OBJECT, b"small")


class SlowBackend:
    """A tier or a log of which one call takes so long."""

    def __init__(self, target: Any, name: str, seconds: float) -> None:
        self._target, self._name, self._seconds = target, name, seconds
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._target, name)
        if name != self._name:
            return call

        async def slow(*arguments: Any, **named: Any) -> Any:
            self.asked += 1
            await anyio.sleep(self._seconds)
            return await call(*arguments, **named)

        return slow


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], list[SlowBackend]]:
    """Makes one call of what each loop works on slow."""

    def make(name: str, seconds: float) -> list[SlowBackend]:
        made: list[SlowBackend] = []
        real = RecoveryLoop.__init__

        def init(self: RecoveryLoop, tiers: Tiers, log: ChangeLog, *others: Any) -> None:
            made.append(slow := SlowBackend(log if name == "announce" else tiers.long_term, name, seconds))
            double: Any = slow
            if name == "announce":
                real(self, tiers, double, *others)
            else:
                real(self, Tiers(tiers.high_volume, double), log, *others)

        monkeypatch.setattr(RecoveryLoop, "__init__", init)
        return made

    return make


async def test_a_block_that_is_cancelled_while_it_recovers_gives_its_claims_back_at_once(
    tmp_path: Path, anyio_backend: str, slow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings = hurried(tmp_path)
    await plant(settings, 3)
    made = slow("delete", 1000)
    began = time.monotonic()
    with anyio.move_on_after(60) as scope:
        async with open_storage(settings, recover=True):
            await until(lambda: bool(made) and made[0].asked >= 3)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught and time.monotonic() - began < 30
    assert [(entry.owner, entry.attempt) for entry in await entries(settings)] == [("", 0)] * 3
    assert len(said(caplog, "recovery_stopped")) == 1


async def test_a_block_that_ends_while_it_recovers_finishes_or_releases_what_it_holds_within_its_budget(
    tmp_path: Path, anyio_backend: str, slow: Any
) -> None:
    settings = hurried(tmp_path)
    await plant(settings, 3)
    made = slow("delete", 1000)
    async with open_storage(settings, recover=True):
        await until(lambda: bool(made) and made[0].asked >= 3)
        began = time.monotonic()
    assert 1.5 < time.monotonic() - began < 20, "shutdown_budget_s is 2"
    assert [(entry.owner, entry.attempt) for entry in await entries(settings)] == [("", 0)] * 3


async def test_a_block_ends_within_its_budget_though_the_log_never_answers(
    tmp_path: Path, anyio_backend: str, slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.daemon.RELEASE_BUDGET_S", 1.0)
    made = slow("announce", 1000)
    async with open_storage(hurried(tmp_path, recovery={"shutdown_budget_s": 1.0}), recover=True):
        await until(lambda: bool(made) and made[0].asked >= 1)
        began = time.monotonic()
    assert time.monotonic() - began < 30, "shutdown_budget_s is 1, and 1 s to release"


async def test_no_signal_is_touched(tmp_path: Path, anyio_backend: str) -> None:
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    async with open_storage(hurried(tmp_path / "plain")):
        before = [signal.getsignal(number) for number in numbers]
    async with open_storage(hurried(tmp_path / "recovering"), recover=True):
        await anyio.sleep(0.2)
        assert [signal.getsignal(number) for number in numbers] == before


# --- kills -----------------------------------------------------------------------------------------

SERVICE = """
import json, sys
import anyio
from tiered import ObjectId, Settings, UnavailableError, open_storage

async def main():
    settings = Settings(**json.loads(sys.argv[1]))
    async with open_storage(settings, recover=True) as storage:
        async with anyio.create_task_group() as tasks:
            for number in range(int(sys.argv[2])):
                tasks.start_soon(write, storage, number)
            print("open", flush=True)
            await anyio.sleep_forever()

async def write(storage, number):
    object_id = ObjectId.create("attachments", f"key-{number}", {"org": "17"})
    while True:
        try:
            await storage.put(object_id, bytes([number]) * 2_000_000)
        except UnavailableError:  # a busy machine may stand for longer than this short lease lasts
            continue
        print("put", flush=True)

anyio.run(main, backend=sys.argv[3])
"""


@contextmanager
def service(settings: Settings, writers: int, backend: str) -> Iterator[subprocess.Popen[bytes]]:
    values = settings.model_dump(mode="json", exclude_unset=True)
    with StartedProcess(
        [sys.executable, "-c", SERVICE, json.dumps(values), str(writers), backend], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_for(running: subprocess.Popen[bytes], word: bytes, times: int = 1) -> None:
    assert running.stdout is not None
    for _ in range(times):
        while (line := running.stdout.readline()).strip() != word:
            assert line, "it ended by itself"


def garbage(settings: Settings, writers: int) -> tuple[int, int]:
    """How many entries there are, and how many files beyond one for each object."""
    assert settings.directory is not None
    return len(anyio.run(entries, settings)), max(0, len(files(settings.directory)) - writers)


@pytest.mark.slow
def test_a_service_that_was_killed_cleans_up_after_itself_when_it_runs_again(tmp_path: Path, anyio_backend: str) -> None:
    settings = hurried(tmp_path, lease=MOMENT)
    for _ in range(2):
        with service(settings, 8, anyio_backend) as running:
            wait_for(running, b"put", 10)
    assert garbage(settings, 8)[0] >= 1, "the kills left something"
    with service(settings, 0, anyio_backend) as running:
        wait_for(running, b"open")
        ends_at = time.monotonic() + 60
        while garbage(settings, 8) != (0, 0):
            assert time.monotonic() < ends_at, garbage(settings, 8)
            time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.night
def test_of_two_services_on_one_store_the_other_cleans_up_after_the_one_that_is_killed(tmp_path: Path, anyio_backend: str) -> None:
    if anyio_backend == "trio":
        pytest.skip("the test before kills services on trio; this one is about two of them")
    settings = hurried(tmp_path, lease=MOMENT)
    with service(settings, 0, anyio_backend) as keeper, service(settings, 0, anyio_backend) as other:
        wait_for(keeper, b"open")
        wait_for(other, b"open")
        for _ in range(2):
            with service(settings, 4, anyio_backend) as running:
                wait_for(running, b"put", 6)
        other.kill()
        ends_at = time.monotonic() + 60
        while garbage(settings, 4) != (0, 0):
            assert time.monotonic() < ends_at and keeper.poll() is None, garbage(settings, 4)
            time.sleep(0.5)


@pytest.mark.slow
def test_a_service_that_is_terminated_does_what_it_does_without_recovery(tmp_path: Path, anyio_backend: str) -> None:
    """Signals are the service's own: this one has no handler, so SIGTERM kills it."""
    with service(hurried(tmp_path), 0, anyio_backend) as running:
        wait_for(running, b"open")
        running.terminate()
        assert running.wait(timeout=60) == -signal.SIGTERM
