"""The notebook of the docs is executed, over a store and a run in which its answers were planted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import date
from io import StringIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyspark.sql import SparkSession

from changelog.change import Change, ChangeId
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding_classes import FindingClass
from tests.given.audit_grounds import DAY_NS, EmbeddedGround, embedded_ground
from tests.given.findings import finding, manifest, write
from tests.given.repository import ROOT
from tiered.metadata import Metadata
from tiered.services.backends import Inline

pytestmark = pytest.mark.slow

NOTEBOOK = ROOT / "docs" / "warehouse.ipynb"
TABLES = ("by_usecase_and_age", "oldest_changes", "orphans_by_week", "cost_of_expired", "unread")
MONDAY_NS = 1_789_948_800 * 10**9
"""2026-09-21, 00:00 UTC."""


async def plant(root: Path, now_ns: int) -> list[ChangeId]:
    async with embedded_ground(root) as ground:
        assert isinstance(ground, EmbeddedGround)
        for number, (usecase, size, overdue_days) in enumerate([("media", 30, None), ("media", 12, 1), ("logs", 50, 40), ("logs", 8, -5)]):
            deadline_ns = None if overdue_days is None else now_ns - overdue_days * DAY_NS
            path = f"{usecase}/objects/{number}"
            name = f"{path}/{ground.clock.at(now_ns)}"
            await ground.blob(name, size, now_ns - 60 * DAY_NS, deadline_ns)
            if number != 1:  # that blob is nobody's
                await ground.row(path, name, deadline_ns)
        for key in ("small", "smaller"):
            token = ground.clock.at(now_ns)
            assert await ground.tiers.high_volume.put_inline(f"media/objects/{key}", token, Inline(Metadata(size=5), b"small", token))
        await ground.row("media/objects/lost", f"media/objects/lost/{ground.clock.at(now_ns)}", None)
        changes = [ground.clock.at(now_ns - hours * 3600 * 10**9) for hours in (3, 70, 1)]
        for id in changes:
            ground.clock.now_ns = now_ns
            await ground.entry(Change(id, "media/objects/k", new=f"media/objects/k/{id}"), stuck=id is changes[1])
        await ground.raw_entry("~changelog/02/nonsense", b"{")
        return [changes[1], changes[0], changes[2]]


def code_of(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def answered(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, list[dict[str, Any]]], list[ChangeId]]]:
    """All cells in one namespace, as they are in the file. Only the two paths of the first are those of this test."""
    here = tmp_path_factory.mktemp("notebook")
    changes = anyio.run(plant, here / "store", time.time_ns())
    (here / "tiered.yaml").write_text(f"directory: {here / 'store'}\n")
    directory = RunDirectory.open(str(here / "audit"))
    directory.begin(manifest(ranges=(*manifest().ranges, *manifest().ranges)))
    week = [MONDAY_NS - 1000, MONDAY_NS, MONDAY_NS + 7 * DAY_NS - 1000]
    legacy, dangling = finding(FindingClass.LEGACY_ORPHAN, created_ns=MONDAY_NS), finding(FindingClass.DANGLING)
    write(directory, 0, *(finding(created_ns=at_ns) for at_ns in week), legacy, dangling)
    paths, *cells = code_of(NOTEBOOK)
    namespace: dict[str, Any] = {}
    zone = spark.conf.get("spark.sql.session.timeZone")
    with redirect_stdout(StringIO()) as shown:
        exec(compile(paths, "cell 0", "exec"), namespace)
        assert (namespace["CONFIG"], namespace["RUN"]) == ("tiered.yaml", "audit")
        namespace |= {"CONFIG": str(here / "tiered.yaml"), "RUN": str(here / "audit")}
        for number, code in enumerate(cells, 1):
            exec(compile(code, f"cell {number}", "exec"), namespace)
    assert "|usecase|" in shown.getvalue()
    yield {name: [row.asDict() for row in namespace[name].collect()] for name in TABLES}, changes
    spark.conf.set("spark.sql.session.timeZone", str(zone))


Answered = tuple[dict[str, list[dict[str, Any]]], list[ChangeId]]


def test_bytes_by_usecase_and_age(answered: Answered) -> None:
    """It answered from blobs alone: of `media`, two objects were left out, and one counted that is nobody's."""
    columns = ("usecase", "tier", "age", "objects", "bytes", "unknown")
    assert [tuple(row[name] for name in columns) for row in answered[0]["by_usecase_and_age"]] == [
        ("logs", "long-term", "4: 30 d to 90 d", 2, 58, 0), ("media", "long-term", "4: 30 d to 90 d", 1, 30, 0),
        ("media", "high-volume", "not known", 2, 10, 0),
    ]  # fmt: skip


def test_the_oldest_changes_come_first(answered: Answered) -> None:
    tables, changes = answered
    assert [row["id"] for row in tables["oldest_changes"]] == changes
    assert [row["stuck"] is not None for row in tables["oldest_changes"]] == [True, False, False]


def test_orphans_by_week(answered: Answered) -> None:
    assert answered[0]["orphans_by_week"] == [
        {"week": date(2026, 9, 14), "orphans": 1, "bytes": 10}, {"week": date(2026, 9, 21), "orphans": 3, "bytes": 30},
    ]  # fmt: skip


def test_the_cost_of_expired_garbage(answered: Answered) -> None:
    assert [(row["usecase"], row["expired_for"], row["blobs"], row["bytes"]) for row in answered[0]["cost_of_expired"]] == [
        ("logs", "3 d and more", 1, 50), ("media", "under 3 d", 1, 12),
    ]  # fmt: skip
    assert answered[0]["cost_of_expired"][0]["dollars_per_month"] == pytest.approx(50 / 1024**3 * 0.02)


def test_what_could_not_be_read_is_told(answered: Answered) -> None:
    told = {(row["table"], row["name"]): row["error"] for row in answered[0]["unread"]}
    assert told.keys() == {("changes", "~changelog/02/nonsense"), ("findings", "range 1"), ("objects", "media/objects/lost")}
    assert told["findings", "range 1"] == "this range was not audited"


def test_the_notebook_holds_no_output() -> None:
    assert all(not cell.get("outputs") for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"])
    assert len(code_of(NOTEBOOK)) >= 6
