"""The benchmarks run, tiny: so that they cannot rot. What they measure is looked at by nobody here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import grpc.aio
import numpy as np
import pytest
from google.cloud.bigtable_v2.types import bigtable

from benchmarks import (
    audit,
    audit_stages,
    audit_world,
    calls,
    client_cpu,
    command,
    deletions,
    embedded,
    embedded_profile,
    embedded_rows,
    event_loop,
    facade,
    feed_writer,
    files,
    inventory,
    large_parts,
    large_reads,
    large_writes,
    latency,
    memory,
    mutants,
    objects,
    overload,
    production,
    recovery_rate,
    recovery_scan,
    shared_reads,
    small_parts,
    statistics_pictures,
)
from benchmarks import postgres as postgres_benchmark
from benchmarks.audit_gcs import answer
from benchmarks.bare import BareRows
from benchmarks.billion import STORED_BYTES, Paper, node_hours
from benchmarks.figures import Figures, dumped, loaded, places, put_into
from benchmarks.metered import Taken
from benchmarks.rounds import Ratio, take_turns
from benchmarks.servers import Servers, started
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable
from changelog.change import ChangeId
from emulators.gcs.server import GcsEmulator
from emulators.postgres.server import PostgresServer
from recovery.audit.finding_classes import NameForm
from recovery.audit.names import read_name
from recovery.statistics.verdict import SourceState
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT
from tiered.bigtable.rows import BigtableRows
from tiered.filesystem.implementation import TieredFileSystem
from tiered.metadata import Metadata
from tiered.protocol.backends import Inline, Tombstone

TINY = 0.0001
CASES = calls.cases()[:3]  # tests/production/test_call_counts.py counts them all


def test_the_embedded_benchmark_shows_every_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(embedded, "ROUNDS", 2)
    monkeypatch.setattr(embedded_profile, "ROUNDS", 2)
    (tmp_path / "memory").mkdir()
    puts, small, large = anyio.run(embedded.figures, tmp_path, tmp_path / "memory", 0.001)
    for table in (puts, small, large):
        table.show()
    shown = capsys.readouterr().out
    assert shown.count("1 KiB ") == 4
    assert [row[0] for row in puts.rows] == ["disk"] * 6 + ["memory"] * 6
    for parts in (small, large):
        *each, total = (int(str(row[2])) for row in parts.rows)
        assert abs(sum(each) - total) <= len(each), "rounded"


@pytest.mark.sim
def test_the_benchmark_of_many_embedded_rows_lists_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_rows, "ROUNDS", 1)
    monkeypatch.setattr(embedded_rows, "ROWS", 200_000)
    listings, idle = anyio.run(embedded_rows.figures, tmp_path, 0.01)
    assert [row[1] for row in listings.rows] == ["10"] * 4 + ["1,000"] * 4
    assert [row[0] for row in idle.rows] == ["0 rows", "20 rows", "2,000 rows"]


def test_the_benchmark_of_postgresql_has_a_line_for_each_operation(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_benchmark, "ROUNDS", 2)
    [figures] = anyio.run(postgres_benchmark.figures, postgres, 0.01)
    assert [row[0] for row in figures.rows] == [*postgres_benchmark.OPERATION_NAMES] * 2
    assert all(isinstance(cell, Ratio) for row in figures.rows for cell in row[3:5])


def test_the_benchmark_of_the_facade_has_a_line_for_each_store_operation_and_payload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facade, "ROUNDS", 2)
    figures = anyio.run(facade.measure, tmp_path, TINY)
    assert len(figures.rows) == 8 and all(len(row) == len(figures.columns) for row in figures.rows)


@pytest.mark.skipif(not files.is_installed(), reason=files.NOT_INSTALLED)
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")     # gcsfs does
def test_the_benchmark_beside_gcsfs_has_a_line_for_each_operation_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SIZES", {"2 MiB": files.SIZES["2 MiB"]})
    monkeypatch.setattr(files, "LISTED", {"2 MiB": 2})

    async def run() -> Figures:
        async with GcsEmulator() as server:
            server.create_bucket("bucket")
            ours = files.FilesSide(TieredFileSystem(settings={"directory": tmp_path}, skip_instance_cache=True), "bench/objects")
            try:
                return await files.compare([ours, files.gcsfs_at(server.url, "bucket")], TINY, rounds=2)
            finally:
                await anyio.to_thread.run_sync(ours.files.close)

    figures = anyio.run(run)
    assert [row[0] for row in figures.rows] == ["write", "read", "open, read 64 KiB", "info", "list 2 files with sizes"]
    assert all(len(row) == len(figures.columns) for row in figures.rows)


NO_RATIO = {"memory", "small_parts", "large_parts", "recovery_scan", "recovery_growth"}
"""Parts whose figures are not compared with those of the last release."""


@pytest.mark.parametrize(("part", "tables", "lines"), [
    ("calls", 2, 3), pytest.param("small_parts", 1, 10, marks=pytest.mark.sim),
    pytest.param("latency", 2, 8, marks=pytest.mark.sim),
    pytest.param("shared_reads", 1, 2, marks=pytest.mark.sim),
    pytest.param("objects", 2, 18, marks=[pytest.mark.sim, pytest.mark.skipif(not objects.is_installed(), reason=objects.NOT_INSTALLED)]),
    ("deletions", 2, 5), pytest.param("feed_writer", 5, 13, marks=pytest.mark.sim),
    pytest.param("client_cpu", 3, 27, marks=pytest.mark.sim),
    pytest.param("large_parts", 1, 11, marks=pytest.mark.sim), pytest.param("large_reads", 1, 3, marks=pytest.mark.sim),
    pytest.param("large_writes", 1, 3, marks=pytest.mark.sim),
    pytest.param(
        "event_loop", 1, 3, marks=[pytest.mark.sim, pytest.mark.skipif(not event_loop.is_installed(), reason=event_loop.NOT_INSTALLED)]
    ),
    pytest.param("memory", 1, 2, marks=pytest.mark.sim), pytest.param("recovery_rate", 3, 15, marks=pytest.mark.sim),
    pytest.param("recovery_scan", 2, 9, marks=pytest.mark.sim), pytest.param("recovery_growth", 1, 6, marks=pytest.mark.sim),
])  # fmt: skip
def test_a_production_benchmark_has_a_line_for_everything_it_compares(
    bigtable_host: str, monkeypatch: pytest.MonkeyPatch, part: str, tables: int, lines: int
) -> None:
    monkeypatch.setattr(client_cpu, "ROUNDS", 2)
    monkeypatch.setattr(small_parts, "ROUNDS", 2)
    monkeypatch.setattr(deletions, "ROUNDS", 2)
    monkeypatch.setattr(event_loop, "ROUNDS", 2)
    monkeypatch.setattr(event_loop, "WORK", {(event_loop.SMALL_BYTES, 1): 1})
    monkeypatch.setattr(large_parts, "ROUNDS", 2)
    monkeypatch.setattr(large_reads, "ROUNDS", 2)
    monkeypatch.setattr(large_writes, "ROUNDS", 2)
    monkeypatch.setattr(latency, "ROUNDS", 2)
    monkeypatch.setattr(latency, "PUTS", {2 * latency.MIB: 1, 9 * latency.MIB: 1})
    monkeypatch.setattr(shared_reads, "ROUNDS", 2)
    monkeypatch.setattr(shared_reads, "IN_FLIGHT", (1, 4))
    monkeypatch.setattr(objects, "ROUNDS", 2)
    monkeypatch.setattr(calls, "cases", lambda: CASES)
    monkeypatch.setattr(feed_writer, "ROUNDS", 2)
    monkeypatch.setattr(feed_writer, "POLLS_S", (0.2,))
    monkeypatch.setattr(recovery_rate, "CONDITIONS", [("late", 1.0, 1.0, {1: 4, 2: 4})])
    monkeypatch.setattr(recovery_rate, "WORK_ROUNDS", 2)
    monkeypatch.setattr(recovery_scan, "PASSES", 1)
    monkeypatch.setattr(memory, "UPLOAD_BYTES", 2 * memory.MIB)
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable_host)
    figures = anyio.run(production.run_part, part, TINY)
    assert len(figures) == tables
    assert sum(len(each.rows) for each in figures) == lines
    assert all(len(row) == len(each.columns) for each in figures for row in each.rows)
    assert any(each.compared() for each in figures) or part in NO_RATIO


@pytest.mark.sim
def test_a_part_that_fails_ends_although_nobody_ends_its_stdin() -> None:
    code = (
        "import anyio; from benchmarks.servers import unless_left_alone\n"
        "async def fail():\n    await anyio.sleep(0.2)\n    raise ValueError\n"
        "anyio.run(unless_left_alone, fail)"
    )  # fmt: skip
    with StartedProcess([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as running:
        assert running.wait(timeout=60) == 1


def test_a_benchmark_whose_package_is_missing_says_so_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(objects, "is_installed", lambda: False)
    assert anyio.run(objects.figures, Servers("", ""), 1.0) == []
    assert "obstore is not installed" in capsys.readouterr().err


def test_the_benchmark_of_one_command_has_a_line_for_each_side(tmp_path: Path) -> None:
    shown = command.figures(command.sides(tmp_path, None, "", ROOT), rounds=1)
    ours = ["put, embedded", "get, embedded"]
    assert [row[0] for row in shown.rows][2:] == [*ours, *(f"{name}{command.BESIDE}" for name in ours)]
    assert [bool(row[4]) for row in shown.rows] == [False, False, True, True, False, False]
    assert len(command.figures({name: (["-c", "pass"], {}) for name in ("python -c pass", "put")}, rounds=1).columns) == 4


def test_the_benchmark_of_imports_has_a_line_for_each() -> None:
    assert [row[0] for row in command.imports(rounds=1).rows] == [*command.IMPORTED]


def test_the_other_checkout_of_the_benchmark_runs_its_own_modules(tmp_path: Path) -> None:
    (tmp_path / "recovery/cli").mkdir(parents=True)
    for name, text in (("__init__", ""), ("cli/__init__", ""), ("cli/main", "raise SystemExit(7)")):
        (tmp_path / f"recovery/{name}.py").write_text(text)
    arguments, variables = command.sides(tmp_path, None, "", tmp_path)[f"get, embedded{command.BESIDE}"]
    with pytest.raises(SystemExit, match="ended with 7"):
        command.run(arguments, variables)


def test_the_overload_curve_is_drawn(tmp_path: Path) -> None:
    ours, unlimited = overload.curves(0.5, factors=(0.5, 2.0))
    overload.draw(ours, unlimited, tmp_path / "overload.svg")
    assert len(overload.figures(ours, unlimited).rows) == 2 and (tmp_path / "overload.svg").stat().st_size > 1000


@pytest.mark.sim
def test_the_benchmark_of_the_audit_has_a_line_for_everything_that_finds_what_was_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "sizes", lambda size: [10_000])
    sides = [side for side in audit.SIDES if side.what != "under Spark, local[1]"]  # the same as that with two
    measured, paper = anyio.run(audit.figures, TINY, sides, 1)
    assert [len(each.rows) for each in measured] == [len(sides), 3]
    assert all(len(row) == len(each.columns) for each in (*measured, paper) for row in each.rows)


@pytest.mark.sim
def test_the_stages_of_an_audit_add_up_to_the_whole() -> None:
    figures = anyio.run(audit_stages.figures, TINY, 1)
    assert all(len(row) == len(figures.columns) for row in figures.rows)
    lines = [(str(what), float(str(us))) for what, _, us in figures.rows]
    whole, *parts = [us for what, us in lines if what.startswith("- ") or what == "the whole audit"]
    assert len(parts) == 7 and abs(sum(parts) - whole) < 0.05


@pytest.mark.sim
def test_a_side_of_the_audit_that_finds_something_else_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_world.AuditWorld, "orphans", 11)
    with pytest.raises(AssertionError, match=r"DuckDB.* found \[10, 1\] and not \[11, 1\]"):
        anyio.run(audit.figures, TINY, [audit.SIDES[-1]], 1)


@pytest.mark.sim
def test_the_benchmark_of_the_inventory_join_has_a_line_for_each_side_that_finds_what_was_planted() -> None:
    measured = anyio.run(inventory.figures, TINY, inventory.SIDES, 1)
    assert [row[0] for row in measured.rows] == [side.what for side in inventory.SIDES]
    assert all(len(row) == len(measured.columns) for row in measured.rows)


@pytest.mark.sim
def test_a_side_of_the_inventory_join_that_finds_something_else_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    write = inventory.write
    monkeypatch.setattr(inventory, "write", lambda directory, names: write(directory, names // 2))
    with pytest.raises(AssertionError, match=r"DuckDB.* found \[5, 0\] and not \[10, 1\]"):
        anyio.run(inventory.figures, TINY, inventory.SIDES[-1:], 1)


def test_the_names_of_the_audits_world_are_in_order_and_found_where_they_are() -> None:
    world = audit_world.AuditWorld(1_030_000)
    numbers = [0, 1, 9999, 10_000, 999_999, 1_000_000, 1_029_999]
    names = [audit_world.name(number) for number in numbers]
    assert names == sorted(names) and {len(name) for name in names} == {audit_world.NAME_BYTES}
    assert [world.first_name(name) for name in names] == numbers
    assert [world.first_name(name + b"\0") for name in names] == [number + 1 for number in numbers]
    assert [world.first_path(audit_world.path(number)) for number in numbers] == numbers
    assert [world.first_path(audit_world.path(number)[:-1]) for number in numbers] == numbers
    assert [world.first_name(b""), world.first_name(b"b")] == [0, world.names]
    assert all(read_name(name.decode()).form is NameForm.REVISION for name in names)


def test_a_page_and_a_message_of_the_audits_world_say_the_same_names() -> None:
    numbers = np.arange(1_019_500, 1_020_500)
    address = "/storage/v1/b/names-1020500/o?maxResults=1000&pageToken=1019500"
    items = json.loads(answer(address)[1])["items"]
    assert json.loads(answer(f"{address}&prettyPrint=false")[1]) == json.loads(answer(address)[1])
    chunks = [
        chunk for block in audit_world.blocks(numbers) for message in audit_world.row_messages(block)
        for chunk in bigtable.ReadRowsResponse.deserialize(message).chunks
    ]  # fmt: skip
    assert [chunk.value.decode() for chunk in chunks] == [audit_world.name(number).decode() for number in numbers.tolist()]
    assert all(chunk.value.startswith(chunk.row_key + b"/") for chunk in chunks)
    assert {chunk.value.decode() for chunk in chunks} - {item["name"] for item in items} == set()


def test_what_a_command_takes_is_that_of_all_that_it_starts() -> None:
    """Of what nobody waits for, too."""
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    starts = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {spin!r}]); print('left', flush=True)"

    async def measure() -> Taken:
        async with started("benchmarks.metered", sys.executable, "-c", starts) as told:
            return Taken.loaded(told)

    taken = anyio.run(measure)
    assert taken.cpu_s > 0.5 and taken.code == 0
    assert [line.text for line in taken.lines] == ["left"] and set(taken.peaks_kib) == {"main", "worker"}


def test_a_billion_blobs_on_paper_are_what_a_person_would_work_out() -> None:
    paper = Paper(generator=400_000, spark=200_000)
    assert paper.pages == 1_000_000
    assert paper.list_dollars == pytest.approx(5.0)
    assert paper.look_dollars == pytest.approx(0.4)
    assert node_hours(220e6 * 3600) == pytest.approx(1.0)
    assert paper.scan_node_hours == pytest.approx(STORED_BYTES * 1e9 / 220e6 / 3600)
    assert paper.core_hours(paper.generator) == pytest.approx(2500 / 3600)
    assert paper.listing_hours(11_000) == pytest.approx(25.25, abs=0.01)
    assert [row[1] for row in paper.rows()][4:] == ["0.7 core hours", "1.4 core hours", "16 to 25 hours", "1.2 hours", "none"]


class _Sent:
    """A channel that goes nowhere and keeps what was sent; every answer is empty."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return lambda request, **_: self._answer(request, response_deserializer(b""))

    unary_stream = unary_unary

    def _answer(self, request: Any, response: Any) -> _CannedAnswer:
        self.requests.append(request.SerializeToString(deterministic=True))
        return _CannedAnswer(response)


