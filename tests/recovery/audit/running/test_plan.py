"""Before an audit: ranges without gaps, and what is refused before anything is read."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.running.jobs import AuditOptions, portable
from recovery.audit.running.plan import PROBE_NAMES, RANGES_PER_SLOT, check_apart, check_grace, inputs_of, plan_audit, split
from tests.given.audited_store import OBJECTS, plant
from tiered.embedded.blobs import FileBlobs
from tiered.embedded.rows import SqliteRows
from tiered.kinds import gcs
from tiered.object_id import ObjectId
from tiered.open import open_storage
from tiered.services.scans import BlobPage, ListedBlob
from tiered.settings import DATABASE_NAME, BigtableSettings, GcsSettings, S3Settings, Settings

NO_GRACE = AuditOptions("run", grace_s=0, insist=True)

names = st.text(st.characters(codec="utf-8"), max_size=4)


@given(cuts=st.lists(names), name=names)
def test_every_name_is_in_exactly_one_range(cuts: list[str], name: str) -> None:
    ranges = split(cuts)
    holding = [
        each for each in ranges
        if each.start.encode() <= name.encode() and (each.end is None or name.encode() < each.end.encode())
    ]  # fmt: skip
    assert len(holding) == 1 and all(each.end is None or each.start < each.end for each in ranges)


def test_without_cuts_there_is_one_range() -> None:
    [only] = split([])
    assert (only.start, only.end) == ("", None)


# --- the grace -------------------------------------------------------------------------------------


@pytest.mark.parametrize("grace_s", [-1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("insist", [False, True])
def test_grace_that_is_no_duration_is_refused_whoever_insists(grace_s: float, insist: bool) -> None:
    with pytest.raises(ConfigurationError, match=r"^the grace is (-1|nan|inf|-inf) seconds: give how old a blob must be"):
        check_grace(AuditOptions("run", grace_s, insist))


def test_grace_below_an_hour_is_for_those_who_insist() -> None:
    with pytest.raises(ConfigurationError, match=r"^the grace is 3599 seconds, and below an hour a blob that is being written may"):
        check_grace(AuditOptions("run", 3599))
    check_grace(AuditOptions("run", 3599, insist=True))
    check_grace(AuditOptions("run", 3600))


# --- where a run may be ----------------------------------------------------------------------------

GOOGLE = Settings(
    bigtable=BigtableSettings(project="a-project", instance="main", emulator_host=None), gcs=GcsSettings(bucket="blobs", endpoint=None)
)


@pytest.mark.parametrize("where", [
    "gs://blobs", "gs://blobs/", "gs://blobs/audits/1", "gcs://blobs/x", "gs://blobs//x", "gs://%62lobs/x", "GS://blobs/x",
    "gs://anonymous@blobs/x", "gs://blobs/x?retry_limit_seconds=1", "s3://blobs/x?endpoint_override=storage.googleapis.com",
    "s3://blobs/x?region=auto",  # which AWS_ENDPOINT_URL may send to GCS
])  # fmt: skip
def test_run_in_the_audited_bucket_is_refused_however_it_is_spelt(where: str) -> None:
    with pytest.raises(ConfigurationError, match="in the bucket that is audited: give one in another bucket"):
        check_apart(RunDirectory.open(where).files, GOOGLE)


@pytest.mark.parametrize("where", ["s3://blobs/x?region=auto", "gs://blobs/x"])
def test_run_in_the_audited_bucket_of_another_service_than_google_is_refused(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(type(gcs.BLOBS), "place", lambda *_: "s3://blobs")
    with pytest.raises(ConfigurationError, match="in the bucket that is audited: give one in another bucket"):
        check_apart(RunDirectory.open(where).files, GOOGLE)


@pytest.mark.parametrize("where", ["gs://blobs-audits/blobs", "gs://audits/blobs", "/blobs"])
def test_run_in_another_bucket_is_not_refused(where: str) -> None:
    check_apart(RunDirectory.open(where).files, GOOGLE)


AWS = Settings(postgres={"dsn": "postgresql://127.0.0.1/x"}, s3=S3Settings(bucket="blobs", prefix="ours/"))


@pytest.mark.parametrize(("where", "refused"), [
    ("s3://blobs/audits/1?region=eu-central-1", True), ("s3://blobs?region=auto", True),
    ("s3://%62lobs/x?region=auto", True), ("s3://blobs/x?endpoint_override=127.0.0.1:9&scheme=http", True),
    ("gs://blobs/x", True), ("s3://blobs-audits/blobs?region=auto", False), ("/blobs", False),
])  # fmt: skip
def test_run_in_the_audited_bucket_of_s3_is_refused_however_it_is_spelt(where: str, refused: bool) -> None:
    files = RunDirectory.open(where).files
    if not refused:
        check_apart(files, AWS)
        return
    with pytest.raises(ConfigurationError, match="in the bucket that is audited: give one in another bucket"):
        check_apart(files, AWS)


@pytest.mark.parametrize(("where", "refused"), [("store", True), ("store/../store/x", True), ("store2", False), (".", False)])
def test_run_in_the_audited_directory_is_refused(tmp_path: Path, where: str, refused: bool) -> None:
    (tmp_path / "store/blobs").mkdir(parents=True)
    store = Settings(directory=tmp_path / "store", changelog="sqlite")
    directory = RunDirectory.open(f"{tmp_path}/{where}")
    if refused:
        with pytest.raises(ConfigurationError, match="give a place outside of it"):
            check_apart(directory.files, store)
    else:
        check_apart(directory.files, store)


def test_run_in_the_audited_directory_is_refused_behind_links(tmp_path: Path) -> None:
    (tmp_path / "store/blobs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "store")
    (tmp_path / "deeper").symlink_to(tmp_path / "link" / "blobs")
    for run, store in (("link/x", "store"), ("deeper/x", "store"), ("store/x", "link"), ("deeper", "link")):
        with pytest.raises(ConfigurationError, match="give a place outside of it"):
            check_apart(RunDirectory.open(f"{tmp_path}/{run}").files, Settings(directory=tmp_path / store, changelog="sqlite"))


def test_inputs_of_a_relative_directory_are_the_same_from_everywhere() -> None:
    assert inputs_of(Settings(directory=Path("store"))) == {"directory": str(Path.cwd() / "store"), "changelog": "sqlite"}


def test_inputs_say_which_world_they_are_of() -> None:
    assert inputs_of(GOOGLE) == {"bucket": "blobs", "table": "a-project/main/tiered", "changelog": "noop"}
    assert inputs_of(GOOGLE.model_copy(update={"changelog": "bigtable"}))["changelog"] == "a-project/main/tiered-changelog"
    emulated = Settings(
        bigtable=BigtableSettings(project="a-project", instance="main", emulator_host="127.0.0.1:1"),
        gcs=GcsSettings(bucket="blobs", endpoint="http://127.0.0.1:2"),
    )  # fmt: skip
    emulators = {"Bigtable emulator": "127.0.0.1:1", "GCS emulator": "http://127.0.0.1:2"}
    assert inputs_of(emulated) == inputs_of(GOOGLE) | emulators


# --- plans -----------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_plan_of_a_small_store_has_a_range_for_each_slot(tmp_path: Path) -> None:
    store = await plant(tmp_path / "store")
    plan = await plan_audit(store, NO_GRACE, 3, SystemRuntime())
    assert len(plan.ranges) == 3 and plan.blobs == OBJECTS - 1 and plan.list_requests == 1
    assert plan.inputs == {"directory": str(tmp_path / "store"), "changelog": "sqlite"} and plan.log_is_durable
    assert len((await plan_audit(store, NO_GRACE, 1, SystemRuntime())).ranges) == 1
    [note] = plan.notes
    assert "the grace was 0 s, which was insisted on" in note


@pytest.mark.anyio
async def test_plan_of_a_large_store_has_several_ranges_for_each_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing without end stands in for the bucket."""
    store = await plant(tmp_path / "store")

    async def list_for_ever(self: FileBlobs, start: str, end: str | None, limit: int) -> BlobPage:
        return BlobPage([ListedBlob("name", 1, 0, None, "1")] * min(limit, 1000), [], "next")

    wanted: list[int] = []

    async def boundaries(self: SqliteRows, count: int) -> Sequence[str]:
        wanted.append(count)
        return ["a", "b"]

    monkeypatch.setattr(FileBlobs, "list", list_for_ever)
    async def cuts(self: FileBlobs, start: str, end: str | None, count: int) -> Sequence[str]:
        assert (start, end) == ("", None)
        wanted.append(count)
        return ["b", "c"]

    monkeypatch.setattr(SqliteRows, "boundaries", boundaries)
    monkeypatch.setattr(FileBlobs, "cuts", cuts)
    plan = await plan_audit(store, NO_GRACE, 4, SystemRuntime())
    assert wanted == [4 * RANGES_PER_SLOT] * 2 and [each.start for each in plan.ranges] == ["", "a", "b", "c"]
    assert (plan.blobs, plan.list_requests) == (None, None)
    assert PROBE_NAMES % 1000 == 0


