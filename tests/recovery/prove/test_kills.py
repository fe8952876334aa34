"""Killed writers: each fault that is planted turns its line red. No process outlives its run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from recovery.prove import kills, trial
from recovery.prove.judge import CallAnswer, JournaledCall, JournaledKind
from recovery.prove.kills import KilledRun, judge, kill_writers, play, settings_of
from recovery.prove.looks import rows_of
from recovery.prove.report import Line
from recovery.prove.trial import Trial
from recovery.prove.writer import LEAVE_S, USECASE
from tests.given.processes import is_running
from tests.given.repository import ROOT
from tiered.metadata import Metadata
from tiered.object_id import ObjectId, blob_name
from tiered.open import Backends, open_backends
from tiered.provision.probes import NotTriedError, Result
from tiered.services.backends import Inline
from tiered.settings import TRIAL_DIGITS, Settings
from tiered.settings.sections import NAME_PREFIX_MAX

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECONDS, RUNS_MAX = 4.0, 5
SAFE, HONEST, CLEAN = "acknowledged", "readable", "cleaned up"


@dataclass(frozen=True)
class PlayedRun:
    """What a run has left, and what its callers were told."""

    directory: Path
    played: KilledRun

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Backends]:
        async with open_backends(Settings(directory=self.directory), SystemRuntime()) as backends:
            yield backends

    async def lines(self) -> dict[str, Result]:
        async with self.open() as backends:
            return results(await judge(backends, self.played))

    def written(self) -> JournaledCall:
        """The last write of an object that one task alone writes: an acknowledged put."""
        of_object: dict[str, list[JournaledCall]] = {}
        for call in sorted(self.played.calls, key=lambda each: each.began):
            if call.object.endswith("/own") and call.kind is not JournaledKind.GET and call.answer is not CallAnswer.NO:
                of_object.setdefault(call.object, []).append(call)
        return next(calls[-1] for calls in of_object.values() if calls[-1].kind is JournaledKind.PUT and calls[-1].answer is CallAnswer.OK)

    async def blob(self, backends: Backends) -> str:
        return next(name for name in (await rows_of(backends)).values() if name is not None)


def results(lines: list[Line]) -> dict[str, Result]:
    return {line.name: line.result for line in lines}


async def play_in(directory: Path, *more: Callable[[str], list[str]], seconds: float = SECONDS) -> KilledRun:
    runtime, settings = SystemRuntime(), settings_of(Settings(directory=directory))
    async with open_backends(settings, runtime) as backends:
        return await play(backends, settings, runtime, seconds, *more)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PlayedRun:
    directory = tmp_path_factory.mktemp("kills") / "store"
    return PlayedRun(directory, anyio.run(partial(play_in, directory, seconds=2.0)))


@pytest.fixture
def run(made: PlayedRun, tmp_path: Path) -> PlayedRun:
    shutil.copytree(made.directory, tmp_path / "store")
    return PlayedRun(tmp_path / "store", deepcopy(made.played))


async def test_a_store_that_keeps_its_promises_holds_and_says_what_was_tried(run: PlayedRun) -> None:
    assert await run.lines() == {SAFE: Result.HELD, HONEST: Result.HELD, CLEAN: Result.HELD}
    async with run.open() as backends:
        said = (await judge(backends, run.played))[0].said
    strikes, calls = run.played.strikes, run.played.calls
    assert f"{strikes['kill']} writers were killed, with {run.played.hit} writes under way" in said
    assert f"Of {len(calls)} calls, {sum(each.answer is CallAnswer.OK for each in calls)} were acknowledged" in said
    assert "more than 10 s late was not tried" in said
    assert run.played.looks and {each.kind for each in calls} == set(JournaledKind)


# --- planted into what is stored, and into what was told ------------------------------------------


async def set_a_row_back(run: PlayedRun, backends: Backends) -> None:
    call, token = run.written(), ChangeId.new(SystemRuntime())
    rows, older = backends.tiers.high_volume, Inline(Metadata(size=3, custom={"call": "older"}), b"old", token)
    expected = (await rows.read(call.object)).target
    assert await rows.swap(call.object, token, expected, older, SystemRuntime().boot_time() + 60)


async def remove_a_row(run: PlayedRun, backends: Backends) -> None:
    call = run.written()
    rows = backends.tiers.high_volume
    expected = (await rows.read(call.object)).target
    assert await rows.swap(call.object, ChangeId.new(SystemRuntime()), expected, None, SystemRuntime().boot_time() + 60)


async def store_what_nobody_wrote(run: PlayedRun, backends: Backends) -> None:
    path, token = ObjectId.create(USECASE, "nobody").path, ChangeId.new(SystemRuntime())
    assert await backends.tiers.high_volume.put_inline(path, token, Inline(Metadata(size=1), b"x", token))


async def say_no_of_what_is_stored(run: PlayedRun, backends: Backends) -> None:
    run.written().answer = CallAnswer.NO


async def say_ok_of_what_was_never_done(run: PlayedRun, backends: Backends) -> None:
    call = run.written()
    run.played.calls.append(
        JournaledCall("lie", call.object, JournaledKind.PUT, "digest", call.ended + 0.001, call.ended + 0.002, CallAnswer.OK)
    )


async def delete_a_blob(run: PlayedRun, backends: Backends) -> None:
    await backends.tiers.long_term.delete(await run.blob(backends))


async def tell_a_reader_of_a_loss(run: PlayedRun, backends: Backends) -> None:
    path = run.written().object
    run.played.calls.append(JournaledCall("r", path, JournaledKind.GET, None, 0, 1, CallAnswer.LOST, detail="its blob is gone"))


async def see_a_blob_missing_for_a_while(run: PlayedRun, backends: Backends) -> None:
    run.played.dangling.add(await run.blob(backends))


async def leave_a_blob(run: PlayedRun, backends: Backends) -> None:
    name = blob_name(ObjectId.create(USECASE, "left").path, ChangeId.new(SystemRuntime()))
    upload = await backends.tiers.long_term.open_upload(name, Metadata(), 4)
    await upload.write(b"left")
    await upload.finalise()


async def leave_an_entry(run: PlayedRun, backends: Backends) -> None:
    await backends.log.record(Change(ChangeId.new(SystemRuntime()), ObjectId.create(USECASE, "left").path), "prove")


async def park_an_entry(run: PlayedRun, backends: Backends) -> None:
    change = Change(ChangeId.new(SystemRuntime()), ObjectId.create(USECASE, "left").path)
    assert await backends.log.park(await backends.log.record(change, "prove"), "it broke")


@pytest.mark.parametrize(
    ("plant", "broken"),
    [
        (set_a_row_back, SAFE),
        (remove_a_row, SAFE),
        (store_what_nobody_wrote, SAFE),
        (say_no_of_what_is_stored, SAFE),
        (say_ok_of_what_was_never_done, SAFE),
        (delete_a_blob, HONEST),
        (tell_a_reader_of_a_loss, HONEST),
        (see_a_blob_missing_for_a_while, HONEST),
        (leave_a_blob, CLEAN),
        (leave_an_entry, CLEAN),
        (park_an_entry, CLEAN),
    ],
)
async def test_a_planted_fault_turns_its_line_red(
    run: PlayedRun, plant: Callable[[PlayedRun, Backends], Awaitable[None]], broken: str
) -> None:
    async with run.open() as backends:
        await plant(run, backends)
    found = await run.lines()
    assert found.pop(broken) is Result.BROKEN
    # A large object that is replaced behind the store's back leaves its blob.
    allowed = {Result.HELD, Result.BROKEN} if plant in (set_a_row_back, remove_a_row) else {Result.HELD}
    assert set(found.values()) <= allowed


@pytest.mark.parametrize("what", ["hit", "looks"])
async def test_a_run_that_hit_no_write_or_never_looked_has_tried_nothing(run: PlayedRun, what: str) -> None:
    setattr(run.played, what, 0)
    assert set((await run.lines()).values()) == {Result.UNTRIED}


async def test_a_call_that_was_told_what_no_caller_should_be_leaves_it_open(run: PlayedRun) -> None:
    run.played.calls.append(JournaledCall("r", run.written().object, JournaledKind.GET, None, 0, 1, CallAnswer.ERROR, detail="it broke"))
    async with run.open() as backends:
        lines = await judge(backends, run.played)
    assert set(results(lines).values()) == {Result.UNTRIED} and "it broke" in lines[0].said


# --- planted into what runs ----------------------------------------------------------------------


@pytest.mark.night
async def test_a_recovery_that_forgets_without_cleaning_leaves_blobs(tmp_path: Path) -> None:
    found = set()
    for _ in range(RUNS_MAX):  # chance decides what a kill leaves
        played = await play_in(tmp_path / "store", lambda name: [sys.executable, "-m", "tests.given.faulty_recovery"])
        found.add((await PlayedRun(tmp_path / "store", played).lines())[CLEAN])
        if Result.BROKEN in found:
            break
    assert Result.BROKEN in found


@pytest.mark.night
async def test_blobs_that_vanish_while_all_runs_are_seen(tmp_path: Path) -> None:
    runtime, settings = SystemRuntime(), settings_of(Settings(directory=tmp_path / "store"))

    async def take_blobs(backends: Backends) -> None:
        while True:
            for name in (await rows_of(backends)).values():
                if name is not None:
                    await backends.tiers.long_term.delete(name)
            await anyio.sleep(0.2)

    async with open_backends(settings, runtime) as backends, anyio.create_task_group() as beside:
        beside.start_soon(take_blobs, backends)
        played = await play(backends, settings, runtime, SECONDS)
        beside.cancel_scope.cancel()
    assert any(each.answer is CallAnswer.LOST for each in played.calls) or played.dangling
    assert (await PlayedRun(tmp_path / "store", played).lines())[HONEST] is Result.BROKEN


async def test_processes_that_end_by_themselves_try_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotTriedError, match="ended by themselves"):
        await play_in(tmp_path / "store", lambda name: [sys.executable, "-c", "raise SystemExit(3)"])
    trial = Trial("0" * 12, Settings(directory=tmp_path / "other"), SystemRuntime())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kills, "START_S", 0.0)
        lines = await kill_writers(trial, SECONDS, lambda _: None)
    assert set(results(lines).values()) == {Result.UNTRIED}


# --- the end of all processes --------------------------------------------------------------------


def children(pid: int) -> set[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return {int(each) for each in found.stdout.split() if is_writer(int(each))}


def is_writer(pid: int) -> bool:
    try:
        return b"recovery.prove.writer" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def wait_until(what: Callable[[], object], within_s: float) -> None:
    with anyio.fail_after(within_s):
        while not what():  # noqa: ASYNC110 - nothing tells of other processes
            await anyio.sleep(0.05)


async def test_a_run_that_is_cancelled_ends_its_processes(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(play_in, tmp_path / "store")
        await wait_until(lambda: len(children(os.getpid())) == len(kills.WRITERS) + 1, 120)
        begun = children(os.getpid())
        tasks.cancel_scope.cancel()
    assert not [pid for pid in begun if is_running(pid)]


@pytest.mark.night
async def test_the_processes_of_a_run_that_is_killed_end_by_themselves_also_a_stopped_one(tmp_path: Path) -> None:
    code = (
        "import anyio, sys\nfrom pathlib import Path\nfrom tests.recovery.prove.test_kills import play_in\n"
        "anyio.run(play_in, Path(sys.argv[1]))"
    )
    prove = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "store")], cwd=ROOT, start_new_session=True)  # noqa: ASYNC220
    try:
        await wait_until(lambda: len(children(prove.pid)) == len(kills.WRITERS) + 1, 30)
        begun = children(prove.pid)
        await wait_until(lambda: all(os.getpgid(pid) == pid for pid in begun), 120)
        os.kill(min(begun), signal.SIGSTOP)
    finally:
        prove.kill()
        prove.wait()
    await wait_until(lambda: not any(is_writer(pid) for pid in begun), LEAVE_S + 120)


async def test_no_secret_is_on_a_command_line_or_in_the_environment_of_a_process() -> None:
    dsn = "postgresql://me:s3cret@127.0.0.1:5432/db"  # nobody listens there, and nobody is asked
    settings = settings_of(Settings(postgres={"dsn": dsn}, s3={"bucket": "bucket"}))
    assert "s3cret" in settings.packed()
    assert not [each for each in (*kills.command("w0.0"), *kills.environment().values()) if "s3cret" in each]


@pytest.mark.parametrize("services", [
    {"directory": "/data"},
    {"postgres": {"dsn": "postgresql://u@db/x"}, "s3": {"bucket": "blobs", "prefix": f"{'a' * (NAME_PREFIX_MAX - 1)}/"}},
    {"changelog": "bigtable", "bigtable": {"project": "project", "instance": "i"}, "gcs": {"bucket": "blobs"}},
], ids=str)  # fmt: skip
def test_the_processes_of_a_run_can_read_the_settings_of_its_trial(services: dict[str, Any]) -> None:
    """On a bucket they could not: its trial's name had become longer than a prefix may be, so each ended at once."""
    of_trial = trial.settings_of(Settings.model_validate(services), "0" * TRIAL_DIGITS)
    assert Settings.unpacked(of_trial.packed()) == of_trial
