"""What changed since an earlier run of the same store.

    earlier(directory, manifest, since) -> EarlierRun or None      read when the report is written
    changes(manifest, earlier) -> one line for each class

Without `since`, the youngest run beside this one is taken: a directory in the same directory, on this machine, of the
same store and scope, that ended before this run began. Whatever is not such a run is passed over. A run that is named
must be one, or the sentence says why it is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from changelog.base.errors import ConfigurationError, TieredError
from recovery.audit.files.ledger import MANIFEST, RunDirectory
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Manifest, ManifestTally, differing_inputs
from recovery.audit.reporting.run_verdict import BY_WEIGHT, shown_classes

BESIDE_MAX = 1000
"""So many entries of the directory are looked at. More than that is no directory of runs."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """An earlier run. `where`: its directory."""

    where: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ClassChange:
    """How one class changed: what was found then and now."""

    class_: FindingClass
    before: ManifestTally
    now: ManifestTally


def changes(manifest: Manifest, earlier: Manifest) -> Sequence[ClassChange]:
    """Returns the classes whose number or bytes changed, the most serious first."""
    classes = dict.fromkeys([*shown_classes(manifest), *shown_classes(earlier)])
    none = ManifestTally()
    order = [each for each in BY_WEIGHT if each in classes]
    compared = [ClassChange(each, earlier.totals.get(each, none), manifest.totals.get(each, none)) for each in order]
    return [each for each in compared if each.before != each.now]


def check_since(since: str, inputs: dict[str, str], scope: str, here: str, begun_ns: int | None = None) -> EarlierRun:
    """Returns the run in the directory `since`. Raises `ConfigurationError` if it cannot be compared with this one.

    `here`: the directory of this run. `begun_ns`: when this run began, if an earlier call began it.
    """
    directory = RunDirectory.open(since)
    if directory.uri == here:
        raise ConfigurationError(f"--since {here} is the run itself: give the directory of an earlier run, or leave it out")
    manifest = directory.read_manifest()
    if manifest is None:
        raise ConfigurationError(f"{directory.uri} holds no run of an audit: give --since the directory of an earlier run")
    why = _incomparable(manifest, inputs, scope)
    if why is None and begun_ns is not None and manifest.ended_ns is not None and manifest.ended_ns > begun_ns:
        why = "it ended after this one began"
    if why is not None:
        raise ConfigurationError(
            f"the run in {directory.uri} cannot be compared with this one: {why}; give --since another, or leave it out"
        )
    return EarlierRun(directory.uri, manifest)


def earlier(directory: RunDirectory, manifest: Manifest, since: str | None) -> EarlierRun | None:
    """Returns the run to compare this one with, or None if there is none. It blocks: call it in a thread.

    Raises `ConfigurationError` if `since` is given and cannot be compared.
    """
    if since is not None:
        return check_since(since, manifest.inputs, manifest.scope, directory.uri)
    here = directory.files.local
    if here is None:
        return None
    found = [each for each in _beside(here) if _fits(each.manifest, manifest)]
    return max(found, key=lambda each: each.manifest.ended_ns or 0, default=None)


def _beside(here: Path) -> Iterator[EarlierRun]:
    with suppress(OSError), os.scandir(here.parent) as entries:
        for entry in islice(entries, BESIDE_MAX):
            path = Path(entry.path)
            if path == here or entry.name.startswith((".", "_")) or not (path / MANIFEST).is_file():
                continue
            with suppress(TieredError, OSError):
                manifest = RunDirectory.open(str(path)).read_manifest()
                if manifest is not None:
                    yield EarlierRun(str(path), manifest)


def _fits(found: Manifest, manifest: Manifest) -> bool:
    if found.run == manifest.run or _incomparable(found, manifest.inputs, manifest.scope) is not None:
        return False
    return found.ended_ns is not None and found.ended_ns <= manifest.started_ns


def _incomparable(found: Manifest, inputs: dict[str, str], scope: str) -> str | None:
    if differing_inputs(found.inputs, inputs):
        return "it is of another store"
    if found.scope != scope:
        return f"it looked at {f'names that begin with {found.scope!r}' if found.scope else 'all names'}"
    return "it has not ended" if found.ended_ns is None else None
