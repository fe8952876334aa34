"""What a run leaves in its directory. A range is done if and only if its file of findings exists and is valid.

    RUN/manifest.json                      what the run is (`recovery.audit.manifest`)
    RUN/report.html                        for people
    RUN/findings/range-000017.parquet      range 17 is done; its findings, zero rows if there are none

The findings have schema version 1. They are in the order in which they were found, in small row groups.
`spark.read.parquet(RUN/findings)` opens them all.

    class string                           a `Kind`, such as orphan
    name string                            of the blob, or of the row if no blob is known
    object, revision, usecase string       as far as the name tells them
    size int64                             bytes
    created, deadline timestamp            in microseconds, UTC, as all times
    listed, logged, scanned, confirmed timestamp      when each reading began (`recovery.audit.finding`)
    generation int64, detail string, range int32, run string

The key-value metadata of the footer are the ledger: `tiered.schema`, `tiered.run`, `tiered.range`, and
`tiered.summary`, which is the range's `Summary` as JSON. So findings and counts appear in one step.

*Crash*: the file exists whole, or not at all (`recovery.audit.directory`). If a range is audited twice, the later file
replaces the earlier one. *Failure*: a file that is cut off, or of another run or schema, does not count as done.
`faults` says which file and why.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime, SystemRuntime
from recovery.audit.directory import Draft, Files
from recovery.audit.finding import Count, Finding, Summary
from recovery.audit.manifest import Manifest, parse_manifest
from recovery.audit.names import usecase_of
from recovery.audit.verdicts import Kind

SCHEMA_VERSION = 1
_TIME = pa.timestamp("us", tz="UTC")
_TIMES = ("created", "deadline", "listed", "logged", "scanned", "confirmed")
SCHEMA = pa.schema([
    ("class", pa.string()), ("name", pa.string()), ("object", pa.string()), ("revision", pa.string()), ("usecase", pa.string()),
    ("size", pa.int64()), *((time, _TIME) for time in _TIMES),
    ("generation", pa.int64()), ("detail", pa.string()), ("range", pa.int32()), ("run", pa.string()),
])  # fmt: skip
ROW_GROUP = 10_000
"""How many findings a writer or a reader holds in memory."""

MANIFEST, REPORT, FINDINGS = "manifest.json", "report.html", "findings"
READERS = 16
"""How many footers are read at once."""

_FILE = re.compile(r"range-(\d{6,})\.parquet")


class RunDirectory:
    """The directory in which a run leaves what it finds.

    `uri` opens it in another process. `faults`: by range, why a file that exists does not count.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self.uri = files.uri
        self.faults: dict[int, str] = {}

    @classmethod
    def open(cls, where: str, runtime: Runtime | None = None) -> Self:
        """Returns the run directory of a path or a URI. It need not exist yet.

        Raises `ConfigurationError` if the URI cannot be opened.
        """
        return cls(Files.at(where, runtime or SystemRuntime()))

    # --- the run

    def read_manifest(self) -> Manifest | None:
        """Returns the manifest, or None if no run was begun here.

        Raises `CorruptRecordError` if the file is no manifest, and `ConfigurationError` if newer software wrote it.
        """
        text = self.files.read(MANIFEST)
        return None if text is None else parse_manifest(text, f"{self.uri}/{MANIFEST}")

    def begin(self, manifest: Manifest) -> Manifest:
        """Writes the first manifest unless one exists, and returns the one that is in the directory.

        If two processes begin at once, one of them goes on with the other's run. In an object store both may write.
        Then the later manifest counts, and the ranges of the other run do not. Raises `ConfigurationError` if the
        directory holds something else.
        """
        strange = [seen.name for seen in self.files.list() if not seen.name.startswith((".", "_")) and seen.name != FINDINGS]
        if strange and MANIFEST not in strange:
            raise ConfigurationError(f"{self.uri} holds {strange[0]!r} and no run of an audit: give a directory of its own")
        self.files.make(FINDINGS)
        self.files.create(MANIFEST, _json(manifest))
        return self.read_manifest() or manifest

    def write_manifest(self, manifest: Manifest) -> None:
        self.files.write(MANIFEST, _json(manifest))

    def write_report(self, html: str) -> None:
        self.files.write(REPORT, html.encode())

    def tidy(self) -> None:
        """Deletes the temporary files of writers that were killed.

        Call it only when all ranges are done. A process that is still writing then loses nothing that is needed.
        """
        for seen in self.files.list(FINDINGS):
            if seen.name.startswith("_") and seen.name.endswith(".tmp"):
                self.files.remove(seen.path)

    # --- its ranges

    def writer(self, run: str, number: int) -> FindingsFile:
        """Returns the file of a range, for a `with` block. `commit` makes it appear. Without `commit` it never appears.
        """
        return FindingsFile(self.files.draft(f"{FINDINGS}/{_name(number)}"), self.files, run, number)

    def done(self, run: str, known: Collection[int] = ()) -> Iterator[tuple[int, Summary]]:
        """Yields the ranges that are done, in order, each with its summary. Ranges in `known` are not read again."""
        paths = [(number, path) for number, path in self._range_files() if number not in known]
        with ThreadPoolExecutor(READERS) as readers:
            found = readers.map(lambda each: self._footer(run, *each), paths)
            for (number, _), summary in zip(paths, found, strict=True):
                if isinstance(summary, Summary):
                    self.faults.pop(number, None)
                    yield number, summary
                else:
                    self.faults[number] = summary

    def done_range(self, run: str, number: int) -> Summary | None:
        """Returns the summary of one range, or None if it is not done."""
        summary = self._footer(run, number, f"{self.files.path}/{FINDINGS}/{_name(number)}")
        return summary if isinstance(summary, Summary) else None

    def findings(self, run: str, kinds: Collection[Kind] | None = None) -> Iterator[Finding]:
        """Yields the findings of these kinds (None: of all kinds), range by range, in the order of finding."""
        for rows in self.batches(run, kinds):
            yield from _findings(rows)

    def batches(
        self, run: str, kinds: Collection[Kind] | None = None, columns: Sequence[str] | None = None, *,
        numbers: Collection[int] | None = None,
    ) -> Iterator[Any]:
        """Yields the same as Arrow record batches of at most `ROW_GROUP` rows.

        `columns` (None: all) must include `class`. `numbers`: of these ranges only; None: of all.
        """
        wanted = None if kinds is None else pa.array(sorted(kinds), pa.string())
        for number, path in self._range_files():
            if numbers is not None and number not in numbers:
                continue
            summary = self._footer(run, number, path)
            if not isinstance(summary, Summary) or (kinds is not None and not summary.totals().keys() & set(kinds)):
                continue
            with self.files.explained(f"be read: {_name(number)}"), pq.ParquetFile(path, filesystem=self.files.filesystem) as file:
                for rows in file.iter_batches(ROW_GROUP, columns=columns):
                    yield rows if wanted is None else rows.filter(pc.is_in(rows["class"], wanted))

    def _range_files(self) -> list[tuple[int, str]]:
        named = ((_FILE.fullmatch(seen.name), seen.path) for seen in self.files.list(FINDINGS))
        return sorted((number, path) for match, path in named if match and match[0] == _name(number := int(match[1])))

    def _footer(self, run: str, number: int, path: str) -> Summary | str:
        """Returns the summary of the range, or a sentence that says what is wrong with its file."""
        name = f"{FINDINGS}/{_name(number)}"
        with self.files.explained(f"be read: {name}"):
            try:
                footer = pq.read_metadata(path, filesystem=self.files.filesystem).metadata or {}
            except FileNotFoundError:
                return f"{name} is not there"
            except pa.ArrowInvalid:
                return f"{name} is cut off, or no Parquet file"
        schema, of_run, of_number, summary = (_told(footer, key) for key in ("schema", "run", "range", "summary"))
        if schema != str(SCHEMA_VERSION):
            return f"{name} has schema version {schema or 'none'}, not {SCHEMA_VERSION}"
        if (of_run, of_number) != (run, str(number)):
            return f"{name} is of another run or range"
        try:
            return summary_from_json(summary)
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{name} has a summary that cannot be read"


