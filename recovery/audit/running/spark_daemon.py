"""The daemon of a local Spark, from which its Python workers are forked: `spark.python.daemon.module`.

It is PySpark's own, and imports first what each worker needs. Otherwise each worker would import it after the fork,
which takes a second of CPU. It only imports: the clients of Google's services do not survive a fork once they are used.
No thread does, so the libraries are told to start none.

Spark puts archives before all other paths, among them its PySpark, which is not compiled there. If that is the one that
is installed (`SPARK_HOME` is its package), the archives come last here. Otherwise each start would compile it, and
search the archives for whatever else is imported.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
ARCHIVES = (".zip", ".jar")


def load() -> None:
    """Imports what a worker needs. All of it stays, so the garbage collector need not look at it, here or there."""
    gc.disable()
    os.environ.update(NO_THREADS)
    home = Path(os.environ.get("SPARK_HOME", ""))
    if (home / "daemon.py").is_file() and str(home.parent) in sys.path:
        sys.path.sort(key=lambda path: path.endswith(ARCHIVES))
    import pyspark.worker

    import recovery.audit.running.jobs
    import tiered.kinds.preloaded

    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    load()
    from pyspark.daemon import manager

    manager()