class _CannedAnswer:
    def __init__(self, response: Any) -> None:
        self._response = response

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self._response

    async def __aiter__(self) -> AsyncIterator[Any]:
        yield self._response

    def cancel(self) -> None:
        pass


def test_bare_calls_are_ours_byte_for_byte() -> None:
    """Or the comparison would be with something else."""
    name, path, runtime = "projects/p/instances/i/tables/t", "bench/objects/k", SystemRuntime()
    token, old = ChangeId.new(runtime), f"bench/objects/k/{ChangeId.new(runtime)}"
    ours, bare = _Sent(), _Sent()

    async def send() -> None:
        rows, same = BigtableRows(BigtableTable(ours, name), runtime), BareRows(cast(grpc.aio.Channel, bare), name)
        payload, new, later = b"payload", f"{path}/{token}", runtime.boot_time() + 60
        await rows.put_inline(path, token, Inline(Metadata(size=len(payload)), payload, token))
        await same.put(path, token, payload)
        await rows.delete_inline(path, token)
        await same.delete(path, token)
        await rows.read(path)
        await same.get(path)
        await rows.settle(path, token)
        await same.settle(path, token)
        for expected, target in ((None, new), (old, new), (old, None)):
            await rows.swap(path, token, expected, None if target is None else Tombstone(target, token=token), later)
            await same.swap(path, token, expected, target)

    anyio.run(send)
    assert len(bare.requests) == 7
    assert bare.requests == ours.requests


