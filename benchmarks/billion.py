"""What an audit of a billion blobs takes, on paper.

Each number is a formula over named facts and over what was measured here.

    facts      of the services and their prices, with where each is from (`FACTS`)
    measured   blobs per core-second of the generator and of the same under Spark, from the run of `benchmarks.audit`
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.audit_world import NAME_BYTES, ORPHAN_EVERY, PATH_BYTES
from benchmarks.figures import Figures

BLOBS = 1_000_000_000
PAGE_NAMES = 1000
CLASS_A_PER_1000, CLASS_B_PER_1000 = 0.005, 0.0004
SCAN_MB_PER_S = 220.0
LISTER_PER_S, LISTERS_PER_S, LISTERS_CORES = (11_000, 17_000), 225_000, 48
STORED_BYTES = PATH_BYTES + NAME_BYTES + 36 + len("{}") + 3 * (8 + len("fm") + len("r"))
"""The bytes of a tombstone, not compressed.

That is key, blob's name, token, policy, and for each of three cells its time, family and column.
"""

FACTS = (
    f"A page holds {PAGE_NAMES:,} names. Listing is a class A operation and looking at one blob class B: ${CLASS_A_PER_1000} and"
    f" ${CLASS_B_PER_1000} a thousand, of Standard storage in one region (the pricing examples of cloud.google.com/storage; assumed of"
    " your bucket too: other classes and places cost up to several times that).",
    f"A Bigtable node with SSDs scans {SCAN_MB_PER_S:.0f} MB/s (Google's figure), and has nothing left for others then. A tombstone has"
    f" {STORED_BYTES} bytes. Nodes are paid by the hour whether they scan or not. Small objects that lie between the tombstones are read by"
    " the nodes too, and not sent.",
    f"One lister gets {LISTER_PER_S[0]:,} to {LISTER_PER_S[1]:,} names a second, those of {LISTERS_CORES} cores together {LISTERS_PER_S:,}"
    " (published measurements of others, of parallel listings).",
)


@dataclass(frozen=True)
class Paper:
    """The calculation. `generator`, `spark`: blobs per core-second."""

    generator: float
    spark: float
    blobs: int = BLOBS

    @property
    def pages(self) -> float:
        return self.blobs / PAGE_NAMES

    @property
    def list_dollars(self) -> float:
        return self.pages / 1000 * CLASS_A_PER_1000

    @property
    def looks(self) -> float:
        """The number of second looks at blobs, if the share of orphans is that of the world that was measured."""
        return self.blobs / ORPHAN_EVERY

    @property
    def look_dollars(self) -> float:
        return self.looks / 1000 * CLASS_B_PER_1000

    @property
    def scan_node_hours(self) -> float:
        return node_hours(self.blobs * STORED_BYTES)

    def core_hours(self, blobs_per_core_s: float) -> float:
        return self.blobs / blobs_per_core_s / 3600

    def listing_hours(self, names_per_s: float) -> float:
        return self.blobs / names_per_s / 3600

    def rows(self) -> list[list[str]]:
        slow, fast = (self.listing_hours(rate) for rate in LISTER_PER_S)
        alone, spark, listers = self.core_hours(self.generator), self.core_hours(self.spark), self.listing_hours(LISTERS_PER_S)
        return [
            ["list the blobs", f"{self.pages:,.0f} requests, ${self.list_dollars:,.2f}", "blobs / 1,000; x price of class A"],
            ["look again at 0.1 % of them", f"{self.looks:,.0f} requests, ${self.look_dollars:,.2f}", "blobs / 1,000; x price of class B"],
            ["scan the tombstones", f"{self.scan_node_hours:.2f} node hours", f"blobs x {STORED_BYTES} B / {SCAN_MB_PER_S:.0f} MB/s"],
            ["and what lies between them", f"{node_hours(1e12):.2f} node hours a TB", f"1 TB / {SCAN_MB_PER_S:.0f} MB/s"],
            ["compute, the generator", f"{alone:.1f} core hours", f"blobs / {self.generator / 1000:,.0f} k per core-s"],
            ["compute, under Spark", f"{spark:.1f} core hours", f"blobs / {self.spark / 1000:,.0f} k per core-s"],
            ["time, one lister", f"{fast:.0f} to {slow:.0f} hours", f"blobs / {LISTER_PER_S[0]:,} to {LISTER_PER_S[1]:,} a second"],
            [f"time, {LISTERS_CORES} cores of listers", f"{listers:.1f} hours", f"blobs / {LISTERS_PER_S:,} a second"],
            ["egress", "none", "in one region"],
        ]  # fmt: skip

    def figures(self) -> Figures:
        return Figures(f"An audit of {self.blobs:,} blobs, on paper", ["", "takes", "that is"], self.rows(), list(FACTS))


def node_hours(stored_bytes: float) -> float:
    return stored_bytes / (SCAN_MB_PER_S * 1e6) / 3600
