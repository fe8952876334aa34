"""Which keys of a Bigtable table may be of objects: all but those that the store keeps its changelog under (pure).

Other software has usecases that begin with `~`. So only the changelog's own keys are left out, and however many entries
there are, a scan of the objects reads none.
"""

from __future__ import annotations

from changelog.bigtable.channel import KeySpan, after_prefix
from changelog.change import OWN_PREFIXES

OWN_KEYS = tuple(prefix.encode() for prefix in OWN_PREFIXES)
"""How the store's own keys begin, in the order of keys."""


def object_spans(start: bytes, end: bytes | None) -> list[KeySpan]:
    """The keys from `start` (inclusive) to `end` (exclusive; None: no end), without the store's own."""
    spans = []
    for own in OWN_KEYS:
        spans.append(KeySpan(start, own if end is None else min(own, end)))
        start = max(start, after_prefix(own))
    return [span for span in (*spans, KeySpan(start, end or b"")) if span.start < span.end or (end is None and not span.end)]
