"""What `tiered.findings` says of a run. Without Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pyarrow.parquet as pq
import pytest

from recovery.sources.findings_of_run import look
from tests.given.audited_store import audit, plant

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("findings")
    anyio.run(audit, anyio.run(plant, directory / "store"), directory / "run")
    return directory / "run"


def of_the_future(run: Path) -> None:
    told = json.loads((run / "manifest.json").read_text())
    told["cutoff"]["as_of_ns"] += 10**18
    (run / "manifest.json").write_text(json.dumps(told))


def with_another_size(run: Path) -> None:
    path = next(each for each in sorted((run / "findings").iterdir()) if pq.read_metadata(each).num_rows)
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)


def with_a_strange_file(run: Path) -> None:
    (run / "findings" / "more.parquet").write_bytes(b"")


def test_a_run_is_complete_if_everything_in_it_proves_so(whole: Path) -> None:
    run = look(str(whole))
    assert run.complete and run.faults == () and len(run.done) == 5


@pytest.mark.parametrize("damage", [of_the_future, with_another_size, with_a_strange_file])
def test_a_damaged_run_is_not_called_complete(whole: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Its manifest says so, and no file is missing."""
    shutil.copytree(whole, tmp_path / "run")
    damage(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["complete"] is True
    assert not look(str(tmp_path / "run")).complete
