"""What is shipped: the wheel holds the three packages and nothing else, and works where only it is installed.

The fresh environment gets the wheel without any extra first, and the extra `daemon` later: so what the library needs
is not there by accident. test_release.py has how it is built.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from emulators.postgres.server import PostgresServer
from tests.given.installed import Environment, alone
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = ROOT / ".github" / "workflows"
NEEDED = ("Name", "Version", "Summary", "Keywords", "Requires-Python", "Classifier", "Description-Content-Type")
OWNERS = ("License", "License-Expression", "License-File", "Author", "Author-email", "Home-page", "Project-URL")
PACKAGES = ("changelog", "recovery", "tiered")
PAGE = (
    "index.html", "page.css", "page.js", "icon.svg",
    "uplot/uPlot.iife.min.js", "uplot/uPlot.min.css", "uplot/LICENSE", "uplot/VERSION",
)  # fmt: skip
HELD = {
    *(f"{package}/py.typed" for package in PACKAGES), "recovery/audit/reporting/report.html.j2",
    *(f"recovery/http/page/{name}" for name in PAGE),
}  # fmt: skip
NOT_SHIPPED = ("emulators", "tests", "benchmarks", "pytest", "hypothesis", "trio")
SETTINGS = "directory: store\nchangelog: sqlite\nlease: {expiry_s: 0.3}\nrecovery: {idle_s: 0.05}\n"
OBJECT = "photos/objects/cat.jpg"
SIZE = 3_000_000

PUT_AND_GET = f"""
import anyio, importlib.util
from tiered import ObjectId, open_storage

async def main():
    async with open_storage("tiered.yaml") as storage:
        for key, payload in (("small", b"x" * 10), ("large", b"y" * {SIZE})):
            object_id = ObjectId.create("notes", key)
            await storage.put(object_id, payload)
            async with await storage.get(object_id) as stored:
                assert await stored.read() == payload

anyio.run(main)
print([name for name in {NOT_SHIPPED!r} if importlib.util.find_spec(name)])
"""

PUT_HALF = f"""
import anyio
from tiered import ObjectId, open_storage

async def half():
    yield b"z" * {SIZE}
    print("half", flush=True)
    await anyio.sleep_forever()

async def main():
    async with open_storage("tiered.yaml") as storage:
        await storage.put(ObjectId.parse("{OBJECT}"), half())

anyio.run(main)
"""


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the wheel and no extras."""
    return Environment(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture
def directory(bare: Environment, tmp_path: Path) -> Path:
    """Where the programs of the environment run."""
    (tmp_path / "tiered.yaml").write_text(SETTINGS)
    bare.directory = tmp_path
    return tmp_path


def test_the_wheel_holds_every_module_of_the_three_packages_and_nothing_else(wheel: Path) -> None:
    modules = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name} == modules | HELD


def test_its_metadata_are_whole_and_the_readme_has_its_words_without_its_links(wheel: Path) -> None:
    [name] = [name for name in ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(ZipFile(wheel).read(name).decode("utf-8"))
    assert [field for field in NEEDED if not metadata.get(field)] == []
    shown, readme = str(metadata.get_payload()), (ROOT / "README.md").read_text()
    assert "](docs/" in readme and re.findall(r"\]\((?!https?://|#)", shown) == []
    assert "The architecture has the protocol, its steps and its invariants" in " ".join(shown.split())
    assert (code := re.findall(r"```.*?```", readme, re.DOTALL)) and code == re.findall(r"```.*?```", shown, re.DOTALL)
    assert [field for field in OWNERS if field in metadata] == []


def test_no_licence_is_said_to_be_there_as_long_as_none_is_chosen() -> None:
    """Whoever chooses one changes all of these, and this test."""
    assert not {"license", "license-files", "authors", "maintainers", "urls"} & PROJECT.keys()
    assert not [each for each in PROJECT["classifiers"] if each.startswith("License")]
    assert not [*ROOT.glob("LICEN[CS]E*"), *ROOT.glob("COPYING*")]
    for page in ("README.md", "SECURITY.md", "CONTRIBUTING.md"):
        assert "No licence is chosen yet" in " ".join((ROOT / page).read_text().split()), page
    assert "No address is named yet" in " ".join((ROOT / "SECURITY.md").read_text().split())


def test_the_forges_workflow_runs_ci_on_each_python_of_the_project_from_a_clone_with_all_history() -> None:
    named = [each.rpartition(" :: ")[2] for each in PROJECT["classifiers"] if each.startswith("Programming Language :: Python :: 3.")]
    assert PROJECT["requires-python"] == f">={named[0]}"
    job = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]["run"]
    assert job["strategy"]["matrix"] == {"python": named}
    assert job["steps"][0]["with"] == {"fetch-depth": 0, "persist-credentials": False}
    assert job["steps"][-1] == {"run": ".ci/run", "env": {"PYTHON": "python${{ matrix.python }}"}} and job["timeout-minutes"] <= 90
    assert [step["with"]["java-version"] for step in job["steps"] if "java-version" in step.get("with", {})] == ["17"]


