"""What a job of Spark that died is reported by: its telling line, and not the first one."""

from __future__ import annotations

from typing import BinaryIO

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import java_gateway
from pyspark.sql import SparkSession

from recovery.audit.running.cluster import _reason, open_spark
from tiered import ConfigurationError

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


STARTS = """Picked up JAVA_TOOL_OPTIONS: -Dfoo=1
NOTE: Picked up JDK_JAVA_OPTIONS: --enable-native-access=ALL-UNNAMED
WARNING: Using incubator modules: jdk.incubator.vector
OpenJDK 64-Bit Server VM warning: Options -Xverify:none and -noverify were deprecated in JDK 13
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
26/11/29 23:03:14 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... using builtin-java classes
"""
"""What a JVM with Spark prints when all goes well."""

IN_MAIN = STARTS + """Exception in thread "main" java.lang.UnsupportedOperationException: getSubject is not supported
\tat java.base/javax.security.auth.Subject.getSubject(Subject.java:277)
[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.
"""

WITHOUT_WORDS = STARTS + """Exception in thread "main" java.lang.ExceptionInInitializerError
\tat org.apache.spark.unsafe.array.ByteArrayMethods.<clinit>(ByteArrayMethods.java:54)
"""

INITIALIZED = STARTS + """Exception in thread "main" java.lang.ExceptionInInitializerError
\tat org.apache.spark.unsafe.array.ByteArrayMethods.<clinit>(ByteArrayMethods.java:54)
Caused by: java.lang.IllegalStateException: no field address
\tat org.apache.spark.unsafe.Platform.<clinit>(Platform.java:113)
\t... 24 more
"""

LOGGED = STARTS + """26/11/29 23:03:14 ERROR SparkContext: Error initializing SparkContext.
java.lang.IllegalArgumentException: requirement failed: startPort should be between 1024 and 65535 (inclusive)
\tat scala.Predef$.require(Predef.scala:337)
"""

OPTION = """Picked up JAVA_TOOL_OPTIONS: -XX:Foo
Unrecognized VM option 'Foo'
Error: Could not create the Java Virtual Machine.
Error: A fatal exception has occurred. Program will exit.
"""

EXITED = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."


@pytest.mark.parametrize(("text", "reason"), [
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
    (IN_MAIN, "java.lang.UnsupportedOperationException: getSubject is not supported"),
    (WITHOUT_WORDS, "java.lang.ExceptionInInitializerError"),
    (INITIALIZED, "java.lang.IllegalStateException: no field address"),
    (LOGGED, "java.lang.IllegalArgumentException: requirement failed: startPort should be between 1024 and 65535 (inclusive)"),
    (OPTION, "Unrecognized VM option 'Foo'"),
    (f"{STARTS}Error: Could not find X\nCaused by: java.lang.ClassNotFoundException: X", "java.lang.ClassNotFoundException: X"),
    (STARTS + "Property settings:\nError: Could not find X", "Error: Could not find X"),
    (STARTS + EXITED, EXITED),
    (STARTS, "it does not say why"),
])  # fmt: skip
def test_reason_is_the_line_that_says_most(text: str, reason: str) -> None:
    assert _reason(text) == reason


def test_reason_that_is_long_is_cut() -> None:
    assert len(_reason("Traceback (most recent call last):\n  File x\n" + "ValueError: " + "x" * 9000)) == 500


def test_spark_that_fails_in_a_jvm_that_runs_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an error is one of py4j, and was passed on. Its text is asked of the JVM, which was gone by then."""

    def launch(conf: object, options: dict[str, BinaryIO]) -> None:
        options["stderr"].write(LOGGED.encode())
        options["stderr"].flush()
        raise Py4JJavaError("An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n", ExceptionOfAGoneJvm())

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)  # other tests of this process have one
    with pytest.raises(ConfigurationError, match=r"Spark does not start with .*: java\.lang\.Ill\S+: requirement failed: .*; audit"):
        open_spark(lambda job, number: None, slots=1).__enter__()  # type: ignore[arg-type,return-value]


class ExceptionOfAGoneJvm:
    _target_id = "o1"

    @property
    def _gateway_client(self) -> None:
        raise ConnectionRefusedError
