"""The daemon of a local Spark, from which its Python workers are forked: `spark.python.daemon.module`.

It is PySpark's own, and imports first what each worker needs. Otherwise each worker would import it after the fork,
which takes a second of CPU. It only imports: the clients of Google's services do not survive a fork once they are used.
"""

from __future__ import annotations

from pyspark.daemon import manager

import tiered.kinds.preloaded  # noqa: F401

if __name__ == "__main__":
    manager()
