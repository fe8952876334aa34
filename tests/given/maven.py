"""Files of Maven Central, which `mvn` fetches once into its own cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

FETCH_S = 300


class NotFetchedError(Exception):
    """It is not on this machine, and cannot be fetched."""


def fetched(group: str, name: str, version: str, kind: str, classifier: str = "") -> Path:
    """Returns the file. `kind`: its suffix, such as jar. Raises `NotFetchedError`."""
    file = f"{name}-{version}{'-' + classifier if classifier else ''}.{kind}"
    path = Path.home() / ".m2/repository" / group.replace(".", "/") / name / version / file
    if path.exists():
        return path
    if (maven := shutil.which("mvn")) is None:
        raise NotFetchedError(f"{file} is not in ~/.m2, and there is no mvn to fetch it")
    artifact = f"{group}:{name}:{version}:{kind}{':' + classifier if classifier else ''}"
    command = [maven, "-q", "-B", "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    if not path.exists():
        raise NotFetchedError(f"mvn did not fetch {artifact}: {ended.stdout[-300:]}")
    return path
