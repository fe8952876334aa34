"""A class of finding is one row of one table: whatever its row says is told wherever the audit tells of classes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.given.planted_classes import PLANTED
from tests.given.repository import ROOT

Told = dict[str, dict[str, Any]]
LOSSES = {"loss", "lost_blob"}


@pytest.fixture(scope="module")
def told() -> Told:
    ended = subprocess.run([sys.executable, "-m", "tests.given.planted_classes"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: Told = json.loads(ended.stdout)
    assert list(found) == list(PLANTED)
    return found


@pytest.mark.parametrize("name", PLANTED)
def test_a_row_of_the_table_is_carried_everywhere(told: Told, name: str) -> None:
    found = told[name]
    is_finding = name != "counted"
    follows = "counted" if not is_finding else "**finding**, doubt" if name == "doubt" else "**finding**"
    assert found["table"] == f"| `planted_{name}` | its content is {name} | {follows} |"
    assert found["stored"] and found["read"] and found["page"] and found["terminal"]
    assert found["findings"] == (2 if is_finding else 0)
    assert found["note"] == ([2, 30] if is_finding else None)
    assert (f"planted_{name}: its content is {name}" in found["name_says"]) is is_finding
    assert not found["deleted"]
    assert found["refused"] == (
        f"findings of the class planted_{name} are never deleted, because WHY" if is_finding
        else f"'planted_{name}' is no class of findings that can be deleted: give --class orphan"
    )
    assert found["complete"] is (name != "doubt") and bool(found["evidence"]) is (name == "doubt")
    assert found["place"] == (0 if is_finding else 1)
    assert found["lost"] == (2 if name in LOSSES else 0)
    assert found["size"] == (5 if name in ("row", "lost_blob") else 35), "what is no blob has no bytes in the sum of all blobs"
    assert found["looked_at_twice"] is found["by_age"] is (name in ("accused", "orphan"))
    assert found["to_reclaim"] is (name in ("orphan", "reclaimable"))
    assert found["named"] is (name in ("loss", "in_use"))
    assert found["in_use"] == ([3, 35] if name == "in_use" else [1, 5])
    assert found["in_use_on_page"] is (name == "in_use")
    assert found["drawn_in_use_or_passing"] is (name in ("counted", "in_use"))


@pytest.mark.parametrize(("name", "headline", "note"), [
    ("counted", "Clean: ", "clean: "),
    ("plain", "No orphan and no loss was found, but somebody should look at 2 planted plain.", "findings: 2 planted_plain (30 bytes)"),
    ("loss", "DATA LOSS: 2 planted loss.", "DATA LOSS: 2 planted_loss"),
    ("lost_blob", "DATA LOSS: 2 planted lost blob.", "DATA LOSS: 2 planted_lost_blob"),
    ("doubt", "Incomplete: 2 times planted_doubt: its content is doubt. It has 2 findings, which may", "incomplete: it is doubtful"),
    ("orphan", "2 orphans: 30 B, less than $0.01 a month.", "findings: 2 planted_orphan (30 bytes)"),
])  # fmt: skip
def test_the_headline_of_a_run_and_of_the_status_tell_of_a_new_class(told: Told, name: str, headline: str, note: str) -> None:
    assert told[name]["verdict"].startswith(headline)
    assert told[name]["note_says"].startswith(note)
