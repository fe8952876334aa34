"""`tiered audit show` as its users meet it, in embedded mode: what it prints, and its exit codes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import anyio
import pytest

from tests.given.audited_store import AuditedStore, audit

WITHOUT_ARROW = "import sys; sys.modules['pyarrow'] = None; from recovery.cli.main import main; main()"
WHOLE, ORPHANED, DANGLING = ("media/objects/day/00", "media/objects/day/02", "media/objects/day/05")


@pytest.fixture
def tiered(tmp_path: Path) -> AuditedStore:
    return AuditedStore(tmp_path)


def test_object_with_nothing_wrong_is_shown_by_its_path_and_by_its_blob(tiered: AuditedStore) -> None:
    shown = tiered.show(WHOLE)
    assert shown.startswith(f"{WHOLE}: no fault was found: its row names a blob that is there, and whose payload matches its checksum\n")
    told = json.loads(tiered.show(WHOLE, "--json"))
    [row], [blob] = told["rows"], told["blobs"]
    assert (row["state"], row["target"], blob["name"], blob["class"]) == ("tombstone", blob["name"], blob["name"], "referenced")
    by_blob = json.loads(tiered.show(blob["name"], "--json"))
    assert by_blob["blobs"] == told["blobs"]
    assert [each["path"] for each in by_blob["rows"]] == [WHOLE, blob["name"]]
    for each in (blob["name"], row["token"], "referenced"):
        assert each in shown


def test_orphan_is_a_finding_unless_it_is_young(tiered: AuditedStore) -> None:
    assert "orphan: nothing names it" in tiered.show(ORPHANED, code=1).splitlines()[0]
    young = json.loads(tiered("audit", "show", ORPHANED, "--json"))
    assert [blob["class"] for blob in young["blobs"]] == ["too_young"]
    assert young["verdict"].endswith("; a blob that nothing names is too young to judge")
    assert young["findings"] == []


def test_dangling_tombstone_is_a_finding_without_a_copy_to_restore(tiered: AuditedStore) -> None:
    shown = tiered.show(DANGLING, code=1)
    assert shown.startswith(f"{DANGLING}: dangling: ")
    assert "nobody can ask this tier whether it keeps what was deleted" in shown


def test_name_that_is_not_there_is_no_finding(tiered: AuditedStore) -> None:
    assert tiered.show("media/objects/day/99").startswith("media/objects/day/99: there is nothing of this name\n")


def test_a_name_is_shown_where_arrow_is_not_installed_and_a_run_says_what_it_needs(tiered: AuditedStore) -> None:
    assert "no fault was found" in tiered("audit", "show", WHOLE, python=("-c", WITHOUT_ARROW))
    tiered("audit", "show", WHOLE, "--from", "run", python=("-c", WITHOUT_ARROW), code=2)
    assert "an audit needs pyarrow: pip install" in tiered.errors


def test_findings_of_a_run_are_shown_beside(tiered: AuditedStore, tmp_path: Path) -> None:
    to = tmp_path / "run"
    manifest = anyio.run(audit, tiered.settings, to)
    # Without a grace of its own it takes the run's, which is none.
    shown = tiered("audit", "show", ORPHANED, "--from", str(to), code=1)
    assert f"{manifest.run} of " in shown and "1 finding\n" in shown and "confirmed" in shown
    told = json.loads(tiered("audit", "show", DANGLING, "--from", str(to), "--json", code=1))["run"]
    [finding] = told["findings"]
    assert (told["run"], told["complete"], told["audited"], told["more"]) == (manifest.run, True, True, False)
    assert (finding["class"], finding["object"]) == ("dangling", DANGLING)
    assert finding["listed_ns"] <= finding["logged_ns"] <= finding["scanned_ns"] <= finding["confirmed_ns"]
    of_blob = json.loads(tiered("audit", "show", finding["name"], "--from", str(to), "--json", code=1))["run"]
    assert of_blob["findings"] == [finding]
    assert json.loads(tiered("audit", "show", WHOLE, "--from", str(to), "--json"))["run"]["findings"] == []
    below = json.loads(tiered("audit", "show", "media/objects/day", "--from", str(to), "--json", code=1))["run"]
    assert sorted(each["object"] for each in below["findings"]) == sorted(["media/objects/day/07", ORPHANED, DANGLING])
    for part in (to / "findings").iterdir():
        part.unlink()
    shown = tiered("audit", "show", WHOLE, "--from", str(to), code=2)
    assert "it did not get to this name" in shown and "findings/range-000000.parquet is not there" in shown


def test_run_whose_evidence_is_doubtful_says_so_and_ends_with_2(tiered: AuditedStore, tmp_path: Path) -> None:
    to = tmp_path / "run"
    anyio.run(audit, tiered.settings, to)
    manifest = json.loads((to / "manifest.json").read_text())
    del manifest["ranges"][2]
    (to / "manifest.json").write_text(json.dumps(manifest))
    shown = tiered("audit", "show", WHOLE, "--from", str(to), code=2)
    assert "not complete" in shown and "its ranges 1 and 2 leave a gap" in shown
    assert json.loads(tiered("audit", "show", WHOLE, "--from", str(to), "--json", code=2))["run"]["doubts"]


def test_without_a_name_a_run_names_what_it_found_lost_and_nothing_else(tiered: AuditedStore, tmp_path: Path) -> None:
    to = tmp_path / "run"
    anyio.run(audit, tiered.settings, to)
    [line] = tiered("audit", "show", "--from", str(to), code=1).splitlines()
    assert line.startswith(f"dangling   {DANGLING}  ") and "found 1 object lost; `tiered -d" in tiered.errors
    assert json.loads(tiered("audit", "show", "--from", str(to), "--json", code=1))["object"] == DANGLING
    order = next(each for each in json.loads(tiered("status", "--json", code=6))["orders"] if "lost" in each["why"])
    assert tiered(*shlex.split(order["type"])[3:], code=1).startswith(f"dangling   {DANGLING}  ")
    assert f"Run `{order['type']}`." in tiered("check", code=6)
    for file in (to / "findings").iterdir():
        file.unlink()
    assert tiered("audit", "show", "--from", str(to), code=2) == ""
    assert "range-000000.parquet is not there" in tiered.errors
    assert "found 1 object lost, of which 0 can be named; its evidence is not complete, so there may be more\n" in tiered.errors


def test_run_that_found_nothing_lost_says_so(tiered: AuditedStore, tmp_path: Path) -> None:
    tiered("rm", DANGLING)
    anyio.run(audit, tiered.settings, tmp_path / "run")
    assert tiered("audit", "show", "--from", "run") == "" and "found 0 objects lost\n" in tiered.errors


def test_run_of_another_store_is_refused(tiered: AuditedStore, tmp_path: Path) -> None:
    anyio.run(audit, tiered.settings, tmp_path / "run")
    tiered.store.rename(tmp_path / "moved")
    tiered.store = tmp_path / "moved"
    assert tiered("audit", "show", WHOLE, "--from", "run", code=2) == ""
    assert "something else" in tiered.errors


@pytest.mark.parametrize(("arguments", "says"), [
    ([""], "a name has 1 to 1024 bytes"),
    ([WHOLE, "--grace", "soon"], "36h"),
    ([WHOLE, "--from", "nowhere"], "holds no run of an audit"),
    (["--from", "nowhere"], "holds no run of an audit"),
    ([], "give the NAME of an object or a blob, or --from RUN alone"),
    (["--from", "run", "--verify"], "give the NAME of an object or a blob, or --from RUN alone"),
])
def test_what_cannot_be_told_ends_with_2_and_a_sentence(tiered: AuditedStore, arguments: list[str], says: str) -> None:
    assert tiered("audit", "show", *arguments, code=2) == ""
    assert says in tiered.errors
    assert tiered.errors.count("\n") == 1


def test_changelog_that_is_not_kept_is_told(tiered: AuditedStore, tmp_path: Path) -> None:
    (tmp_path / "store.yaml").write_text("directory: store\nchangelog: noop\n")
    assert "changelog  none is kept" in tiered("--config", "store.yaml", "audit", "show", WHOLE, store=False)
