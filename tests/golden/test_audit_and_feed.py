"""Audits, a quarantine and a change feed of each release: this software reads them, and goes on with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.audit.deleting.restoring import restore_deleted
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.running.jobs import AuditOptions
from recovery.audit.running.run import run_audit
from recovery.feed.files import read_all
from recovery.last_audit import NOTE, decode
from recovery.statistics.persisted import read_statistics
from tests.given.audited_store import InThread, all_findings
from tests.given.fed_store import view_of
from tests.golden.clock import HOUR_S, GoldenRuntime
from tests.golden.contents import LARGE, object_id, path_of, payload
from tests.golden.make import fed_settings, opened, publish, settings_of
from tests.golden.stored import unpacked

pytestmark = pytest.mark.anyio

LATER_S = 72 * HOUR_S


def found(run: Path) -> list[tuple[str, str]]:
    return sorted((each.class_, each.name) for each in all_findings(run))


async def test_the_findings_of_a_run_of_the_release_are_read(version: str, tmp_path: Path) -> None:
    directory, expected = unpacked(version, "audited", tmp_path)
    run = directory / "runs" / "1"
    manifest = RunDirectory.open(str(run)).read_manifest()
    assert manifest is not None and manifest.complete and manifest.versions["tiered"] == version
    assert [name for kind, name in found(run) if kind == "orphan"] == expected["orphans"]
    assert [each.object for each in all_findings(run) if each.class_ == "dangling"] == [expected["dangling"]]


async def test_a_run_that_the_release_did_not_finish_is_finished(version: str, tmp_path: Path) -> None:
    directory, expected = unpacked(version, "audited", tmp_path)
    run, settings = directory / "runs" / "2", settings_of(directory / "store")
    before = RunDirectory.open(str(run)).read_manifest()
    assert before is not None and not before.complete
    engine = InThread()
    manifest = await run_audit(settings, AuditOptions(str(run)), engine, GoldenRuntime(LATER_S), lambda _: None)
    assert manifest.complete and manifest.run == before.run
    assert 0 < len(engine.began) < len(before.ranges), "the range that was done is not done again"
    assert [each.object for each in all_findings(run)] == [expected["dangling"]]


async def test_what_the_release_put_into_a_quarantine_is_brought_back(version: str, tmp_path: Path) -> None:
    directory, expected = unpacked(version, "audited", tmp_path)
    settings, runtime = settings_of(directory / "store"), GoldenRuntime(LATER_S)
    await restore_deleted(settings, str(directory / "runs" / "1"), runtime, 2000.0, lambda _: None, dry=False)
    async with opened(settings, runtime) as (storage, backends):
        names = {blob.name for blob in (await backends.tiers.long_term.list("", None, 100)).blobs}
        assert names >= set(expected["orphans"]) and not [name for name in names if name.startswith("~")]
        assert {entry.object_id.path async for entry in storage.list()} == {*expected["objects"], expected["dangling"]}


async def test_a_store_remembers_the_audits_of_the_release(version: str, tmp_path: Path) -> None:
    directory, _ = unpacked(version, "audited", tmp_path)
    async with opened(settings_of(directory / "store"), GoldenRuntime(LATER_S)) as (_, backends):
        raw = await backends.log.read_note(NOTE)
    assert raw is not None
    assert sorted(audit.where for audit in decode(raw).runs) == [str(directory / "runs" / number) for number in "12"]


@pytest.mark.parametrize(("name", "source"), [("audited", "audit"), ("fed", "feed")])
async def test_statistics_of_the_release_are_read(version: str, name: str, source: str, tmp_path: Path) -> None:
    directory, _ = unpacked(version, name, tmp_path)
    async with opened(settings_of(directory / "store"), GoldenRuntime(LATER_S)) as (_, backends):
        document = await read_statistics(backends.log, source)
    assert document is not None and document.source == source and document.incarnation


def feed_view(directory: Path) -> dict[str, str]:
    """What a reader of the newest generation knows."""
    newest = max((directory / "feed").glob("generation-*"))
    return view_of([located.message for located in read_all(sorted(newest.glob("*.json")))])[0]


async def test_readers_find_what_the_release_has_published(version: str, tmp_path: Path) -> None:
    directory, expected = unpacked(version, "fed", tmp_path)
    assert feed_view(directory) == expected["published"]


async def test_the_writer_of_a_feed_goes_on_in_the_generation_of_the_release(version: str, tmp_path: Path) -> None:
    directory, expected = unpacked(version, "fed", tmp_path)
    settings, runtime = fed_settings(directory), GoldenRuntime(HOUR_S, moves=True)
    async with opened(settings, runtime) as (storage, backends):
        await publish(settings, backends, runtime)
        assert feed_view(directory) == expected["references"]
        later = await storage.put(object_id("later"), payload("later", LARGE))
        await publish(settings, backends, runtime)
    assert feed_view(directory) == {**expected["references"], path_of("later"): f"{path_of('later')}/{later.revision}"}
    assert len(list((directory / "feed").glob("generation-*"))) == 1
    assert [each.name for each in (directory / "feed").iterdir() if each.is_file()] == ["_feed.json"], "the mark is the release's"