def test_figures_replace_what_the_page_said_between_the_marks_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures a -->\nold\n<!-- end of a -->\nbetween\n<!-- figures b -->\n<!-- end of b -->\nafter\n")
    [figures] = loaded(dumped([Figures("Title", ["", "ratio"], [["one | two", "1.00"]], ["A note."])]))
    put_into(page, "a", [figures], 1.0, 0.5)
    text = page.read_text()
    assert "old" not in text
    assert "| one \\| two | 1.00 |" in text and "A note." in text
    assert [text.count(word) for word in ("before", "between", "after", "<!-- end of a -->", "<!-- figures b -->")] == [2, 1, 1, 1, 1]
    with pytest.raises(SystemExit, match="figures c"):
        put_into(page, "c", [figures], 1.0, 0.5)


def test_a_place_with_a_number_has_that_table_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- figures a 2 -->\nold\n<!-- end of a 2 -->\n<!-- figures a -->\n<!-- end of a -->\n")
    put_into(page, "a", [Figures("First", [""], []), Figures("Second", [""], [])], 1.0, 0.5)
    alone, _, both = page.read_text().partition("<!-- end of a 2 -->")
    assert "### Second" in alone and "First" not in alone and "old" not in alone
    assert "### First" in both and "### Second" in both and places(page.read_text()) == {"a"}


