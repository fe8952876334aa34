"""What a run leaves in its directory. A part of a range is done if and only if its file of findings is there and valid.

    RUN/manifest.json                      what the run is (`recovery.audit.manifest`)
    RUN/report.html                        for people
    RUN/findings/range-000017.parquet      range 17 is done, at least to some name; its findings, or zero rows
    RUN/findings/range-000017-0.parquet    the first part of the rest of range 17 is done (`partitions.py`)
    RUN/findings/_failed-000018.txt        why range 18 was not done the last time

The findings have schema version 3. They are in the order in which they were found, in small row groups.
`spark.read.parquet(RUN/findings)` opens them all.

    class string                           a `FindingClass`, such as orphan
    name string                            of the blob, or of the row if no blob is known
    object, revision, usecase string       as far as the name tells them
    size int64                             bytes
    created, deadline timestamp            in microseconds, UTC, as all times
    listed, logged, scanned, confirmed timestamp      when each reading began (`recovery.audit.finding`)
    generation, detail string, range int32, run string

In version 2, which is still read, `generation` is int64. The rows of both versions are given as those of version 3.

The key-value metadata of the footer are the ledger. So findings and counts appear in one step:

    tiered.schema, tiered.run              the version of the schema, the id of the run
    tiered.range                           the key of the part, such as 000017-0
    tiered.bounds                          JSON: start, end (null: no end), and rest: where those of its rest begin
    tiered.summary                         the part's `Summary` as JSON
    tiered.rows, tiered.length             how many findings it holds; how many bytes lie before the footer
    tiered.sha256                          of those bytes, and then of `key=value` and a line feed for each value above

*Crash*: the file exists whole, or not at all (`directory.py`). If a part is audited twice, the later file
replaces the earlier one. *Failure*: a file that is cut off, or of another run, schema or part, does not count as done.
`faults` says which file and why. `examined` reads a file to its end and checks everything that the footer says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from types import TracebackType
from typing import IO, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from changelog.base.errors import ConfigurationError, newer_version
from changelog.base.runtime import Runtime, SystemRuntime
from recovery.audit.files.arrow import arrow_column, with_text_generations
from recovery.audit.files.directory import DirectoryFiles, Draft
from recovery.audit.files.partitions import Header, Partition, Tiling, is_key, tiled
from recovery.audit.finding import Finding, Summary, Tally
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Manifest, parse_manifest
from recovery.audit.names import usecase_of

SCHEMA_VERSION = 3
READ_VERSIONS = ("2", "3")
_TIME = pa.timestamp("us", tz="UTC")
_TIMES = ("created", "deadline", "listed", "logged", "scanned", "confirmed")
SCHEMA = pa.schema([
    ("class", pa.string()), ("name", pa.string()), ("object", pa.string()), ("revision", pa.string()), ("usecase", pa.string()),
    ("size", pa.int64()), *((time, _TIME) for time in _TIMES),
    ("generation", pa.string()), ("detail", pa.string()), ("range", pa.int32()), ("run", pa.string()),
])  # fmt: skip
ROW_GROUP = 10_000
"""How many findings a writer or a reader holds in memory."""

MANIFEST, REPORT, FINDINGS = "manifest.json", "report.html", "findings"
READERS = 16
"""How many footers are read at once."""

_BEFORE, _AFTER = "range-", ".parquet"
_FAILED, _TEXT = "_failed-", ".txt"


class RunDirectory:
    """The directory in which a run leaves what it finds.

    `uri` opens it in another process. `faults`: by the key of a part, why a file that exists does not count.
    """

    def __init__(self, files: DirectoryFiles) -> None:
        self.files = files
        self.uri = files.uri
        self.faults: dict[str, str] = {}

    @classmethod
    def open(cls, where: str, runtime: Runtime | None = None) -> Self:
        """Returns the run directory of a path or a URI. It need not exist yet.

        Raises `ConfigurationError` if the URI cannot be opened.
        """
        return cls(DirectoryFiles.at(where, runtime or SystemRuntime()))

    # --- the run

    def read_manifest(self) -> Manifest | None:
        """Returns the manifest, or None if no run was begun here.

        Raises `CorruptRecordError` if the file is no manifest, and `ConfigurationError` if it is of another version.
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
        """Replaces the manifest. The files of findings that it may name are durable before it is."""
        self.files.settle(FINDINGS)
        self.files.write(MANIFEST, _json(manifest))

    def write_report(self, html: str) -> None:
        self.files.write(REPORT, html.encode())

    def tidy(self, strays: Collection[str] = ()) -> None:
        """Deletes the temporary files of writers that were killed, and the files of these keys.

        Call it only when all ranges are done. A process that is still writing then loses nothing that is needed.
        """
        unwanted = {file_of(key) for key in strays}
        for seen in self.files.list(FINDINGS):
            if (seen.name.startswith("_") and seen.name.endswith((".tmp", _TEXT))) or seen.name in unwanted:
                self.files.remove(seen.path)

    # --- its parts

    def writer(self, run: str, partition: Partition) -> FindingsFile:
        """Returns the file of a part, for a `with` block. `commit` makes it appear. Without `commit` it never appears.
        """
        return FindingsFile(self.files.draft(f"{FINDINGS}/{file_of(partition.key)}"), self.files, run, partition)

    def done(self, run: str, known: Collection[str] = ()) -> Iterator[tuple[str, Header]]:
        """Yields the keys of the files that are valid, each with what its footer says.

        Keys in `known` are not read again. Whether a file fits into the run's ranges, `tiling` tells.
        """
        paths = [(key, path) for key, path in self._part_files() if key not in known]
        with ThreadPoolExecutor(READERS) as readers:
            found = readers.map(lambda each: self._header(run, *each), paths)
            for (key, _), header in zip(paths, found, strict=True):
                if isinstance(header, Header):
                    self.faults.pop(key, None)
                    yield key, header
                else:
                    self.faults[key] = header

    def done_part(self, run: str, partition: Partition) -> Header | None:
        """Returns what the footer of a part says, or None if the part is not done."""
        header = self._header(run, partition.key, self._path(partition.key))
        return header if isinstance(header, Header) and header.fits(partition) else None

    def tiling(self, manifest: Manifest) -> Tiling:
        """Returns which parts of a run are done, and which are missing."""
        headers = dict(self.done(manifest.run))
        found = tiled(manifest.ranges, headers)
        self.faults.update({partition.key: misfit(partition) for partition in found.missing if partition.key in headers})
        return found

    def forget(self, key: str) -> None:
        """Deletes the file of a part. The part is not done from then on."""
        self.files.remove(self._path(key))

    def strange(self, keys: Collection[str]) -> list[str]:
        """Returns the names of files in `findings/` that are not of these parts. Readers of the directory skip a name
        that begins with `_` or `.`, so such files are left out.
        """
        known = {file_of(key) for key in keys}
        return [seen.name for seen in self.files.list(FINDINGS) if not seen.name.startswith(("_", ".")) and seen.name not in known]

    def note_failure(self, key: str, error: str) -> None:
        """Leaves a note that this part failed, for the driver, which may hear of it much later otherwise."""
        self.files.write(f"{FINDINGS}/{_FAILED}{key}{_TEXT}", error.encode(errors="replace"))

    def failures(self, known: Collection[str] = ()) -> dict[str, str]:
        """Returns these notes by key. Keys in `known` are not read again."""
        found: dict[str, str] = {}
        for seen in self.files.list(FINDINGS):
            key = seen.name.removeprefix(_FAILED).removesuffix(_TEXT)
            if seen.name == f"{_FAILED}{key}{_TEXT}" and key not in known and (text := self.files.read(f"{FINDINGS}/{seen.name}")):
                found[key] = text.decode(errors="replace")
        return found

    def forget_failures(self) -> None:
        for seen in self.files.list(FINDINGS):
            if seen.name.startswith(_FAILED) and seen.name.endswith(_TEXT):
                self.files.remove(seen.path)

    def findings(self, run: str, classes: Collection[FindingClass] | None = None) -> Iterator[Finding]:
        """Yields the findings of these classes (None: of all classes), range by range, in the order of finding."""
        for rows in self.batches(run, classes):
            yield from _findings(rows)

    def batches(
        self, run: str, classes: Collection[FindingClass] | None = None, columns: Sequence[str] | None = None, *,
        keys: Collection[str] | None = None,
    ) -> Iterator[Any]:
        """Yields the same as Arrow record batches of at most `ROW_GROUP` rows.

        `columns` (None: all) must include `class`. `keys`: of these parts only; None: of all.
        """
        from pyarrow import compute  # noqa: PLC0415 - workers only write, and do without its 8 MB

        wanted = None if classes is None else arrow_column(sorted(classes), pa.string())
        for key, path in self._part_files():
            if keys is not None and key not in keys:
                continue
            header = self._header(run, key, path)
            if not isinstance(header, Header) or (classes is not None and not header.summary.totals().keys() & set(classes)):
                continue
            name, filesystem = f"{FINDINGS}/{file_of(key)}", self.files.filesystem
            with self.files.explained("be read", name), pq.ParquetFile(path, filesystem=filesystem) as file:
                for read in file.iter_batches(ROW_GROUP, columns=columns):
                    rows = with_text_generations(read)
                    yield rows if wanted is None else rows.filter(compute.is_in(rows["class"], wanted))

    def _path(self, key: str) -> str:
        return f"{self.files.path}/{FINDINGS}/{file_of(key)}"

    def _part_files(self) -> list[tuple[str, str]]:
        named = ((seen.name.removeprefix(_BEFORE).removesuffix(_AFTER), seen) for seen in self.files.list(FINDINGS))
        return sorted((key, seen.path) for key, seen in named if is_key(key) and seen.name == file_of(key))

    def _header(self, run: str, key: str, path: str) -> Header | str:
        """Returns what the footer of this file says, or a sentence that says what is wrong with the file."""
        name = f"{FINDINGS}/{file_of(key)}"
        with self.files.explained("be read", name):
            try:
                parquet = pq.read_metadata(path, filesystem=self.files.filesystem)
            except FileNotFoundError:
                return f"{name} is not there"
            except pa.ArrowInvalid:
                return f"{name} is cut off, or no Parquet file"
        footer = parquet.metadata or {}
        schema, of_run, of_key = (_footer_field(footer, each) for each in ("schema", "run", "range"))
        if schema.isdecimal() and int(schema) > SCHEMA_VERSION:  # else its range would be audited over it
            raise ConfigurationError(newer_version(f"{self.files.uri}/{name}", schema, f"schemas {' and '.join(READ_VERSIONS)}"))
        if schema not in READ_VERSIONS:
            return f"{name} has schema version {schema or 'none'}, and this software reads {' and '.join(READ_VERSIONS)}"
        if (of_run, of_key) != (run, key):
            return f"{name} is of another run or range"
        try:
            return _header_of(key, footer)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return f"{name} has a footer that cannot be read"


