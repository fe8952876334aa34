"""Chaos on the emulators: nothing is lost, leaked or mixed up.

Processes are killed and stopped; servers are frozen, stalled and cut off.

The demo's independent check looks for I1, I3, I4, I6 and I7. That it can fail is shown here for what reads Bigtable and
GCS, and
in `tests/emulators/demo/checking/test_check.py` for what judges.
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
from emulators.demo.checking.google import StoredInGoogle
from emulators.demo.command import DemoOptions, run_demo
from emulators.demo.players.journal import DIRECTOR, JournaledAnswer, OperationJournal, OperationKind, late_writes, read_lines
from emulators.demo.players.load import INLINE_BYTES_MAX, LoadStep, object_ids, payload
from emulators.demo.players.object_writer import perform
from emulators.demo.staging.emulators import BUCKET, EmulatorStage
from emulators.demo.staging.weather import KINDS
from tests.given.patient_calls import answers, patient
from tests.given.processes import is_running
from tests.given.waiting import becomes
from tiered.open import open_backends, open_storage
from tiered.settings import BigtableSettings, load_settings

pytestmark = pytest.mark.usefixtures("bigtable_host")  # where there is no emulator, it says so

TROUBLES = {f"{service}_{kind}" for service in ("bigtable", "gcs") for kind in KINDS}
STRIKES = {f"{who}_{what}" for who in ("writer", "daemon", "feed", "receiver") for what in ("kills", "stops")}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[EmulatorStage]:
    with EmulatorStage(tmp_path / "stage") as stage:
        yield stage


@pytest.mark.sim
def test_everything_fails_in_every_way_and_nothing_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "chaos"
    options = DemoOptions(backend="emulators", seconds=8, writers=3, objects=60, seed=5, directory=directory)
    code = run_demo(options, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert (code, report["verdict"], report["details"]) == (0, "nothing was wrong", [])
    assert report["backend"] == "emulators"
    assert set(report["flaws"].values()) == {0}
    assert report["operations"]["ok"] > 0
    assert report["feed"]["places"] == ["the directory", "the receiver", "the follower"] and report["feed"]["updates"] > 0
    assert {kind for kind, count in report["happened"].items() if count} >= TROUBLES | STRIKES | {"recovered"}
    pids = [line["pid"] for line in read_lines(directory / "journal" / DIRECTOR) if line["event"] == "started"]
    assert len(pids) >= 5
    assert not any(is_running(pid) for pid in pids)


def test_a_call_to_a_frozen_service_is_given_up_after_the_time_that_the_settings_say(stage: EmulatorStage) -> None:
    async def ask_both() -> None:
        settings = load_settings(stage.config)
        async with open_backends(settings, SystemRuntime()) as backends:
            asks: dict[str, Callable[[], Awaitable[object]]] = {
                "bigtable": partial(backends.tiers.high_volume.read, "o"), "gcs": partial(backends.tiers.long_term.open, "o"),
            }
            for service in stage.services:
                service.freeze()
                with anyio.fail_after(BigtableSettings.model_fields["timeout_s"].default / 2), pytest.raises(UnavailableError):
                    await asks[service.name]()
                service.thaw()
                await becomes(partial(answers, asks[service.name]))

    anyio.run(ask_both)


# --- the check -----------------------------------------------------------------------------------


def write(stage: EmulatorStage, count: int) -> None:
    """Objects with an even number go into rows, the others into blobs, half of them in upload sessions.

    The journal is that of their only writer.
    """
    runtime, journal = SystemRuntime(), OperationJournal(stage.journal / "w0.0.jsonl")

    async def put_all() -> None:
        async with open_storage(patient(stage.config), runtime) as storage:
            for number, object_id in enumerate(object_ids(count)):
                operation = f"w0.0-0-{number}"
                large = payload(1, operation, (INLINE_BYTES_MAX + 1) if number % 2 else 10)
                step = LoadStep(operation, OperationKind.PUT, object_id, large, streamed=number % 4 == 1)
                assert await perform(storage, journal, runtime, step) is JournaledAnswer.OK
                assert (
                    await perform(storage, journal, runtime, LoadStep(f"w0.0-1-{number}", OperationKind.GET, object_id, b""))
                    is JournaledAnswer.OK
                )

    anyio.run(put_all)
    journal.close()


class Vandal:
    """Does to the emulators what nothing in the store does."""

    def __init__(self, stored: StoredInGoogle) -> None:
        self.rows, self.log = stored.tables
        self._gcs = stored.gcs

    def call(self, method: str, path: str, body: bytes = b"") -> None:
        connection = HTTPConnection(self._gcs, timeout=10)
        connection.request(method, path, body)
        answer = connection.getresponse()
        assert answer.status in (200, 204), answer.read()
        connection.close()

    def delete_blob(self, name: str) -> None:
        self.call("DELETE", f"/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}")

    def store_blob(self, name: str, content: bytes) -> None:
        self.call("POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}", content)


def test_each_flaw_that_is_planted_is_counted_and_nothing_else(stage: EmulatorStage) -> None:
    write(stage, 10)
    found = check(stage.stored, stage.journal)
    assert (found.objects, found.inline, found.blobs, found.flaws) == (10, 5, 5, {})
    vandal, paths = Vandal(stage.stored), [object_id.path for object_id in object_ids(10)]
    targets = stage.stored.targets()
    assert set(targets) == set(paths[1::2])

    vandal.delete_blob(targets[paths[1]])
    vandal.store_blob(f"{paths[3]}/01a1fcbc-5bcb-7f2a-9c51-154fdcde1963", b"nobody's")
    vandal.store_blob(targets[paths[5]], b"something else")
    vandal.rows.mutate_row(paths[0].encode(), DeleteAllFromRow())
    vandal.rows.mutate_row(paths[2].encode(), SetCell("fm", b"r", b"an object and a tombstone"))
    vandal.rows.mutate_row(paths[4].encode(), SetCell("fm", b"p", b"what nobody wrote"))
    vandal.log.mutate_row(b"~changelog/00/open", SetCell("fc", b"c", b"{}"))
    vandal.log.mutate_row(b"~changelog/0f/stuck", [SetCell("fc", b"c", b"{}"), SetCell("fc", b"s", b'{"state":"stuck"}')])
    vandal.log.mutate_row(b"~daemon/d0", SetCell("fc", b"c", b"1"))

    assert dangling(stage.stored) == {targets[paths[1]]}
    assert unfinished(stage.stored) == (1, 0)
    assert check(stage.stored, stage.journal).flaws == {
        "dangling": 1, "orphans": 1, "lost": 1, "entries": 1, "parked": 1, "mixed_up": 3,
    }  # fmt: skip


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