def test_sides_take_turns_in_going_first() -> None:
    order: list[str] = []

    async def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    measured = anyio.run(take_turns, [lambda: side("a"), lambda: side("b")], 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert measured == [[1, 4, 5], [2, 3, 6]]


def test_a_ratio_is_of_rounds_and_not_of_medians() -> None:
    assert Ratio.of([1, 20, 300], [1, 10, 100]) == Ratio(2.0, 1.5, 2.5, 3)
    assert Ratio.of([3], [2]) == Ratio(1.5, 1.5, 1.5, 1)


SOURCE = """
async def take(self, limit: int = 3) -> bool:
    self._event.set()
    logger.info("taken")
    if limit > 2 and self.open:
        raise ValueError
    return self.open
"""


def test_the_pictures_of_the_statistics_show_what_their_page_says(tmp_path: Path) -> None:
    bounded, unbounded = (statistics_pictures.play(replace(scene, backlog=400, lasts_s=60)) for scene in statistics_pictures.SNAPSHOTS)
    assert (bounded[1].row.snapshot_progress or 0) < 400 == unbounded[1].row.snapshot_progress
    assert bounded[-1].row.snapshot_committed and unbounded[-1].row.snapshot_committed
    up, behind = (statistics_pictures.play(replace(scene, lasts_s=60)) for scene in statistics_pictures.BALANCES)
    assert up[-1].verdict is SourceState.CATCHING_UP and behind[-1].verdict is SourceState.FALLING_BEHIND
    statistics_pictures.draw_balances([replace(statistics_pictures.BALANCES[0], backlog=10, lasts_s=30)], tmp_path / "one.svg")
    assert "processed_values" in (tmp_path / "one.svg").read_text()
    for name in ("snapshot.svg", "keeping-up.svg"):
        assert (statistics_pictures.DOCS / name).is_file() and f"pictures/{name}" in (ROOT / "docs/statistics.md").read_text()


def test_each_kind_of_line_is_broken_and_what_comes_of_it_is_still_python() -> None:
    broken = {mutant.what: mutant.applied_to(SOURCE.encode()).decode() for mutant in mutants.mutants("take.py", SOURCE.encode())}
    assert set(broken) == {
        "`3` one more", "`self._event.set()` left out", "`limit > 2 and self.open` turned round",
        "`limit > 2 and self.open` without its last part",
        "`limit > 2 and self.open` only its last part", "`limit > 2` becomes `>=`", "`2` one more", "`raise ValueError` left out",
        "`self.open` returns None",
    }  # fmt: skip
    for source in broken.values():
        compile(source, "take.py", "exec")
        assert source != SOURCE
    assert "    pass\n    logger" in broken["`self._event.set()` left out"]


def test_a_mutant_lives_only_where_every_stage_passes(tmp_path: Path) -> None:
    (taken := tmp_path / "taken.py").write_text("TAKEN = 3\n")
    small = ("-c", "from taken import TAKEN; assert TAKEN < 5")
    stages: dict[str, tuple[Sequence[str], float]] = {"any": (("-c", "import taken"), 60.0), "small": (small, 60.0)}

    def tried(text: str) -> str:
        return mutants.try_out(mutants.Mutant("taken.py", 1, 8, 9, text, ""), tmp_path, stages)

    assert [tried(text) for text in ("4", "5", "(")] == [mutants.SURVIVED, "small", "any"]
    assert taken.read_text() == "TAKEN = 3\n"


def test_a_mutant_that_never_ends_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "taken.py").write_text("TAKEN = 3\n")
    slow = ("-c", "import taken, time; time.sleep(0 if taken.TAKEN == 3 else 60)")
    stages: dict[str, tuple[Sequence[str], float]] = {"ends": (slow, 1.0)}
    assert mutants.try_out(mutants.Mutant("taken.py", 1, 8, 9, "4", ""), tmp_path, stages) == "ends"