class FindingsFile:
    """The file of findings of one range while it is being written. It holds at most `ROW_GROUP` findings in memory."""

    def __init__(self, draft: Draft, files: Files, run: str, number: int) -> None:
        self._draft = draft
        self._files = files
        self._run, self._number = run, number
        self._rows: list[dict[str, object]] = []
        self._parquet = pq.ParquetWriter(draft.file, SCHEMA, compression="zstd")
        self.written = 0

    def add(self, findings: Sequence[Finding]) -> None:
        """Writes these findings. Raises `UnavailableError` if they do not fit on the disk; then the range is not done.
        """
        for finding in findings:
            self._rows.append(_row(finding, self._run, self._number))
            if len(self._rows) >= ROW_GROUP:
                self._flush()
        self.written += len(findings)

    def commit(self, summary: Summary) -> None:
        """Makes the file visible. From now on the range is done. Call it once, after all findings."""
        if self._rows:
            self._flush()
        footer = {"schema": str(SCHEMA_VERSION), "run": self._run, "range": str(self._number), "summary": summary_to_json(summary)}
        with self._files.explained("be written"):
            self._parquet.add_key_value_metadata({f"tiered.{key}": value for key, value in footer.items()})
            self._parquet.close()
        self._draft.publish()

    def _flush(self) -> None:
        with self._files.explained("be written"):
            self._parquet.write_table(pa.Table.from_pylist(self._rows, SCHEMA), row_group_size=ROW_GROUP)
        self._rows.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError, ValueError, pa.ArrowException):  # what did not fit before does not fit now, and nobody will read this file
            self._parquet.close()
        self._parquet.is_open = False  # otherwise the garbage collector closes it again, and that error appears on stderr
        self._draft.__exit__(kind, error, trace)