@pytest.mark.anyio
async def test_table_without_any_object_beside_blobs_is_refused(tmp_path: Path) -> None:
    store = await plant(tmp_path / "store")
    (tmp_path / "empty").mkdir()
    async with open_storage(Settings(directory=tmp_path / "empty", changelog="sqlite")):
        pass
    for path in (tmp_path / "store").glob(f"{DATABASE_NAME}*"):
        path.unlink()
    (tmp_path / "empty" / DATABASE_NAME).rename(tmp_path / "store" / DATABASE_NAME)
    with pytest.raises(ConfigurationError, match=r"holds no object at all, and .* holds blobs, so it is almost certainly the wrong table"):
        await plan_audit(store, AuditOptions("run"), 2, SystemRuntime())
    assert (await plan_audit(store, NO_GRACE, 2, SystemRuntime())).blobs == OBJECTS - 1


@pytest.mark.anyio
async def test_empty_store_and_a_store_of_small_objects_are_none_of_that(tmp_path: Path) -> None:
    store = Settings(directory=tmp_path / "store", changelog="sqlite")
    async with open_storage(store) as storage:
        assert (await plan_audit(store, AuditOptions("run"), 2, SystemRuntime())).blobs == 0
        await storage.put(ObjectId("media", (), "small"), b"x")
    assert (await plan_audit(store, AuditOptions("run"), 2, SystemRuntime())).blobs == 0


