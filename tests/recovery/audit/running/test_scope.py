"""An audit of one subtree finds there what an audit of the whole store finds there, and claims nothing of the rest."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FINDINGS, FindingClass
from recovery.audit.manifest import Bounds, Manifest, Verify
from recovery.audit.reporting import run_verdict
from recovery.audit.running.jobs import AuditOptions, Job, PartResult
from recovery.audit.running.plan import split
from recovery.audit.running.run import run_audit
from recovery.audit.sweeping.sweep import audit_range
from recovery.last_audit import read_audits
from tests.given.audit_grounds import SimulatedGround
from tests.given.audited_store import AuditedStore, InThread, found, plant
from tests.given.planted_world import CUTOFF
from tests.given.planted_world import plant as plant_world
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("prefix", "end"), [
    ("media/", "media0"), ("a\U0010ffff", "b"), ("\U0010ffff", None), ("", None), ("a\ud7ff", "a\ue000"), ("é", "ê"),
])  # fmt: skip
def test_scope_holds_the_names_that_begin_so_and_no_others(prefix: str, end: str | None) -> None:
    bounds = Bounds.of_prefix(prefix)
    assert (bounds.start, bounds.end) == (prefix, end)


def test_ranges_of_a_scope_have_no_gap_and_do_not_leave_it() -> None:
    ranges = split(["a", "media/", "media/b", "media/\U0010ffff", "media0", "z"], Bounds.of_prefix("media/"))
    assert [(each.start, each.end) for each in ranges] == [
        ("media/", "media/b"), ("media/b", "media/\U0010ffff"), ("media/\U0010ffff", "media0"),
    ]  # fmt: skip


async def test_subtree_of_a_planted_world_holds_exactly_what_was_planted_there() -> None:
    world = await plant_world(SimulatedGround())
    names = {name for _, name in world.expected}
    prefixes = {name[:length] for name in names for length in (3, len(name) // 2, name.find("/") + 1, len(name) - 5) if length > 0}
    for prefix in sorted(prefixes)[::7]:
        bounds, told = Bounds.of_prefix(prefix), list[Finding]()
        await audit_range(world.ground.tiers, world.ground.log, bounds, CUTOFF, world.ground.clock, told.extend)
        expected = Counter({
            (kind, name): number for (kind, name), number in world.expected.items()
            if kind in FINDINGS and name.startswith(prefix) and name not in world.undecided
        })  # fmt: skip
        assert Counter((each.class_, each.name) for each in told if each.name not in world.undecided) == expected, prefix


@pytest.fixture
async def store(tmp_path: Path) -> Settings:
    settings = await plant(tmp_path / "store")
    async with open_storage(settings) as storage:
        for number in range(3):
            await storage.put(ObjectId("other", (), f"{number}"), b"y" * 30)
    return settings


async def run(settings: Settings, to: Path, **more: object) -> Manifest:
    options = AuditOptions(str(to), grace_s=0, insist=True, **more)  # type: ignore[arg-type]
    return await run_audit(settings, options, InThread(), SystemRuntime(), lambda progress: None)


async def test_run_of_a_subtree_says_so_everywhere(store: Settings, tmp_path: Path) -> None:
    whole = await run(store, tmp_path / "whole")
    manifest = await run(store, tmp_path / "run", prefix="other/")
    assert (whole.scope, manifest.scope, manifest.names, manifest.redirects) == ("", "other/", 3, 3)
    assert found(tmp_path / "whole") and not found(tmp_path / "run")
    assert manifest.ranges[0].start == "other/" and manifest.ranges[-1].end == "other0"
    assert run_verdict.verdict(manifest, 0.02).sentence.endswith("Only names that begin with other/ were looked at.")
    assert "Only names that begin with other/ were looked at." in (tmp_path / "run" / "report.html").read_text()
    async with open_backends(store, SystemRuntime(), writes=False) as backends:
        last = (await read_audits(backends.log)).last
    assert last is not None and last.sentence == (
        "clean: 3 blobs and 3 tombstones are accounted for by name; no payload was read; only names that begin with other/ were looked at"
    )


async def test_a_scope_without_a_name_was_clean_every_night(store: Settings, tmp_path: Path) -> None:
    for prefix, told in (("othr/", "there is other, …"), ("media/x", "there is media"), ("zzz", "there is media, other")):
        for insist in (True, False):
            options = AuditOptions(str(tmp_path / "run"), prefix=prefix, insist=insist)
            with pytest.raises(ConfigurationError, match=f"begins with '{prefix}', so there is nothing to audit; {told}"):
                await run_audit(store, options, InThread(), SystemRuntime(), lambda progress: None)
    assert not (tmp_path / "run" / "manifest.json").exists()
    async with open_backends(store, SystemRuntime(), writes=False) as backends:
        assert not (await read_audits(backends.log)).runs, "it never counts as an audit"
    async with open_storage(store) as storage:
        await storage.put(ObjectId("small", (), "1"), b"")
    assert (await run(store, tmp_path / "small", prefix="small/")).complete, "an object without a blob is no typing error"


async def test_run_of_a_subtree_goes_on_with_its_own_scope_and_refuses_another(store: Settings, tmp_path: Path) -> None:
    begun = await run(store, tmp_path / "run", prefix="other/", verify=Verify(share=0.5), overdue_s=3.0)
    assert (await run(store, tmp_path / "run")).scope == begun.scope
    assert begun.cutoff.overdue_s == 3.0
    for more, told in (
        ({"prefix": "media/"}, "names that begin with 'other/'"), ({"verify": Verify()}, "a share of 0.5"),
        ({"overdue_s": 4.0}, "3 seconds"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=told):
            await run(store, tmp_path / "run", **more)


async def test_call_that_goes_on_may_read_payloads_faster(store: Settings, tmp_path: Path) -> None:
    rates = []

    def refused(job: Job, number: int) -> PartResult:
        assert job.verify is not None
        rates.append(job.verify.bytes_per_s)
        return PartResult(number, error="no")

    for verify in (Verify(bytes_per_s=100), Verify(bytes_per_s=200), None):
        options = AuditOptions(str(tmp_path / "run"), grace_s=0, insist=True, verify=verify)
        engine = InThread(refused)
        engine.slots = 1
        await run_audit(store, options, engine, SystemRuntime(), lambda progress: None)
    assert rates == [100, 200, 100]


async def test_blobs_of_a_deleted_usecase_are_no_evidence_alone(store: Settings, tmp_path: Path) -> None:
    planted = AuditedStore.__new__(AuditedStore)
    planted.settings, planted.store = store, store.directory  # type: ignore[assignment]
    planted.sql("DELETE FROM rows WHERE path LIKE 'other/%'")
    manifest = await run(store, tmp_path / "run", prefix="other/")
    assert not manifest.complete and "all of these objects are gone" in manifest.doubts[0]
    assert manifest.totals[FindingClass.ORPHAN].number == 3
    assert (await run(store, tmp_path / "whole")).complete


@pytest.mark.usefixtures("without_workers")
def test_command_line_knows_prefix_usecase_and_verify(tmp_path: Path) -> None:
    store = AuditedStore(tmp_path)
    common = ("audit", "run", "--engine", "local", "--parallel", "1", "--grace", "0s", "--insist")
    told = store(*common, "--to", str(tmp_path / "1"), "--usecase", "media", "--verify", code=1)
    assert "DATA LOSS" in told and "Only names that begin with media/ were looked at." in told
    assert "9 payloads (180 B) were read and match their checksums." in told
    for wrong in (
        ("--usecase", "a/b"), ("--usecase", "a", "--prefix", "b"), ("--prefix", ""), ("--verify-share", "0"), ("--verify-share", "1.1"),
        ("--verify", "--verify-rate", "nan"), ("--overdue", "soon"),
    ):  # fmt: skip
        store(*common, "--to", str(tmp_path / "2"), *wrong, code=2)
        assert not (tmp_path / "2").exists()
    planned = store("audit", "plan", "--usecase", "media")
    assert "names      only those that begin with media/" in planned and "blobs      11" in planned
    assert "only those" not in store("audit", "plan")
