"""A field of metadata is one row: all else follows. Rows are planted, and nobody has written a line for them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CARRIERS = (
    "tests/contracts/test_metadata_fields.py", "tests/recovery/cli/test_metadata_fields.py", "tests/tiered/test_metadata.py",
    "tests/tiered/exports/test_importing.py::test_the_objects_of_a_bucket_of_gcs",
)  # fmt: skip
"""The tests that show of each row that it is carried, whatever rows there are; and those of the stored bytes."""


@pytest.mark.slow
def test_a_planted_row_is_carried_by_every_backend_header_column_and_option() -> None:
    """In one process: each would load the product and start the servers again."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "tests.given.planted_field", "-p", "no:cacheprovider", *CARRIERS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    passed = re.findall(r"^(\S+) PASSED", done.stdout, re.MULTILINE)
    assert done.returncode == 0 and all(any(each.startswith(carrier) for each in passed) for carrier in CARRIERS), \
        done.stdout[-6000:] + done.stderr[-2000:]
