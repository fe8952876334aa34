"""`tiered check` of an embedded store: its directory, its database and its blobs' directory, tried out as a store would.

A look opens what is there and writes nothing but a file that it removes again. *Failure* of a part is a problem among the findings.
"""

from __future__ import annotations

from pathlib import Path

from changelog.database import Database
from changelog.errors import TieredError
from changelog.runtime import Runtime
from tiered.filesystem import FileBlobs
from tiered.findings import Finding, Kind


async def inspect_directory(directory: Path, database: str, changelog: str | None, runtime: Runtime) -> list[Finding]:
    """`database`: the name of its file, which must exist. `changelog`: as in the settings."""
    findings = []
    try:
        async with Database.open(directory / database, runtime) as opened:
            faults = [fault for (fault,) in await opened.read(lambda connection: connection.execute("PRAGMA quick_check").fetchall())]
        if faults == ["ok"]:
            findings.append(Finding(Kind.OK, f"{directory / database} can be written and is whole"))
        else:
            first = " ".join(faults[0].split())
            findings.append(Finding(Kind.PROBLEM, f"{directory / database} is damaged: restore it from a backup ({first})"))
    except TieredError as error:
        findings.append(Finding(Kind.PROBLEM, str(error)))
    try:
        await FileBlobs.open_directory(directory, runtime, verify=True)
        findings.append(Finding(Kind.OK, f"{directory} can hold blobs"))
    except TieredError as error:
        findings.append(Finding(Kind.PROBLEM, str(error)))
    if changelog != "sqlite":
        findings.append(Finding(Kind.NOTE, "no changelog is kept, so what a killed process leaves behind stays: set changelog: sqlite"))
    return findings
