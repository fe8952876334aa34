"""What is shipped: the wheel holds the three packages and nothing else, and works where only it is installed.

The fresh environment gets the wheel without any extra first, and the extra `daemon` later: so what the library needs
is not there by accident.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from emulators.postgres.server import SAFE, PostgresServer, postgres_server
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT

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
SETTINGS = "directory: store\nchangelog: sqlite\nlease: {heartbeat_interval_s: 0.1, expiry_s: 0.3}\nrecovery: {idle_s: 0.05}\n"
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


def alone() -> dict[str, str]:
    """The variables of a stranger: nothing of this tree is on the path."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONSAFEPATH": "1"}


def run(*command: str | Path, cwd: Path) -> str:
    """What it printed. It must succeed."""
    done = subprocess.run(
        command, cwd=cwd, env=alone(), text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=300, check=False,
    )
    assert done.returncode == 0, f"{done.args} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", into, ROOT, cwd=into)
    [built] = into.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs are of an environment with the wheel and no extras. It has no pip: ours installs into it."""
    into = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=into)
    install(into / "venv" / "bin", str(wheel))
    return into / "venv" / "bin"


def install(programs: Path, what: str) -> None:
    into = ("--python", programs / "python")
    run(sys.executable, "-m", "pip", *into, "install", "--no-compile", what, "-c", ROOT / "constraints.txt", cwd=programs)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "tiered.yaml").write_text(SETTINGS)
    return tmp_path


def modules() -> set[str]:
    return {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


def test_the_wheel_holds_every_module_of_the_three_packages_and_nothing_else(wheel: Path) -> None:
    assert {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name} == modules() | HELD


def test_the_source_distribution_holds_what_the_wheel_is_built_from_and_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path / "built", cwd=ROOT)
    [built] = (tmp_path / "built").glob("*.tar.gz")
    with tarfile.open(built) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.glob("tiered-*/")
    run(sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "again", cwd=source)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()
    assert (tmp_path / "again" / built.name).read_bytes() == built.read_bytes()
    with tarfile.open(built) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert held == modules() | HELD | {"pyproject.toml", "README.md", "HISTORY.md", "SECURITY.md", "PKG-INFO", ".gitignore"}


def test_the_library_needs_no_extras_and_nothing_that_is_only_for_tests_is_there(bare: Path, directory: Path) -> None:
    assert run(bare / "python", "-c", PUT_AND_GET, cwd=directory) == "[]\n"


@pytest.mark.sim
def test_the_command_recovers_from_a_kill_where_only_the_wheel_is_installed(bare: Path, wheel: Path, directory: Path) -> None:
    install(bare, f"{wheel}[daemon]")
    tiered = (bare / "tiered", "--config", "tiered.yaml")
    (directory / "first").write_bytes(b"first" * SIZE)
    run(*tiered, "put", OBJECT, "first", cwd=directory)
    blobs, uploads = directory / "store" / "blobs", directory / "store" / "uploads"
    held = files(blobs)

    with StartedProcess([bare / "python", "-c", PUT_HALF], cwd=directory, env=alone(), stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline() == "half\n"
            for _ in range(60):  # its payload may be read before its entry is there, and its upload is opened before
                entries = json.loads(run(*tiered, "log", "list", "--json", cwd=directory))
                if entries:
                    break
        finally:
            writer.kill()
    assert [entry["object"] for entry in entries] == [OBJECT] and files(uploads)

    for _ in range(30):
        report = json.loads(run(*tiered, "recover", "--once", "--json", cwd=directory))
        assert (report["failed"], report["parked"]) == (0, 0)
        if report["recovered"]:  # its lease has to end first
            break
    assert run(*tiered, "log", "list", cwd=directory) == "the changelog is empty\n"
    assert (files(uploads), files(blobs)) == ([], held)
    assert run(*tiered, "get", OBJECT, "-o", "second", cwd=directory) == ""
    assert (directory / "second").read_bytes() == (directory / "first").read_bytes()
    run(*tiered, "check", cwd=directory)


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
    run(sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}){REFUSES_GOOGLE}", cwd=tmp_path)


@pytest.fixture
def durable_postgres(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server of its own, as it should be set. `postgres` says whether there can be one here."""
    with postgres_server(SAFE) as server:
        yield server


@pytest.mark.sim
def test_a_store_on_postgresql_and_s3_lives_where_nothing_of_googles_services_is_installed(
    bare: Path, wheel: Path, directory: Path, durable_postgres: PostgresServer, versitygw_url: str
) -> None:
    install(bare, f"{wheel}[daemon,postgres,s3,audit]")
    there = "[name for name in ('grpc', 'google') if importlib.util.find_spec(name)]"
    assert run(bare / "python", "-c", f"import importlib.util; print({there})", cwd=directory) == "[]\n"
    section = {"postgres": {"dsn": durable_postgres.dsn(), "schema_name": "of_a_wheel"}}
    section |= {"s3": {"bucket": "of-a-wheel", "endpoint": versitygw_url, "region": "us-east-1"}}
    (directory / "tiered.yaml").write_text(json.dumps(section))
    (directory / "first").write_bytes(b"first" * SIZE)
    tiered = (bare / "tiered", "--config", "tiered.yaml")
    run(*tiered, "provision", cwd=directory)
    run(*tiered, "put", OBJECT, "first", cwd=directory)
    run(*tiered, "get", OBJECT, "-o", "second", cwd=directory)
    assert (directory / "second").read_bytes() == (directory / "first").read_bytes()
    assert run(*tiered, "ls", cwd=directory) == f"{OBJECT}\n"
    run(*tiered, "recover", "--once", cwd=directory)
    assert json.loads(run(*tiered, "status", "--json", cwd=directory))["store"]["kind"] == "postgres+s3"
    run(*tiered, "audit", "run", "--engine", "local", "--to", "audit", cwd=directory)
    run(*tiered, "rm", OBJECT, cwd=directory)