class FindingsFile:
    """The file of findings of one part while it is being written. It holds at most `ROW_GROUP` findings in memory."""

    def __init__(self, draft: Draft, files: DirectoryFiles, run: str, partition: Partition) -> None:
        self._draft = draft
        self._files = files
        self._run, self._partition = run, partition
        self._rows: list[Finding] = []
        self._summed = _Summed(draft.file)
        self._parquet = pq.ParquetWriter(self._summed, SCHEMA, compression="zstd")
        self.written = 0

    def add(self, findings: Sequence[Finding]) -> None:
        """Writes these findings. Raises `UnavailableError` if they do not fit on the disk; then the part is not done.
        """
        self._rows += findings
        self.written += len(findings)
        while len(self._rows) >= ROW_GROUP:
            self._flush()

    def commit(self, summary: Summary, rest: Sequence[str] = ()) -> None:
        """Makes the file visible. From now on the part is done. Call it once, after all findings.

        `rest`: if the audit ended before the end of the part, where the partitions of its rest begin.
        """
        if self._rows:
            self._flush()
        bounds = self._partition.bounds
        footer = {
            "schema": str(SCHEMA_VERSION), "run": self._run, "range": self._partition.key,
            "bounds": json.dumps({"start": bounds.start, "end": bounds.end, "rest": list(rest)}),
            "summary": summary_to_json(summary), "rows": str(self.written), "length": str(self._summed.length),
        }  # fmt: skip
        footer["sha256"] = self._summed.sealed(footer)
        with self._files.explained("be written", self._draft.name):
            self._parquet.add_key_value_metadata({f"tiered.{key}": value for key, value in footer.items()})
            self._parquet.close()
        self._draft.publish()

    def _flush(self) -> None:
        with self._files.explained("be written", self._draft.name):
            rows = _table(self._rows[:ROW_GROUP], self._run, self._partition.range)
            self._parquet.write_table(rows, row_group_size=ROW_GROUP)
        del self._rows[:ROW_GROUP]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError, ValueError, pa.ArrowException):  # what did not fit before does not fit now, and nobody will read this file
            self._parquet.close()
        self._parquet.is_open = False  # otherwise the garbage collector closes it again, and that error appears on stderr
        self._draft.__exit__(kind, error, trace)


