"""The runs of the audit that the page lists, and that no address leads out of their directory."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from recovery.audit.manifest import Bounds, Cutoff, Manifest, ManifestPart
from recovery.http.audits import RUNS_MAX, audit_runs
from tests.given.shown_status import ShownStatus

pytestmark = pytest.mark.anyio


ALL = (Bounds(start="", end=None),)


def plant(
    directory: Path, name: str, started_ns: int = 10**18, *, report: bool = True, ranges: tuple[Bounds, ...] = ALL
) -> Path:
    run = directory / name
    run.mkdir(parents=True)
    manifest = Manifest(
        run="r", inputs={}, log_is_durable=True, cutoff=Cutoff(as_of_ns=1, grace_s=1), ranges=ranges, started_ns=started_ns,
        ended_ns=started_ns + 60 * 10**9, complete=True, names=42, names_by_range=(42,) * len(ranges),
        parts=(ManifestPart(file="range-000000.parquet", range=0, start="", end=None, names=42, rows=0, sha256=""),),
    )  # fmt: skip
    (run / "manifest.json").write_text(manifest.model_dump_json())
    os.utime(run / "manifest.json", ns=(started_ns, started_ns))
    if report:
        (run / "report.html").write_text(f"<!doctype html><title>{name}</title>")
    return run


async def get(shown: ShownStatus, address: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(shown.app), base_url="http://localhost") as browser:
        return await browser.get(address)


def test_the_youngest_runs_come_first_and_no_more_than_a_page_of_them(tmp_path: Path) -> None:
    for number in range(RUNS_MAX + 5):
        plant(tmp_path, f"run-{number:02}", 10**18 + number * 10**9)
    runs = audit_runs(tmp_path)
    assert [run.name for run in runs] == [f"run-{number:02}" for number in reversed(range(5, RUNS_MAX + 5))]
    assert (runs[0].complete, runs[0].findings, runs[0].blobs, runs[0].has_report) == (True, 0, 42, True)


def test_a_run_whose_manifest_cannot_be_true_is_told_and_is_not_complete(tmp_path: Path) -> None:
    plant(tmp_path, "gap", ranges=(Bounds(start="", end="a"), Bounds(start="b", end=None)))
    [run] = audit_runs(tmp_path)
    assert not run.complete
    assert run.problem == "its manifest cannot be trusted: its ranges 0 and 1 leave a gap between 'a' and 'b'"


def test_what_is_no_run_is_passed_over_and_a_damaged_manifest_is_told(tmp_path: Path) -> None:
    elsewhere = plant(tmp_path / "elsewhere", "secret")
    reports = tmp_path / "reports"
    plant(reports, "good")
    (reports / "empty").mkdir()
    (reports / "file").write_text("x")
    (reports / ".hidden").mkdir()
    (reports / "link").symlink_to(elsewhere)
    (reports / "bad").mkdir()
    (reports / "bad" / "manifest.json").write_text("{")
    (reports / "linked-manifest").mkdir()
    (reports / "linked-manifest" / "manifest.json").symlink_to(elsewhere / "manifest.json")
    os.mkdir(os.fsencode(reports) + b"/\xff")
    (reports / os.fsdecode(b"\xff") / "manifest.json").write_text("{}")
    runs = {run.name: run for run in audit_runs(reports)}
    assert set(runs) == {"good", "bad"}
    assert "bad/manifest.json is no manifest" in (runs["bad"].problem or "")


async def test_a_report_is_served_with_a_policy_of_its_own_if_names_may_be_shown(tmp_path: Path) -> None:
    plant(tmp_path, "2026-11-22 night")
    shown = ShownStatus(show_objects=True, audit_reports=tmp_path)
    [run] = (await get(shown, "/recent.json")).json()["audits"]["runs"]
    assert run["has_report"]
    report = await get(shown, "/audits/2026-11-22%20night")
    assert (report.status_code, report.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "sandbox" in report.headers["content-security-policy"] and "script" not in report.headers["content-security-policy"]
    assert report.headers["x-content-type-options"] == "nosniff"


async def test_a_report_names_objects_so_it_is_hidden_with_them(tmp_path: Path) -> None:
    plant(tmp_path, "night")
    shown = ShownStatus(audit_reports=tmp_path)
    [run] = (await get(shown, "/recent.json")).json()["audits"]["runs"]
    assert (run["name"], run["complete"], run["has_report"]) == ("night", True, False)
    assert (await get(shown, "/audits/night")).status_code == 404


@pytest.mark.parametrize(
    "name",
    ["..", "%2e%2e", "..%2fsecret", "%2e%2e%2fsecret", "link", "no-report", "linked-report", "%00", "night%2f..%2fnight",
     "night/../../secret", "%ff"],
)  # fmt: skip
async def test_no_address_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    secret = plant(tmp_path, "secret")
    reports = tmp_path / "reports"
    plant(reports, "night")
    plant(reports, "no-report", report=False)
    plant(reports, "linked-report", report=False)
    (reports / "linked-report" / "report.html").symlink_to(secret / "report.html")
    (reports / "link").symlink_to(secret)
    answer = await get(ShownStatus(show_objects=True, audit_reports=reports), f"/audits/{name}")
    assert answer.status_code == 404 or answer.url.path == "/"
    assert "<title>secret" not in answer.text


async def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    told = (await get(ShownStatus(audit_reports=tmp_path / "gone"), "/recent.json")).json()["audits"]
    assert told == {"runs": [], "problem": "the directory daemon.audit_reports cannot be listed: No such file or directory"}


async def test_without_a_directory_nothing_is_listed_or_served() -> None:
    shown = ShownStatus(show_objects=True)
    assert (await get(shown, "/recent.json")).json()["audits"] is None
    assert (await get(shown, "/audits/x")).status_code == 404
