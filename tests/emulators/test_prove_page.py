"""docs/services.md is what the reports in the repository say, and each of them is a report that names nobody."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from changelog.base.errors import InvalidRequestError
from emulators.prove import BUCKET, PAGE, REPORTS, SERVICES, keep, prove_service, table, written
from recovery.prove.probes.bench import Sizes
from recovery.prove.report import Line, ProveReport, read
from tiered.provision.probes import Result

ALL = sorted(REPORTS.glob("*.json"))
QUICK = Sizes(racers=4, rounds=2, rounds_min=1, calm=1)
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The tool runs on nothing else."""
    return "asyncio"


def test_the_page_is_what_the_reports_say() -> None:
    """`python -m emulators prove` writes it."""
    page = PAGE.read_text("utf-8")
    assert page == written(page)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_each_report_is_whole_and_names_no_place(path: Path) -> None:
    said = json.loads(path.read_text("utf-8"))
    assert said.keys() == {"service", "by", "report"}
    report = read(json.dumps(said["report"]))
    assert report.left == [] or path.stem == "fake-gcs-server", "that one does not list uploads in parts"
    assert path.stem.startswith(said["service"]) and said["service"] in SERVICES
    assert not [name for name in ("127.0.0.1", "localhost", BUCKET, "/tmp", "/dev/shm") if name in path.read_text("utf-8")]


def test_what_does_not_hold_is_in_the_table_where_it_is_of_the_service(tmp_path: Path) -> None:
    blob = Line("blobs", "deletions", "what is deleted is gone", Result.BROKEN, "shows it", "it comes back")
    services = {"rows": {"kind": "postgres", "version": "PostgreSQL 16.1"}, "blobs": {"kind": "s3", "version": "MinIO"}}
    report = ProveReport("0.1.0", "2026-11-30T20:00+00:00", services, [blob, replace(blob, about="rows", result=Result.HELD)])
    keep("minio", "somebody", report, tmp_path)
    keep("postgres", "somebody", report, tmp_path)
    minio, postgres, *_, fault = table(tmp_path).rstrip("\n").replace("\n\n", "\n").splitlines()[2:]
    assert minio == "| [MinIO](services/minio.json) | MinIO | **no** | 2026-11-30 | somebody | 0 | 1 | 0 |"
    assert postgres == "| [PostgreSQL](services/postgres-16.json) | PostgreSQL 16.1 | yes | 2026-11-30 | somebody | 1 | 0 | 0 |"
    assert fault == "| MinIO | what is deleted is gone | it comes back |"


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        written("nothing")


async def test_a_directory_is_proved_and_its_report_kept(tmp_path: Path) -> None:
    await prove_service("directory", "a test", lambda _: None, QUICK, tmp_path)
    assert "| a test |" in table(tmp_path)


async def test_a_service_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="versitygw"):
        await prove_service("aws", "a test", lambda _: None)
