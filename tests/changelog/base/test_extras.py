"""How to install an extra; and that no line of the tree tells anybody to ask an index for this software."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

from changelog.base.extras import installing
from tests.given.repository import ROOT

NAME = "tiered"
TOOL, VERB = r"\b(?:pip[x3]?|uvx?|poetry|conda|pdm|rye)\b", r"(?:install|add|run|--with|--from)\b"
BY_NAME = re.compile(rf"\b{NAME}\[|{TOOL}[^\n`]*? {VERB}[^\n`|]*?[ '\"]{NAME}(?!'s)(?=[\s'\"`=<>~,;]|$)")
"""An installation by the name alone, with or without extras."""
ITSELF = ("pyproject.toml", "tests/changelog/base/test_extras.py")
"""There an extra names others of the same distribution, which pip has in its hands; and this file."""


def by_name(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if BY_NAME.search(line)]


def test_no_line_of_the_tree_installs_this_software_by_its_name() -> None:
    """No index has it, so whoever registers the name would own who types that line."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    files = [ROOT / name for name in names if name and name not in ITSELF and (ROOT / name).is_file()]
    assert len(files) > 500
    found = {str(file.relative_to(ROOT)): lines for file in files if (lines := by_name(file.read_bytes().decode("utf-8", "replace")))}
    assert found == {}


@pytest.mark.parametrize("line", [
    f"pip install '{NAME}[gcp]'", f"`pip install {NAME}`", f"python -m pip install -U {NAME}", f"uv add {NAME}>=0.1",
    f"uvx --from {NAME} x", f"RUN pip install --no-cache-dir {NAME}==0.1.0", f'wanted = "{NAME}[audit,s3]"', f"pipx install {NAME}",
])
def test_a_line_that_does_is_found(line: str) -> None:
    assert by_name(f"before\n{line}\n") == [line]


@pytest.mark.parametrize("line", [
    "pip install '.[gcp]'", f"pip install {NAME}-0.1.0-py3-none-any.whl", f'pip install "$(echo /wheels/{NAME}-*.whl)[image]"',
    f"/opt/{NAME}/bin/pip install 'PATH[daemon]'", f"pip install . brings the command {NAME}-like", f"`pip install x` | `{NAME}` reads",
])
def test_a_line_that_installs_a_file_or_a_folder_is_none(line: str) -> None:
    assert by_name(line) == []


def test_the_sentence_names_the_checkout_and_the_file_of_the_wheel() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"gcp", "audit"} <= extras.keys()
    assert installing("gcp") == "pip install '.[gcp]' in tiered's checkout (with its wheel: 'FILE.whl[gcp]')"
