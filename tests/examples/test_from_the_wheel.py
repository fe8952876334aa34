"""Five services of people, where only the wheel is installed: each with the packages that it names, and its tests.

Beside these, what needs processes: the page of the photos in a browser, a worker of Celery whose process is killed, and
tables in PostgreSQL and S3.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import boto3
import pytest
from PIL import Image
from playwright.sync_api import FilePayload, expect

from emulators.ports import free_port
from emulators.postgres.server import PostgresServer
from tests.given.chromium import running_browser
from tests.given.daemon_process import PATIENCE_S
from tests.given.installed import Environment, alone
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT

LINES_MAX = 150
READY_S = 120
SHARED = ("process_store.py",)


@dataclass(frozen=True)
class ExampleService:
    """`files`: of examples/. `extras`: of the wheel. `packages`: what else it imports. `tests`: in tests/examples."""

    files: tuple[str, ...]
    extras: str
    packages: tuple[str, ...]
    tests: str


SERVICES = {
    "photos": ExampleService(("photos.py", "photos.html"), "", ("fastapi", "httpx", "uvicorn"), "test_photos.py"),
    "attachments": ExampleService(("django_attachments",), "", ("django", "httpx"), "test_django_attachments.py"),
    "thumbnails": ExampleService(("celery_tasks.py",), "", ("celery", "pillow"), "test_celery_tasks.py"),
    "tables": ExampleService(("tables.py",), "fsspec", ("pandas", "pyarrow"), "test_tables.py"),
    "backup": ExampleService(("backup.sh",), "daemon,postgres", (), "test_backup.py"),
}


def files_of(service: ExampleService) -> list[Path]:
    """Each file, also those of a folder."""
    named = [ROOT / "examples" / name for name in service.files]
    return [each for path in named for each in (sorted(path.glob("*.py")) if path.is_dir() else [path])]


def placed(service: ExampleService, wheel: Path, directory: Path) -> Environment:
    """An environment with the wheel, and the example beside it."""
    environment = Environment(directory, wheel, service.extras)
    if service.packages:
        environment.install(*service.packages)
    for path in (*files_of(service), *(ROOT / "examples" / name for name in SHARED)):
        target = directory / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return environment


@pytest.mark.parametrize("name", SERVICES)
def test_an_example_is_short_and_its_tests_pass_where_only_the_wheel_is_installed(name: str, wheel: Path, tmp_path: Path) -> None:
    service = SERVICES[name]
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files_of(service)) <= LINES_MAX
    environment = placed(service, wheel, tmp_path)
    environment.install("pytest")
    shutil.copy(ROOT / "tests/examples" / service.tests, tmp_path)
    told = environment.run(
        "python", "-m", "pytest", "-q", "--rootdir", ".", "-p", "no:cacheprovider", "-W", "error", "-o", "markers=night: of the checkout",
        service.tests,
    )  # fmt: skip
    assert re.search(r"(?m)^\d+ passed in", told), told


@contextmanager
def started(environment: Environment, *command: str, ready: str, **variables: str) -> Iterator[StartedProcess]:
    """A program of the environment, from when it has said that it is ready."""
    own = alone() | {"PYTHONPATH": str(environment.directory), "PYTHONUNBUFFERED": "1"} | variables
    with StartedProcess(
        [environment.programs / command[0], *command[1:]], cwd=environment.directory, env=own, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = ""
        while ready not in said:
            line = process.stdout.readline()
            said += line
            assert line, f"{command} ended:\n{said}"
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=READY_S)


def picture(colour: str, kind: str = "JPEG") -> bytes:
    into = BytesIO()
    Image.new("RGB", (600, 400), colour).save(into, kind)
    return into.getvalue()


def in_services(server: PostgresServer, endpoint: str, name: str) -> dict[str, Any]:
    """Settings. What has more than a kilobyte is in the bucket `name`."""
    return {
        "postgres": {"dsn": server.dsn(), "schema_name": name}, "s3": {"bucket": name, "endpoint": endpoint, "region": "us-east-1"},
        "inline_bytes_max": 1000,
    }  # fmt: skip


def allow(site: str, bucket: str, endpoint: str) -> None:
    """Lets scripts of a site use a bucket, by the rules that the guide shows."""
    rules = re.search(r"(?s)```json\n(\{\"CORSRules\".*?)```", (ROOT / "docs/guides/fastapi.md").read_text("utf-8"))
    assert rules is not None
    configuration = json.loads(rules[1].replace("https://app.example.com", site))
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").put_bucket_cors(Bucket=bucket, CORSConfiguration=configuration)


@pytest.mark.browser
@pytest.mark.parametrize("where", ["directory", "services"])
def test_a_browser_sends_photos_to_another_origin_and_shows_and_saves_them(
    where: str, wheel: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = placed(SERVICES["photos"], wheel, tmp_path)
    page_port, link_port = free_port(), free_port()
    site, taker = f"http://127.0.0.1:{page_port}", f"127.0.0.1:{link_port}"
    settings: dict[str, Any] = {"links": {"base_url": f"http://{taker}", "keys": ["a key for tests of some 40 letters"], "origins": [site]}}
    if where == "directory":
        settings["directory"] = "data"
    else:
        endpoint = request.getfixturevalue("versitygw_url")
        settings |= in_services(request.getfixturevalue("durable_postgres"), endpoint, "photos")
        taker = endpoint.removeprefix("http://")
    (tmp_path / "tiered.yaml").write_text(json.dumps(settings))
    if where == "services":
        environment.add("daemon,postgres,s3")
        environment.run("tiered", "-c", "tiered.yaml", "provision")
        allow(site, "photos", endpoint)
    sent = {"rot & <b>blau.jpg": picture("red"), "grün.png": picture("green", "PNG")}
    (tmp_path / "page.html").write_text("<script>alert(1)</script>")
    with ExitStack() as running:
        for factory, port in (("create_app", page_port), ("create_links", link_port)):
            running.enter_context(started(
                environment, "uvicorn", "--factory", "--port", str(port), f"examples.photos:{factory}",
                ready="Application startup complete", TIERED_CONFIG="tiered.yaml",
            ))  # fmt: skip
        browser = running.enter_context(running_browser())
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        asked: set[str] = set()
        page.on("request", lambda asks: asked.add(f"{asks.method} {asks.url.split('/')[2]}"))
        page.goto(site)
        types = {name: "image/png" if name.endswith("png") else "image/jpeg" for name in sent}
        page.set_input_files("#files", [FilePayload(name=name, mimeType=types[name], buffer=sent[name]) for name in sent])
        expect(page.locator("#photos img")).to_have_count(2, timeout=PATIENCE_S * 1000)
        expect(page.locator("#said")).to_have_text("done")
        assert f"PUT {taker}" in asked, "the bytes went to another origin"
        page.wait_for_function("[...document.images].every(image => image.naturalWidth === 600)")
        saved = {}
        for link in page.locator("#photos a").all():
            with page.expect_download() as download:
                link.click()
            saved[download.value.suggested_filename] = Path(download.value.path()).read_bytes()
        assert sorted(saved.values()) == sorted(sent.values()) and "grün.png" in saved
        assert sorted(page.locator("#photos a").all_inner_texts()) == sorted(sent)
        page.set_input_files("#files", tmp_path / "page.html")
        expect(page.locator("#said")).to_have_text("page.html: a photo is JPEG, PNG or WebP")
        show = page.locator("#photos img").first.get_attribute("src")
        page.goto(site.replace("127.0.0.1", "localhost"))  # a site that nobody has named
        assert "Failed to fetch" in page.evaluate("url => fetch(url).then(() => 'it came', error => String(error))", show)


WORKER = """
import os, signal
from examples import celery_tasks
from examples.celery_tasks import app

