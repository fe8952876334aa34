"""Another's package in the place of ours, and what messages say that one should install."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Runs a script that is in this directory, whose modules come first."""
    (directory / "script.py").write_text(program)
    return subprocess.run(
        [sys.executable, "script.py"], cwd=directory, capture_output=True, text=True, timeout=60, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip


@pytest.mark.parametrize("theirs", ["changelog.py", "changelog/__init__.py", "changelog/__init__.py changelog/change.py"])
def test_a_services_own_changelog_broke_the_import_with_a_strange_error(tmp_path: Path, theirs: str) -> None:
    for name in theirs.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import tiered\n" if name == "changelog.py" else "")
    done = run(tmp_path, "import changelog, tiered" if theirs == "changelog.py" else "import tiered")
    found = tmp_path / theirs.split(maxsplit=1)[0]
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == (
        f"ImportError: tiered has a package 'changelog' of its own, and Python found another one in {found}: "
        "rename or uninstall that one, or run where it is not on Python's path"
    )


def test_another_recovery_broke_the_command_and_recovery_inside_a_service(tmp_path: Path) -> None:
    (tmp_path / "recovery.py").write_text("")
    sentence = f"tiered has a package 'recovery' of its own, and Python found another one in {tmp_path / 'recovery.py'}: "
    command = run(tmp_path, "from tiered.__main__ import main; main()")
    cure = "rename or uninstall that one, or run where it is not on Python's path"
    assert (command.returncode, command.stderr) == (3, f"tiered: {sentence}{cure}\n")
    inside = run(
        tmp_path, "import anyio, tiered\nasync def main():\n"
        "    async with tiered.open_storage(tiered.Settings(directory='store'), recover=True):\n        pass\nanyio.run(main)",
    )  # fmt: skip
    assert inside.stderr.splitlines()[-1].startswith(f"ImportError: {sentence}")


def test_a_folder_of_news_fragments_is_no_package_and_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "changelog").mkdir()
    (tmp_path / "changelog" / "1.md").write_text("news")
    assert run(tmp_path, "import tiered").returncode == 0


def test_the_command_starts_by_its_door(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tiered", "--help"], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert "Usage: tiered" in done.stdout


def test_nobody_is_told_to_install_what_no_index_has() -> None:
    """Who reads a message has the package, to which pip adds an extra. Who reads a page may have none."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    told = [
        f"{name}: {found[0]}" for name in files
        if name.endswith((".py", ".md", ".ipynb", ".yaml", ".html", ".js", "Dockerfile")) and not name.startswith("docs/decisions/")
        for extra in ["" if name.startswith(("tiered/", "changelog/", "recovery/", "tests/")) else r"\[[a-z{},]+\]|"]
        for found in [re.search(rf"install[^\n]*\s['\"]?tiered({extra}==|\s*$)", (ROOT / name).read_text(), re.MULTILINE)]
        if found is not None
    ]
    assert told == []
