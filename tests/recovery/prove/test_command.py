"""`tiered prove` as it is typed: the plan, the report and its files, what is left out, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Never

import anyio
import pytest

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import SystemRuntime
from recovery.prove import run, trial
from recovery.prove.probes.bench import Bench, Sizes
from recovery.prove.report import Line, read
from tests.given.command_line import OBJECT, OWN_PROCESS, Command, unwritable
from tests.given.small_disk import disk, fill, mount
from tests.given.waiting import becomes
from tiered.kinds.directory import DirectoryKind
from tiered.open import Backends
from tiered.provision.findings import NoticeKind
from tiered.provision.probes import NotTriedError, Probe, Result, Tried
from tiered.services.backends import Tiers
from tiered.settings import Settings
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows

__all__ = ["disk", "mount"]  # fixtures
QUICK = Sizes(racers=4, rounds=3, rounds_min=1, calm=2, large_bytes=1 << 20)


@pytest.fixture
def tiered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr("recovery.prove.probes.bench.Sizes", lambda: QUICK)
    return Command(tmp_path)


def test_without_yes_only_the_plan_is_shown_and_nothing_is_made(tiered: Command) -> None:
    said = tiered("prove")
    assert "nothing was tried: add --yes to begin" in said
    assert "promises" in said and "at most" in said and "beside that of the store" in said
    plan = json.loads(tiered("prove", "--json"))["plan"]
    assert plan["parts"].keys() == run.PARTS.keys()
    assert plan["usd_max"] is None and plan["minutes_max"] > 2
    assert os.listdir(tiered.directory) == []


def test_a_healthy_directory_may_hold_a_store_and_nothing_of_the_trial_is_left(tiered: Command) -> None:
    out = tiered.directory / "out"
    printed = json.loads(tiered("prove", "--yes", "--json", "--only", "promises", "--out", "out", code=0 if len(run.PARTS) == 1 else 4))
    report = read((out / "report.json").read_text("utf-8"))
    assert report.as_json() == printed
    assert [each for each in report.lines if each.about in ("rows", "blobs", "changelog") and each.result is not Result.HELD] == []
    assert {each.calm for each in report.calls if each.method in ("put_inline", "head", "record")} == {2}
    assert "</html>" in (out / "report.html").read_text("utf-8")
    assert [oct(each.stat().st_mode & 0o777) for each in (out, out / "report.json", out / "report.html")] == ["0o700", "0o600", "0o600"]
    assert os.listdir(tiered.directory) == ["out"]


def test_nothing_is_overwritten_and_no_store_is_written_into(tiered: Command) -> None:
    (tiered.directory / "out").mkdir()
    (tiered.directory / "out" / "report.html").write_text("another")
    (tiered.directory / "file").write_text("")
    tiered("put", OBJECT, "-", stdin=b"x")
    refused = {"out": "has report.html already", "store": "is in the store", "file": "is no directory", "file/x": "is no directory"}
    for out, says in refused.items():
        tiered("prove", "--yes", "--out", out, code=3)
        assert says in tiered.errors, out
    assert (tiered.directory / "out" / "report.html").read_text() == "another"
    assert sorted(os.listdir(tiered.directory)) == ["file", "out", "store"], "nothing was tried"


@pytest.mark.parametrize("only", ["promises,luck", "", ","])
def test_a_part_that_there_is_not_is_refused(tiered: Command, only: str) -> None:
    tiered("prove", "--only", only, code=3)
    assert "promises" in tiered.errors


def test_what_is_left_out_is_told_as_not_tried(tiered: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line("kills", "safe", "no acknowledged write is lost", Result.UNTRIED, "", "it is lost")
    part = replace(run.PARTS["promises"], expected=lambda why: [replace(line, said=why)])
    monkeypatch.setattr(run, "PARTS", {**run.PARTS, "others": part})
    said = tiered("prove", "--yes", "--only", "promises", code=4)
    assert "no acknowledged write is lost" in said and "left out by --only" in said
    assert "may not be trusted yet" in said


async def _lies(bench: Bench) -> Tried:
    return "shows old rows"


def test_a_promise_that_is_not_kept_ends_with_3_and_says_what_is_lost(tiered: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Probe("a lie", "rows are new", NoticeKind.PROBLEM, "what was written is not found", _lies)
    monkeypatch.setattr(run, "TABLES", (("rows", (broken,)),))
    said = tiered("prove", "--yes", "--only", "promises", code=3)
    assert "The service shows old rows." in said
    assert "must not hold a store: what was written is not found." in said


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.night)], ids=lambda each: each.name)
def test_a_signal_removes_the_trial_and_what_was_tried_by_then_is_shown(tmp_path: Path, sent: signal.Signals) -> None:
    command = [sys.executable, *OWN_PROCESS, "--directory", str(tmp_path / "store"), "prove", "--yes", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "promises about rows" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(sent)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "not tried rows" in out and "the run ended before" in out and "may not be trusted yet" in out
    assert read((tmp_path / "out" / "report.json").read_text("utf-8")).lines
    assert os.listdir(tmp_path) == ["out"], "the trial is gone"


def test_a_first_probe_that_fails_leaves_the_lines_of_its_table_untried(tiered: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(bench: Bench) -> Tried:
        raise UnavailableError("writing the row 'prove/objects/1/key' in db.acme.example failed: no answer")

    probes = tuple(Probe(name, f"{name} is kept", NoticeKind.PROBLEM, "all", silent) for name in ("first", "second"))
    monkeypatch.setattr(run, "TABLES", (("rows", probes), *run.TABLES[1:]))
    said = json.loads(tiered("prove", "--yes", "--json", "--only", "promises", code=4).partition("\n")[0])
    found = {each["name"]: (each["result"], each["said"]) for each in said["lines"]}
    assert found["first"][0] == found["second"][0] == "not tried"
    assert "acme" not in found["first"][1]
    assert found["a blob"][0] == "held", "other tables are tried nevertheless"


def test_a_service_that_goes_away_in_a_part_takes_nothing_of_the_others(tiered: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    async def goes_away(prover: run.Prover) -> None:
        raise UnavailableError("opening db.acme.example failed: no answer")

    monkeypatch.setattr(run, "PARTS", {**run.PARTS, "contracts": replace(run.PARTS["contracts"], run=goes_away)})
    said = json.loads(tiered("prove", "--yes", "--json", "--only", "contracts,promises", code=4).partition("\n")[0])
    results = {about: {each["result"] for each in said["lines"] if each["about"] == about} for about in ("blobs", "contracts")}
    assert results == {"blobs": {"held"}, "contracts": {"not tried"}}
    [why] = {each["said"] for each in said["lines"] if each["about"] == "contracts"}
    assert why.startswith("the part ended early: opening ") and "acme" not in why


def test_a_part_that_takes_longer_than_the_plan_says_is_ended(tiered: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(prover: run.Prover) -> None:
        await anyio.sleep_forever()

    part = replace(run.PARTS["contracts"], run=hangs, seconds=lambda _: 0.2)
    monkeypatch.setattr(run, "PARTS", {**run.PARTS, "contracts": part})
    said = json.loads(tiered("prove", "--yes", "--json", "--only", "contracts", code=4).partition("\n")[0])
    assert {each["said"] for each in said["lines"] if each["about"] == "contracts"} == {
        "the part ended early: it took longer than 0.2 s"
    }


@pytest.mark.parametrize("how", ["full", "closed"])
@pytest.mark.parametrize("holds", [True, False])
def test_what_nobody_can_print_is_written_and_the_verdict_stays(
    tiered: Command, monkeypatch: pytest.MonkeyPatch, how: str, holds: bool
) -> None:
    probe = Probe("a", "rows are new", NoticeKind.PROBLEM, "what was written is not found", _holds if holds else _lies)
    monkeypatch.setattr(run, "TABLES", (("rows", (probe,)),))
    monkeypatch.setattr(run, "PARTS", {"promises": run.PARTS["promises"]})
    with unwritable(how) as stdout:
        tiered("prove", "--yes", "--out", "out", code=3 if not holds else 4 if how == "full" else 0, stdout=stdout)
    assert read((tiered.directory / "out" / "report.json").read_text("utf-8")).lines


def test_a_report_that_finds_no_room_is_printed_and_no_half_of_it_stays(
    tiered: Command, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "TABLES", (("rows", (Probe("a", "rows are new", NoticeKind.PROBLEM, "all", _holds),)),))
    monkeypatch.setattr(run, "PARTS", {"promises": run.PARTS["promises"]})
    (disk / "out").mkdir()
    fill(disk)
    said = tiered("prove", "--yes", "--out", str(disk / "out"), code=4)
    assert "may hold a store" in said
    assert "report.json could not be written: No space left on device" in tiered.errors
    assert os.listdir(disk / "out") == []


async def _holds(bench: Bench) -> Tried:
    return None


def test_two_that_begin_at_the_same_moment_have_two_trials(tmp_path: Path) -> None:
    class OneMoment(SystemRuntime):
        def wall_ns(self) -> int:
            return 1_800_000_000 * 10**9

    async def begin_both() -> tuple[str, str]:
        settings = Settings(directory=tmp_path / "store")
        async with trial.begin(settings, OneMoment()) as one, trial.begin(settings, OneMoment()) as two:
            return one.name, two.name

    one, two = anyio.run(begin_both)
    assert one != two and one[:12] == two[:12]
    assert trial._began_ms(one) == 1_800_000_000_000
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", ["promises", "contracts", "kills"])
def test_what_a_run_left_that_was_killed_in_any_part_is_removed_two_hours_later(tmp_path: Path, part: str) -> None:
    class PutForward(SystemRuntime):
        ahead_ns = 0

        def wall_ns(self) -> int:
            return super().wall_ns() + self.ahead_ns

    settings, begins = Settings(directory=tmp_path / "store"), {"promises": "measuring", "contracts": "suite", "kills": "killing"}[part]
    process = subprocess.Popen(
        [sys.executable, *OWN_PROCESS, "--directory", str(tmp_path / "store"), "prove", "--yes", "--only", part],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    while begins not in process.stderr.readline():
        assert process.poll() is None
    process.kill()
    process.wait()
    process.stderr.close()
    runtime = PutForward()

    async def begin() -> None:
        await becomes(partial(_nobody_is_in, process.pid))
        async with trial.begin(settings, runtime) as tried:
            assert tried.left == []

    left = os.listdir(tmp_path)
    assert all(each.startswith("store-prove-") for each in left) and (left or part == "contracts"), "it may have been emptied just now"
    anyio.run(begin)
    assert set(left) <= set(os.listdir(tmp_path)), "another run may still be at it"
    runtime.ahead_ns = 7201 * 10**9
    anyio.run(begin)
    assert os.listdir(tmp_path) == []


async def _nobody_is_in(session: int) -> bool:
    """Whether all processes of a session have ended."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                return False
    return True


