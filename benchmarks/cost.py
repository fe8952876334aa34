"""What operations cost on Bigtable and GCS: calls that were counted, times prices that you give.

    python -m benchmarks.cost                             calls and node hours of a million of each operation
    python -m benchmarks.cost --rate "put small=50" --rate "get small=400" --rate "get large=20" \\
        --small 10e6x2000 --large 1e6x4e6 --node-hour 0.65 --class-a 0.005 --class-b 0.0004

The calls are those of `benchmarks/calls.py`, which a test counts. A price that is not given is left out of the sum, and
the result says so. `--docs docs/sizing.md` writes the table of that page.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from benchmarks.calls import BESIDE, CASES, EMPTY_PASS, LIST
from benchmarks.harness import Figures, between, together

MILLION = 1_000_000
MONTH_S = 730 * 3600
GIB = 1024**3

NODE_READS_PER_S, NODE_WRITES_PER_S, SCAN_MB_PER_S, NODE_LOAD = 17_000, 14_000, 220.0, 0.7
"""What a node with SSDs does with rows of 1 KB, by Google's documentation, and the load that Google advises."""

PAGE_MB = 1.0
"""A page of a listing is one scan. It goes over 1,000 rows, here of 1 KB."""

ROW_BYTES = {"small": 201, "large": 302}
"""Bytes of a row beside its payload and its path, not compressed, with the default metadata and one mark.

The row of a large object holds the path twice: as its key, and in the name of the blob.
"""

BOTH, READS, WRITES = (1, 1), (1, 0), (0, 1)
ROW_CALLS: dict[str, tuple[int, int]] = {
    "read": READS, "record": WRITES, "forget": WRITES, "announce": BOTH,
    "put": BOTH, "delete": BOTH, "swap": BOTH, "settle": BOTH, "touch": BOTH, "renew or claim": BOTH,
}
"""Calls to Bigtable, as (reads, writes) of a row. A conditional write is both."""

GCS_CLASSES: dict[str, str] = {
    "gcs upload.multipart": "A", "gcs upload.start": "A", "gcs upload.put": "", "gcs object.patch": "A",
    "gcs object.get": "B", "gcs object.read": "B", "gcs object.delete": "",
}
"""How GCS bills a call: class A, class B, or not at all. An upload in a session is one operation, its beginning."""


