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

from benchmarks import audit_world, command, metered, production, statistics_pictures
from benchmarks.audit_servers import answer
from benchmarks.bare import BareRows
from benchmarks.harness import FIGURES, Contest, Figures, Measure, Ratio, places, put_get_delete, put_into, take_turns
from benchmarks.metered import MeteredLine, Taken, compare_metered
from benchmarks.servers import started
from benchmarks.sides import RowsSide
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable
from changelog.change import ChangeId
from recovery import states
from recovery.audit.finding_classes import NameForm
from recovery.audit.names import read_name
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT
from tiered.bigtable.rows import BigtableRows
from tiered.metadata import Metadata
from tiered.services.backends import Inline, Tombstone
from tiered.testing.rows import MemoryRows

TINY = 0.0001
NO_RATIO = {"feed_writer"}
"""Parts whose figures are not compared with those of the last release."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", production.PARTS)
def test_a_part_finds_what_was_put_on_each_side_and_its_rows_have_names(part: str) -> None:
    tables = anyio.run(production.take_apart, part, TINY)
    assert tables and all(len(row) == len(table.columns) for table in tables for row in table.rows)
    assert all(table.rows and bool(table.compared()) is (part not in NO_RATIO) for table in tables)


def test_a_part_that_fails_ends_although_nobody_ends_its_stdin() -> None:
    code = (
        "import anyio; from benchmarks.servers import unless_left_alone\n"
        "async def fail():\n    await anyio.sleep(0.2)\n    raise ValueError\n"
        "anyio.run(unless_left_alone, fail)"
    )  # fmt: skip
    with StartedProcess([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as running:
        assert running.wait(timeout=60) == 1


def test_a_command_that_fails_is_not_measured() -> None:
    with pytest.raises(SystemExit, match="ended with 7"):
        command.run(["-c", "raise SystemExit(7)"], {})


def test_a_side_that_finds_something_else_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(command: Sequence[str]) -> Taken:
        return Taken(6.0, lines=[MeteredLine(1.0, 1.0, "ready"), MeteredLine(3.0, float(command[0]), "[10, 1]")])

    async def compare(*found: int) -> Figures:
        return await compare_metered("Title", 5000, {"ours": ["2"], "theirs": ["5"]}, 1, {"ours": [10, 1], "theirs": [*found]}, (), [])

    monkeypatch.setattr(metered, "run_metered", run)
    assert anyio.run(compare, 10, 1).compared() == {"theirs": {"of the first": Ratio(0.25, 0.25, 0.25, 1)}}
    with pytest.raises(AssertionError, match=r"theirs found \[10, 1\] and not \[11, 1\]"):
        anyio.run(compare, 11, 1)


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


def test_a_contest_has_a_row_for_each_operation_and_a_ratio_for_each_other_side() -> None:
    rows = RowsSide(MemoryRows(SystemRuntime()))
    measures = Measure("clock_s", "ms"), Measure("cpu_s", "µs", "CPU: ")
    contest = Contest("Title", {"ours": rows, "theirs": rows, "others": rows}, 2, measures)
    anyio.run(contest.run, put_get_delete(b"payload", " row"), 3, 2)
    table = contest.figures()
    assert [row[:2] for row in table.rows] == [["put row", "2"], ["get row", "2"], ["delete row", "2"]]
    assert [*table.compared()["put row, 2"]] == ["of theirs", "of others", "CPU: of theirs", "CPU: of others"]
    assert table.columns[2:7] == ["ours, ms", "theirs, ms", "of theirs", "others, ms", "of others"]


def test_a_side_that_loses_what_was_put_is_not_measured() -> None:
    class Forgetful(RowsSide):
        async def put(self, name: str, token: ChangeId, payload: bytes) -> None:
            pass

    contest = Contest("Title", {"ours": Forgetful(MemoryRows(SystemRuntime()))}, 1)
    with pytest.raises(ExceptionGroup) as failed:
        anyio.run(contest.run, put_get_delete(b"payload"), 1, 1)
    assert failed.group_contains(AssertionError, match="is not what was put")


def test_figures_replace_what_the_page_said_between_the_marks_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures a -->\nold\n<!-- end of a -->\nbetween\n<!-- figures b -->\n<!-- end of b -->\nafter\n")
    told = FIGURES.dump_json([Figures("Title", ["", "ratio"], [["one | two", "1.00"]], ["A note."])])
    [figures] = FIGURES.validate_json(told)
    put_into(page, "a", [figures], 1.0, 0.5)
    text = page.read_text()
    assert "old" not in text
    assert "| one \\| two | 1.00 |" in text and "A note." in text
    assert [text.count(word) for word in ("before", "between", "after", "<!-- end of a -->", "<!-- figures b -->")] == [2, 1, 1, 1, 1]


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


def test_the_pictures_of_the_statistics_show_what_their_page_says(tmp_path: Path) -> None:
    bounded, unbounded = (statistics_pictures.play(replace(scene, backlog=400, lasts_s=60)) for scene in statistics_pictures.SNAPSHOTS)
    assert (bounded[1].row.snapshot_progress or 0) < 400 == unbounded[1].row.snapshot_progress
    assert bounded[-1].row.snapshot_committed and unbounded[-1].row.snapshot_committed
    up, behind = (statistics_pictures.play(replace(scene, lasts_s=60)) for scene in statistics_pictures.BALANCES)
    assert up[-1].verdict is states.CATCHING_UP and behind[-1].verdict is states.FALLING_BEHIND
    statistics_pictures.draw_balances([replace(statistics_pictures.BALANCES[0], backlog=10, lasts_s=30)], tmp_path / "one.svg")
    assert "processed_values" in (tmp_path / "one.svg").read_text()
    for name in ("snapshot.svg", "keeping-up.svg"):
        assert (statistics_pictures.DOCS / name).is_file() and f"pictures/{name}" in (ROOT / "docs/statistics.md").read_text()
