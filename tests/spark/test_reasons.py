"""What a job of Spark that died is reported by: its telling line, and not the first one."""

from __future__ import annotations

import pytest

from recovery.audit.running.cluster import _reason

PYTHON = """An error occurred while calling o53.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: \
Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1247, in main
    process()
  File "/env/recovery/audit/running/cluster.py", line 201, in _carry_out_each
    collect_less()
AttributeError: module 'gc' has no attribute 'freeze'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1250, in main
    raise
RuntimeError: the worker's disk is full

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$3(DAGScheduler.scala:2898)
"""

LOST = """An error occurred while calling o53.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 1.0 failed 4 times, most recent failure: \
Lost task 3.3 in stage 1.0 (TID 19) (10.0.0.7 executor 4): ExecutorLostFailure (executor 4 exited caused by one of the running tasks) \
Reason: Container killed by YARN for exceeding physical memory limits. 5.5 GB of 5.5 GB physical memory used.
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$3(DAGScheduler.scala:2898)
"""

JAVA = """An error occurred while calling o53.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 1.0 failed 4 times, most recent failure: \
Lost task 3.3 in stage 1.0 (TID 19) (10.0.0.7 executor 4): java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""

CAUSED = """An error occurred while calling o53.collectToPython.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:56)
Caused by: java.util.concurrent.ExecutionException: java.net.ConnectException
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.net.ConnectException: Connection refused: 10.0.0.7:7077
\t... 4 more
"""

PLAIN = """An error occurred while calling o53.collectToPython.
: org.apache.spark.SparkException: Job 0 cancelled because SparkContext was shut down
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$cleanUp$1(DAGScheduler.scala:1253)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PYTHON, "RuntimeError: the worker's disk is full"),
        (
            LOST,
            "ExecutorLostFailure (executor 4 exited caused by one of the running tasks) Reason: Container killed by YARN for exceeding"
            " physical memory limits. 5.5 GB of 5.5 GB physical memory used.",
        ),
        (JAVA, "java.io.IOException: No space left on device"),
        (CAUSED, "java.net.ConnectException: Connection refused: 10.0.0.7:7077"),
        (PLAIN, "org.apache.spark.SparkException: Job 0 cancelled because SparkContext was shut down"),
        ("An error occurred while calling o53.collectToPython.", "it does not say why"),
        ("", "it does not say why"),
        ("something else\nand more", "something else"),
    ],
)
def test_reason_is_the_line_that_says_most(text: str, reason: str) -> None:
    assert _reason(text) == reason


def test_reason_that_is_long_is_cut() -> None:
    assert len(_reason("Traceback (most recent call last):\n  File x\n" + "ValueError: " + "x" * 9000)) == 500