def test_a_removal_that_has_no_answer_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, failures = DirectoryKind.remove, [1]

    async def fails_once(self: DirectoryKind, settings: Settings, runtime: SystemRuntime, name: str) -> None:
        if failures:
            failures.pop()
            raise UnavailableError("no answer")
        await remove(self, settings, runtime, name)

    monkeypatch.setattr(DirectoryKind, "remove", fails_once)

    async def begin() -> list[str]:
        async with trial.begin(Settings(directory=tmp_path / "store"), SystemRuntime()) as tried:
            pass
        return tried.left

    assert anyio.run(begin) == [] == failures
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_mute", [False, True])
def test_what_a_trial_leaves_is_said_also_if_it_was_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mute: bool) -> None:
    """Of a removal that was cut short, and of a trial that could not be opened, nothing was said."""
    async def not_removed(self: DirectoryKind, settings: Settings, runtime: SystemRuntime, name: str) -> None:
        if is_mute:
            await anyio.sleep_forever()
        raise UnavailableError("no answer")

    async def not_opened(self: DirectoryKind, *_: object, **__: object) -> Never:
        raise UnavailableError("nobody answers")

    monkeypatch.setattr(DirectoryKind, "remove", not_removed)
    monkeypatch.setattr(DirectoryKind, "clear", not_removed)
    monkeypatch.setattr("tiered.kinds.chosen.provision", not_opened)
    monkeypatch.setattr(trial, "REMOVAL_S", 0.1)
    said: list[str] = []
    settings = Settings(directory=tmp_path / "store")
    with pytest.raises(UnavailableError, match="nobody answers"):
        anyio.run(run.prove, settings, SystemRuntime(), run.initial(settings, "0.1.0", "2026-12-01"), QUICK, said.append)
    why = "its removal took longer than 0.1 s" if is_mute else "no answer"
    assert {each.partition(": ")[2] for each in said if "is left, until a later run removes it" in each} == {why}


def test_who_reaches_no_service_is_told_of_no_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    s3 = {"bucket": "bucket", "endpoint": "http://127.0.0.1:1"}
    settings = Settings(postgres={"dsn": "postgresql://me@127.0.0.1:1/db?sslmode=disable"}, s3=s3)

    async def begin() -> None:
        async with trial.begin(settings, SystemRuntime()):
            pass

    with pytest.raises(ConfigurationError, match=r"check postgres\.dsn") as refused:
        anyio.run(begin)
    assert "this identity needs" not in str(refused.value)


def test_calls_of_a_run_are_bounded() -> None:
    runtime = SystemRuntime()
    backends = Backends(Tiers(MemoryRows(runtime), MemoryBlobs(runtime)), MemoryChangeLog(runtime))
    bench = Bench.of(backends, backends, runtime, Sizes(calls_max=100, rounds_min=3))
    rounds = 0
    for _ in bench.races():
        bench.measured.took["high_volume", "swap"] += [0.0] * 20
        rounds += 1
    assert rounds == 5
    with pytest.raises(NotTriedError, match="after 100 calls"):
        list(bench.races())
