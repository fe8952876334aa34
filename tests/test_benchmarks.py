"""The benchmarks run, tiny: so that they cannot rot. What they measure is looked at by nobody here."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from benchmarks import client_cpu, embedded, latency, memory, production
from benchmarks.figures import Figures, dumped, loaded, put_into
from benchmarks.rounds import Ratio, take_turns

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
    ("calls", 1, 16), ("client_cpu", 3, 27), ("latency", 1, 2), ("memory", 1, 2), ("recovery_rate", 1, 3),
])  # fmt: skip
def test_a_production_benchmark_has_a_line_for_everything_it_compares(
    bigtable_host: str, monkeypatch: pytest.MonkeyPatch, part: str, tables: int, lines: int
) -> None:
    monkeypatch.setattr(client_cpu, "ROUNDS", 2)
    monkeypatch.setattr(latency, "ROUNDS", 2)
    monkeypatch.setattr(memory, "UPLOAD_BYTES", 2 * memory.MIB)
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable_host)
    figures = anyio.run(production.run_part, part, TINY)
    assert len(figures) == tables
    assert sum(len(each.rows) for each in figures) == lines
    assert all(len(row) == len(each.columns) for each in figures for row in each.rows)


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
