"""The daemon of a local Spark, before it forks: what it has loaded, and that no thread runs in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

HOME = Path(pyspark.__file__).parent
LOADED = """
import gc, json, os, sys
from recovery.audit.running.spark_daemon import load
load()
import pyspark
names = ("pyarrow", "pyspark.worker", "recovery.audit.running.jobs", "tiered.gcs.owned", "tiered.bigtable.rows")
print(json.dumps({
    "pyspark": pyspark.__file__, "threads": len(os.listdir("/proc/self/task")), "loaded": [name in sys.modules for name in names],
    "collects": gc.isenabled(), "pandas": "pandas" in sys.modules,
}))
"""


def loaded(home: Path) -> dict[str, object]:
    """What the daemon has loaded, started with the paths of Spark's workers. `home`: Spark's."""
    archives = [str(path) for path in sorted((HOME / "python" / "lib").glob("*.zip"))]
    paths = os.pathsep.join([*archives, *map(os.path.abspath, filter(None, sys.path))])
    environment = {**os.environ, "SPARK_HOME": str(home), "PYTHONPATH": paths}
    told: dict[str, object] = json.loads(subprocess.check_output([sys.executable, "-c", LOADED], env=environment, text=True))
    return told


@pytest.mark.slow
def test_workers_are_forked_from_one_thread_that_has_loaded_all_and_no_archive() -> None:
    assert loaded(HOME) == {
        "pyspark": str(HOME / "__init__.py"), "threads": 1, "loaded": [True] * 5, "collects": True, "pandas": False,
    }  # fmt: skip


@pytest.mark.slow
def test_the_workers_of_another_spark_have_its_own_pyspark(tmp_path: Path) -> None:
    assert str(loaded(tmp_path)["pyspark"]).endswith(".zip/pyspark/__init__.py")
