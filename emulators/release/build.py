"""`python -m emulators.release.build`: dist/ with wheel and source distribution, if three builds give the same bytes.

    first     from a clone, as anybody would
    second    from another clone: files of another day, another place, umask 077, another time zone, language, home and
              seed of hashes; by another Python, if this machine has one
    third     from the first one's source distribution alone

All three use the hatchling of constraints.txt, and no SOURCE_DATE_EPOCH: with one, hatchling writes that time into the
files, so the bytes are others. Whoever wants the same bytes does likewise. Python's zlib compresses; one that
compresses otherwise gives other bytes with the same content.

Only what is committed is built. Exit codes: 0: dist/ is new. 1: they differ, or a build failed; dist/ is as it was.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from emulators.release.checkout import ROOT, NotReadyError, clean_commit
from emulators.release.tools import DIST, SUMS, ToolError, command, environment, plain_environment, sha256, tools, write_sums

BUILD_WITH = ("hatchling", "hatch-fancy-pypi-readme")
OTHER_DAY_S = 1_000_000_000     # 2001-09-09, in Unix seconds
PYTHONS = ("3.14", "3.13", "3.12", "3.11")


def main() -> int:
    try:
        found = make(clean_commit(ROOT))
    except (NotReadyError, ToolError, OSError) as failed:
        found = [str(failed)]
    sys.stdout.writelines(f"{sentence}\n" for sentence in found)
    if not found:
        sys.stdout.writelines(f"{sha256(file)}  dist/{file.name}\n" for file in sorted(DIST.iterdir()) if file.name != SUMS)
    return 1 if found else 0


def make(commit: str) -> list[str]:
    """Builds `commit` into dist/. Returns how the builds differ; then dist/ is as it was. Raises `ToolError`."""
    ours = tools() / "python"
    other = another_python()
    if other is None:
        sys.stdout.write("not proved: that another version of Python builds the same bytes, because none is here\n")
    theirs = ours if other is None else environment("other-python", BUILD_WITH, other) / "bin" / "python"
    plain = plain_environment()
    with TemporaryDirectory(prefix="tiered-release-") as aside:
        at = Path(aside)
        odd = odd_environment(plain, at / "home")
        first = build(ours, clone(commit, at / "first"), at / "built-1", plain)
        moved = clone(commit, at / "a second place" / "of it", umask=0o077)
        change_times(moved)
        second = build(theirs, moved, at / "built-2", odd, umask=0o077)
        third = build(ours, unpacked(first, at / "source"), at / "built-3", plain)
        found = differences(first, second, "built elsewhere") + differences(first, third, "built from its source distribution")
        if not found:
            replace(DIST, first)
    return found


def replace(dist: Path, built: Path) -> None:
    """Makes `dist` a copy of `built` with its sums. A full disk leaves it as it was. Raises `OSError`."""
    new = dist.parent / "build" / "release" / "dist"
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(built, new)
    write_sums(new)
    shutil.rmtree(dist, ignore_errors=True)
    new.rename(dist)


def another_python() -> Path | None:
    """Returns a Python that the project supports and that is not of this version: from the PATH, or from pyenv."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in PYTHONS:
        places = [shutil.which(f"python{version}"), *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
        for place in places:
            if version != ours and place is not None and _is(place, version):
                return Path(place)
    return None


def _is(python: str | Path, version: str) -> bool:
    """A shim of pyenv on the PATH may not run."""
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def odd_environment(plain: Mapping[str, str], home: Path) -> dict[str, str]:
    """Returns variables that a build must not heed. `home`: is made."""
    home.mkdir()
    return {**plain, "TZ": "Pacific/Chatham", "LC_ALL": "C", "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "12345", "HOME": str(home)}


def clone(commit: str, into: Path, umask: int = -1) -> Path:
    """Clones this repository at `commit`. Raises `ToolError`."""
    command("git", "clone", "--quiet", "--no-checkout", ROOT, into, umask=umask)
    command("git", "-C", into, "checkout", "--quiet", "--detach", commit, umask=umask)
    return into


def change_times(tree: Path) -> None:
    """Gives each file of a tree another day."""
    for number, path in enumerate(sorted(tree.rglob("*"))):
        os.utime(path, (OTHER_DAY_S + number, OTHER_DAY_S + number), follow_symlinks=False)


def build(python: Path, source: Path, into: Path, env: Mapping[str, str], umask: int = -1) -> Path:
    """Builds both from `source` with the hatchling of `python`. Returns `into`. Raises `ToolError`."""
    command(python, "-m", "hatchling", "build", "-d", into, cwd=source, env=env, umask=umask)
    return into


def unpacked(built: Path, into: Path) -> Path:
    """Returns the tree of the source distribution that is in `built`."""
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(into, filter="data")
    [tree] = into.iterdir()
    return tree


def differences(first: Path, second: Path, how: str) -> list[str]:
    """Returns a sentence for each file of two builds that is not the same in both. `how` the second was built."""
    names = sorted({file.name for folder in (first, second) for file in folder.iterdir()})
    found = []
    for name in names:
        ones = [folder / name for folder in (first, second)]
        if not all(one.is_file() for one in ones):
            found.append(f"{name} is in one build alone; the other one was {how}")
        elif ones[0].read_bytes() != ones[1].read_bytes():
            old, new = (members(one) for one in ones)
            apart = sorted(member for member in old.keys() | new.keys() if old.get(member) != new.get(member))
            where = ", ".join(apart[:10]) if apart else "in no member: compression, order, or bytes before or after them"
            found.append(f"{name} has other bytes when {how}: {where}")
    return found if names else ["nothing was built"]


def members(archive: Path) -> dict[str, tuple[object, ...]]:
    """Returns of each member of a wheel or a source distribution what it holds, its time, and its mode."""
    if archive.suffix == ".whl":
        with ZipFile(archive) as opened:
            return {each.filename: (opened.read(each), each.date_time, each.external_attr) for each in opened.infolist()}
    found: dict[str, tuple[object, ...]] = {}
    with tarfile.open(archive) as tar:
        for entry in tar:
            held = tar.extractfile(entry)
            found[entry.name] = (held.read() if held else None, entry.mtime, entry.mode, entry.uid, entry.gid, entry.uname, entry.gname)
    return found


if __name__ == "__main__":
    sys.exit(main())
