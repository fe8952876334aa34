"""Executes the code of a notebook in one namespace, on a local Spark, and prints the tables that it made as JSON.

    python -m tests.spark.notebook docs/warehouse.ipynb TABLE...

The current directory is that in which somebody would have opened the notebook.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from recovery.audit.cluster import open_spark
from recovery.audit.work import carry_out


def code_of(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


if __name__ == "__main__":
    with open_spark(carry_out, slots=2):
        namespace: dict[str, Any] = {}
        with redirect_stdout(sys.stderr):
            for number, code in enumerate(code_of(Path(sys.argv[1]))):
                exec(compile(code, f"cell {number}", "exec"), namespace)
        tables = {name: [row.asDict() for row in namespace[name].collect()] for name in sys.argv[2:]}
        sys.stdout.write(json.dumps(tables, default=str))
