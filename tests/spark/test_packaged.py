"""A cluster of two executors that have nothing but the packed environment.

They lose a worker and a whole executor in the middle.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest

from recovery.audit.running.java import WHEEL, find_java
from tests.given.repository import ROOT
from tests.given.spark_workers import attempts

NEEDED = ("anyio", "isal", "pydantic", "pyyaml", "tenacity", "pyarrow")
UNNEEDED = re.compile(r"pyarrow/(tests|include|src)/|libarrow_(python_)?flight|/__pycache__/|\.\./")
RANGES = 8


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """What `pip install --target env` and `tar` make, out of what is installed here, so that no network is needed."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT],
        check=True, timeout=300, cwd=tmp_path, env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    [wheel] = tmp_path.glob("*.whl")
    with ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "ours")
    with tarfile.open(tmp_path / "env.tar", "w") as packed:
        for part in (tmp_path / "ours").iterdir():  # with an entry for the directory itself, Spark refuses an archive
            packed.add(part, part.name)
        packed.add(ROOT / "tests" / "given" / "spark_workers.py", "tests/given/spark_workers.py")
        for name in with_dependencies(NEEDED):
            for file in distribution(name).files or ():
                if not UNNEEDED.search(str(file)):
                    packed.add(str(file.locate()), str(file))
    return tmp_path / "env.tar"


def with_dependencies(names: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [re.split(r"[^\w.-]", need)[0] for need in distribution(name).requires or () if ";" not in need]
    return found


@pytest.mark.night
def test_executors_with_only_the_archive_carry_every_range_out_though_workers_and_an_executor_are_killed(
    archive: Path, tmp_path: Path
) -> None:
    if (java := find_java()).origin == WHEEL:
        pytest.skip("executors of a cluster need a whole JDK")
    home = tmp_path / "spark"  # a cluster leaves its work beside its jars
    home.mkdir()
    for part in ("bin", "jars", "python"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    venv.create(tmp_path / "bare", symlinks=True)
    settings = {
        "spark.executorEnv.PYTHONPATH": "./env",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
    }  # fmt: skip
    submitted = subprocess.run(
        [
            home / "bin" / "spark-submit", "--master", "local-cluster[2,1,1024]", "--archives", f"{archive}#env",
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            ROOT / "tests" / "spark" / "submitted_audit.py", tmp_path, str(RANGES),
        ],
        env=os.environ | {
            "SPARK_HOME": str(home), "JAVA_HOME": str(java.home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT),
            "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": str(tmp_path / "bare" / "bin" / "python"),
        },
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stderr

    told = json.loads((tmp_path / "outcomes.json").read_text())
    assert told["engine"].endswith(", local-cluster[2,1,1024]")
    assert sorted(outcome["range"] for outcome in told["outcomes"]) == list(range(RANGES))
    tried = attempts(tmp_path / "marks")
    assert tried.count(1) >= 2, "no worker was killed"
    assert tried.count(2) >= 2, "no executor was killed"

    work = str(home / "work")
    for outcome in told["outcomes"]:
        file, *path = json.loads(outcome["error"])
        assert re.fullmatch(re.escape(work) + r"/app-[^/]+/\d+/(\./)?env/recovery/__init__\.py", file)
        assert not [entry for entry in path if entry.startswith((str(ROOT), sys.prefix)) and not entry.endswith(".jar")]


def test_what_spark_submit_is_given_is_the_command_itself() -> None:
    said = subprocess.run(
        [sys.executable, ROOT / "deploy" / "audit_job.py", "--version"],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert said.stdout.startswith("tiered ")
