"""`python -m emulators.release.bill`: the bill of materials of the wheel in dist/, in CycloneDX's form (an SBOM).

It has each distribution that the wheel brings on this Python and platform, in the versions of constraints.txt, and as
properties `tiered:extra` the extras that bring it; `-` stands for the wheel without any. cyclonedx-py makes it from an
environment into which the wheel was installed with all extras for users. That is held beside what pip resolves for
each extra alone, which is another program and another way. It names the wheel by its SHA-256.

Exit codes: 0: it is in dist/. 1: it is wrong or cannot be made; then dist/ has none.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulators.release.checkout import ROOT, project
from emulators.release.tools import (
    CONSTRAINTS,
    DIST,
    PLACE,
    ToolError,
    built,
    command,
    environment,
    plain_environment,
    sha256,
    tools,
    write_sums,
)

FOR_CONTRIBUTORS = frozenset({"bench", "dev", "docs"})
WITHOUT = "-"
EXTRA = "tiered:extra"
VALID = (
    "import sys; from cyclonedx.validation.json import JsonStrictValidator; from cyclonedx.schema import SchemaVersion;"
    "wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()); sys.exit(str(wrong) if wrong else 0)"
)
LIST = "import importlib.metadata as all; print('\\n'.join(f\"{each.name}=={each.version}\" for each in all.distributions()))"

Versions = dict[str, str]
"""Of each distribution, by its name as indexes compare it, the version."""


def main() -> int:
    for old in DIST.glob("*.cdx.json"):
        old.unlink()
        write_sums(DIST)
    try:
        found = make(built("*.whl"))
    except (ToolError, OSError) as failed:
        found = [str(failed)]
    sys.stdout.writelines(f"{sentence}\n" for sentence in found)
    return 1 if found else 0


def make(wheel: Path) -> list[str]:
    """Puts the bill of `wheel` into dist/. Returns what is wrong with it; then it is not there. Raises `ToolError`."""
    table = project(ROOT)
    extras = sorted(table["optional-dependencies"].keys() - FOR_CONTRIBUTORS)
    whole = environment("installed", [f"{wheel}[{','.join(extras)}]"], of=sha256(wheel))
    brought = {}
    for extra in (WITHOUT, *extras):
        brought[extra] = resolved(wheel, extra)
        sys.stdout.write(f"{extra}: brings {len(brought[extra])} distributions\n")
        sys.stdout.flush()
    drawn = PLACE / f"{wheel.name.removesuffix('-py3-none-any.whl')}.cdx.json"
    options = ("--output-reproducible", "--mc-type", "library", "--pyproject", ROOT / "pyproject.toml")
    command(tools() / "cyclonedx-py", "environment", *options, "-o", drawn, whole / "bin" / "python", env=plain_environment())
    wanted = [*table["dependencies"], *(text for extra in extras for text in table["optional-dependencies"][extra])]
    bill = completed(json.loads(drawn.read_text("utf-8")), brought, {named(text) for text in wanted}, sha256(wheel))
    drawn.write_text(json.dumps(bill, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    command(tools() / "python", "-c", VALID, drawn)
    found = wrong(json.loads(drawn.read_text("utf-8")), installed(whole), brought, sha256(wheel))
    if not found:
        drawn.replace(DIST / drawn.name)
        write_sums(DIST)
        sys.stdout.write(f"dist/{drawn.name}: {len(bill['components'])} distributions of {len(extras)} extras\n")
        sys.stdout.write(f"not proved: what the wheel brings on other platforms than {here()}\n")
    return found


def here() -> str:
    """Returns the Python and the platform that a bill is of."""
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def canonical(name: str) -> str:
    """Returns a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirement: str) -> str:
    """Returns the name of the distribution that a requirement is of."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return canonical(found[0]) if found else ""


def resolved(wheel: Path, extra: str) -> Versions:
    """Returns what pip would install for one extra where nothing is, without the wheel itself. Raises `ToolError`."""
    wanted = str(wheel) if extra == WITHOUT else f"{wheel}[{extra}]"
    report = PLACE / "resolved.json"
    options = ("--quiet", "--dry-run", "--ignore-installed", "--report", report, "-c", CONSTRAINTS)
    command(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options, wanted, cwd=PLACE)
    return _without_itself((each["metadata"]["name"], each["metadata"]["version"]) for each in json.loads(report.read_text())["install"])


def installed(environment: Path) -> Versions:
    """Returns what an environment has, without the wheel itself. Raises `ToolError`."""
    lines = command(environment / "bin" / "python", "-c", LIST, cwd=PLACE, env=plain_environment()).splitlines()
    return _without_itself(line.partition("==")[::2] for line in lines)


def _without_itself(pairs: Any) -> Versions:
    return {canonical(name): version for name, version in pairs if canonical(name) != "tiered"}


def completed(bill: dict[str, Any], brought: Mapping[str, Versions], direct: set[str], digest: str) -> dict[str, Any]:
    """Returns the bill with the extras of each component, the wheel's SHA-256, and what it is of.

    `direct`: what the project itself asks for. cyclonedx-py counts the extras for contributors, too.
    """
    for component in bill["components"]:
        name = canonical(component["name"])
        by = [{"name": EXTRA, "value": extra} for extra, versions in brought.items() if name in versions]
        component["properties"] = [*component.get("properties", []), *by]
    of = bill["metadata"]["component"]
    of["hashes"] = [{"alg": "SHA-256", "content": digest}]
    of["properties"] = [{"name": "tiered:resolved-on", "value": here()}]
    for edges in bill["dependencies"]:
        if edges["ref"] == of["bom-ref"]:
            edges["dependsOn"] = [ref for ref in edges.get("dependsOn", []) if named(ref) in direct]
    return bill


def wrong(bill: dict[str, Any], there: Versions, brought: Mapping[str, Versions], digest: str) -> list[str]:
    """Returns a sentence for each thing that a bill says falsely or leaves out. `there`: what was installed."""
    listed: Versions = {}
    found = []
    for component in bill["components"]:
        name = canonical(component["name"])
        found += [f"{name} is in the bill twice"] if name in listed else []
        listed[name] = component["version"]
        by = {each["value"] for each in component.get("properties", []) if each["name"] == EXTRA}
        expected = {extra for extra, versions in brought.items() if name in versions}
        found += [] if expected else [f"{name} is in the bill, and no extra brings it"]
        found += [f"{name} is said to come with {sorted(by)}, and comes with {sorted(expected)}"] if by != expected else []
    for name in sorted(there.keys() | listed.keys()):
        if listed.get(name) != there.get(name):
            is_there = there.get(name, "absent")
            found.append(f"{name} is {listed.get(name, 'absent')} in the bill, and {is_there} where the wheel is installed")
    for extra, versions in brought.items():
        found += [
            f"{name} {version} comes with {extra!r}, and the bill has {listed.get(name, 'none')}"
            for name, version in versions.items() if listed.get(name) != version
        ]
    if bill["metadata"]["component"].get("hashes") != [{"alg": "SHA-256", "content": digest}]:
        found.append("the bill is not of this wheel")
    return found


if __name__ == "__main__":
    sys.exit(main())
