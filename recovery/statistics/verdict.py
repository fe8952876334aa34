"""`verdict`: does a source keep up? A pure function of two samples of its offsets.

    lag        what is still to be dealt with: outstanding - processed
    inflow     how fast `outstanding` grows; drain: how fast `processed` grows; net: drain - inflow

The first row that fits decides:

    a sample is missing or unknown, the second is not later, or a figure went back    unknown
    no lag, or no more lag than is drained in `SLACK_S` seconds                       healthy
    the lag is new: there was none before, less than `NEW_S` seconds ago              healthy
    nothing was drained, though there was a lag before                                stalled
    drain <= inflow                                                                   falling behind
    otherwise                                                                         catching up, for lag / net seconds
"""

from __future__ import annotations

from dataclasses import dataclass

from recovery import states

SLACK_S = 30.0
"""A lag that is drained within this time worries nobody. It is three times the interval between reports."""

NEW_S = 60.0
"""What came less than this time ago may still be untouched: recovery has only just seen it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The offsets of a source at one time. `at_ms`: Unix ms by the server's clock. None: not known then."""

    at_ms: int
    outstanding: int | None
    processed: int | None


@dataclass(frozen=True, slots=True)
class SourceVerdict:
    """The answer. The rates are values per second; `caught_up_in_s` is in seconds, and None if that never happens."""

    kind: states.State
    inflow_per_s: float | None = None
    drain_per_s: float | None = None
    caught_up_in_s: float | None = None


def verdict(before: Sample | None, after: Sample | None) -> SourceVerdict:
    """Judges a source by two samples, the older one first. None: there is no such sample."""
    if before is None or after is None:
        return SourceVerdict(states.UNKNOWN)
    if before.outstanding is None or before.processed is None or after.outstanding is None or after.processed is None:
        return SourceVerdict(states.UNKNOWN)
    seconds = (after.at_ms - before.at_ms) / 1000
    arrived, drained = after.outstanding - before.outstanding, after.processed - before.processed
    lag, lag_before = after.outstanding - after.processed, before.outstanding - before.processed
    if seconds <= 0 or min(arrived, drained, lag, lag_before) < 0:
        return SourceVerdict(states.UNKNOWN)
    inflow, drain = arrived / seconds, drained / seconds
    net = drain - inflow
    caught_up_in_s = 0.0 if lag == 0 else lag / net if drained > arrived else None
    if lag <= drain * SLACK_S or (lag_before == 0 and seconds < NEW_S):
        return SourceVerdict(states.HEALTHY, inflow, drain, caught_up_in_s)
    if drained == 0 and lag_before > 0:
        return SourceVerdict(states.STALLED, inflow, drain, None)
    if drained <= arrived:
        return SourceVerdict(states.FALLING_BEHIND, inflow, drain, None)
    return SourceVerdict(states.CATCHING_UP, inflow, drain, caught_up_in_s)
