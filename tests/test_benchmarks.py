"""The benchmarks run, tiny: so that they cannot rot. What they measure is looked at by nobody here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any, cast

import anyio
import grpc.aio
import pytest

from benchmarks import client_cpu, embedded, latency, memory, production, recovery_rate
from benchmarks.bare import BareRows
from benchmarks.figures import Figures, dumped, loaded, put_into
from benchmarks.rounds import Ratio, take_turns
from changelog.bigtable_channel import BigtableTable
from changelog.change import ChangeId
from changelog.runtime import SystemRuntime
from tiered.backends import Inline, Tombstone
from tiered.bigtable import BigtableRows
from tiered.metadata import Metadata

TINY = 0.0001


def test_the_embedded_benchmark_shows_every_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(embedded, "ROUNDS", 2)
    anyio.run(embedded.measure, tmp_path, 0.001).show()
    shown = capsys.readouterr().out
    assert shown.count("1 KiB") == 2
    assert shown.count("2 MiB") == 4


@pytest.mark.parametrize(("part", "tables", "lines"), [
    ("calls", 1, 16), ("client_cpu", 3, 27), ("latency", 1, 2), ("memory", 1, 2), ("recovery_rate", 1, 4),
])  # fmt: skip
def test_a_production_benchmark_has_a_line_for_everything_it_compares(
    bigtable_host: str, monkeypatch: pytest.MonkeyPatch, part: str, tables: int, lines: int
) -> None:
    monkeypatch.setattr(client_cpu, "ROUNDS", 2)
    monkeypatch.setattr(latency, "ROUNDS", 2)
    monkeypatch.setattr(recovery_rate, "DAEMONS", (1, 2))
    monkeypatch.setattr(memory, "UPLOAD_BYTES", 2 * memory.MIB)
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable_host)
    figures = anyio.run(production.run_part, part, TINY)
    assert len(figures) == tables
    assert sum(len(each.rows) for each in figures) == lines
    assert all(len(row) == len(each.columns) for each in figures for row in each.rows)


class _Sent:
    """A channel that goes nowhere and keeps what was sent; every answer is empty."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return lambda request, **_: self._answer(request, response_deserializer(b""))

    unary_stream = unary_unary

    def _answer(self, request: Any, response: Any) -> _Answer:
        self.requests.append(request.SerializeToString(deterministic=True))
        return _Answer(response)


class _Answer:
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


def test_the_page_has_a_place_for_every_part() -> None:
    page = (Path(__file__).parent.parent / "docs" / "benchmarks.md").read_text()
    assert [part for part in ("embedded", *production.PARTS) if f"<!-- figures {part} -->" not in page] == []


def test_sides_take_turns_in_going_first() -> None:
    order: list[str] = []

    async def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    measured = anyio.run(take_turns, [lambda: side("a"), lambda: side("b")], 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert measured == [[1, 4, 5], [2, 3, 6]]


def test_a_ratio_is_of_rounds_and_not_of_medians() -> None:
    assert Ratio.of([1, 20, 300], [1, 10, 100]) == Ratio(2.0, 1.5, 2.5)
    assert Ratio.of([3], [2]) == Ratio(1.5, 1.5, 1.5)
