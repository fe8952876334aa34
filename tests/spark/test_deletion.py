"""A deletion on Spark: its batches are tasks, the journal is the result, and a second one does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from pyspark.sql import SparkSession

from changelog.base.runtime import SystemRuntime
from recovery.audit.deleting import journal
from recovery.audit.deleting.batch import delete_batch
from recovery.audit.deleting.candidates import DeleteOutcome
from recovery.audit.deleting.deletion import DeletionProgress, DeletionReport, delete_orphans
from recovery.audit.deleting.gates import DeletionRequest
from recovery.audit.running.cluster import open_spark
from tests.given.deleted_store import ALL, OBJECTS, ORPHANS, blobs, embedded_with_orphans, readable


def test_spark_deletes_the_orphans_of_a_run_and_nothing_else(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BATCH", 5)
    shown: list[DeletionProgress] = []

    async def delete(engine: Any) -> DeletionReport:
        request = DeletionRequest(str(tmp_path / "run"), at_most=ALL, rate_per_s=10_000, quarantine="spark")
        return await delete_orphans(settings, request, SystemRuntime(), shown.append, engine)

    settings = anyio.run(embedded_with_orphans, tmp_path)
    with open_spark(cast(Any, delete_batch), slots=2) as engine:
        first = anyio.run(delete, engine)
        second = anyio.run(delete, engine)
    assert (first.left, dict(first.done.numbers)) == (0, {DeleteOutcome.DELETED: ORPHANS}) and second.done == first.done
    assert shown[-1].done == ORPHANS
    left = anyio.run(blobs, settings)
    assert sum(name.startswith("~quarantine/spark/") for name in left) == ORPHANS and len(left) == ORPHANS + OBJECTS
    assert anyio.run(readable, settings) == OBJECTS
