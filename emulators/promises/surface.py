"""What a source tree offers besides Python names: settings, commands, exit codes, metrics, events, JSON, formats.

    PYTHONSAFEPATH=1 PYTHONPATH=TREE python emulators/promises/surface.py TREE [--long]

It prints `{name: {facet: value}}` as JSON. It runs in a process of its own, because it imports the packages of the
tree, and it imports nothing else of the project: today's copy describes the last release, too. If code moves, it looks
in both places until the next release. What a page lists and a test holds to the code is read from the page.

The facets, and what of them is a break, are in `breaks.py`: `type`, `default`, `from` and `to` (bounds, and `from` also
what a version must be at least), `choices`, `required`, `value`.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
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
    "mark of a bucket's owner": "tiered.buckets.owners:_VERSION_NOW or tiered.protocol.owners:_VERSION_NOW",
    "note of lost reads": "tiered.notes.dangling:VERSION or tiered.protocol.dangling:VERSION",
    "page token": "tiered.protocol.listing:_TOKEN_FORMAT",
    "note of audits": "recovery.last_audit:VERSION",
    "statistics": "recovery.statistics.persisted:VERSION",
    "history of the status page": "recovery.http.history:VERSION",
    "ledger of an audit": "recovery.audit.files.ledger:SCHEMA_VERSION",
    "ledgers that are read": "recovery.audit.files.ledger:READ_VERSIONS",
    "journal of a deletion": "recovery.audit.deleting.journal:VERSION",
    "journals that are read": "recovery.audit.deleting.journal:READ_VERSIONS",
    "what a deletion restored": "recovery.audit.deleting.loss_notes:VERSION",
    "manifest of an audit": "recovery.audit.manifest:VERSION",
    "report of tiered prove": "recovery.prove.report:VERSION",
    "table of all objects": "recovery.sources.parquet:VERSION",
    "export of objects": "tiered.exports.manifest:VERSION",
}
"""Where the version of each stored thing is, or was."""

VARIABLES = ("ENV_PREFIX", "ENV_CONFIG", "BIGTABLE_EMULATOR", "GCS_EMULATOR")
"""Where the names of variables of the environment are; that of a setting follows from the setting's."""
FOR_DEVELOPERS = ("demo", "dev", "docs", "test")


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
        kind = each.type_descriptor.annotation
        choices = _choices(kind)
        told = "flag" if getattr(each, "is_flag", False) else "choice" if choices else getattr(kind, "__name__", str(kind))
        facets = {"required": each.required, "type": told, "values": str(each.nargs), "repeated": str(getattr(each, "multiple", False))}
        if choices:
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


def _choices(kind: Any) -> list[str]:
    return [str(each.value) for each in kind] if inspect.isclass(kind) and issubclass(kind, Enum) else []


def _exit_codes(page: str) -> Surface:
    for error, section in re.findall(r"^### (\w+Error)\n(.*?)(?=^##)", page, re.DOTALL | re.MULTILINE):
        if code := re.search(r"\*\*Exit code:\*\* (\d+)", section):
            yield f"exit code of {error}", {"value": code[1]}
    for code in re.findall(r"^\| (\d+) \| .* \|$", page, re.MULTILINE):
        yield f"exit code {code}", {}


def _metrics(page: str) -> Surface:
    """The label values are in the code; docs/metrics.md tells of them in prose."""
    from recovery import metrics, states
    from tiered.telemetry.metrics import COUNTED

    for name, kind, unit, labels in re.findall(r"\| `(tiered_\w+)` \| (\w+) \| ([\w ]+) \| ([^|]*)\| [^|]+\|", page):
        yield f"metric {name}", {"type": kind, "unit": unit, "choices": re.findall(r"\w+", labels)}
    for each in COUNTED.values():
        if each.kinds:
            yield f"metric {each.name}_total: {each.label}", {"choices": sorted(each.kinds)}
    for name, choices in (
        ("sources", metrics.SOURCES), ("verdicts", states.words(states.PACES)), ("levels", states.Level),
        ("feed_states", states.words(states.FEED_STATES)),
    ):  # fmt: skip
        yield f"metrics of the status: {name}", {"choices": list(choices)}


def _events(page: str) -> Surface:
    for name, fields in re.findall(r"\| `(\w+)` \| \w+(?:, \w+)* \| ([^|]*) \| [^|]+ \|", page):
        yield f"event {name}", {"choices": re.findall(r"`(\w+)`", fields)}


def _values(places: list[str]) -> Iterator[Any]:
    for place in places:
        module, _, constant = place.partition(":")
        with suppress(ModuleNotFoundError):
            yield getattr(import_module(module), constant)


def _formats() -> Surface:
    for name, places in FORMATS.items():
        value = next(_values(places.split(" or ")), None)
        if value is None:  # an older release has no such thing; one that has gone from this one is missed by the comparison
            continue
        several = isinstance(value, tuple)
        yield f"format {name}", {"choices": list(map(str, value))} if several else {"value": str(value)}


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