# --- rows and footers ------------------------------------------------------------------------------


def summary_to_json(summary: Summary) -> str:
    counts = {
        usecase: {kind: (count.number, count.size) for kind, count in kinds.items()} for usecase, kinds in summary.counts.items()
    }
    ages = {kind: {str(age): number for age, number in ages.items()} for kind, ages in summary.ages.items()}
    plain = {key: getattr(summary, key) for key in _NUMBERS}
    return json.dumps({**plain, "counts": counts, "ages": ages}, ensure_ascii=True, separators=(",", ":"))


def summary_from_json(text: str) -> Summary:
    """Returns the summary. Raises `ValueError`, `KeyError`, `TypeError` or `AttributeError` if the text is no summary.
    """
    told = json.loads(text)
    return Summary(
        **{key: int(told[key]) for key in _NUMBERS},
        counts={
            usecase: {Kind(kind): Count(*count) for kind, count in kinds.items()} for usecase, kinds in told["counts"].items()
        },
        ages={Kind(kind): Counter({int(age): number for age, number in ages.items()}) for kind, ages in told["ages"].items()},
    )


_NUMBERS = ("names", "redirects", "windows", "entries_max", "unreadable_max", "dated_ahead")


def _row(finding: Finding, run: str, number: int) -> dict[str, object]:
    times = {time: None if (ns := getattr(finding, f"{time}_ns")) is None else ns // 1000 for time in _TIMES}
    return {
        "class": finding.kind.value, "name": finding.name, "object": finding.object, "revision": finding.revision,
        "usecase": usecase_of(finding.name), "size": finding.size, **times, "generation": finding.generation,
        "detail": finding.detail, "range": number, "run": run,
    }  # fmt: skip


def _findings(rows: Any) -> Iterator[Finding]:
    """Yields the findings of a record batch.

    Times are read as integers, because a date may be later than Python's `datetime` can hold.
    """
    columns = [(rows[name].cast(pa.int64()) if name in _TIMES else rows[name]).to_pylist() for name in _FIELDS]
    for kind, name, path, revision, size, generation, detail, *times in zip(*columns, strict=True):
        created, deadline, listed, logged, scanned, confirmed = map(_nanoseconds, times)
        yield Finding(
            Kind(kind), name, path, revision, size, created, deadline, generation, detail, listed, logged, scanned, confirmed
        )


_FIELDS = ("class", "name", "object", "revision", "size", "generation", "detail", *_TIMES)


def _nanoseconds(microseconds: Any) -> Any:
    return None if microseconds is None else microseconds * 1000


def _json(manifest: Manifest) -> bytes:
    return manifest.model_dump_json(indent=1).encode()


def _name(number: int) -> str:
    return f"range-{number:06d}.parquet"


def _told(footer: dict[bytes, bytes], key: str) -> str:
    return footer.get(f"tiered.{key}".encode(), b"").decode(errors="replace")
