"""Lines are broken, tried by the tests that run them, and live only where all stages pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mutants import AREAS, SURVIVED, Mutant, Stages, Trace, mutants, traced, try_out
from tests.given.repository import ROOT

SOURCE = """
async def take(self, limit: int = 3) -> bool:
    self._event.set()
    logger.info("taken")
    if limit > 2 and self.open:
        raise ValueError
    return self.open
"""


def test_each_kind_of_line_is_broken_and_what_comes_of_it_is_still_python() -> None:
    broken = {mutant.what: mutant.applied_to(SOURCE.encode()).decode() for mutant in mutants("take.py", SOURCE.encode())}
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


@pytest.mark.night
def test_a_mutant_lives_only_where_every_stage_passes_in_time(tmp_path: Path) -> None:
    (taken := tmp_path / "taken.py").write_text("TAKEN = 3\n")
    stages: Stages = {
        "any": (("-c", "import taken"), 60.0),
        "small": (("-c", "from taken import TAKEN; assert TAKEN < 5"), 60.0),
        "ends": (("-c", "import taken, time; time.sleep(60 if taken.TAKEN == 2 else 0)"), 5.0),
    }
    found = {text: try_out(Mutant("taken.py", 1, 8, 9, text, ""), tmp_path, stages) for text in ("4", "5", "(", "2")}
    assert found == {"4": SURVIVED, "5": "small", "(": "any", "2": "ends"}
    assert taken.read_text() == "TAKEN = 3\n"


@pytest.mark.night
def test_the_tests_that_run_a_line_are_traced_and_come_the_quickest_first(tmp_path: Path) -> None:
    """A run that broke inside pytest was once taken for one without any lines. An unhashable plugin broke it."""
    for folder in ("one", "two"):  # of each test, the conftest of the other folder is left out
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "conftest.py").touch()
        (tmp_path / folder / f"test_{folder}.py").write_text("import taken\ndef test_it(): assert taken.two() == 2\n")
    (tmp_path / "taken.py").write_text("def two():\n    return 2\n")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    trace = traced(tmp_path, ["taken.py"], ["one", "two"])
    assert trace.lines["taken.py:2"] == {"one/test_one.py::test_it", "two/test_two.py::test_it"}
    with pytest.raises(SystemExit, match="crashes"):
        traced(tmp_path, ["taken.py"], ["one", "--no-such-option"])
    lines = {"a.py:1": {"slow", "quick", "broken"}, "a.py": {"slow", "other"}}
    known = Trace(tmp_path, [], lines, {"slow": 2, "quick": 1, "other": 0.5}, {"broken"})
    assert known.tests(Mutant("a.py", 1, 8, 9, "4", "")) == ["quick", "slow"]
    assert known.tests(Mutant("a.py", 7, 8, 9, "4", "")) == ["other", "slow"], "only an import runs it"


@pytest.mark.parametrize("area", AREAS)
def test_an_area_has_files_and_tests(area: str) -> None:
    of = AREAS[area]
    assert all(list(ROOT.glob(glob)) for glob in of.files)
    places = [*of.near, *(argument for stage in of.then for argument in stage)]
    assert all((ROOT / place).exists() for place in places if place.startswith("tests/"))
