"""What a source tree offers besides Python names: settings, commands, exit codes, metrics, events, JSON, formats.

    PYTHONSAFEPATH=1 PYTHONPATH=TREE python emulators/promises/surface.py TREE [--long]

It prints `{name: {facet: value}}` as JSON. It runs in a process of its own, because it imports the packages of the
tree, and it imports nothing else of the project: today's copy describes the last release, too. If code moves, it looks
in both places until the next release. What a page lists and a test holds to the code is read from the page.

The facets, and what of them is a break, are in `breaks.py`: `type`, `default`, `from` and `to` (bounds, and `from` also
what a version must be at least), `choices`, `required`, `value`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import Any

PACKAGES = ("changelog", "tiered", "recovery")

Surface = Iterator[tuple[str, dict[str, Any]]]

FORMATS = {
    "database of a directory": "changelog.sqlite.schema:FORMAT_VERSION",
    "file of a blob": "tiered.embedded.file:_VERSION",
    "schema in PostgreSQL": "tiered.postgres.schema:VERSION",
    "mark of a bucket's owner": "tiered.protocol.owners:_VERSION_NOW",
    "note of lost reads": "tiered.protocol.dangling:VERSION",
    "page token": "tiered.protocol.listing:_TOKEN_FORMAT",
    "note of audits": "recovery.last_audit:VERSION",
    "statistics": "recovery.statistics.persisted:VERSION",
    "history of the status page": "recovery.http.history:VERSION",
    "feed of findings": "recovery.audit.reporting.findings_feed:VERSION",
    "ledger of an audit": "recovery.audit.files.ledger:SCHEMA_VERSION",
    "ledgers that are read": "recovery.audit.files.ledger:READ_VERSIONS",
    "journal of a deletion": "recovery.audit.deleting.journal:VERSION",
    "journals that are read": "recovery.audit.deleting.journal:READ_VERSIONS",
    "what a deletion restored": "recovery.audit.deleting.restored:VERSION",
    "manifest of an audit": "recovery.audit.manifest:VERSION",
    "table of all objects": "recovery.sources.parquet:VERSION",
    "export of objects": "tiered.exports.manifest:VERSION",
}
"""Where the version of each stored thing is."""

NO_FORMATS = {
    "changelog.postgres.pool:SERVER_VERSION_MIN", "changelog.sqlite.checkpoints:SQLITE_VERSION", "changelog.key_values:VERSION_MAX",
    "tiered.postgres.schema:SET_VERSION", "tiered.postgres.schema:READ_VERSION", "tiered.postgres.schema:_VERSION_1",
    "recovery.last_audit:VERSION_OF_ONE", "recovery.audit.running.java:VERSION_MIN", "recovery.audit.inventory.s3:OF_VERSIONS",
    "recovery.audit.inventory.s3:VERSION", "tiered.protocol.owners:_VERSION",
    "recovery.audit.deleting.restored:_SCHEMA_VERSION",
}
"""Constants of such names that are no version of a stored thing. A test finds others."""

VARIABLES = ("ENV_PREFIX", "ENV_CONFIG", "BIGTABLE_EMULATOR", "GCS_EMULATOR")
"""Where the names of variables of the environment are; that of a setting follows from the setting's."""
LABELS = ("SOURCES", "VERDICTS", "LEVELS", "FEED_STATES")
FOR_DEVELOPERS = ("bench", "docs", "dev")


def surface(root: Path) -> Surface:
    yield from _settings()
    yield from _commands()
    yield from _exit_codes((root / "docs/failures.md").read_text("utf-8"))
    yield from _metrics((root / "docs/metrics.md").read_text("utf-8"))
    yield from _events((root / "docs/logs.md").read_text("utf-8"))
    for address in re.findall(r"^\| `(/\S*)` \|", (root / "docs/http.md").read_text("utf-8"), re.MULTILINE):
        yield f"address {address}", {}
    yield from _formats()
    yield from _packaging((root / "pyproject.toml").read_bytes())


def _settings() -> Surface:
    from tiered import settings

    schema = settings.Settings.model_json_schema()
    yield from _section("", schema, schema.get("$defs", {}))
    for name in VARIABLES:
        yield f"variable {getattr(settings, name)}", {}


def _section(prefix: str, section: Mapping[str, Any], definitions: Mapping[str, Any]) -> Surface:
    for name, field in section["properties"].items():
        forms = [definitions[each["$ref"].rpartition("/")[2]] if "$ref" in each else each for each in field.get("anyOf", [field])]
        facets: dict[str, Any] = {"required": name in section.get("required", ())}
        facets["choices"] = sorted({str(each.get("const", each.get("type", "any"))) for each in forms} - {"null"})
        if values := sorted(str(value) for each in forms for value in each.get("enum", ())):
            facets["choices"] = values
        for facet, keys in (("from", ("minimum", "exclusiveMinimum", "ge", "gt")), ("to", ("maximum", "exclusiveMaximum", "le", "lt"))):
            if bounds := [each[key] for each in forms for key in keys if key in each]:
                facets[facet] = min(bounds) if facet == "from" else max(bounds)
        sections = [each for each in forms if "properties" in each]
        if "default" in field and not sections:
            facets["default"] = json.dumps(field["default"])
        yield f"setting {prefix}{name}", facets
        for each in sections:
            yield from _section(f"{prefix}{name}.", each, definitions)
        if isinstance(of_each := field.get("additionalProperties"), dict) and "$ref" in of_each:
            yield from _section(f"{prefix}{name}.NAME.", definitions[of_each["$ref"].rpartition("/")[2]], definitions)


