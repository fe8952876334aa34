"""Chaos in PostgreSQL and S3: nothing is lost, leaked or mixed up, whatever is killed, frozen, stalled or cut off.

That the demo's check can fail is shown here for what reads these two.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from emulators.demo.checking.check import check, dangling, unfinished
from emulators.demo.command import DemoOptions, run_demo
from emulators.demo.players.journal import DIRECTOR, JournaledAnswer, OperationJournal, OperationKind, read_lines
from emulators.demo.players.load import INLINE_BYTES_MAX, LoadStep, object_ids, payload
from emulators.demo.players.object_writer import perform
from emulators.demo.staging.servers import CALL_S, ServerStage
from emulators.demo.staging.weather import KINDS
from tests.given.patient_calls import answers, patient
from tests.given.processes import is_running
from tests.given.waiting import becomes
from tiered.open import open_backends, open_storage
from tiered.settings import load_settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("postgres", "versitygw_url")]  # where there is none, they say so

TROUBLES = {f"{service}_{kind}" for service in ("postgres", "s3") for kind in KINDS}
STRIKES = {f"{who}_{what}" for who in ("writer", "daemon", "feed", "receiver") for what in ("kills", "stops")}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ServerStage]:
    with ServerStage(tmp_path / "stage") as stage:
        yield stage


@pytest.mark.sim
def test_servers_fail_in_every_way_and_nothing_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "chaos"
    options = DemoOptions(backend="postgres+s3", seconds=15, writers=3, objects=60, seed=5, directory=directory)
    code = run_demo(options, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert (code, report["verdict"], report["details"]) == (0, "nothing was wrong", [])
    assert report["backend"] == "postgres+s3"
    assert set(report["flaws"].values()) == {0}
    assert report["operations"]["ok"] > 0
    assert report["feed"]["places"] == ["the directory", "the receiver", "the follower"] and report["feed"]["updates"] > 0
    assert {kind for kind, count in report["happened"].items() if count} >= TROUBLES | STRIKES | {"recovered"}
    pids = [line["pid"] for line in read_lines(directory / "journal" / DIRECTOR) if line["event"] == "started"]
    assert len(pids) >= 5
    assert not any(is_running(pid) for pid in pids)


def test_a_call_to_a_frozen_or_killed_server_is_given_up_and_the_next_succeeds(stage: ServerStage) -> None:
    async def ask_both() -> None:
        settings = load_settings(stage.config)
        async with open_backends(settings, SystemRuntime()) as backends:
            asks: dict[str, Callable[[], Awaitable[object]]] = {
                "postgres": partial(backends.tiers.high_volume.read, "o"), "s3": partial(backends.tiers.long_term.open, "o"),
            }
            for service in stage.services:
                assert service.crash is not None and service.restart is not None
                for begin, end in ((service.freeze, service.thaw), (service.crash, service.restart)):
                    begin()
                    with anyio.fail_after(10 * CALL_S), pytest.raises(UnavailableError):
                        await asks[service.name]()
                    end()
                    await becomes(partial(answers, asks[service.name]))

    anyio.run(ask_both)


# --- the check -----------------------------------------------------------------------------------


def write(stage: ServerStage, count: int) -> None:
    """Objects with an even number go into rows, the others into blobs, half of them in sessions; one blob expires."""
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


def test_each_flaw_that_is_planted_on_servers_is_counted_and_nothing_else(stage: ServerStage) -> None:
    write(stage, 10)
    found = check(stage.stored, stage.journal)
    assert (found.objects, found.inline, found.blobs, found.flaws) == (10, 5, 5, {}), found.details
    stored, paths = stage.stored, [object_id.path for object_id in object_ids(10)]
    targets, put = stored.targets(), partial(stored.s3.put_object, Bucket=stored.bucket)
    assert set(targets) == set(paths[1::2])
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


def test_what_was_answered_outlives_servers_that_are_killed(stage: ServerStage) -> None:
    write(stage, 6)
    for service in stage.services:
        assert service.crash is not None and service.restart is not None
        service.crash()
        service.restart()
    found = check(stage.stored, stage.journal)
    assert (found.objects, found.blobs, found.flaws) == (6, 3, {}), found.details
