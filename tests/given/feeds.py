"""Messages of change feeds, made at random."""

from __future__ import annotations

from hypothesis import strategies as st

from recovery.feed import Progress
from recovery.feed.messages import LONG_MAX, LONG_MIN

longs = st.integers(LONG_MIN, LONG_MAX)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
bounds = st.lists(st.integers(0, 9) | longs, max_size=1).map(tuple)
counts = st.lists(st.tuples(st.integers(0, 9) | longs, st.integers(0, 3) | longs), max_size=3).map(tuple)
progresses = st.builds(Progress, bounds, bounds, counts)
