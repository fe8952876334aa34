"""Spark as an engine: what comes back when workers die, when it is stopped, when something is missing."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import anyio
import pytest
from pyspark.sql import SparkSession

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.extras import installing
from recovery.audit.running.cluster import ATTEMPTS, CarryOut, SparkEngine, _carry_out_each, _in_batches, check_packages, open_spark, spread
from recovery.audit.running.jobs import PartResult
from tests.given.audit_workers import in_small_parts, on_another_machine, tell_collections, write_a_finding
from tests.given.audited_store import PLANTED, audit, found, plant
from tests.given.spark_workers import attempts, count, die_always, die_once, hang, job_in, raise_always


def having(spark: SparkSession, carry_out: CarryOut) -> SparkEngine:
    return SparkEngine(spark, carry_out, slots=2, attempts=ATTEMPTS, versions={})


def test_an_engine_says_what_it_is(counting: SparkEngine) -> None:
    assert counting.name == f"spark {counting.versions['pyspark']}, local[2,4]"
    assert set(counting.versions) == {"pyspark", "pyarrow", "pandas", "java"}
    assert counting.slots == 2


def test_a_session_leaves_ctrl_c_and_the_environment_as_they_were(counting: SparkEngine) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not {"PYSPARK_PYTHON", "SPARK_LOCAL_IP"} & set(os.environ)


def test_every_range_is_carried_out_once_and_its_outcome_comes_back_whole(counting: SparkEngine, tmp_path: Path) -> None:
    numbers = [0, 3, 4, 6, 7]
    outcomes = {outcome.range: outcome for outcome in counting.run(job_in(tmp_path, 8), numbers)}
    assert attempts(tmp_path) == sorted(outcomes) == numbers
    assert list(outcomes.values()) == [count(job_in(tmp_path, 8), number) for number in outcomes]


def test_no_ranges_are_no_work(counting: SparkEngine, tmp_path: Path) -> None:
    assert list(counting.run(job_in(tmp_path, 1), [])) == []


def test_workers_look_for_garbage_seldom_and_the_driver_as_before(spark: SparkSession, tmp_path: Path) -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    outcomes = [*having(spark, tell_collections).run(job_in(tmp_path, 4), range(4))]
    assert len(outcomes) == 4 and all(outcome.names > before[0][0] and outcome.findings > 1000 for outcome in outcomes)
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


def test_workers_do_without_pandas(spark: SparkSession, tmp_path: Path) -> None:
    assert list(having(spark, write_a_finding).run(job_in(tmp_path, 1), [0])) == [PartResult(0, names=1, findings=0)]


def test_batches_of_positions_give_the_same_lines(spark: SparkSession, tmp_path: Path) -> None:
    """As it is where there are no RDDs."""
    tasks = partial(_carry_out_each, count, job_in(tmp_path, 3), (2, 0, 1), ATTEMPTS)
    rows = spark.range(0, 3, 1, 3).mapInArrow(partial(_in_batches, tasks), "outcome string").collect()
    outcomes = [PartResult(**json.loads(row["outcome"])) for row in rows]
    assert sorted(outcomes, key=lambda outcome: outcome.range) == [count(job_in(tmp_path, 3), number) for number in range(3)]


def test_a_killed_worker_costs_another_attempt(spark: SparkSession, tmp_path: Path) -> None:
    outcomes = list(having(spark, die_once).run(job_in(tmp_path, 4), range(4)))
    assert sorted(outcome.range for outcome in outcomes) == [0, 1, 2, 3]
    assert {outcome.error for outcome in outcomes} == {None}
    assert attempts(tmp_path).count(1) == 2


def test_a_range_that_always_kills_its_worker_is_given_up_alone(spark: SparkSession, tmp_path: Path) -> None:
    outcomes = {outcome.range: outcome for outcome in having(spark, die_always).run(job_in(tmp_path, 3), range(3))}
    assert outcomes[0].error is outcomes[2].error is None
    assert "died, or failed without a word, 3 times" in str(outcomes[1].error)
    assert outcomes[1].retryable
    assert attempts(tmp_path).count(1) == ATTEMPTS - 1


def test_a_stage_that_dies_is_told_by_what_its_worker_raised(spark: SparkSession, tmp_path: Path) -> None:
    engine = SparkEngine(spark, raise_always, slots=2, attempts=1, versions={})
    with pytest.raises(UnavailableError, match=r"^Spark gave the job up: LookupError: nothing is known of range 0; what is done "):
        list(engine.run(job_in(tmp_path, 1), [0]))


def test_what_executors_cannot_import_is_named_with_the_way_to_pack_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def count(job, number): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"cannot import only_here: pack the environment .* --archives env\.tar\.gz#env"):
        list(having(spark, importlib.import_module("only_here").count).run(job_in(tmp_path, 1), [0]))


def test_a_stop_ends_what_is_under_way_and_the_session_lives_on(spark: SparkSession, counting: SparkEngine, tmp_path: Path) -> None:
    hanging = having(spark, hang)
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.extend(hanging.run(job_in(tmp_path, 4), range(4))))
    thread.start()
    began = threading.Event()
    while not attempts(tmp_path):
        began.wait(0.05)
    hanging.stop()
    thread.join()
    assert outcomes == []
    assert list(hanging.run(job_in(tmp_path, 4), range(4))) == []
    (tmp_path / "again").mkdir()
    assert [outcome.range for outcome in counting.run(job_in(tmp_path / "again", 1), [0])] == [0]


def test_a_session_that_is_there_is_used_and_left(spark: SparkSession, tmp_path: Path) -> None:
    with open_spark(count) as engine:
        assert engine.slots == 2
        assert [outcome.range for outcome in engine.run(job_in(tmp_path, 1), [0])] == [0]
    assert spark.range(3).count() == 3
    with pytest.raises(ConfigurationError, match=r"leave --master local\[7\] out"), open_spark(count, master="local[7]"):
        pass


def test_a_whole_audit_tries_a_worker_out_first_and_takes_rests_back(spark: SparkSession, tmp_path: Path) -> None:
    store = anyio.run(plant, tmp_path / "store")
    engine = SparkEngine(spark, in_small_parts, slots=2, attempts=ATTEMPTS, versions={"pyspark": "4"})
    manifest = anyio.run(audit, store, tmp_path / "run", engine)
    assert (manifest.engine, manifest.versions["pyspark"]) == (engine.name, "4")
    assert manifest.complete and len(manifest.parts) > len(manifest.ranges) and found(tmp_path / "run") == PLANTED
    assert not list((tmp_path / "run").rglob("_*"))


def test_a_run_directory_that_executors_do_not_share_is_told_before_any_range(spark: SparkSession, tmp_path: Path) -> None:
    store = anyio.run(plant, tmp_path / "store")
    with pytest.raises(ConfigurationError, match=r"no range was begun: a worker on .* does not see what was written to .*/other: give a"):
        anyio.run(audit, store, tmp_path / "run", having(spark, on_another_machine))
    assert not list((tmp_path / "run" / "findings").iterdir())


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 100, 1000, 1999])
def test_neighbours_are_dealt_out_far_apart(number: int) -> None:
    dealt = spread(range(10, 10 + number))
    assert sorted(dealt) == list(range(10, 10 + number))
    assert all(abs(a - b) >= number // 3 for a, b in pairwise(dealt))


FITTING = {"pyspark": "3.5.0", "pyarrow": "18.0.0", "pandas": "2.2.3"}


@pytest.mark.parametrize(("package", "version", "told"), [
    ("pyspark", None, f"pyspark>=3.5, which is not installed: {installing('spark')}, or audit with --engine local"),
    ("pyspark", "3.4.4", "pyspark>=3.5, and 3.4.4 is installed: pip install 'pyspark>=3.5', or audit with --engine local"),
    ("pyarrow", None, f"pyarrow>=18.0, which is not installed: {installing('spark')}, or audit with --engine local"),
    ("pyarrow", "17.0.0", "pyarrow>=18.0, and 17.0.0 is installed: pip install 'pyarrow>=18.0', or audit with --engine local"),
    ("pandas", None, f"pandas>=2.2,<3, which is not installed: {installing('spark')}, or audit with --engine local"),
    ("pandas", "3.0.0", "pandas>=2.2,<3, and 3.0.0 is installed: pip install 'pandas>=2.2,<3', or audit with --engine local"),
    ("pandas", "2.1.4", "pandas>=2.2,<3, and 2.1.4 is installed: pip install 'pandas>=2.2,<3', or audit with --engine local"),
])  # fmt: skip
def test_a_package_that_does_not_fit_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, version: str | None, told: str
) -> None:
    installed(monkeypatch, tmp_path, FITTING | {package: version})
    with pytest.raises(ConfigurationError) as error, open_spark(count):
        pass
    assert str(error.value) == f"an audit on Spark needs {told}"


def test_the_packages_that_fit_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, tmp_path, FITTING)
    assert check_packages() == FITTING


def installed(monkeypatch: pytest.MonkeyPatch, directory: Path, versions: Mapping[str, str | None]) -> None:
    """What pip leaves of installed packages, without the packages.

    A cluster's pyspark is on its path without pip.
    """
    for name, version in versions.items():
        if name != "pyspark" and version is not None:
            about = directory / f"{name}-{version}.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(directory)])
    module = ModuleType("pyspark")
    module.__dict__["__version__"] = versions["pyspark"]
    monkeypatch.setitem(sys.modules, "pyspark", None if versions["pyspark"] is None else module)