@pytest.mark.parametrize("workflow", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_may_read_and_nothing_else_it_ends_and_its_actions_are_pinned_by_commit(workflow: Path) -> None:
    read = yaml.safe_load(workflow.read_text())
    jobs = read["jobs"].values()
    assert read["permissions"] == {"contents": "read"} and all("permissions" not in job for job in jobs)
    assert all("timeout-minutes" in job for job in jobs)
    used = re.findall(r"uses: (.*)", workflow.read_text())
    assert len(used) == sum("uses" in step for job in jobs for step in job["steps"]) >= 1
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} +# v\d+\.\d+\.\d+", each) for each in used)


def test_the_library_needs_no_extras_and_nothing_that_is_only_for_tests_is_there(directory: Path, bare: Environment) -> None:
    assert bare.run("python", "-c", PUT_AND_GET) == "[]\n"


@pytest.mark.night
def test_the_command_recovers_from_a_kill_where_only_the_wheel_is_installed(bare: Environment, directory: Path) -> None:
    bare.add("daemon")
    run, tiered = bare.run, ("tiered", "--config", "tiered.yaml")
    (directory / "first").write_bytes(b"first" * SIZE)
    run(*tiered, "put", OBJECT, "first")
    blobs, uploads = directory / "store" / "blobs", directory / "store" / "uploads"
    held = files(blobs)

    half: list[str | Path] = [bare.programs / "python", "-c", PUT_HALF]
    with StartedProcess(half, cwd=directory, env=alone(), stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline() == "half\n"
            for _ in range(60):  # its payload may be read before its entry is there, and its upload is opened before
                entries = json.loads(run(*tiered, "log", "list", "--json"))
                if entries:
                    break
        finally:
            writer.kill()
    assert [entry["object"] for entry in entries] == [OBJECT] and files(uploads)

    for _ in range(30):
        report = json.loads(run(*tiered, "recover", "--once", "--json"))
        assert (report["failed"], report["parked"]) == (0, 0)
        if report["recovered"]:  # its lease has to end first
            break
    assert run(*tiered, "log", "list") == "the changelog is empty\n"
    assert (files(uploads), files(blobs)) == ([], held)
    assert run(*tiered, "get", OBJECT, "-o", "second") == ""
    assert (directory / "second").read_bytes() == (directory / "first").read_bytes()
    run(*tiered, "check")


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


REFUSES_GOOGLE = """
import importlib, pkgutil, sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("google", "grpc"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuses())
for package in ("tiered.s3", "tiered.postgres", "changelog.postgres", "tiered.kinds", "recovery.cli"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
for name in ("tiered.provision.s3", "tiered.provision.postgres", "recovery.audit.running.local", "recovery.http.app"):
    importlib.import_module(name)
"""


def test_postgresql_s3_and_every_command_load_without_the_packages_of_googles_services(tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}){REFUSES_GOOGLE}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=alone(), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.night
def test_a_store_on_postgresql_and_s3_lives_where_nothing_of_googles_services_is_installed(
    bare: Environment, directory: Path, durable_postgres: PostgresServer, versitygw_url: str
) -> None:
    bare.add("daemon,postgres,s3,audit")
    run, tiered = bare.run, ("tiered", "--config", "tiered.yaml")
    there = "[name for name in ('grpc', 'google') if importlib.util.find_spec(name)]"
    assert run("python", "-c", f"import importlib.util; print({there})") == "[]\n"
    section = {"postgres": {"dsn": durable_postgres.dsn(), "schema_name": "of_a_wheel"}}
    section |= {"s3": {"bucket": "of-a-wheel", "endpoint": versitygw_url, "region": "us-east-1"}}
    (directory / "tiered.yaml").write_text(json.dumps(section))
    (directory / "first").write_bytes(b"first" * SIZE)
    run(*tiered, "provision")
    run(*tiered, "put", OBJECT, "first")
    run(*tiered, "get", OBJECT, "-o", "second")
    assert (directory / "second").read_bytes() == (directory / "first").read_bytes()
    assert run(*tiered, "ls") == f"{OBJECT}\n"
    run(*tiered, "recover", "--once")
    assert json.loads(run(*tiered, "status", "--json"))["store"]["kind"] == "postgres+s3"
    run(*tiered, "audit", "run", "--engine", "local", "--to", "audit")
    run(*tiered, "rm", OBJECT)
