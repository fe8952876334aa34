"""docs/tutorial.md is run from its first line to its last, and prints what it says that it prints."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.given.repository import ROOT

PAGE = ROOT / "docs/tutorial.md"
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(python|text)\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_every_step_prints_what_the_tutorial_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "tutorial"}
    printed = ""
    for number, (language, text) in enumerate(BLOCKS):
        if language == "text":
            assert printed == text, f"block {number} of the page"
            printed = ""
        else:
            assert printed == "", f"block {number - 1} of the page prints, and nothing says what"
            with redirect_stdout(StringIO()) as output:
                exec(compile(text, f"{PAGE.name}, block {number}", "exec"), names)
            printed = output.getvalue()
    assert printed == ""
    assert [language for language, _ in BLOCKS].count("text") > 10
