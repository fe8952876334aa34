"""Exports of each release: this software verifies them, goes on with them, and imports them."""

from __future__ import annotations

from pathlib import Path

import anyio
import pyarrow.parquet as pq
import pytest

from tests.golden import make
from tests.golden.clock import HOUR_S, GoldenRuntime
from tests.golden.contents import present
from tests.golden.make import opened, settings_of
from tests.golden.stored import unpacked, versions
from tests.golden.test_stores import described
from tiered.exports import ExportReport, export_objects, import_objects, verify_export
from tiered.exports.manifest import BEGUN, MANIFEST

pytestmark = pytest.mark.anyio


async def export(directory: Path, *, update: bool = False) -> ExportReport:
    async with opened(settings_of(directory / "store"), GoldenRuntime(HOUR_S, seed=2), writes=False) as (storage, _):
        return await export_objects(storage, directory / "export", update=update)


async def test_an_export_of_the_release_is_verified_and_says_what_it_lacks(version: str, tmp_path: Path) -> None:
    directory, expected = unpacked(version, "exported", tmp_path)
    report = await verify_export(directory / "export")
    assert (report.whole, report.wrong, report.complete) == (len(expected["objects"]), 0, False) and report.whole > 20
    damaged = max((path for path in (directory / "export" / "payloads").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    assert (await verify_export(directory / "export")).wrong == 1


async def test_an_import_of_it_has_every_object_with_its_metadata(version: str, tmp_path: Path) -> None:
    directory, expected = unpacked(version, "exported", tmp_path)
    async with opened(settings_of(tmp_path / "new"), GoldenRuntime(HOUR_S, seed=2)) as (storage, _):
        report = await import_objects(storage, directory / "export", incomplete=True)
        assert (report.copied, report.failed) == (len(expected["objects"]), 0)  # what it lacks, it has told before
        for path, wanted in expected["objects"].items():
            assert present(await described(storage, path) | {"revision": wanted["revision"]}) == present(wanted), path
        again = await import_objects(storage, directory / "export", incomplete=True)
        assert (again.copied, again.unchanged) == (0, len(expected["objects"]))


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "interrupted"])
async def test_it_is_gone_on_with_and_brought_up_to_date(version: str, ended: bool, tmp_path: Path) -> None:
    directory, expected = unpacked(version, "exported", tmp_path)
    if not ended:  # as a kill would have left a first round
        (directory / "export" / MANIFEST).unlink()
        (directory / "export" / "manifest-2").rename(directory / "export" / "manifest")
    report = await export(directory)
    counts = (len(expected["objects"]), len(expected["lost"]), 0)
    assert (report.exported, report.failed, report.fetched) == counts
    report = await export(directory, update=True)
    assert (report.exported, report.failed, report.fetched) == counts
    assert (await verify_export(directory / "export")).whole == len(expected["objects"])


def written(directory: Path) -> dict[str, object]:
    """All that an export has written. Parquet by its rows: another version of that library makes other bytes."""
    found: dict[str, object] = {}
    packed = set()
    for part in directory.rglob("*.parquet"):
        table = pq.read_table(part)
        found[str(part.relative_to(directory))] = (str(table.schema), table.schema.metadata)
        for row in table.to_pylist():
            if row["compression"] is None:
                found[row["path"]] = row
            else:
                packed.add(row["file"])
    for path in directory.rglob("*"):
        name = str(path.relative_to(directory))
        if path.is_file() and name not in packed and path.suffix != ".parquet":
            lines = path.read_bytes().splitlines(keepends=True)
            found[name] = [line for line in lines if b'"sha256"' not in line] if name in (BEGUN, MANIFEST) else lines
    return found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what the dead had open, nobody has closed
def test_what_an_export_writes_now_is_what_the_newest_of_those_releases_wrote(tmp_path: Path) -> None:
    """If this fails, a stored format has changed: docs/format.md says what to do."""
    version = versions()[-1]
    then, _ = unpacked(version, "exported", tmp_path)
    (now := tmp_path / "now").mkdir()
    anyio.run(make.exported, now)
    ours, theirs = written(now / "export"), written(then / "export")
    for name in (BEGUN, MANIFEST):
        ours[name] = [line.replace(str(now).encode(), str(then).encode()) for line in ours[name]]  # type: ignore[attr-defined]
    assert ours.keys() == theirs.keys() and len(ours) > 50
    for name in ours:
        assert ours[name] == theirs[name], f"{name} is not what {version} wrote"
