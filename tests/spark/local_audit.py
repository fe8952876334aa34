"""A program with a local Spark, for tests to watch. It prints its JVM's pid.

    python -m tests.spark.local_audit DIRECTORY RANGE
"""

from __future__ import annotations

import sys
from pathlib import Path

from recovery.audit.running.cluster import open_spark
from tests.given.spark_workers import job_in, tell_jvm

if __name__ == "__main__":
    with open_spark(tell_jvm, slots=1) as engine:
        [outcome] = engine.run(job_in(Path(sys.argv[1]), 2), [int(sys.argv[2])])
        sys.stdout.write(f"{outcome.names} {engine.versions['java']}\n")
