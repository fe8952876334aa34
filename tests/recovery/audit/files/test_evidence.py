"""What is read back of a run is checked: each thing that is changed in its directory makes the evidence doubtful."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError
from changelog.base.runtime import SystemRuntime
from recovery.audit.files.evidence import evidence
from recovery.audit.files.ledger import SCHEMA, SEALED, RunDirectory, sealed
from recovery.audit.manifest import Manifest, differing_inputs
from tests.given.audited_store import InThread, audit, plant
from tests.given.findings import as_older_software_wrote
from tiered.settings import Settings

pytestmark = [pytest.mark.slow]

HOUR_NS = 3_600_000_000_000
Run = tuple[Settings, Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of five ranges over twelve objects."""
    directory = tmp_path_factory.mktemp("evidence")
    store = anyio.run(plant, directory / "store")
    anyio.run(audit, store, directory / "run")
    return store, directory / "run"


@pytest.fixture
def run(whole: Run, tmp_path: Path) -> Path:
    shutil.copytree(whole[1], tmp_path / "run")
    return tmp_path / "run"


def doubts(run: Path, later_ns: int = 0) -> tuple[str, ...]:
    found = evidence(RunDirectory.open(str(run)), SystemRuntime().wall_ns() + later_ns)
    assert found.complete == (not found.doubts)
    return found.doubts


