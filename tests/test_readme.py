"""What the README shows is run, so that it stays true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from recovery.cli_app import EXIT_CODES, app
from tiered import load_settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_librarys_ten_lines_run(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block("python")], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'...any size: bytes, a path, a file, an async iterator...'\n"
    assert done.stderr == ""


def test_the_settings_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "tiered.yaml").write_text(block("yaml"))
    assert load_settings(tmp_path / "tiered.yaml").changelog == "sqlite"


def test_every_command_and_exit_code_is_named() -> None:
    commands = [str(each.name or each.callback.__name__) for each in app.registered_commands if each.callback]
    groups = [str(each.name) for each in app.registered_groups]
    assert len(commands) >= 7 and groups == ["log", "config"]
    for command in commands + groups:
        assert re.search(rf"`tiered [^`]*\b{command}\b", README), command
    for _, code in EXIT_CODES:
        assert f"\n| {code} | " in README


def test_links_lead_to_files() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
