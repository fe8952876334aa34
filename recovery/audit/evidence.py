"""Whether what a run found may be acted on. Everything that is read back is checked, and nothing is believed.

    evidence(directory, now_ns, inputs) -> Evidence(manifest, complete, doubts)

Each doubt is one sentence. One doubt is enough: then nothing may be deleted because of this run. `tiered audit show`
prints the doubts, and a deletion refuses to begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from changelog.base.errors import ConfigurationError
from recovery.audit.ledger import RunDirectory
from recovery.audit.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run's directory proves.

    `complete`: the run has ended, every range was audited, and nothing makes the findings doubtful. `doubts`: why it is
    not complete, one sentence each; empty if and only if it is complete.
    """

    manifest: Manifest
    complete: bool
    doubts: tuple[str, ...]


def evidence(directory: RunDirectory, now_ns: int, inputs: Mapping[str, str] | None = None) -> Evidence:
    """Checks a run, and says what may be doubted. It reads the manifest and every file of findings to its end.

    It blocks, so call it in a thread.

    `now_ns`: the time in nanoseconds since 1970, by the service's clock if the caller can ask it. `inputs`: what the
    caller's settings name (`recovery.audit.plan.inputs_of`). If they are given, a run of another store is doubtful.

    Raises `ConfigurationError` if there is no run in the directory or if newer or older software wrote it,
    `CorruptRecordError` if its manifest cannot be read, and `UnavailableError` if the directory cannot be read now. Then
    nothing is known about the run.
    """
    manifest = directory.read_manifest()
    if manifest is None:
        raise ConfigurationError(f"{directory.uri} holds no run of an audit: give the directory that `tiered audit run` named")
    doubts = manifest.doubts
    return Evidence(manifest, manifest.complete and not doubts, doubts)