@dataclass
class Fast(SystemRuntime):
    """A machine whose clock is ahead."""

    seconds: float

    def __post_init__(self) -> None:
        super().__init__()

    def wall_ns(self) -> int:
        return super().wall_ns() + round(self.seconds * 1e9)


@pytest.mark.anyio
@pytest.mark.parametrize(("seconds", "said"), [(95, "95 s ahead of the service's"), (-95, "95 s behind the service's"), (30, None)])
async def test_clock_that_differs_from_the_services_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, said: str | None
) -> None:
    store = await plant(tmp_path / "store")
    service = SystemRuntime()

    async def now_ns(self: FileBlobs) -> int:
        return service.wall_ns()

    monkeypatch.setattr(FileBlobs, "now_ns", now_ns)
    plan = await plan_audit(store, AuditOptions("run"), 2, Fast(seconds))
    assert abs(plan.cutoff.as_of_ns - service.wall_ns()) < 60e9
    if said is None:
        assert plan.notes == ()
    else:
        assert said in plan.notes[0]


@pytest.mark.anyio
async def test_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no store in .*/typo on this machine: check the directory"):
        await plan_audit(Settings(directory=tmp_path / "typo"), AuditOptions("run"), 2, SystemRuntime())
    assert not (tmp_path / "typo").exists()


def test_the_keys_of_links_are_in_no_job_of_an_audit(tmp_path: Path) -> None:
    """A dump of them is no key, so a worker could not read its settings."""
    settings = Settings(directory=tmp_path, links={"base_url": "https://host/links", "keys": ["secret-9f8e7d6c5b4a39281706f5e4d3c2b1a0"]})
    told = portable(settings).packed()
    assert Settings.unpacked(told).links is None
    assert "secret" not in told


def test_a_worker_gets_the_secrets_that_it_connects_with_and_nobody_is_shown_them(tmp_path: Path) -> None:
    dsn = "postgresql://me:hunter2@db/app"
    links = {"base_url": "https://host/links", "keys": ["secret-9f8e7d6c5b4a39281706f5e4d3c2b1a0"]}
    settings = Settings(postgres={"dsn": dsn}, directory=tmp_path, links=links)
    again = Settings.unpacked(settings.packed())
    assert again == settings and again.postgres is not None and again.postgres.dsn.get_secret_value() == dsn
    assert not any("hunter2" in text or "secret-9f" in text for text in (repr(settings), json.dumps(settings.shown()), str(again)))