app.conf.update(broker_url="filesystem://", broker_transport_options={
    "data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control",
})
smaller = celery_tasks.smaller

def killed_once(*given):
    try:
        os.close(os.open("killed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return smaller(*given)
    os.kill(os.getpid(), signal.SIGKILL)

celery_tasks.smaller = killed_once
"""
SEND = """
import sys, worker
from examples.celery_tasks import store_photo
from tiered import Metadata, ObjectId
store_photo(ObjectId.parse("photos/objects/cat.png"), open("cat.png", "rb"), Metadata(content_type="image/png"))
"""
MADE = """
import tiered.sync, time
from tiered import ObjectPrefix
with tiered.sync.open_storage("tiered.yaml", writes=False) as store:
    while len(found := list(store.list(ObjectPrefix.create("thumbnails")))) < 2:
        time.sleep(0.1)
    print(*(entry.object_id for entry in found))
"""


def test_a_task_whose_process_is_killed_is_done_by_another(wheel: Path, tmp_path: Path) -> None:
    environment = placed(SERVICES["thumbnails"], wheel, tmp_path)
    (tmp_path / "tiered.yaml").write_text("directory: data\n")
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "cat.png").write_bytes(picture("red", "PNG"))
    for name in ("queue", "control"):
        (tmp_path / name).mkdir()
    here = {"PYTHONPATH": str(tmp_path)}
    with started(environment, "celery", "-A", "worker", "worker", "--concurrency", "2", "--loglevel", "INFO", ready=" ready."):
        environment.run("python", "-c", SEND, variables=here)
        assert environment.run("python", "-c", MADE, variables=here) == "thumbnails/objects/128/cat.png thumbnails/objects/512/cat.png\n"
    assert (tmp_path / "killed").exists()


def test_tables_move_to_postgresql_and_s3_by_settings_alone(
    wheel: Path, tmp_path: Path, durable_postgres: PostgresServer, versitygw_url: str
) -> None:
    environment = placed(SERVICES["tables"], wheel, tmp_path)
    environment.add("daemon,postgres,s3")
    (tmp_path / "tiered.yaml").write_text(json.dumps(in_services(durable_postgres, versitygw_url, "tables")))
    environment.run("tiered", "-c", "tiered.yaml", "provision")
    rows = "".join(f"{number},tea,{number % 7}\n" for number in range(20_000))
    (tmp_path / "orders.csv").write_text(f"order,product,cents\n{rows}")
    here = {"PYTHONPATH": str(tmp_path), "TIERED_CONFIG": "tiered.yaml"}
    for day in ("2026-12-01", "2026-12-02", "2026-12-02"):
        told = environment.run("python", "-m", "examples.tables", day, "orders.csv", variables=here)
    cents = sum(number % 7 for number in range(20_000))
    assert re.findall(r"(\S+) +tea +(\d+)", told) == [("2026-12-01", str(cents)), ("2026-12-02", str(cents))]
    listed = environment.run("tiered", "-c", "tiered.yaml", "ls", "-l", "tables")
    assert "long-term" in listed and listed.count("orders/2026-12-0") == 2
