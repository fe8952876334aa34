"""Whose blobs a bucket holds, as `tiered check` and `tiered provision` say it: of GCS and of S3 alike (pure).

    settled    another store owns the names, or this one does
    to_give    nobody does, so a marker would give them to this store
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tiered.buckets.owners import Marker, conflict, own_marker, ownerless, place
from tiered.provision.findings import Mend, Notice, Provisioning, ok, problem


def settled(markers: Sequence[Marker], bucket: str, prefix: str, owner: str, adopt_from: str | None) -> Notice | None:
    """Who owns the names below `prefix`, if that is clear. `bucket`: as `owners.place` takes it. `owner`: this store.

    `adopt_from`: the owner that this store takes the place of.
    """
    own = own_marker(markers, prefix)
    others = [marker for marker in markers if marker.owner is None or (marker.prefix, marker.owner) != (prefix, adopt_from)]
    if (wrong := conflict(others, bucket, prefix, owner)) is not None:
        instead = "" if own is None or own.owner is None else f" (or --adopt-bucket-from {own.owner}, if no store uses that table any more)"
        return problem(f"{wrong}{instead}")
    return ok(f"{place(bucket, prefix)} belongs to this store, {owner}") if own is not None and own.owner == owner else None


def to_give(
    own: Marker | None, bucket: str, prefix: str, owner: str, wanted: Provisioning, call: Callable[[], Any], *, is_taken: bool
) -> Notice:
    """`own`: the marker to replace. `is_taken`: something lies there, and has no owner. `call`: writes the marker."""
    section, here = bucket.partition("://")[0] if "://" in bucket else "gcs", place(bucket, prefix)
    if is_taken and not wanted.adopt:
        return problem(
            f"{here} holds objects, and no marker says whose: if no other store keeps its blobs there, run 'tiered provision"
            f" --adopt-bucket'; else give this store another {section}.bucket, or a {section}.prefix of its own"
        )
    whose = f", with what it holds{'' if own is None else f', in place of {own.owner}'}" if is_taken or own else ""
    return problem(ownerless(bucket, prefix), Mend(("give", "gave"), f"{here} to this store, {owner}{whose}", call))
