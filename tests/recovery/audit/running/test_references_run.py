"""Whole audits of an embedded store whose references come from a change feed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError
from changelog.base.runtime import SystemRuntime
from recovery.audit.files.evidence import evidence
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.manifest import Manifest
from recovery.audit.reporting import run_verdict
from recovery.audit.running.jobs import AuditOptions, Engine, Job, PartResult, carry_out
from recovery.audit.running.local import LocalEngine
from recovery.audit.running.run import run_audit
from recovery.last_audit import Audits, LastAudit, decode, encode, read_audits
from tests.given.audited_store import OBJECTS, PLANTED, AuditedStore, InThread, found, plant
from tests.given.feed_index import GENERATION, publish, rows_of
from tiered.kinds.chosen import address_of
from tiered.open import open_backends
from tiered.settings import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
RUNTIME = SystemRuntime()


async def feed(store: Settings, **wrong: Any) -> None:
    """Publishes what the rows say now."""
    async with open_backends(store, RUNTIME) as backends:
        await publish(backends.log, await rows_of(backends.tiers.high_volume), RUNTIME.wall_ns(), store=address_of(store), **wrong)


async def noted(store: Settings) -> str | None:
    async with open_backends(store, RUNTIME, writes=False) as backends:
        last = (await read_audits(backends.log)).last
    return None if last is None else last.references


@pytest.fixture
async def store(tmp_path: Path) -> Settings:
    settings = await plant(tmp_path / "store")
    await feed(settings)
    return settings


async def audit(store: Settings, to: Path, engine: Engine | None = None, **more: Any) -> Manifest:
    options = AuditOptions(str(to), grace_s=0, insist=True, **({"references": "feed"} | more))
    return await run_audit(store, options, engine or InThread(), RUNTIME, lambda _: None)


async def test_run_with_a_feed_finds_what_was_planted_and_says_where_its_references_came_from(store: Settings, tmp_path: Path) -> None:
    manifest = await audit(store, tmp_path / "run")
    assert found(tmp_path / "run") == PLANTED
    assert manifest.complete, manifest.doubts
    feed = manifest.references
    assert feed is not None and (feed.generation, feed.live, feed.store) == (GENERATION, OBJECTS - 2, "directory")
    assert (manifest.indexed, manifest.redirects) == (OBJECTS - 2, OBJECTS - 2)
    assert manifest.looked_up == 3 * 2 - 1, "two orphans by both readings of their names, and the dangling tombstone"
    assert f"came from the change feed (generation {GENERATION}), which was complete up to" in run_verdict.sourced(manifest)
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"generation {GENERATION}" in page and "Rows: they were not scanned." in page
    assert await noted(store) == "feed"
    scanned = await audit(store, tmp_path / "rows", references=None)
    assert await noted(store) == "rows"
    assert scanned.references is None and run_verdict.sourced(scanned) == ""
    assert (scanned.totals, scanned.redirects, scanned.usecases) == (manifest.totals, manifest.redirects, manifest.usecases)
    assert evidence(RunDirectory.open(str(tmp_path / "run")), RUNTIME.wall_ns()).complete


@pytest.mark.night
async def test_worker_processes_take_the_references_from_the_feed_too(store: Settings, tmp_path: Path) -> None:
    manifest = await audit(store, tmp_path / "run", LocalEngine(2))
    assert manifest.complete and found(tmp_path / "run") == PLANTED and manifest.indexed == OBJECTS - 2


class Breaking(InThread):
    """Carries out two ranges, and then fails."""

    def __init__(self) -> None:
        super().__init__(self._fail_later)

    def _fail_later(self, job: Job, number: int) -> PartResult:
        return carry_out(job, number) if number < 2 else PartResult(number, error=f"range {'abcde'[number]} does not work today")


async def test_run_goes_on_only_with_the_source_and_the_feed_that_it_began_with(store: Settings, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert not (await audit(store, run, Breaking())).complete
    with pytest.raises(ConfigurationError, match="took its references from the change feed, fixed when it began: give --references feed"):
        await audit(store, run, references="rows")
    with pytest.raises(ConfigurationError, match="with another age of the change feed"):
        await audit(store, run, feed_age_max_s=5.0)
    shutil.copytree(run, tmp_path / "later")
    assert (await audit(store, run, references=None)).complete and found(run) == PLANTED
    await feed(store, generation=GENERATION + 1)
    with pytest.raises(ConfigurationError, match=f"there is generation {GENERATION + 1} now: begin another run"):
        await audit(store, tmp_path / "later")
    scanned = tmp_path / "scanned"
    await audit(store, scanned, Breaking(), references="rows")
    with pytest.raises(ConfigurationError, match="holds a run that scanned the rows, fixed when it began: give --references rows"):
        await audit(store, scanned)


async def test_run_is_doubtful_if_a_part_of_the_index_is_lost(store: Settings, tmp_path: Path) -> None:
    async with open_backends(store, RUNTIME) as backends:
        await backends.log.erase_values([f"feed/{GENERATION}/index/media/objects/day/05"])
    manifest = await audit(store, tmp_path / "run")
    assert ("dangling", "media/objects/day/05") not in found(tmp_path / "run")
    assert not manifest.complete and "a part of the index is lost" in manifest.doubts[0]
    assert not evidence(RunDirectory.open(str(tmp_path / "run")), RUNTIME.wall_ns()).complete


async def test_evidence_doubts_what_a_manifest_says_of_its_feed(store: Settings, tmp_path: Path) -> None:
    await audit(store, tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    whole = json.loads(path.read_text())
    changed = {
        "was older than it allows": {"references": whole["references"] | {"frontier_ns": 1}},
        "a moment after the run began": {"references": whole["references"] | {"frontier_ns": whole["started_ns"] + 10**12}},
        "references of the feed, and its files": {"indexed": 1},
        "could not be read at the end": {"feed_at_end": None},
    }
    for doubt, change in changed.items():
        path.write_text(json.dumps(whole | change))
        assert doubt in " ".join(evidence(RunDirectory.open(str(tmp_path / "run")), RUNTIME.wall_ns()).doubts)


async def test_new_run_is_refused_before_it_begins_if_the_feed_cannot_be_used(store: Settings, tmp_path: Path) -> None:
    await feed(store, gap=True)
    with pytest.raises(ConfigurationError, match="has a gap"):
        await audit(store, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    await feed(store)
    await anyio.sleep(0.01)
    with pytest.raises(ConfigurationError, match=r"allow more \(--feed-age-max\)"):
        await audit(store, tmp_path / "run", feed_age_max_s=0.001)


def test_result_that_status_shows_calls_references_of_the_feed_by_their_name() -> None:
    by_rows = LastAudit("run", "/audits/1", 1, 2, True, 12, 10, {}, 6, 0, 0)
    by_feed = replace(by_rows, references="feed")
    assert "12 blobs and 10 tombstones are" in by_rows.sentence
    assert "12 blobs and 10 references of the change feed are" in by_feed.sentence
    audits = Audits((by_rows, by_feed))
    assert decode(encode(audits)) == audits
    [stored] = json.loads(encode(Audits((by_rows,))))["runs"]
    older = {key: value for key, value in stored.items() if key != "references"}
    assert decode(json.dumps({"v": 2, "runs": [older]}).encode()) == Audits((by_rows,))
    with pytest.raises(CorruptRecordError, match=r"runs\.references is 'cows'"):
        decode(encode(audits).replace(b'"rows"', b'"cows"'))


# --- the command ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_workers")
def test_command_says_where_the_references_came_from_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    store = AuditedStore(tmp_path)
    run = ("audit", "run", "--engine", "local", "--parallel", "1", "--grace", "0s", "--insist")
    store(*run, "--to", "no", "--references", "feed", code=2)
    assert "knows of no change feed: start its writer (`tiered -" in store.errors
    anyio.run(feed, store.settings)
    told = store(*run, "--to", "run", "--references", "feed", "--feed-age-max", "1h", code=1)
    assert f"change feed (generation {GENERATION})" in told and "5 rows were read" in told and "10 references" in told
    assert f"references the change feed, generation {GENERATION}, complete up to 20" in store("audit", "plan", "--references", "feed")
    for options, why in (
        (("--references", "feed:DIR"), "'feed:DIR' is no source of references: give rows, or feed"),
        (("--feed-age-max", "1h"), "is of --references feed: add that"),
    ):
        store(*run, "--to", "no", *options, code=2)
        assert why in store.errors
    assert not (tmp_path / "no").exists()
