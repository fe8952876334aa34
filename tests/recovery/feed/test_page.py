"""docs/feed.md: its sessions print what they say, its table of rules is that of the code, and its Python runs."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import recovery.feed
from recovery.feed import Rule
from recovery.feed.files import FileFormat
from tests.given.command_line import Command
from tests.given.repository import ROOT

PAGE = (ROOT / "docs/feed.md").read_text("utf-8")
FILES: dict[str, str] = dict(re.findall(r"[Ss]ave (?:it|this) as `(\S+)`[^\n]*\n\n```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
SESSIONS: list[str] = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_every_session_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    tiered = Command(tmp_path, store=False)
    (tmp_path / "parts").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "parts/feed.txt").write_text(FILES["feed.txt"])
    commands = [each.partition("\n") for session in SESSIONS for each in re.split(r"^\$ tiered ", session, flags=re.MULTILINE) if each]
    for command, _, printed in commands:
        code = 6 if "sound             no" in printed else 3 if "--at 2" in command else 0
        assert tiered(*command.split(), code=code) + tiered.errors == printed, command
    assert len(commands) > 8 and set(FILES) == {"feed.txt", "more.txt"}


def test_the_python_of_the_page_prints_what_it_says() -> None:
    ((source, printed),) = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    with redirect_stdout(StringIO()) as output:
        exec(compile(source, "feed.md", "exec"), {})
    assert output.getvalue() == printed


def test_the_page_has_every_rule_and_every_form() -> None:
    for rule in Rule:
        assert f"\n| {rule} | {rule.value} |\n" in PAGE
    for form in FileFormat:
        assert f"\n| `{form}` | " in PAGE


def test_the_reference_has_every_public_name() -> None:
    shown = re.findall(r"^<!-- ::: recovery\.feed\.(\w+) .*-->$", (ROOT / "docs/reference/feed.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted(set(recovery.feed.__all__) - {"Message"})