def test_a_trace_tells_which_tests_run_a_line_the_quickest_first(tmp_path: Path) -> None:
    trace = mutants.Trace(tmp_path, ["taken.py"])
    trace.lines["taken.py:1"] = {"slow", "quick", "broken"}
    trace.lines["taken.py"] = {"slow", "other"}
    trace.seconds |= {"slow": 2.0, "quick": 1.0, "other": 0.5, "broken": 0.1}
    trace.failed.add("broken")
    assert trace.tests(mutants.Mutant("taken.py", 1, 8, 9, "4", "")) == ["quick", "slow"]
    assert trace.tests(mutants.Mutant("taken.py", 7, 8, 9, "4", "")) == ["other", "slow"], "only an import runs it"
    again = mutants.Trace(tmp_path, ["taken.py"])
    again.load(trace.saved())
    assert again.saved() == trace.saved()


def test_a_traced_run_that_broke_inside_pytest_was_taken_for_one_without_any_lines(tmp_path: Path) -> None:
    """So the tests that run a line were left out, and half of the mutants lived. An unhashable plugin broke it."""
    for folder in ("one", "two"):  # of each test, the conftest of the other folder is left out
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "conftest.py").touch()
        (tmp_path / folder / f"test_{folder}.py").write_text("import taken\ndef test_it(): assert taken.two() == 2\n")
    (tmp_path / "taken.py").write_text("def two():\n    return 2\n")
    program = f"""
from pathlib import Path
from benchmarks import mutants

tree, files = Path({str(tmp_path)!r}), ["taken.py"]
trace = mutants.Trace(tree, files)
assert mutants.passes(("one", "two"), tree, 60, trace)
trace.load((tree / "trace.json").read_text())
assert trace.lines["taken.py:2"] == {{"one/test_one.py::test_it", "two/test_two.py::test_it"}}
assert not mutants.passes(("one", "--no-such-option"), tree, 60, mutants.Trace(tree, files))
"""  # in a process of its own: it forks, and this one may have threads of gRPC
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("area", mutants.AREAS)
def test_an_area_has_files_and_tests(area: str) -> None:
    of = mutants.AREAS[area]
    assert all(list(ROOT.glob(glob)) for glob in of.files)
    places = [*of.near, *(argument for stage in of.then for argument in stage)]
    assert all((ROOT / place).exists() for place in places if place.startswith("tests/"))
