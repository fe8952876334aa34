"""The store and its audits as tables of Spark (4.0 or newer).

    from recovery.sources.spark import register
    register(spark)
    spark.read.format("tiered.blobs").option("config", "tiered.yaml").load()

| format | a row is | options |
|---|---|---|
| `tiered.objects` | an object, wherever its payload is | `config` or `directory`, `parallel`, `prefix`, `blobs` |
| `tiered.blobs` | a blob | `config` or `directory`, `parallel` |
| `tiered.tombstones` | a row that names a blob | `config` or `directory`, `parallel` |
| `tiered.changes` | an entry of the changelog | `config` or `directory`, `parallel` |
| `tiered.findings` | a finding of an audit | `run`, `parallel` |
| `tiered.feed` | an update or a progress message of a change feed | its directory, in `load`; `parallel` |

`config`: the path of a settings file, read on the driver. `directory`: that of an embedded store. `run`: the directory
of an audit's run, a path or a URI. `parallel`: about how many partitions are read at once (a whole number, 8 by
default). `prefix`: only the objects that `tiered ls PREFIX` lists. `blobs`: `false` does not ask for the blobs of large
objects, so what only they tell is null. `recovery.sources.columns` has the columns.

Spark does not tell such a source which columns a query needs. `.schema("name string, size bigint")` reads only those
columns. A row is read when a query runs, so two queries may see different rows of a store that is in use.

A feed's directory is a path that all executors see. One file is read by one task. Rows of `tiered.feed` may be
repeated, and late ones may be missing: `recovery.sources.consistent` makes a view of them.

*Failure*: one sentence inside Spark's own error. A damaged record is a row whose column `error` says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from changelog.base.errors import ConfigurationError
from recovery.audit.running.jobs import portable
from recovery.sources import feed_files, findings_of_run
from recovery.sources.columns import BLOBS, CHANGES, FEED, FINDINGS, OBJECTS, TOMBSTONES, batch_of, ddl
from recovery.sources.reading import TablePartition, plan, rows
from tiered.settings import Settings, load_settings

PARALLEL, PARALLEL_MAX = 8, 4096


def register(session: SparkSession) -> None:
    """Makes the formats known to a session: `tiered.objects`, `.blobs`, `.tombstones`, `.changes`, ….

    The executors must be able to import this software (docs/audit.md says how to pack it).
    """
    for source in (Objects, BlobsDataSource, Tombstones, Changes, FindingsDataSource, FeedDataSource):
        session.dataSource.register(source)


@dataclass
class RangePartition(InputPartition):
    """One range of names or keys of a store."""

    part: TablePartition


@dataclass
class FilesPartition(InputPartition):
    """Parts of a run: their keys and ranges. `faults`: sentences about ranges that cannot be read."""

    parts: tuple[tuple[str, int], ...]
    faults: tuple[tuple[int, str], ...]


@dataclass
class NamesPartition(InputPartition):
    """Some files of a feed."""

    names: tuple[str, ...]


class _Source(DataSource):
    FORMAT: ClassVar[str]
    COLUMNS: ClassVar[Mapping[str, str]]
    OPTIONS: ClassVar[frozenset[str]] = frozenset({"config", "directory", "parallel"})

    @classmethod
    def name(cls) -> str:
        return cls.FORMAT

    def schema(self) -> str:
        return ddl(self.COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_options()
        return StoreReader(self.FORMAT, self.COLUMNS, self._wanted(schema), self._settings(), self._parallel())

    def _check_options(self) -> None:
        if strange := sorted(set(self.options) - self.OPTIONS):
            raise ConfigurationError(f"{self.FORMAT} has no option {strange[0]!r}: it knows {', '.join(sorted(self.OPTIONS))}")

    def _wanted(self, schema: StructType) -> tuple[str, ...]:
        """Checks the columns that a query asks for. The order of the columns is that of the query."""
        for field in schema.fields:
            if self.COLUMNS.get(field.name) != field.dataType.simpleString():
                raise ConfigurationError(
                    f"{self.FORMAT} has no column {field.name} {field.dataType.simpleString()}: its columns are {ddl(self.COLUMNS)}"
                )
        return tuple(schema.fieldNames())

    def _settings(self) -> Settings:
        config, directory = self.options.get("config"), self.options.get("directory")
        if (config is None) == (directory is None):
            given = "both config and directory" if config is not None else "neither config nor directory"
            raise ConfigurationError(
                f"{self.FORMAT} has {given}: give option config (the path of a settings file) or option directory (an embedded store)"
            )
        return portable(load_settings(config) if config is not None else Settings(directory=Path(str(directory))))

    def _parallel(self) -> int:
        asked_for = self.options.get("parallel", str(PARALLEL))
        if not asked_for.isdecimal() or not 0 < int(asked_for) <= PARALLEL_MAX:
            raise ConfigurationError(f"{self.FORMAT} has parallel {asked_for!r}: give a whole number from 1 to {PARALLEL_MAX}")
        return int(asked_for)


class Objects(_Source):
    FORMAT, COLUMNS, OPTIONS = "tiered.objects", OBJECTS, _Source.OPTIONS | {"prefix", "blobs"}

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_options()
        blobs = self.options.get("blobs", "true")
        if blobs not in ("true", "false"):
            raise ConfigurationError(f"tiered.objects has blobs {blobs!r}: give true or false")
        wanted, prefix = self._wanted(schema), self.options.get("prefix", "")
        return StoreReader(self.FORMAT, self.COLUMNS, wanted, self._settings(), self._parallel(), prefix, blobs == "true")


class BlobsDataSource(_Source):
    FORMAT, COLUMNS = "tiered.blobs", BLOBS


class Tombstones(_Source):
    FORMAT, COLUMNS = "tiered.tombstones", TOMBSTONES


class Changes(_Source):
    FORMAT, COLUMNS = "tiered.changes", CHANGES


class FindingsDataSource(_Source):
    FORMAT, COLUMNS, OPTIONS = "tiered.findings", FINDINGS, frozenset({"run", "parallel"})

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_options()
        run = self.options.get("run")
        if run is None:
            raise ConfigurationError("tiered.findings has no option run: give the directory of an audit's run")
        return FindingsReader(run, self._wanted(schema), self._parallel())


class FeedDataSource(_Source):
    FORMAT, COLUMNS, OPTIONS = "tiered.feed", FEED, frozenset({"path", "parallel"})

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_options()
        directory = self.options.get("path")
        if directory is None:
            raise ConfigurationError("tiered.feed has no path: give the directory of a change feed to load")
        return FeedReader(str(Path(directory).absolute()), self._wanted(schema), self._parallel())


class StoreReader(DataSourceReader):
    """Reads a table of a store. It is sent to the executors, so it holds plain values only."""

    def __init__(
        self, table: str, columns: Mapping[str, str], wanted: Sequence[str], settings: Settings, parallel: int, prefix: str = "",
        blobs: bool = True,
    ) -> None:  # fmt: skip
        self._table = table
        self._columns = dict(columns)
        self._wanted = tuple(wanted)
        self._settings = settings.packed()
        self._parts = plan(table, settings, parallel, prefix, blobs)

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(part) for part in self._parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        for page in rows(self._table, self._settings, partition.part):
            yield batch_of(self._columns, page, self._wanted)


class FindingsReader(DataSourceReader):
    """Reads the findings of a run. It is sent to the executors, so it holds plain values only."""

    def __init__(self, where: str, wanted: Sequence[str], parallel: int) -> None:
        self._run = findings_of_run.look(where)
        self._wanted = tuple(wanted)
        self._parallel = parallel

    def partitions(self) -> Sequence[InputPartition]:
        shares = [self._run.done[first :: self._parallel] for first in range(self._parallel)]
        faults = FilesPartition((), self._run.faults)
        return [FilesPartition(share, ()) for share in shares if share] + ([faults] if self._run.faults or not self._run.done else [])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, FilesPartition)
        for page in findings_of_run.rows(self._run, partition.parts, partition.faults):
            yield batch_of(FINDINGS, page, self._wanted)


class FeedReader(DataSourceReader):
    """Reads the files of a feed. It is sent to the executors, so it holds plain values only."""

    def __init__(self, directory: str, wanted: Sequence[str], parallel: int) -> None:
        self._directory = directory
        self._names = feed_files.names_of(directory)
        self._wanted = tuple(wanted)
        self._parallel = parallel

    def partitions(self) -> Sequence[InputPartition]:
        shares = [tuple(self._names[first :: self._parallel]) for first in range(self._parallel)]
        return [NamesPartition(share) for share in shares if share]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, NamesPartition)
        for name in partition.names:
            for page in feed_files.rows(self._directory, name):
                yield batch_of(FEED, page, self._wanted)