def rewrite(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest as somebody would with an editor."""
    manifest = json.loads((run / "manifest.json").read_text())
    change(manifest)
    (run / "manifest.json").write_text(json.dumps(manifest))


def with_finding(run: Path) -> Path:
    return next(path for path in sorted((run / "findings").iterdir()) if pq.read_metadata(path).num_rows)


def test_run_that_nobody_touched_is_complete(run: Path) -> None:
    assert doubts(run) == ()


@pytest.mark.parametrize(("change", "doubt"), [
    (lambda told: told["ranges"].pop(2), "its ranges 1 and 2 leave a gap between"),
    (lambda told: told["ranges"].pop(0), "no range holds the names before"),
    (lambda told: told["ranges"].pop(), "no range holds the names after that"),
    (lambda told: told["ranges"].clear(), "has no ranges"),
    (lambda told: told["ranges"][1].update(end="zzz"), "its ranges 1 and 2 overlap at"),
    (lambda told: told["ranges"][1].update(end=None), "its ranges 1 and 2 overlap at"),
    (lambda told: told["ranges"][1].update(end=""), "its range 1 ends at '', before it begins"),
    (lambda told: told["ranges"].insert(1, told["ranges"][1]), "overlap"),
    (lambda told: told["cutoff"].update(as_of_ns=told["cutoff"]["as_of_ns"] + HOUR_NS), "its cut-off lies in the future"),
    (lambda told: told["cutoff"].update(grace_s=-HOUR_NS), "its grace is -3600000000000.0 seconds"),
    (lambda told: told.update(started_ns=told["started_ns"] - HOUR_NS), "its cut-off was fixed after the run began"),
    (lambda told: told.update(started_ns=told["started_ns"] + HOUR_NS), "it began in the future"),
    (lambda told: told.update(ended_ns=told["started_ns"] - HOUR_NS), "it ended before it began"),
    (lambda told: told.update(ended_ns=None), "the run has not ended"),
    (lambda told: told.update(complete=False), "nothing says why"),
    (lambda told: told.update(doubts=["a doubt"]), "a doubt"),
    (lambda told: told.update(failures=[{"range": 1, "error": "x"}]), "marked as complete, and names ranges"),
    (lambda told: told.update(names=told["names"] + 1), "blobs"),
    (lambda told: told.update(redirects=told["redirects"] - 1), "and its files 11 and 10"),
    (lambda told: told["totals"].pop("orphan"), "counts other findings than its files"),
    (lambda told: next(iter(told["usecases"].values())).popitem(), "counts other usecases than its files"),
    (lambda told: told.update(verified=told["names"]), "payloads were read, and its files 0"),
    (lambda told: told["names_by_range"].reverse(), "counts other names in its ranges"),
    (lambda told: told["cutoff"].update(grace_s=1e15), "younger than the cut-off"),
    (lambda told: told["parts"].pop(), "the manifest does not name it"),
    (lambda told: told["parts"][0].update(sha256="0"), "is not the file that the run counted"),
    (lambda told: told.update(run="another"), "is of another run or range"),
    # A cut-off further back than the files': what they hold was not old enough for it.
    (lambda told: told["cutoff"].update(as_of_ns=told["cutoff"]["as_of_ns"] - HOUR_NS), "though they are younger than the cut-off"),
])  # fmt: skip
def test_manifest_that_cannot_be_true_is_doubtful(run: Path, change: Callable[[dict[str, Any]], object], doubt: str) -> None:
    rewrite(run, change)
    assert doubt in "\n".join(doubts(run))


def test_run_of_another_store_differs_in_its_inputs(run: Path, whole: Run) -> None:
    manifest = RunDirectory.open(str(run)).read_manifest()
    inputs = {"directory": str(whole[0].directory), "changelog": "sqlite"}
    assert manifest is not None and differing_inputs(manifest.inputs, inputs) == {}
    assert differing_inputs(manifest.inputs, inputs | {"directory": "/other"}) == {"directory": (str(whole[0].directory), "/other")}
    assert differing_inputs(manifest.inputs, {"directory": str(whole[0].directory)}) == {"changelog": ("sqlite", "not set")}


def test_directory_without_a_manifest_holds_no_run(run: Path) -> None:
    (run / "manifest.json").unlink()
    with pytest.raises(ConfigurationError, match="holds no run of an audit"):
        doubts(run)


# --- files -----------------------------------------------------------------------------------------


def test_every_byte_before_the_footer_is_covered_by_the_checksum(run: Path) -> None:
    path = with_finding(run)
    content = path.read_bytes()
    before = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert before > 100
    for place in (0, 4, before // 2, before - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert doubts(run) == (f"findings/{path.name} is damaged or was changed: its checksum does not fit",)


def rewritten(path: Path, rows: pa.Table, **says: str) -> None:
    """Writes a file anew, with the footer that it had, as somebody who wants to be believed would."""
    footer = {key: value for key, value in pq.read_metadata(path).metadata.items() if key.startswith(b"tiered.")}
    footer |= {f"tiered.{key}".encode(): value.encode() for key, value in says.items()}
    with pq.ParquetWriter(path, rows.schema, compression="zstd") as file:
        file.write_table(rows)
        file.add_key_value_metadata(footer)


def test_footer_without_its_rows_is_doubtful(run: Path) -> None:
    path = with_finding(run)
    rewritten(path, pq.read_table(path).slice(1))
    assert doubts(run) == (f"findings/{path.name} is damaged or was changed: its checksum does not fit",)


def sealed_again(directory: RunDirectory, path: Path, rows: pa.Table) -> None:
    """Writes other rows below the same footer, with a checksum that fits: what a defect of the writer would leave."""
    rewritten(path, rows)
    content = path.read_bytes()
    before = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    rewritten(path, rows, length=str(before))
    told = {key.decode(): value.decode() for key, value in pq.read_metadata(path).metadata.items()}
    says = {key: told[f"tiered.{key}"] for key in SEALED}
    rewritten(path, rows, length=str(before), sha256=sealed(sha256(path.read_bytes()[:before]), says))
    [part] = [each for each in directory.done(told["tiered.run"]) if each[0] == told["tiered.range"]]
    rewrite(Path(directory.uri), lambda manifest: [
        each.update(sha256=part[1].sha256) for each in manifest["parts"] if each["file"] == path.name
    ])  # fmt: skip


def changed(rows: pa.Table, column: str, value: object) -> pa.Table:
    place = rows.schema.get_field_index(column)
    return rows.set_column(place, rows.schema.field(place), pa.array([value] * len(rows), rows.schema.field(place).type))


@pytest.mark.parametrize(("change", "doubt"), [
    (lambda rows: rows.slice(1), "holds 0 findings, and its footer says 1"),
    (lambda rows: pa.concat_tables([rows, rows]), "holds 2 findings, and its footer says 1"),
    (lambda rows: changed(rows, "class", "foreign"), "holds 1 findings of the class foreign, and its footer counts 0"),
    (lambda rows: changed(rows, "run", "another"), "holds 1 findings of another run or range"),
    (lambda rows: changed(rows, "range", 7), "holds 1 findings of another run or range"),
    (lambda rows: changed(rows, "name", "zzz/objects/a"), "holds 1 findings whose names are not in its range"),
    (lambda rows: changed(rows, "created", 1 << 60), "orphans though they are younger than the cut-off"),
    (lambda rows: changed(rows, "created", None), "orphans though they are younger than the cut-off"),
    (lambda rows: changed(rows, "confirmed", None), "were not looked at twice"),
    (lambda rows: changed(rows, "scanned", 0), "that were read in the wrong order"),
    (lambda rows: rows.drop_columns(["generation"]), "does not have the columns of a file of findings"),
])  # fmt: skip
def test_rows_that_do_not_fit_their_footer_or_their_verdict_are_doubtful(
    run: Path, change: Callable[[pa.Table], pa.Table], doubt: str
) -> None:
    path = next(each for each in sorted((run / "findings").iterdir()) if "orphan" in pq.read_table(each)["class"].to_pylist())
    rows = pq.read_table(path).replace_schema_metadata(SCHEMA.metadata)
    orphans = rows.filter(pa.compute.equal(rows["class"], "orphan"))
    assert len(rows) == len(orphans) == 1, "the planted orphans are in ranges of their own"
    sealed_again(RunDirectory.open(str(run)), path, rows)
    assert doubts(run) == ()
    sealed_again(RunDirectory.open(str(run)), path, change(rows))
    assert doubt in "\n".join(doubts(run))


def test_a_run_that_older_software_has_written_is_as_good_as_it_was(run: Path) -> None:
    for path in sorted((run / "findings").iterdir()):
        as_older_software_wrote(path, 2, "generation")
        rows = pq.read_table(path)
        sealed_again(RunDirectory.open(str(run)), path, rows.replace_schema_metadata(SCHEMA.metadata))
        assert pq.read_schema(path).field("generation").type == pa.int64()
    assert doubts(run) == ()


def test_file_that_no_footer_names_is_doubtful(run: Path) -> None:
    path = with_finding(run)
    shutil.copy(path, path.with_name("range-000009.parquet"))
    assert doubts(run) == ("findings/range-000009.parquet is no part of any range: move it away",)
    path.with_name("range-000009.parquet").rename(path.with_name("more.parquet"))
    assert doubts(run) == ("findings/more.parquet is no part of any range: move it away",)
    path.with_name("more.parquet").rename(path.with_name("_more.parquet"))
    assert doubts(run) == ()


def test_file_that_is_gone_is_doubtful(run: Path) -> None:
    with_finding(run).unlink()
    assert any("is not there" in doubt for doubt in doubts(run))


def test_file_of_another_run_of_the_same_store_is_doubtful(run: Path, whole: Run, tmp_path: Path) -> None:
    anyio.run(audit, whole[0], tmp_path / "other")
    shutil.copy(tmp_path / "other" / "findings" / "range-000002.parquet", run / "findings")
    assert any("range-000002.parquet is of another run or range" in doubt for doubt in doubts(run))


def test_file_of_the_same_range_that_the_run_did_not_count_is_doubtful(run: Path, whole: Run) -> None:
    """As an earlier copy of the directory would bring back."""
    manifest = RunDirectory.open(str(run)).read_manifest()
    assert manifest is not None
    path = with_finding(run)
    path.unlink()
    begun = manifest.model_copy(update={"ended_ns": None, "complete": False})
    RunDirectory.open(str(run)).write_manifest(begun)
    anyio.run(audit, whole[0], run)
    assert doubts(run) == ()
    (run / "manifest.json").write_text(manifest.model_dump_json())
    assert doubts(run) == (f"findings/{path.name} is not the file that the run counted",)


# --- a run that goes on ----------------------------------------------------------------------------


@pytest.mark.parametrize(("damage", "told"), [
    (lambda content: content[:20] + b"?" + content[21:], "is damaged or was changed"), (lambda content: content[:50], "is cut off"),
], ids=["a byte is another", "it is cut off"])  # fmt: skip
def test_damaged_file_is_audited_again_and_told(run: Path, whole: Run, damage: Callable[[bytes], bytes], told: str) -> None:
    path = with_finding(run)
    path.write_bytes(damage(path.read_bytes()))
    engine = InThread()
    manifest: Manifest = anyio.run(audit, whole[0], run, engine)
    assert manifest.complete and doubts(run) == () and sum(engine.began.values()) == 1
    assert f"{path.name} {told}" in manifest.notes[-1] and "its range was audited again" in manifest.notes[-1]


def test_run_that_ended_and_has_a_strange_file_now_is_not_complete_until_it_is_gone(run: Path, whole: Run) -> None:
    (run / "findings" / "more.parquet").touch()
    manifest: Manifest = anyio.run(audit, whole[0], run)
    assert not manifest.complete and manifest.doubts == ("findings/more.parquet is no part of any range: move it away",)
    (run / "findings" / "more.parquet").unlink()
    manifest = anyio.run(audit, whole[0], run)
    assert manifest.complete and doubts(run) == ()


def test_run_whose_ranges_leave_a_gap_does_not_go_on(run: Path, whole: Run) -> None:
    rewrite(run, lambda told: (told["ranges"].pop(2), told.update(ended_ns=None)))
    with pytest.raises(CorruptRecordError, match=r"cannot be trusted: its ranges 1 and 2 leave a gap .* begin one in another directory"):
        anyio.run(audit, whole[0], run)


@pytest.mark.parametrize(("where", "value"), [
    *((where, value) for where in ("started_ns", "work_s") for value in (10**30, -(10**30), 1e308, float("inf"), float("nan"), "9" * 5000)),
    *((where, 10**30) for where in ("cutoff.as_of_ns", "cutoff.grace_s", "cutoff.overdue_s", "ended_ns", "ahead_ns", "verified", "stuck")),
])  # fmt: skip
def test_a_number_that_no_run_writes_is_no_manifest(run: Path, where: str, value: object) -> None:
    """Whatever computes with it would fail, or believe it."""

    def change(told: dict[str, Any]) -> None:
        *path, key = where.split(".")
        for each in path:
            told = told[each]
        told[key] = value

    rewrite(run, change)
    with pytest.raises(CorruptRecordError, match=f"is no manifest of an audit: {where}"):
        doubts(run)


def test_a_footer_with_other_types_is_one_doubt(run: Path) -> None:
    """Its checksum does not fit, and nothing else in it may be computed with."""
    file = with_finding(run)
    table = pq.read_table(file)
    footer = dict(pq.read_metadata(file).metadata)
    del footer[b"ARROW:schema"]
    summary = json.loads(footer[b"tiered.summary"])
    for kinds in summary["counts"].values():
        kinds.update({kind: ["a", None] for kind in kinds})
    for text in (json.dumps(summary).encode(), b"[" * 100_000):
        pq.write_table(table.replace_schema_metadata({**footer, b"tiered.summary": text}), file)
        assert any(file.name in each for each in doubts(run))