def _commands() -> Surface:
    from typer.main import get_command

    from recovery.cli.app import app

    yield from _command("tiered", get_command(app))


def _command(name: str, command: Any) -> Surface:
    yield f"command {name}", {}
    position = 0
    for each in command.params:
        if getattr(each, "hidden", False):
            continue
        facets = {"required": each.required, "type": "flag" if getattr(each, "is_flag", False) else _type(each)}
        facets |= {"values": str(each.nargs), "repeated": str(getattr(each, "multiple", False))}
        if choices := _choices(each):
            facets["choices"] = choices
        if isinstance(each.default, str | int | float | bool | Enum):
            facets["default"] = str(each.default.value if isinstance(each.default, Enum) else each.default)
        facets |= {facet: bound for facet, key in (("from", "min"), ("to", "max")) if (bound := getattr(each, key, None)) is not None}
        if each.param_type_name == "argument":
            position += 1
            yield f"command {name}: argument {position}", facets
        else:
            for option in (*each.opts, *each.secondary_opts):
                yield f"command {name} {option}", facets
    for sub in getattr(command, "commands", {}):
        yield from _command(f"{name} {sub}", command.commands[sub])


def _type(parameter: Any) -> str:
    if _choices(parameter):
        return "choice"
    descriptor = getattr(parameter, "type_descriptor", None)
    return str(parameter.type.name) if descriptor is None else getattr(descriptor.annotation, "__name__", str(descriptor.annotation))


def _choices(parameter: Any) -> list[str]:
    descriptor = getattr(parameter, "type_descriptor", None)
    if descriptor is None:
        return list(map(str, getattr(parameter.type, "choices", ())))
    kind = descriptor.annotation
    return [str(each.value) for each in kind] if inspect.isclass(kind) and issubclass(kind, Enum) else []


def _exit_codes(page: str) -> Surface:
    for error, section in re.findall(r"^### (\w+Error)\n(.*?)(?=^##)", page, re.DOTALL | re.MULTILINE):
        if code := re.search(r"\*\*Exit code:\*\* (\d+)", section):
            yield f"exit code of {error}", {"value": code[1]}
    for code in re.findall(r"^\| (\d+) \| .* \|$", page, re.MULTILINE):
        yield f"exit code {code}", {}


def _metrics(page: str) -> Surface:
    """The label values are in the code; docs/metrics.md tells of them in prose."""
    from recovery import metrics as of_status
    from tiered.telemetry.metrics import COUNTED

    for name, kind, unit, labels in re.findall(r"\| `(tiered_\w+)` \| (\w+) \| ([\w ]+) \| ([^|]*)\| [^|]+\|", page):
        yield f"metric {name}", {"type": kind, "unit": unit, "choices": re.findall(r"\w+", labels)}
    for each in COUNTED.values():
        if each.kinds:
            yield f"metric {each.name}_total: {each.label}", {"choices": sorted(each.kinds)}
    for name in LABELS:
        yield f"metrics of the status: {name.lower()}", {"choices": list(getattr(of_status, name))}


def _events(page: str) -> Surface:
    for name, fields in re.findall(r"\| `(\w+)` \| \w+(?:, \w+)* \| ([^|]*) \| [^|]+ \|", page):
        yield f"event {name}", {"choices": re.findall(r"`(\w+)`", fields)}


def _formats() -> Surface:
    for name, place in FORMATS.items():
        module, _, constant = place.partition(":")
        value = getattr(import_module(module), constant)
        several = isinstance(value, tuple)
        yield f"format {name}", {"choices": list(map(str, value))} if several else {"value": str(value)}


def unknown_versions(root: Path, known: Collection[str]) -> Iterator[str]:
    """Constants of modules that are named as a version is, and that are not in `known`."""
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for statement in ast.parse(path.read_text("utf-8")).body if "VERSION" in path.read_text("utf-8") else ():
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            for name in (each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)):
                if re.fullmatch(r"([A-Z_]*_)?VERSIONS?(_[A-Z0-9_]+)?", name) and f"{module}:{name}" not in known:
                    yield f"{module}:{name}"


def _packaging(pyproject: bytes) -> Surface:
    project = tomllib.loads(pyproject.decode())["project"]
    lowest = re.search(r">=3\.(\d+)", project["requires-python"])
    yield "Python 3", {"from": int(lowest[1]) if lowest else 0}
    for extra in project["optional-dependencies"]:
        if extra not in FOR_DEVELOPERS:
            yield f"extra {extra}", {}
    for group, entries in {"console_scripts": project["scripts"], **project.get("entry-points", {})}.items():
        for entry in entries:
            yield f"entry point {group}: {entry}", {}


def _belongs_to(root: Path) -> None:
    """Another tree's packages would be described without a word."""
    for package in PACKAGES:
        found = Path(str(import_module(package).__file__))
        if not found.is_relative_to(root.resolve()):
            sys.exit(f"{package} was imported from {found}, and not from {root}: put {root} first in PYTHONPATH")


if __name__ == "__main__":
    tree = Path(sys.argv[1])
    _belongs_to(tree)
    shapes = run_path(str(Path(__file__).with_name("shapes.py")))["shapes"]
    json.dump({**dict(surface(tree)), **dict(shapes(long="--long" in sys.argv))}, sys.stdout)
