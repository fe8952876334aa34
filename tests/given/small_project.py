"""A small project of its own, in a repository of its own, that can be released."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

FILES = {
    ".gitignore": "/build/\n/dist/\n__pycache__/\n",
    "pyproject.toml": '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
    '[project]\nname = "small"\nversion = "1.2.0"\nrequires-python = ">=3.11"\n\n[tool.hatch.build]\npackages = ["small"]\n',
    "HISTORY.md": "# History\n\n## 1.2.0 (2026-11-28)\n",
    "README.md": "# small\n",
    "SECURITY.md": "Write to somebody.\n",
    "small/__init__.py": "",
    "small/other.py": "ANSWER = 42\n",
}
OURS = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, env={**os.environ, **OURS}, capture_output=True, text=True, check=True).stdout


def commit(root: Path, **changed: str) -> None:
    """Commits all files. `changed`: new content of files, of which the names have `__` for the dot."""
    for name, content in changed.items():
        (root / name.replace("__", ".")).write_text(content)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "a commit")


def small_project(root: Path) -> Path:
    """Makes it at `root`, committed."""
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    git(root, "init", "--quiet", "--initial-branch", "main")
    commit(root)
    return root
