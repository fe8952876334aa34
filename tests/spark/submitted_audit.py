"""What spark-submit runs in a test: DIRECTORY RANGES. It writes what came out to DIRECTORY/outcomes.json."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from recovery.audit.running.cluster import open_spark
from tests.given.spark_workers import job_in, kill_executors

if __name__ == "__main__":
    directory, ranges = Path(sys.argv[1]), int(sys.argv[2])
    (directory / "marks").mkdir()
    with open_spark(kill_executors) as engine:
        outcomes = [asdict(outcome) for outcome in engine.run(job_in(directory / "marks", ranges), range(ranges))]
    (directory / "outcomes.json").write_text(json.dumps({"engine": engine.name, "outcomes": outcomes}))
