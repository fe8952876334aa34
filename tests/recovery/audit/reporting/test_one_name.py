"""One name is looked at: it is called what the audit calls it, beside all that is known of it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from changelog.base.errors import ConfigurationError, InvalidRequestError
from changelog.change import LOG_PREFIX, Change
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FINDINGS, FindingClass
from recovery.audit.manifest import Cutoff
from recovery.audit.reporting.one_name import BLOBS_MAX, NameReport, RunRecord, look_at, verdict
from recovery.cli.audit.show import lines, plain
from tests.given.audit_grounds import BEGINS_NS, OLD_NS, AuditGround, EmbeddedGround, SimulatedGround, embedded_ground
from tests.given.planted_world import GRACE_S, Planted, plant
from tiered.open import Backends
from tiered.settings import Settings

pytestmark = pytest.mark.anyio

WHOLE = "no fault was found: its row names a blob that is there, and whose payload matches its checksum"


async def looking(ground: AuditGround, name: str, grace_s: float = GRACE_S) -> NameReport:
    settings = Settings(directory=Path("nowhere"), changelog="sqlite")
    return await look_at(Backends(ground.tiers, ground.log), name, settings, Cutoff(as_of_ns=BEGINS_NS, grace_s=grace_s), ground.clock)


@pytest.mark.slow
async def test_each_name_of_a_planted_world_is_called_what_the_audit_calls_it(ground: AuditGround) -> None:
    world = await plant(ground)
    for kind, name in _chosen(world, ground):
        looked = await looking(ground, name)
        shown = {(blob.class_, blob.name) for blob in looked.blobs} | {(row.class_, row.path) for row in looked.rows if row.class_}
        unexpected = {(of, which) for of, which in shown if (of, which) not in world.expected and which not in world.undecided}
        if (kind, name) == (FindingClass.EXPIRED, "expired/objects/lost"):  # which was planted by its row
            assert unexpected == {(kind, looked.rows[0].target)}
        else:
            assert (kind, name) in shown
            assert unexpected == set()
        assert set(looked.findings) == {of for of, _ in shown if of in FINDINGS}
        assert looked.is_known


def _chosen(world: Planted, ground: AuditGround) -> list[tuple[FindingClass, str]]:
    """All that has a name of its own; where that takes long, of each kind and usecase one."""
    # A blob that only a damaged row elsewhere names cannot be told from one that nothing names.
    found = [
        each for each in world.expected if "\\" not in each[1] and not each[1].startswith("/") and each[0] is not FindingClass.MISFILED
    ]
    if isinstance(ground, SimulatedGround):
        return found
    return list({(kind, name.partition("/")[0]): (kind, name) for kind, name in found}.values())


async def test_referenced_object_shows_its_row_and_its_blob(ground: AuditGround) -> None:
    world = Planted(ground)
    name = await world.object("a/objects/k")
    for given in ("a/objects/k", name):
        looked = await looking(ground, given)
        assert looked.rows[0].path == "a/objects/k"
        assert (looked.rows[0].state, looked.rows[0].target, looked.rows[0].class_) == ("tombstone", name, None)
        assert looked.rows[0].won == (looked.rows[0].token,)
        [blob] = looked.blobs
        assert (blob.class_, blob.there, blob.name, blob.size) == (FindingClass.REFERENCED, True, name, world.sizes[name])
        assert blob.generation and blob.created_ns
        assert (looked.findings, looked.more, verdict(looked)) == ((), False, WHOLE)


async def test_both_readings_of_a_name_are_tried(ground: AuditGround) -> None:
    world = Planted(ground)
    name = await world.revision(FindingClass.REFERENCED, "both/objects/k")
    await ground.legacy_row(name, None, empty=True)
    looked = await looking(ground, name)
    assert [(row.path, row.state, row.target) for row in looked.rows] == [
        ("both/objects/k", "absent", None), (name, "tombstone", name)
    ]  # fmt: skip
    assert [(blob.name, blob.class_) for blob in looked.blobs] == [(name, FindingClass.REFERENCED)]


async def test_blob_of_a_change_in_flight_is_shown_with_the_entry_that_names_it(ground: AuditGround) -> None:
    world = Planted(ground)
    new, old = [await world.revision(FindingClass.ORPHAN, "a/objects/k") for _ in range(2)]
    change = Change(world.id(), "a/objects/k", new, old)
    await ground.entry(change, stuck=True)
    await ground.entry(Change(world.id(), "a/objects/other", f"a/objects/other/{world.id()}", None))
    ground.clock.now_ns = BEGINS_NS
    for given, kinds in (
        ("a/objects/k", {new: FindingClass.IN_FLIGHT, old: FindingClass.SUPERSEDED}),
        (old, {old: FindingClass.SUPERSEDED}),
    ):
        looked = await looking(ground, given)
        assert {blob.name: blob.class_ for blob in looked.blobs} == kinds
        [entry] = looked.entries
        assert (entry.object, entry.new, entry.old) == ("a/objects/k", new, old)
        assert (entry.state, entry.error) == ("parked", "nobody could clean it up")
        assert looked.findings == ()


async def test_unreadable_entry_is_shown_with_the_blob_of_its_revision(ground: AuditGround) -> None:
    world = Planted(ground)
    name = await world.revision(FindingClass.IN_FLIGHT, "a/objects/k")
    key = f"{LOG_PREFIX}{name.rpartition('/')[2]}"
    await ground.raw_entry(key, b"\xff")
    await ground.raw_entry(f"{LOG_PREFIX}{world.id()}", b"\xff")
    looked = await looking(ground, "a/objects/k")
    [entry] = looked.entries
    assert (entry.key, entry.state, entry.object) == (key, "unreadable", None)
    assert entry.error
    assert [blob.class_ for blob in looked.blobs] == [FindingClass.IN_FLIGHT]


async def test_grace_decides_who_is_too_young(ground: AuditGround) -> None:
    await Planted(ground).revision(FindingClass.ORPHAN, "a/objects/k", BEGINS_NS - 7200 * 10**9)
    ground.clock.now_ns = BEGINS_NS
    assert [blob.class_ for blob in (await looking(ground, "a/objects/k")).blobs] == [FindingClass.TOO_YOUNG]
    assert (await looking(ground, "a/objects/k", 3600.0)).findings == (FindingClass.ORPHAN,)


async def test_entry_whose_blob_is_not_there_yet_is_shown_with_its_object() -> None:
    ground = SimulatedGround()
    token = Planted(ground).id()
    await ground.entry(Change(token, "a/objects/k", f"a/objects/k/{token}", None))
    [entry] = (looked := await looking(ground, "a/objects/k")).entries
    assert (entry.object, entry.new) == ("a/objects/k", f"a/objects/k/{token}") and looked.is_known
    assert (await looking(ground, f"a/objects/k/{token}")).entries == (entry,), "by the blob's name, too"
    assert (await looking(ground, "a/objects/other")).entries == ()


async def test_row_of_marks_alone_and_of_an_inline_object_are_told(ground: AuditGround) -> None:
    token = Planted(ground).id()
    await ground.refuse("a/objects/k", token)
    [row] = (await looking(ground, "a/objects/k")).rows
    assert (row.state, row.refused, row.won) == ("absent", (token,), ())
    await ground.inline("a/objects/inline")
    [row] = (await looking(ground, "a/objects/inline")).rows
    assert (row.state, row.size, row.target, row.won) == ("inline", 1, None, ())
    assert row.token


async def test_dangling_tombstone_is_told_with_its_row_and_a_remedy(ground: AuditGround) -> None:
    world = Planted(ground)
    await world.dangling("a/objects/k")
    [(_, target)] = world.expected
    for given in ("a/objects/k", target):
        looked = await looking(ground, given)
        [blob] = looked.blobs
        assert (blob.name, blob.there, blob.class_, blob.size) == (target, False, FindingClass.DANGLING, None)
        assert len(blob.remedy) == 1
        assert looked.findings == (FindingClass.DANGLING,)


@pytest.mark.parametrize("ground", ["emulators"], indirect=True)
async def test_blob_that_soft_delete_keeps_is_told_with_the_command_that_restores_it(ground: AuditGround) -> None:
    world = Planted(ground)
    blobs = ground.tiers.long_term
    for path, keeps in (("a/objects/k", True), ("a/objects/it's", True), ("a/objects/k*", False), ("a/objects/k\x1b", False)):
        name = await world.object(path)
        head = await blobs.head(name)
        assert head is not None
        ground.clock.now_ns = BEGINS_NS
        await blobs.delete(name)
        [blob] = (await looking(ground, path)).blobs
        [remedy] = blob.remedy
        assert blob.class_ is FindingClass.DANGLING
        assert str(head.generation) in remedy and "kept until 2026-09-28" in remedy
        if keeps:
            assert shlex.split(remedy)[:4] == ["gcloud", "storage", "restore", f"gs://blobs/{name}#{head.generation}"]
        else:
            assert "by the API" in remedy


@pytest.mark.parametrize("ground", ["emulators"], indirect=True)
async def test_nothing_to_restore_is_told_and_so_is_not_knowing(ground: AuditGround, monkeypatch: pytest.MonkeyPatch) -> None:
    await Planted(ground).dangling("a/objects/k")
    assert "keeps no deleted generation" in (await looking(ground, "a/objects/k")).blobs[0].remedy[0]

    async def refused(name: str) -> None:
        raise ConfigurationError("not allowed")

    monkeypatch.setattr(ground.tiers.long_term, "deleted_generations", refused)
    looked = await looking(ground, "a/objects/k")
    assert looked.findings == (FindingClass.DANGLING,)
    assert looked.blobs[0].remedy == ("whether the bucket keeps a deleted generation is not known: not allowed",)


async def test_nothing_is_said_of_a_name_that_is_not_there(ground: AuditGround) -> None:
    await Planted(ground).object("a/objects/k2")
    looked = await looking(ground, "a/objects/k")
    assert (looked.is_known, looked.findings, looked.blobs, looked.entries) == (False, (), (), ())
    assert [row.state for row in looked.rows] == ["absent"]
    assert verdict(looked) == "there is nothing of this name"


async def test_more_blobs_than_are_shown_are_told(ground: AuditGround) -> None:
    world = Planted(ground)
    for number in range(BLOBS_MAX):
        await world.revision(FindingClass.ORPHAN, f"a/objects/k{'/x' * (number % 2)}")
    assert (await looking(ground, "a/objects/k")).more is False
    await world.blob(FindingClass.LEGACY_ORPHAN, "a/objects/k")
    await world.blob(FindingClass.LEGACY_ORPHAN, "a/objects/k-beside")
    looked = await looking(ground, "a/objects/k")
    names = [blob.name for blob in looked.blobs]
    assert (looked.more, len(names), names[0]) == (True, BLOBS_MAX, "a/objects/k")
    assert names == sorted(names)


async def test_live_blob_behind_more_blobs_than_are_shown_is_read_and_the_others_are_not_called_good() -> None:
    """A live revision is the youngest, so it is listed after all older ones."""
    ground = SimulatedGround()
    world = Planted(ground)
    for _ in range(BLOBS_MAX + 1):
        await world.revision(FindingClass.ORPHAN, "a/objects/k")
    live = await world.object("a/objects/k", OLD_NS + 10**9)
    ground.clock.now_ns = BEGINS_NS
    looked = await looking(ground, "a/objects/k", grace_s=10**9)
    assert looked.more and looked.findings == ()
    blob = looked.blobs[-1]
    assert (blob.name, blob.class_, blob.there, blob.size, blob.was_read) == (live, FindingClass.REFERENCED, True, world.sizes[live], True)
    assert verdict(looked) == (
        f"{WHOLE}; a blob that nothing names is too young to judge; there are more blobs below this name, which were not looked at"
    )


@pytest.mark.parametrize(("name", "told"), [
    ("", "a name has 1 to 1024 bytes"), ("a" * 1025, "a name has 1 to 1024 bytes"),
    ("\udcff/objects/k", "is no text in UTF-8, and so no name"), ("a\0b", "a name has 1 to 1024 bytes"),
])  # fmt: skip
async def test_what_cannot_be_a_name_is_refused_in_a_sentence(name: str, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        await looking(SimulatedGround(), name)


async def test_tombstone_whose_blob_is_of_another_object_is_told_of_its_row() -> None:
    ground = SimulatedGround()
    await ground.row("a/objects/k", "a/objects/other/x", None)
    looked = await looking(ground, "a/objects/k")
    assert (looked.rows[0].class_, looked.blobs, looked.findings) == (FindingClass.MISDIRECTED, (), (FindingClass.MISDIRECTED,))
    await ground.blob("a/objects/other/x", 1, OLD_NS, None)
    ground.clock.now_ns = BEGINS_NS
    assert (await looking(ground, "a/objects/k")).findings == (FindingClass.MISDIRECTED,), (
        "a blob that this row names is not accused beside it"
    )
    assert "a/objects/other/x" in looked.rows[0].detail


async def test_row_that_breaks_the_format_is_corrupt_though_its_blob_is_there(tmp_path: Path) -> None:
    async with embedded_ground(tmp_path) as ground:
        assert isinstance(ground, EmbeddedGround)
        await ground.sql("INSERT INTO rows (path, target, policy) VALUES ('a/objects/k', CAST(X'FE' AS TEXT), '{}')")
        looked = await looking(ground, "a/objects/k")
    assert (looked.rows[0].state, looked.rows[0].class_, looked.findings) == (
        "corrupt",
        FindingClass.CORRUPT_ROW,
        (FindingClass.CORRUPT_ROW,),
    )


async def test_lines_tell_all_that_json_does_and_steer_no_terminal() -> None:
    ground = SimulatedGround()
    world = Planted(ground)
    path = "a/objects/\x1b[31m\u202e"
    await world.dangling(path)
    await world.revision(FindingClass.ORPHAN, path)
    await ground.entry(Change(world.id(), path, None, f"{path}/\x07"))
    ground.clock.now_ns = BEGINS_NS
    looked = await looking(ground, path)
    told = RunRecord("run-1", BEGINS_NS, GRACE_S, False, ("a gap\x1b",), False, (_finding(path),), True)
    text = "\n".join(lines(looked, told))
    assert "\x1b" not in text and "\u202e" not in text and "\x07" not in text
    assert text.startswith("a/objects/\\u001b[31m\\u202e: ")
    for said in (
        "dangling: a live tombstone", "orphan", "2026-09-21", "entry", "run-1", "not complete", "a gap\\u001b", "did not get to",
        "and more",
    ):  # fmt: skip
        assert said in text
    told_json = json.loads(json.dumps(plain(looked, told)))
    assert told_json["name"] == path
    assert set(told_json["findings"]) == {"dangling", "orphan"}
    assert [blob["class"] for blob in told_json["blobs"]] == [blob.class_ for blob in looked.blobs]
    assert told_json["rows"][0]["target"] == looked.rows[0].target
    assert told_json["run"]["findings"][0]["class"] == "orphan"
    assert plain(looked, None)["run"] is None


def _finding(name: str) -> Finding:
    return Finding(FindingClass.ORPHAN, name, None, None, 1, 2, None, "3", "seen", BEGINS_NS, BEGINS_NS, BEGINS_NS, None)
