"""Whether what a run found may be acted on. Everything that is read back is checked, and nothing is believed.

    evidence(directory, now_ns) -> Evidence(manifest, complete, doubts)

Each doubt is one sentence. One doubt is enough: then nothing may be deleted because of this run. `tiered audit show`
prints the doubts, and a deletion refuses to begin.

    the manifest   ranges that tile all names, a cut-off in the past, times in order, sums   `manifest.contradictions`
    the ranges     the parts of each range tile it; every part has a file                    `tiles`
    the files      checksums, rows against counts, each finding against its verdict           `examine`
    the directory  no file that the manifest does not name, and none that it names is another one

The files are checked as they are now, so a run that was whole when it ended may be doubtful later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from changelog.base.errors import ConfigurationError
from recovery.audit.files.conclusion import counted_by_class, counted_by_usecase
from recovery.audit.files.examine import examined
from recovery.audit.files.ledger import FINDINGS, READERS, RunDirectory, file_of
from recovery.audit.files.partitions import Tiling
from recovery.audit.finding import Summary
from recovery.audit.manifest import Manifest, ManifestPart, contradictions


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run's directory proves.

    `complete`: the run has ended, every range was audited, and nothing makes the findings doubtful. `doubts`: why it is
    not complete, one sentence each; empty if and only if it is complete.
    """

    manifest: Manifest
    complete: bool
    doubts: tuple[str, ...]


def evidence(directory: RunDirectory, now_ns: int) -> Evidence:
    """Checks a run, and says what may be doubted. It reads the manifest and every file of findings to its end.

    It blocks, so call it in a thread.

    `now_ns`: the time in nanoseconds since 1970, by the service's clock if the caller can ask it.

    Raises `ConfigurationError` if there is no run in the directory or if it is of another version,
    `CorruptRecordError` if its manifest cannot be read, and `UnavailableError` if the directory cannot be read now.
    Then nothing is known about the run.
    """
    manifest = directory.read_manifest()
    if manifest is None:
        raise ConfigurationError(f"{directory.uri} holds no run of an audit: give the directory that `tiered audit run` named")
    doubts = [*manifest.doubts, *contradictions(manifest, now_ns)]
    if manifest.ended_ns is None:
        doubts.append("the run has not ended, or was interrupted")
    else:
        tiling = directory.tiling(manifest)
        doubts += [
            directory.faults.get(partition.key) or f"{FINDINGS}/{file_of(partition.key)} is not there" for partition in tiling.missing
        ]
        doubts += [*faults_of_files(directory, manifest, tiling), *_of_counts(manifest, tiling)]
        if not manifest.complete and not doubts:
            doubts.append("it is marked as incomplete, and nothing says why")
    return Evidence(manifest, not doubts, tuple(dict.fromkeys(doubts)))


def faults_of_files(directory: RunDirectory, manifest: Manifest, tiling: Tiling) -> list[str]:
    """Returns what is wrong with the files that are there, one sentence each. It reads all to the end, and blocks."""
    found = [fault for faults in damage(directory, manifest, tiling).values() for fault in faults]
    known = {partition.key for partition, _ in tiling.done} | {partition.key for partition in tiling.missing}
    return found + [f"{FINDINGS}/{name} is no part of any range: move it away" for name in directory.strange(known)]


def damage(directory: RunDirectory, manifest: Manifest, tiling: Tiling) -> dict[str, list[str]]:
    """Returns what is wrong with the files of parts that are done, by key. It reads all to the end, and blocks."""
    with ThreadPoolExecutor(READERS) as readers:
        found = readers.map(lambda each: list(examined(directory.files, each[0], each[1], manifest)), tiling.done)
        return {partition.key: faults for (partition, _), faults in zip(tiling.done, found, strict=True) if faults}


def parts_of(tiling: Tiling) -> tuple[ManifestPart, ...]:
    """Returns the files that are done, as the manifest names them."""
    return tuple(
        ManifestPart(
            file=file_of(partition.key), range=partition.range, start=header.audited.start, end=header.audited.end,
            names=header.summary.names, rows=header.rows, sha256=header.sha256,
        ) for partition, header in tiling.done
    )  # fmt: skip


def _of_counts(manifest: Manifest, tiling: Tiling) -> Iterator[str]:
    """Compares what the manifest says with what its files say."""
    named, there = {part.file: part for part in manifest.parts}, {part.file: part for part in parts_of(tiling)}
    for file in sorted({*named, *there}):
        if file not in named:
            yield f"{FINDINGS}/{file} is there, and the manifest does not name it"
        elif file in there and named[file] != there[file]:
            yield f"{FINDINGS}/{file} is not the file that the run counted"
    summary = Summary()
    for _, header in tiling.done:
        summary.merge(header.summary)
    if not tiling.missing and (manifest.names, manifest.redirects) != (summary.names, summary.redirects):
        yield (
            f"the manifest counts {manifest.names} blobs and {manifest.redirects} tombstones, and its files"
            f" {summary.names} and {summary.redirects}"
        )
    if tiling.missing:
        return
    if manifest.totals != counted_by_class(summary.totals()):
        yield "the manifest counts other findings than its files"
    elif manifest.usecases != counted_by_usecase(summary):
        yield "the manifest counts other usecases than its files"
    if (manifest.verified, manifest.verified_bytes) != (summary.verified, summary.verified_bytes):
        yield f"the manifest says that {manifest.verified} payloads were read, and its files {summary.verified}"
    if (manifest.indexed, manifest.looked_up) != (summary.indexed, summary.looked_up):
        yield f"the manifest counts {manifest.indexed} references of the feed, and its files {summary.indexed}"
    by_range: Counter[int] = Counter()
    for partition, header in tiling.done:
        by_range[partition.range] += header.summary.names
    if manifest.names_by_range != tuple(by_range[number] for number in range(len(manifest.ranges))):
        yield "the manifest counts other names in its ranges than its files"
