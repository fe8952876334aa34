"""Chaos on services: nothing is lost, leaked or mixed up, whatever is killed, frozen, stalled or cut off.

The demo's independent check looks for I1, I3, I4, I6 and I7. That it can fail is shown here for what reads Bigtable and
GCS, PostgreSQL and S3, and in `tests/emulators/demo/checking/test_check.py` for what judges. The emulators are left to
the night: they are no servers that keep anything.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest
from google.cloud.bigtable.data import DeleteAllFromRow, SetCell

from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.demo.checking.check import check, dangling, unfinished
from emulators.demo.command import DemoOptions, run_demo
from emulators.demo.players.journal import DIRECTOR, JournaledAnswer, OperationJournal, OperationKind, late_writes, read_lines
from emulators.demo.players.load import INLINE_BYTES_MAX, LoadStep, object_ids, payload
from emulators.demo.players.object_writer import perform
from emulators.demo.staging.emulators import BUCKET, EmulatorStage
from emulators.demo.staging.servers import ServerStage
from emulators.demo.staging.stage import EMULATORS, POSTGRES_S3, DemoStage
from emulators.demo.staging.weather import KINDS
from tests.given.patient_calls import answers, patient
from tests.given.processes import is_running
from tests.given.waiting import becomes
from tiered.open import open_backends, open_storage
from tiered.settings import load_settings

pytestmark = pytest.mark.slow

STAGES = {EMULATORS: EmulatorStage, POSTGRES_S3: ServerStage}
NEEDS = {EMULATORS: ["bigtable_host"], POSTGRES_S3: ["postgres", "versitygw_url"]}
TROUBLES = {
    EMULATORS: {f"{service}_{kind}" for service in ("bigtable", "gcs") for kind in KINDS[:3]},
    POSTGRES_S3: {f"{service}_{kind}" for service in ("postgres", "s3") for kind in KINDS},
}
STRIKES = {f"{who}_{what}" for who in ("writer", "daemon", "feed", "receiver") for what in ("kills", "stops")}
SECONDS = {EMULATORS: 8, POSTGRES_S3: 15}
GIVEN_UP_S = {EMULATORS: 5, POSTGRES_S3: 10}
"""After how long a call to a service that does not answer must have been given up."""
ON_EMULATORS = pytest.mark.parametrize("stage", [pytest.param(EMULATORS, marks=pytest.mark.night)], indirect=True)
ON_SERVERS = pytest.mark.parametrize("stage", [POSTGRES_S3], indirect=True)
ANYWHERE = pytest.mark.parametrize("stage", [pytest.param(EMULATORS, marks=pytest.mark.night), POSTGRES_S3], indirect=True)


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DemoStage]:
    for server in NEEDS[request.param]:
        request.getfixturevalue(server)  # where there is none, it says so
    with STAGES[request.param](tmp_path / "stage") as stage:
        yield stage


@pytest.mark.night
@pytest.mark.parametrize("backend", STAGES)
def test_everything_fails_in_every_way_and_nothing_is_lost(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for server in NEEDS[backend]:
        request.getfixturevalue(server)
    directory = tmp_path / "chaos"
    options = DemoOptions(backend=backend, seconds=SECONDS[backend], writers=3, objects=60, seed=5, directory=directory)
    code = run_demo(options, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert (code, report["verdict"], report["details"]) == (0, "nothing was wrong", [])
    assert report["backend"] == backend
    assert set(report["flaws"].values()) == {0}
    assert report["operations"]["ok"] > 0
    assert report["feed"]["places"] == ["the directory", "the receiver", "the follower"] and report["feed"]["updates"] > 0
    assert {kind for kind, count in report["happened"].items() if count} >= TROUBLES[backend] | STRIKES | {"recovered"}
    pids = [line["pid"] for line in read_lines(directory / "journal" / DIRECTOR) if line["event"] == "started"]
    assert len(pids) >= 5
    assert not any(is_running(pid) for pid in pids)


@ANYWHERE
def test_a_call_to_a_frozen_or_killed_service_is_given_up_and_the_next_succeeds(stage: DemoStage) -> None:
    async def ask_both() -> None:
        async with open_backends(load_settings(stage.config), SystemRuntime()) as backends:
            read, opened = partial(backends.tiers.high_volume.read, "o"), partial(backends.tiers.long_term.open, "o")
            asks: tuple[Callable[[], Awaitable[object]], ...] = read, opened
            for service, ask in zip(stage.services, asks, strict=True):
                troubles = [(service.freeze, service.thaw), (service.crash, service.restart)]
                for begin, end in troubles if stage.backend == POSTGRES_S3 else troubles[:1]:
                    assert begin is not None and end is not None
                    begin()
                    with anyio.fail_after(GIVEN_UP_S[stage.backend]), pytest.raises(UnavailableError):
                        await ask()
                    end()
                    await becomes(partial(answers, ask))

    anyio.run(ask_both)


@ON_SERVERS
def test_what_was_answered_outlives_servers_that_are_killed(stage: ServerStage) -> None:
    write(stage, 6)
    for service in stage.services:
        assert service.crash is not None and service.restart is not None
        service.crash()
        service.restart()
    found = check(stage.stored, stage.journal)
    assert (found.objects, found.blobs, found.flaws) == (6, 3, {}), found.details


# --- the check -----------------------------------------------------------------------------------


def write(stage: DemoStage, count: int) -> list[str]:
    """Objects with an even number go into rows, the others into blobs, half of them in sessions; one blob expires.

    The journal is that of their only writer. Returns their paths.
    """
    runtime, journal = SystemRuntime(), OperationJournal(stage.journal / "w0.0.jsonl")

    async def put_all() -> None:
        async with open_storage(patient(stage.config), runtime) as storage:
            for number, object_id in enumerate(object_ids(count)):
                operation = f"w0.0-0-{number}"
                put = payload(1, operation, (INLINE_BYTES_MAX + 1) if number % 2 else 10)
                step = LoadStep(operation, OperationKind.PUT, object_id, put, streamed=number % 4 == 1, expires=number == 7)
                assert await perform(storage, journal, runtime, step) is JournaledAnswer.OK
                look = LoadStep(f"w0.0-1-{number}", OperationKind.GET, object_id, b"")
                assert await perform(storage, journal, runtime, look) is JournaledAnswer.OK

    anyio.run(put_all)
    journal.close()
    found = check(stage.stored, stage.journal)
    assert (found.objects, found.inline, found.blobs, found.flaws) == (count, count // 2, count // 2, {}), found.details
    paths = [object_id.path for object_id in object_ids(count)]
    assert set(stage.stored.targets()) == set(paths[1::2])
    return paths


Call = Callable[[str, str, bytes], None]


def gcs(stage: EmulatorStage) -> Call:
    """Calls of the JSON API that nothing in the store makes."""

    def call(method: str, path: str, body: bytes = b"") -> None:
        connection = HTTPConnection(stage.stored.gcs, timeout=10)
        connection.request(method, path, body)
        answer = connection.getresponse()
        assert answer.status in (200, 204), answer.read()
        connection.close()

    return call


@ON_EMULATORS
def test_each_flaw_that_is_planted_is_counted_and_nothing_else(stage: EmulatorStage) -> None:
    paths = write(stage, 10)
    (rows, log), targets, call = stage.stored.tables, stage.stored.targets(), gcs(stage)

    def store(name: str, content: bytes) -> None:
        call("POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}", content)

    call("DELETE", f"/storage/v1/b/{BUCKET}/o/{quote(targets[paths[1]], safe='')}", b"")
    store(f"{paths[3]}/01a1fcbc-5bcb-7f2a-9c51-154fdcde1963", b"nobody's")
    store(targets[paths[5]], b"something else")
    rows.mutate_row(paths[0].encode(), DeleteAllFromRow())
    rows.mutate_row(paths[2].encode(), SetCell("fm", b"r", b"an object and a tombstone"))
    rows.mutate_row(paths[4].encode(), SetCell("fm", b"p", b"what nobody wrote"))
    log.mutate_row(b"~changelog/00/open", SetCell("fc", b"c", b"{}"))
    log.mutate_row(b"~changelog/0f/stuck", [SetCell("fc", b"c", b"{}"), SetCell("fc", b"s", b'{"state":"stuck"}')])
    log.mutate_row(b"~daemon/d0", SetCell("fc", b"c", b"1"))

    assert dangling(stage.stored) == {targets[paths[1]]}
    assert unfinished(stage.stored) == (1, 0)
    assert check(stage.stored, stage.journal).flaws == {
        "dangling": 1, "orphans": 1, "lost": 1, "entries": 1, "parked": 1, "mixed_up": 3,
    }  # fmt: skip


@ON_SERVERS
def test_each_flaw_that_is_planted_on_servers_is_counted_and_nothing_else(stage: ServerStage) -> None:
    paths = write(stage, 10)
    stored, targets, put = stage.stored, stage.stored.targets(), partial(stage.stored.s3.put_object, Bucket=stage.stored.bucket)
    [marker] = [each["Key"] for each in stored.s3.list_objects_v2(Bucket=stored.bucket, Prefix="~t/")["Contents"]]
    assert marker.startswith(f"~t/{targets[paths[7]]}/")
    session = stored.s3.create_multipart_upload(Bucket=stored.bucket, Key="recorded")["UploadId"]
    stored.s3.create_multipart_upload(Bucket=stored.bucket, Key="nobody knows it")
    entry = json.dumps({"v": 1, "id": "o", "upload": f"parts:{stored.bucket}/recorded?uploadId={session}"}, separators=(",", ":"))

    stored.s3.delete_object(Bucket=stored.bucket, Key=targets[paths[1]])
    put(Key=f"{paths[3]}/01a1fcbc-5bcb-7f2a-9c51-154fdcde1963", Body=b"nobody's")
    put(Key=targets[paths[5]], Body=b"something else")
    stored.s3.delete_object(Bucket=stored.bucket, Key=marker)
    put(Key="~t/without a deadline", Body=b"")
    stored.ask("DELETE FROM {schema}.rows WHERE path = $1", paths[0].encode())
    stored.ask("UPDATE {schema}.rows SET payload = 'what nobody wrote' WHERE path = $1", paths[4].encode())
    insert = "INSERT INTO {schema}.entries VALUES ($1, $2, 0, $3)"
    stored.ask(insert, b"~changelog/00/open", entry.encode(), None)
    stored.ask(insert, b"~changelog/0f/stuck", b"{}", '{"state":"stuck"}')

    assert dangling(stored) == {targets[paths[1]]}
    assert unfinished(stored) == (1, 3)
    assert check(stored, stage.journal).flaws == {
        "dangling": 1, "orphans": 1, "lost": 1, "entries": 1, "parked": 1, "mixed_up": 2, "uploads": 3,
    }  # fmt: skip


@ON_EMULATORS
def test_a_timed_out_write_that_lands_late_is_counted_if_no_repetition_was_told_ok(stage: EmulatorStage) -> None:
    write(stage, 2)
    (won,) = stage.stored.won()
    lines = [
        (won, "timed out"), ("live", "timed out"), ("live", "live"), ("told", "timed out"), ("told", "live"), ("told", "answered"),
        ("never", "timed out"),
    ]
    journal = OperationJournal(stage.journal / "w0.0.writes")
    for token, became in lines:
        journal.write(token=token, became=became)
    journal.close()
    assert late_writes(stage.journal, {won}) == 2
    assert check(stage.stored, stage.journal).late == 2