@dataclass(frozen=True)
class BilledCalls:
    """The calls of one operation, or of many."""

    reads: float = 0
    writes: float = 0
    class_a: float = 0
    class_b: float = 0
    scanned_mb: float = 0

    @classmethod
    def of(cls, names: Sequence[str]) -> BilledCalls:
        rows = [ROW_CALLS[name] for name in names if not name.startswith("gcs ")]
        classes = [GCS_CLASSES[name] for name in names if name.startswith("gcs ")]
        return cls(sum(reads for reads, _ in rows), sum(writes for _, writes in rows), classes.count("A"), classes.count("B"))

    def times(self, number: float) -> BilledCalls:
        return BilledCalls(*(each * number for each in astuple(self)))

    def and_(self, other: BilledCalls) -> BilledCalls:
        return BilledCalls(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    @property
    def node_hours(self) -> float:
        """How long one node is busy with them, at the load that Google advises."""
        busy_s = self.reads / NODE_READS_PER_S + self.writes / NODE_WRITES_PER_S + self.scanned_mb / SCAN_MB_PER_S
        return busy_s / NODE_LOAD / 3600


OPERATIONS: dict[str, BilledCalls] = {
    what: BilledCalls.of(names) for what, names in ({case.what: [*case.before, *case.after] for case in CASES} | BESIDE).items()
}
OPERATIONS[LIST] = BilledCalls(scanned_mb=PAGE_MB)


def table() -> Figures:
    rows = [[what, *_cells(each), f"{each.times(MILLION).node_hours:.3f}"] for what, each in OPERATIONS.items()]
    columns = ["operation", "row reads", "row writes", "GCS class A", "GCS class B", "node hours per million"]
    return Figures("BilledCalls", columns, together(rows))


def _cells(calls: BilledCalls) -> list[str]:
    reads = "1 scan" if calls.scanned_mb else f"{calls.reads:g}"
    return [reads, *(f"{number:g}" for number in (calls.writes, calls.class_a, calls.class_b))]


# --- a change feed ---------------------------------------------------------------------------------

YEAR_S = 365 * 86_400
FEED_PER_CHANGE = BilledCalls(reads=4, writes=2)
"""What a feed adds to each change of a large object. The entry is kept (conditional) and read. Row and index are read.
The index is written. Clean-up and forget are the same as without a feed; the writer of the feed does them."""

FEED_PER_FILE = BilledCalls(reads=4, writes=8, class_a=1)
"""For each transaction. The commit and the sink's position are conditional. The staged file and the journal are
written, read and erased. The file is made in the bucket."""

UPDATE_BYTES = {"JSON": 100, "Avro, compressed": 30}
"""Bytes of an update in a file; of JSON beside twice the path (`benchmarks/feed_writer.py` measures both)."""


@dataclass(frozen=True)
class FeedYear:
    """A year of a store with a feed on paper. Each change replaces a large object, so it has two updates.

    `changes_per_s`: on average, all day. `poll_s`: as in the settings; there is a file for each. `live`: references.
    """

    changes_per_s: float = 100
    poll_s: float = 2.0
    live: float = 10e6
    path_bytes: float = 60

    @property
    def files(self) -> float:
        return YEAR_S / self.poll_s

    @property
    def updates(self) -> float:
        return 2 * self.changes_per_s * YEAR_S

    @property
    def calls(self) -> BilledCalls:
        """All that a feed adds, with a pass over rows and index each day."""
        scanned_mb = 365 * self.live * (ROW_BYTES["large"] + 2 * self.path_bytes + self._index_bytes) / 1e6
        per_change = FEED_PER_CHANGE.times(self.changes_per_s * YEAR_S)
        return per_change.and_(FEED_PER_FILE.times(self.files)).and_(BilledCalls(scanned_mb=scanned_mb))

    @property
    def _index_bytes(self) -> float:
        return 100 + 2 * self.path_bytes

    def table(self, prices: Prices) -> Figures:
        """`prices`: all of them."""
        calls = self.calls
        as_json, as_avro = UPDATE_BYTES["JSON"] + 2 * self.path_bytes, UPDATE_BYTES["Avro, compressed"]
        json_gib, avro_gib = (self.updates * size / GIB for size in (as_json, as_avro))
        index_gib = self.live * self._index_bytes / GIB
        files, node_hours = self.files, calls.node_hours
        assert prices.node_hour is not None and prices.class_a is not None
        assert prices.row_gib_month is not None and prices.blob_gib_month is not None
        return Figures("A year of a feed", ["", "amount", "cost"], [
            ["updates", f"{self.updates / 1e6:,.0f} million", ""],
            ["row reads", f"{calls.reads / 1e6:,.0f} million", ""],
            ["row writes", f"{calls.writes / 1e6:,.0f} million", ""],
            [
                "Bigtable nodes", f"{node_hours:,.0f} node hours, or {node_hours * 3600 / YEAR_S:.0%} of a node",
                f"{node_hours * prices.node_hour:,.0f}",
            ],
            ["index in Bigtable", f"{index_gib:,.1f} GiB", f"{12 * index_gib * prices.row_gib_month:,.0f}"],
            ["files made (class A)", f"{files / 1e6:,.1f} million", f"{files / 1000 * prices.class_a:,.0f}"],
            ["files at the end, JSON", f"{json_gib:,.0f} GiB", f"{json_gib * prices.blob_gib_month:,.0f} a month"],
            ["the same as Avro", f"{avro_gib:,.0f} GiB", f"{avro_gib * prices.blob_gib_month:,.0f} a month"],
        ])  # fmt: skip


# --- the calculator --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Use:
    """What a store has to do. `rates`: operations a second, on average. `small`, `large`: (objects, bytes of each)."""

    rates: dict[str, float]
    small: tuple[float, float] = (0, 0)
    large: tuple[float, float] = (0, 0)
    path_bytes: float = 60
    daemons: int = 1
    pass_every_s: float = 5.0

    @property
    def calls_per_s(self) -> BilledCalls:
        total = OPERATIONS[EMPTY_PASS].times(self.daemons / self.pass_every_s)
        for what, rate in self.rates.items():
            total = total.and_(OPERATIONS[what].times(rate))
        return total

    @property
    def row_gib(self) -> float:
        (small, payload), (large, _) = self.small, self.large
        stored = small * (payload + ROW_BYTES["small"] + self.path_bytes) + large * (ROW_BYTES["large"] + 2 * self.path_bytes)
        return stored / GIB

    @property
    def blob_gib(self) -> float:
        return self.large[0] * self.large[1] / GIB


@dataclass(frozen=True)
class Prices:
    """In any currency. `class_a`, `class_b`: of 1,000 operations. None: not given."""

    node_hour: float | None = None
    row_gib_month: float | None = None
    blob_gib_month: float | None = None
    class_a: float | None = None
    class_b: float | None = None


def monthly(use: Use, prices: Prices) -> Iterator[tuple[str, float, str, float | None]]:
    """Yields what a month takes: what it is, how much, of which unit, and what it costs."""
    calls = use.calls_per_s
    nodes = max(1.0, calls.node_hours * 3600)
    for what, amount, unit, price in (
        ("Bigtable nodes", nodes * MONTH_S / 3600, "node hours", prices.node_hour),
        ("rows", use.row_gib, "GiB", prices.row_gib_month),
        ("blobs", use.blob_gib, "GiB", prices.blob_gib_month),
        ("GCS class A", calls.class_a * MONTH_S / 1000, "thousand", prices.class_a),
        ("GCS class B", calls.class_b * MONTH_S / 1000, "thousand", prices.class_b),
    ):
        yield what, amount, unit, None if price is None else amount * price


def show(use: Use, prices: Prices) -> None:
    lines = list(monthly(use, prices))
    rows = [[what, f"{amount:,.1f} {unit}", "no price given" if cost is None else f"{cost:,.2f}"] for what, amount, unit, cost in lines]
    left_out = [what for what, *_, cost in lines if cost is None]
    total = sum(cost for *_, cost in lines if cost is not None)
    rows.append(["together", "", f"{total:,.2f}{' without ' + ', '.join(left_out) if left_out else ''}"])
    Figures("A month", ["", "amount", "cost"], rows, [
        "A cluster has at least one node. Network, backups and soft delete are not in it.",
        f"Nodes are counted for rows of 1 KB at {NODE_LOAD:.0%} load, on average over the month: plan for your peak.",
    ]).show()  # fmt: skip


def rate(text: str) -> tuple[str, float]:
    what, _, per_s = text.rpartition("=")
    if what not in OPERATIONS:
        raise argparse.ArgumentTypeError(f"{what!r} is no operation; give one of {', '.join(OPERATIONS)}")
    return what, float(per_s)


def objects(text: str) -> tuple[float, float]:
    number, _, size = text.partition("x")
    return float(number), float(size)


EXAMPLE_PRICES: tuple[float, ...] = (1, 0.2, 0.02, 0.005, 0.0005)
"""Those of the example in docs/sizing.md, in the order of `Prices`. They are nobody's."""


def written(page: str) -> str:
    """The page with the tables as they are now, between their marks."""
    return between(between(page, "calls", table()), "feed", FeedYear().table(Prices(*EXAMPLE_PRICES)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.cost", description="What operations cost on Bigtable and GCS.")
    parser.add_argument("--rate", type=rate, action="append", default=[], metavar="OPERATION=PER_SECOND", help="repeatable")
    for tier in ("small", "large"):
        parser.add_argument(f"--{tier}", type=objects, default=(0, 0), metavar="OBJECTSxBYTES", help=f"{tier} objects that are stored")
    parser.add_argument("--path-bytes", type=float, default=60, help="length of a storage path (60)")
    parser.add_argument("--daemons", type=int, default=1, help="how many recovery daemons run (1)")
    for name, what in (("node-hour", "a node for an hour"), ("row-gib-month", "1 GiB in Bigtable for a month"),
                       ("blob-gib-month", "1 GiB in GCS for a month"), ("class-a", "1,000 operations"), ("class-b", "1,000 operations")):
        parser.add_argument(f"--{name}", type=float, metavar="PRICE", help=f"of {what}")  # fmt: skip
    parser.add_argument("--docs", type=Path, help="writes the table of docs/sizing.md")
    given = parser.parse_args(arguments)
    if given.docs is not None:
        given.docs.write_text(written(given.docs.read_text("utf-8")), "utf-8")
    elif not given.rate:
        table().show()
    else:
        prices = Prices(given.node_hour, given.row_gib_month, given.blob_gib_month, given.class_a, given.class_b)
        show(Use(dict(given.rate), given.small, given.large, given.path_bytes, given.daemons), prices)


if __name__ == "__main__":
    main()
