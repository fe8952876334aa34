"""Histories given to Porcupine, and which objects it refused.

Where it cannot be built, the test is skipped; where CI is set, it fails.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import anyio
import pytest

from emulators.go import NotBuiltError
from emulators.histories.judged import judge

_REFUSED = re.compile(r'^refused: .* the calls of "(.*)"$', re.MULTILINE)


def judged(history: Path) -> tuple[int, str]:
    """Returns the exit code and what was said."""
    try:
        return anyio.run(judge, [history])
    except NotBuiltError as missing:
        sentence = f"no judge of histories: {missing}"
        if os.environ.get("CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)


def refused(history: Path) -> set[str]:
    """Returns the objects whose calls no order explains."""
    code, said = judged(history)
    found = set(_REFUSED.findall(said))
    assert code == bool(found), said
    return found