class _Summed:
    """A file for Arrow to write to. It counts the bytes that pass, and computes their checksum."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sum = sha256()
        self.length = 0

    def write(self, data: Any) -> int:
        self._sum.update(data)
        self.length += len(memoryview(data).cast("B"))
        return self._file.write(data)

    def tell(self) -> int:
        return self.length

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Leaves the file open: whoever made it publishes and closes it."""

    def sealed(self, footer: Mapping[str, str]) -> str:
        return sealed(self._sum.copy(), footer)


# --- rows and footers ------------------------------------------------------------------------------


def sealed(summed: Any, footer: Mapping[str, str]) -> str:
    """Returns the checksum of a file. `summed`: the SHA-256 of the bytes before the footer. `footer`: by short name."""
    for key in SEALED:
        summed.update(f"{key}={footer[key]}\n".encode(errors="surrogatepass"))
    return str(summed.hexdigest())


def _header_of(key: str, footer: dict[bytes, bytes]) -> Header:
    bounds_text = json.loads(_footer_field(footer, "bounds"))
    rest = bounds_text["rest"]
    if not isinstance(rest, list) or not all(isinstance(each, str) for each in rest):
        raise ValueError("the rest is no list of names")
    return Header(
        key, Bounds(start=bounds_text["start"], end=bounds_text["end"]), tuple(rest), summary_from_json(_footer_field(footer, "summary")),
        int(_footer_field(footer, "rows")), int(_footer_field(footer, "length")), _footer_field(footer, "sha256"),
    )  # fmt: skip


