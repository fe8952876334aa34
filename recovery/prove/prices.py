"""What a call costs, by the services' lists of prices. The table is `PRICES`.

Only a bucket bills calls. Bigtable and PostgreSQL bill machines by the hour, whatever is asked of them. A call here is
one of a method of the long-term tier, so a blob that goes up in parts costs more than its line says: one of the class
of writes for each part. Storage for some minutes, and traffic, come on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars of 1,000 requests. `source`: whose list, and where it was read. `at`: when it was written here;
    nobody has compared it with today's list.
    """

    write: float
    read: float
    source: str
    at: str


PRICES: Mapping[str, Price] = {
    "s3": Price(0.005, 0.0004, "AWS's list for S3 Standard in us-east-1, as docs/sizing.md assumes it", "2026-11-30"),
    "gcs": Price(0.005, 0.0004, "Google's list for Standard storage in one region, as its pricing examples have it", "2026-11-30"),
}
"""By the kind of blobs. Another service of S3 has prices of its own."""

WRITES = frozenset({
    "upload_finalise", "open_copy", "touch", "list", "open_sessions", "abandoned_uploads", "begin_parts", "put_part", "parts",
    "complete_parts", "restore", "set_aside", "bring_back", "kept", "generations", "deleted_generations",
})  # fmt: skip
READS = frozenset({"open", "head", "heads", "now_ns", "check_owner"})
"""Methods of the long-term tier, by how a request of theirs is billed. All others are free, or tell no request."""


def usd_of(blobs_kind: str, method: str, count: int) -> float | None:
    """What so many calls of a method of the long-term tier cost. None: nobody bills them one by one."""
    price = PRICES.get(blobs_kind)
    if price is None or method not in WRITES | READS:
        return None
    return round(count * (price.write if method in WRITES else price.read) / 1000, 6)


def usd_max(blobs_kind: str, calls: int) -> float | None:
    """What so many calls cost at most."""
    price = PRICES.get(blobs_kind)
    return None if price is None else round(calls * price.write / 1000, 2)