def summary_to_json(summary: Summary) -> str:
    counts = {
        usecase: {class_: (count.number, count.size) for class_, count in classes.items()} for usecase, classes in summary.counts.items()
    }
    ages = {
        key: {class_: {str(age): number for age, number in ages.items()} for class_, ages in getattr(summary, key).items()}
        for key in _AGES
    }
    kept = {what: (count.number, count.size) for what, count in summary.kept.items()}
    plain = {key: getattr(summary, key) for key in (*_NUMBERS, *_LATER_NUMBERS)}
    fields = {**plain, "counts": counts, **ages, "kept": kept, "unknown": summary.unknown}
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":"))


def summary_from_json(text: str) -> Summary:
    """Returns the summary. Raises `ValueError`, `KeyError`, `TypeError` or `AttributeError` if the text is no summary.
    """
    fields = json.loads(text)
    ages = {
        key: {
            FindingClass(class_): Counter({int(age): int(number) for age, number in ages.items()})
            for class_, ages in fields.get(key, {}).items()
        }
        for key in _AGES
    }
    summary = Summary(
        counts={
            usecase: {FindingClass(each): _count(count) for each, count in classes.items()} for usecase, classes in fields["counts"].items()
        },
        ages=ages["ages"],
        age_sizes=ages["age_sizes"],
        kept={str(what): _count(count) for what, count in fields.get("kept", {}).items()},
        unknown={str(what): str(why) for what, why in fields.get("unknown", {}).items()},
    )
    for key in _NUMBERS:
        setattr(summary, key, int(fields[key]))
    for key in _LATER_NUMBERS:
        setattr(summary, key, int(fields.get(key, 0)))
    return summary


def _count(told: Sequence[int]) -> Tally:
    number, size = told
    return Tally(int(number), int(size))


SEALED = ("schema", "run", "range", "bounds", "summary", "rows", "length")
"""What a footer says, in the order in which the checksum covers it."""

_NUMBERS = ("names", "redirects", "windows", "entries_max", "unreadable_max", "dated_ahead")
_LATER_NUMBERS = ("verified", "verified_bytes", "indexed", "looked_up")
"""These are not in files of older software, which counted nothing of the kind."""
_AGES = ("ages", "age_sizes")


def _table(findings: Sequence[Finding], run: str, number: int) -> Any:
    """Returns these findings, at least one, as a table of the schema. Columns are made one by one: that is cheaper."""
    told: dict[str, Any] = dict(zip(Finding._fields, zip(*findings, strict=True), strict=True))
    columns = {
        **told, "class": told["class_"], "usecase": list(map(usecase_of, told["name"])),
        **{time: [None if ns is None else ns // 1000 for ns in told[f"{time}_ns"]] for time in _TIMES},
        "range": [number] * len(findings), "run": [run] * len(findings),
    }  # fmt: skip
    return pa.table({field.name: arrow_column(columns[field.name], field.type) for field in SCHEMA}, schema=SCHEMA)


def _findings(rows: Any) -> Iterator[Finding]:
    """Yields the findings of a record batch.

    Times are read as integers, because a date may be later than Python's `datetime` can hold.
    """
    columns = [(rows[name].cast(pa.int64()) if name in _TIMES else rows[name]).to_pylist() for name in _FIELDS]
    for class_, name, path, revision, size, generation, detail, *times in zip(*columns, strict=True):
        created, deadline, listed, logged, scanned, confirmed = map(_nanoseconds, times)
        yield Finding(
            FindingClass(class_), name, path, revision, size, created, deadline, generation, detail, listed, logged, scanned, confirmed
        )


_FIELDS = ("class", "name", "object", "revision", "size", "generation", "detail", *_TIMES)


def _nanoseconds(microseconds: Any) -> Any:
    return None if microseconds is None else microseconds * 1000


def _json(manifest: Manifest) -> bytes:
    return manifest.model_dump_json(indent=1).encode()


def misfit(partition: Partition) -> str:
    return f"{FINDINGS}/{file_of(partition.key)} was written for other names than its part has"


def file_of(key: str) -> str:
    return f"{_BEFORE}{key}{_AFTER}"


def _footer_field(footer: dict[bytes, bytes], key: str) -> str:
    return footer.get(f"tiered.{key}".encode(), b"").decode(errors="replace")
