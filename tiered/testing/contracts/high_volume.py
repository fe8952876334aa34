"""What every high-volume backend must do: the sentences of `HighVolumeBackend`, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise, product

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.base.errors import ClockBehindError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from changelog.log import GarbageCollection
from tiered.metadata import NS_PER_MS, NS_PER_S, Metadata, TimeToIdle, TimeToLive, is_expired
from tiered.object_id import blob_name
from tiered.services.backends import MARK_AGE_MAX_S, HighVolumeBackend, Inline, Only, Row, RowState, Still, Tombstone, Vacant
from tiered.services.scans import Redirect, RowPage
from tiered.testing.clock import Clock
from tiered.testing.contracts.examples import examples

pytestmark = pytest.mark.anyio

PATH = "notes/org.1/objects/key"
HOUR_NS = 3600 * NS_PER_S


class Rows:
    """The backend under test, with what every call of these tests has in common."""

    def __init__(self, backend: HighVolumeBackend, runtime: Runtime) -> None:
        self.backend = backend
        self.runtime = runtime

    def token(self) -> ChangeId:
        return ChangeId.new(self.runtime)

    def in_ns(self, ns: int) -> int:
        """A deadline so far from now, in whole milliseconds."""
        return (self.runtime.wall_ns() + ns) // NS_PER_MS * NS_PER_MS

    async def swap(self, path: str, token: ChangeId, expected: str | None, state: RowState, only: Only | None = None) -> bool:
        return await self.backend.swap(path, token, expected, state, self.runtime.boot_time() + 60, only)

    async def read(self, path: str = PATH) -> Row:
        return await self.backend.read(path, marks=True)

    async def replace(self, path: str, state: RowState) -> None:
        """Brings about `state`, whatever the row holds, by a change of another token or of the state's own."""
        token = state.token if state is not None and state.token is not None else self.token()
        assert await self.swap(path, token, (await self.read(path)).target, state)


@pytest.fixture
def rows(high_volume: HighVolumeBackend, runtime: Runtime) -> Rows:
    return Rows(high_volume, runtime)


def inline(token: ChangeId, payload: bytes = b"payload", deadline_ns: int | None = None) -> Inline:
    expiration = None if deadline_ns is None else TimeToIdle(ns=HOUR_NS)
    return Inline(Metadata(expiration, time_expires_ns=deadline_ns, size=len(payload)), payload, token)


def tombstone(path: str, token: ChangeId, deadline_ns: int | None = None, *, described: bool = False) -> Tombstone:
    expiration = None if deadline_ns is None else TimeToLive(ns=HOUR_NS)
    told = Metadata(expiration, 5, deadline_ns, "text/plain", "Zstd", "203.0.113.42", "héllo.txt", 3 << 30, {"a": "☃"}, {"newer": [1]})
    return Tombstone(blob_name(path, token), expiration, deadline_ns, token, metadata=told if described else None)


# --- read --------------------------------------------------------------------------------------------


async def test_a_row_that_was_never_written_is_absent_and_has_no_marks(rows: Rows) -> None:
    assert await rows.read() == Row(None)


async def test_an_inline_object_is_read_as_it_was_put(rows: Rows) -> None:
    token = rows.token()
    metadata = Metadata(
        TimeToLive(ns=HOUR_NS), rows.runtime.wall_ns(), rows.in_ns(HOUR_NS), "text/plain", "Zstd", "203.0.113.42", "héllo.txt", 5,
        {"build": "a/b", "Unicode": "☃"}, {"newer": [1, {"key": None}]},
    )
    state = Inline(metadata, b"he\x00lo", token)
    assert await rows.backend.put_inline(PATH, token, state)
    assert await rows.backend.read(PATH) == Row(state)


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
async def test_payloads_of_any_inline_size_come_back_whole(rows: Rows, size: int) -> None:
    token = rows.token()
    assert await rows.backend.put_inline(PATH, token, inline(token, bytes(range(256)) * (size // 256) + b"x" * (size % 256)))
    state = (await rows.backend.read(PATH)).state
    assert isinstance(state, Inline) and len(state.payload) == state.metadata.size == size


@pytest.mark.parametrize("expiration", [None, TimeToLive(ns=HOUR_NS + 1), TimeToIdle(ns=HOUR_NS)])
async def test_a_tombstone_is_read_as_it_was_swapped_in(rows: Rows, expiration: TimeToLive | TimeToIdle | None) -> None:
    token = rows.token()
    state = Tombstone(blob_name(PATH, token), expiration, rows.in_ns(HOUR_NS) if expiration else None, token)
    assert await rows.swap(PATH, token, None, state)
    assert await rows.backend.read(PATH) == Row(state)


@pytest.mark.parametrize("deadline_ns", [None, HOUR_NS])
async def test_a_tombstone_tells_the_metadata_of_its_blob_until_the_next_write(rows: Rows, deadline_ns: int | None) -> None:
    deadline_ns = None if deadline_ns is None else rows.in_ns(deadline_ns)
    state = tombstone(PATH, rows.token(), deadline_ns, described=True)
    await rows.replace(PATH, state)
    assert state.metadata is not None and (await rows.read()).state == state
    [row] = (await rows.backend.scan(PATH, b"", 10)).rows
    assert (row.target, row.metadata) == (state.target, state.metadata)
    for following in (tombstone(PATH, rows.token(), deadline_ns), inline(rows.token()), tombstone(PATH, rows.token()), None):
        await rows.replace(PATH, following)
        assert (await rows.read()).state == following, "nothing is left of what was told before"


async def test_an_expired_object_is_still_read_and_its_reader_judges(rows: Rows) -> None:
    token, deadline_ns = rows.token(), rows.in_ns(-HOUR_NS)
    await rows.replace(PATH, tombstone(PATH, token, deadline_ns))
    assert (await rows.read()).state == tombstone(PATH, token, deadline_ns)


async def test_marks_are_read_only_when_asked_for(rows: Rows) -> None:
    won, refused = rows.token(), rows.token()
    assert await rows.swap(PATH, won, None, None)
    assert not await rows.backend.settle(PATH, refused)
    assert await rows.backend.read(PATH) == Row(None)
    assert await rows.backend.read(PATH, marks=True) == Row(None, frozenset({won}), frozenset({refused}))


async def test_a_token_reads_its_own_marks_and_nobody_elses(rows: Rows) -> None:
    won, refused, both, none = (rows.token() for _ in range(4))
    for token in (won, both):
        assert await rows.swap(PATH, token, None, None)
    for token in (refused, both):
        assert not await rows.backend.settle(PATH, token)
    state = inline(rows.token())
    await rows.replace(PATH, state)
    assert await rows.backend.read(PATH, marks=won) == Row(state, frozenset({won}))
    assert await rows.backend.read(PATH, marks=refused) == Row(state, refused=frozenset({refused}))
    assert await rows.backend.read(PATH, marks=both) == Row(state, frozenset({both}), frozenset({both}))
    assert await rows.backend.read(PATH, marks=none) == Row(state)
    assert await rows.backend.read(f"{PATH}/other", marks=won) == Row(None)


# --- the matrix: what is present x the marks of the token ----------------------------------------------

A, B = ChangeId("018bcfe5-6800-7000-8000-00000000000a"), ChangeId("018bcfe5-6800-7000-8000-00000000000b")
PAST_NS = 1_700_000_000 * NS_PER_S

PRESENT: dict[str, Callable[[str], RowState]] = {
    "nothing": lambda path: None,
    "an inline object": lambda path: inline(A),
    "an expired inline object": lambda path: inline(A, deadline_ns=PAST_NS),
    "tombstone A": lambda path: tombstone(path, A),
    "tombstone B": lambda path: tombstone(path, B),
    "expired tombstone A": lambda path: tombstone(path, A, PAST_NS),
    "legacy tombstone": lambda path: Tombstone(path, token=A),
}
MARKS = ["no mark", "won", "refused", "both"]
matrix = pytest.mark.parametrize("present", PRESENT)
"""Each of these tests goes through all `MARKS`, each on rows of its own."""


async def arrange(rows: Rows, path: str, token: ChangeId, present: str, marks: str) -> Row:
    """A row that holds `present`, where `token` has these marks; as read."""
    if marks in ("won", "both"):
        assert await rows.swap(path, token, None, None)
    if marks in ("refused", "both"):
        assert not await rows.backend.settle(path, token)
    state = PRESENT[present](path)
    if state is not None:
        await rows.replace(path, state)
    row = await rows.read(path)
    assert row.state == state and (token in row.won, token in row.refused) == (marks in ("won", "both"), marks in ("refused", "both"))
    return row


@matrix
async def test_swap_conflicts_iff_a_mark_exists_or_another_tombstone_is_present(rows: Rows, present: str) -> None:
    for marks in MARKS:
        for number, (expects, writes) in enumerate(product(["none", "A", "legacy"], ["nothing", "inline", "tombstone"])):
            path, token = f"{PATH}/{marks}/{number}", rows.token()
            before = await arrange(rows, path, token, present, marks)
            expected = {"none": None, "A": blob_name(path, A), "legacy": path}[expects]
            state = {"nothing": None, "inline": inline(token, b"new"), "tombstone": tombstone(path, token)}[writes]
            conflict = marks != "no mark" or (before.target is not None and before.target != expected)
            assert await rows.swap(path, token, expected, state) is not conflict, (expects, writes)
            after = before if conflict else replace(before, state=state, won=before.won | {token})
            assert await rows.read(path) == after, (expects, writes)


@matrix
async def test_inline_writes_conflict_iff_a_tombstone_is_present_or_a_mark_exists(rows: Rows, present: str) -> None:
    for marks in MARKS:
        for number, deletes in enumerate([False, True]):
            path, token = f"{PATH}/{marks}/{number}", rows.token()
            before = await arrange(rows, path, token, present, marks)
            conflict = marks != "no mark" or before.target is not None
            state = None if deletes else inline(token, b"new", rows.in_ns(HOUR_NS))
            if state is None:
                assert await rows.backend.delete_inline(path, token) is not conflict
            else:
                assert await rows.backend.put_inline(path, token, state) is not conflict
            assert await rows.read(path) == (before if conflict else replace(before, state=state)), "no mark is written"


@matrix
async def test_settle_refuses_a_token_that_the_row_does_not_show(rows: Rows, present: str) -> None:
    for marks in MARKS:
        path, token = f"{PATH}/{marks}", rows.token()
        before = await arrange(rows, path, token, present, marks)
        for _ in range(2):
            assert await rows.backend.settle(path, token) is False
            assert await rows.read(path) == replace(before, refused=before.refused | {token})


SHOWN: dict[str, Callable[[str, ChangeId], RowState]] = {
    "inline object": lambda path, token: inline(token),
    "tombstone": lambda path, token: tombstone(path, token),
    "expired tombstone": lambda path, token: tombstone(path, token, PAST_NS),
    "another change's tombstone that names its blob": lambda path, token: replace(tombstone(path, token), token=A),
}


@pytest.mark.parametrize(("shown", "marks"), [*product(SHOWN, ["no mark"]), *product(list(SHOWN)[3:], MARKS[1:])])
async def test_settle_finds_a_token_live_that_the_row_shows_and_writes_nothing(rows: Rows, shown: str, marks: str) -> None:
    token = rows.token()
    await arrange(rows, PATH, token, "nothing", marks)
    await rows.replace(PATH, SHOWN[shown](PATH, token))
    before = await rows.read()
    for _ in range(2):
        assert await rows.backend.settle(PATH, token) is True
        assert await rows.read() == before


# --- conditions --------------------------------------------------------------------------------------


@matrix
async def test_a_swap_that_wants_nothing_conflicts_iff_it_would_anyway_or_something_lives(rows: Rows, present: str) -> None:
    for marks in MARKS:
        for number, (expects, at_ns) in enumerate(product(["none", "A", "legacy"], [PAST_NS - NS_PER_MS, PAST_NS])):
            path, token = f"{PATH}/{marks}/{number}", rows.token()
            before = await arrange(rows, path, token, present, marks)
            expected = {"none": None, "A": blob_name(path, A), "legacy": path}[expects]
            lives = before.state is not None and not is_expired(before.state.deadline_ns, at_ns)
            conflict = lives or marks != "no mark" or (before.target is not None and before.target != expected)
            assert await rows.swap(path, token, expected, inline(token, b"new"), Vacant(at_ns)) is not conflict, (expects, at_ns)
            after = before if conflict else replace(before, state=inline(token, b"new"), won=before.won | {token})
            assert await rows.read(path) == after, (expects, at_ns)


@matrix
async def test_what_is_reserved_can_be_swapped_once_and_only_by_a_token_without_a_mark(rows: Rows, present: str) -> None:
    for marks in MARKS:
        for number, deletes in enumerate([False, True]):
            path, token = f"{PATH}/{marks}/{number}", rows.token()
            before = await arrange(rows, path, token, present, marks)
            seen = before.state if before.state is not None else inline(A)
            is_there = before.state is not None and before.target != path
            assert await rows.backend.reserve(path, token, seen) is is_there
            assert await rows.read(path) == before, "a reservation does not show"
            takes_effect = is_there and marks == "no mark"
            state = None if deletes else inline(token, b"new")
            assert await rows.swap(path, token, before.target, state, Still(seen)) is takes_effect
            after = replace(before, state=state, won=before.won | {token}) if takes_effect else before
            assert await rows.read(path) == after
            assert not await rows.swap(path, token, before.target, state, Still(seen)), "it is used up"
            assert await rows.read(path) == after


@pytest.mark.parametrize("there", ["inline", "tombstone"])
@pytest.mark.parametrize("change", ["put inline", "put a tombstone", "delete", "put inline and delete"])
async def test_a_reservation_ends_with_the_next_change(rows: Rows, there: str, change: str) -> None:
    first, token = rows.token(), rows.token()
    seen = inline(first) if there == "inline" else tombstone(PATH, first)
    await rows.replace(PATH, seen)
    assert await rows.backend.reserve(PATH, token, seen)
    if "put" in change:
        await rows.replace(PATH, inline(rows.token()) if "inline" in change else tombstone(PATH, rows.token()))
    if "delete" in change:
        await rows.replace(PATH, None)
    before = await rows.read()
    assert not await rows.swap(PATH, token, before.target, inline(token), Still(seen))
    assert await rows.read() == before
    assert not await rows.backend.reserve(PATH, token, seen)


@pytest.mark.parametrize("write", ["put_inline", "delete_inline"])
async def test_inline_writes_end_a_reservation(rows: Rows, write: str) -> None:
    first, token, other = rows.token(), rows.token(), rows.token()
    await rows.replace(PATH, inline(first))
    assert await rows.backend.reserve(PATH, token, inline(first))
    if write == "put_inline":
        assert await rows.backend.put_inline(PATH, other, inline(other))
    else:
        assert await rows.backend.delete_inline(PATH, other)
    assert not await rows.swap(PATH, token, None, None, Still(inline(first)))


async def test_of_two_that_reserved_the_same_one_wins(rows: Rows) -> None:
    first, one, two = rows.token(), rows.token(), rows.token()
    await rows.replace(PATH, inline(first))
    for token in (one, two):
        assert await rows.backend.reserve(PATH, token, inline(first))
        await rows.runtime.sleep(0.002)  # Bigtable keeps one of two that come in one millisecond
    assert await rows.swap(PATH, one, None, inline(one), Still(inline(first)))
    assert not await rows.swap(PATH, two, None, inline(two), Still(inline(first)))
    assert (await rows.read()).state == inline(one)


async def test_a_reservation_survives_a_touch_and_ends_with_a_settle(rows: Rows) -> None:
    first, token = rows.token(), rows.token()
    seen = tombstone(PATH, first, rows.in_ns(HOUR_NS))
    await rows.replace(PATH, seen)
    assert await rows.backend.reserve(PATH, token, seen)
    assert await rows.backend.touch(PATH, seen, rows.in_ns(2 * HOUR_NS))
    assert await rows.backend.reserve(PATH, token, seen), "it is the same write"
    assert not await rows.backend.settle(PATH, token)
    assert not await rows.swap(PATH, token, seen.target, None, Still(seen))
    assert await rows.backend.reserve(PATH, token, seen)
    assert not await rows.swap(PATH, token, seen.target, None, Still(seen)), "a late reservation helps no token that was refused"


async def test_what_has_no_token_of_its_own_cannot_be_reserved(rows: Rows) -> None:
    assert not await rows.backend.reserve(PATH, rows.token(), replace(inline(A), token=None))
    assert await rows.read() == Row(None)


async def test_a_tombstone_says_that_it_was_made_under_a_condition(rows: Rows) -> None:
    first, second = rows.token(), rows.token()
    await rows.replace(PATH, tombstone(PATH, first, rows.in_ns(HOUR_NS)))
    seen = (await rows.read()).state
    assert isinstance(seen, Tombstone) and not seen.conditional
    assert await rows.backend.reserve(PATH, second, seen)
    state = replace(tombstone(PATH, second, rows.in_ns(HOUR_NS)), conditional=True)
    assert await rows.swap(PATH, second, seen.target, state, Still(seen))
    assert await rows.backend.touch(PATH, state, rows.in_ns(2 * HOUR_NS))
    touched = (await rows.read()).state
    assert isinstance(touched, Tombstone) and touched.conditional


# --- at most once, for ever --------------------------------------------------------------------------


async def test_a_repeated_swap_has_no_effect_and_says_conflict(rows: Rows) -> None:
    token = rows.token()
    assert await rows.swap(PATH, token, None, tombstone(PATH, token))
    before = await rows.read()
    assert not await rows.swap(PATH, token, None, tombstone(PATH, token))
    assert not await rows.swap(PATH, token, blob_name(PATH, token), None)
    assert await rows.read() == before


async def test_a_swap_sent_before_its_token_was_refused_has_no_effect_when_it_lands(rows: Rows) -> None:
    token = rows.token()
    assert not await rows.backend.settle(PATH, token)
    assert not await rows.swap(PATH, token, None, tombstone(PATH, token))
    assert not await rows.backend.put_inline(PATH, token, inline(token))
    assert await rows.read() == Row(None, refused=frozenset({token}))


async def test_a_retried_swap_after_a_delete_has_no_effect(rows: Rows) -> None:
    """The absent ABA: what the swap expects is true again, and its effect was undone by another."""
    token, other = rows.token(), rows.token()
    assert await rows.swap(PATH, token, None, tombstone(PATH, token))
    assert await rows.swap(PATH, other, blob_name(PATH, token), None)
    assert not await rows.swap(PATH, token, None, tombstone(PATH, token))
    assert await rows.read() == Row(None, frozenset({token, other}))


async def test_a_retried_overwrite_does_not_bring_back_what_was_replaced(rows: Rows) -> None:
    first, second, third = rows.token(), rows.token(), rows.token()
    assert await rows.swap(PATH, first, None, tombstone(PATH, first))
    assert await rows.swap(PATH, second, blob_name(PATH, first), tombstone(PATH, second))
    assert await rows.swap(PATH, third, blob_name(PATH, second), tombstone(PATH, first))
    assert not await rows.swap(PATH, second, blob_name(PATH, first), tombstone(PATH, second))
    assert (await rows.read()).target == blob_name(PATH, first)


async def test_won_and_refused_are_both_kept_and_neither_hides_the_other(rows: Rows) -> None:
    token = rows.token()
    assert await rows.swap(PATH, token, None, tombstone(PATH, token))
    assert await rows.swap(PATH, rows.token(), blob_name(PATH, token), None)
    assert not await rows.backend.settle(PATH, token)
    row = await rows.read()
    assert token in row.won and token in row.refused


async def test_marks_survive_every_change_of_the_state(rows: Rows) -> None:
    token, refused = rows.token(), rows.token()
    assert await rows.swap(PATH, token, None, None)
    assert not await rows.backend.settle(PATH, refused)
    for state in (inline(rows.token()), tombstone(PATH, rows.token()), inline(rows.token()), None):
        await rows.replace(PATH, state)
    put, deleted = rows.token(), rows.token()
    assert await rows.backend.put_inline(PATH, put, inline(put))
    assert await rows.backend.delete_inline(PATH, deleted)
    row = await rows.read()
    assert token in row.won and refused in row.refused


async def test_marks_of_one_row_are_not_those_of_another(rows: Rows) -> None:
    token = rows.token()
    assert not await rows.backend.settle(f"{PATH}/other", token)
    assert await rows.swap(PATH, token, None, tombstone(PATH, token))


async def test_a_swap_past_its_deadline_is_never_sent(rows: Rows) -> None:
    token = rows.token()
    with pytest.raises(UnavailableError):
        await rows.backend.swap(PATH, token, None, tombstone(PATH, token), rows.runtime.boot_time() - 0.001)
    assert await rows.read() == Row(None)


async def test_an_inline_put_is_live_until_it_is_replaced(rows: Rows) -> None:
    first, second = rows.token(), rows.token()
    assert await rows.backend.put_inline(PATH, first, inline(first))
    assert await rows.backend.settle(PATH, first)
    assert await rows.backend.put_inline(PATH, second, inline(second))
    assert not await rows.backend.settle(PATH, first)
    assert await rows.backend.settle(PATH, second)


# --- what is forgotten -------------------------------------------------------------------------------

LATER_NS = (MARK_AGE_MAX_S + 60) * NS_PER_S


@pytest.fixture
def forgetful(rows: Rows) -> Rows:
    if not isinstance(rows.backend, GarbageCollection):
        pytest.skip("its service collects marks, by its own clock, and keeps no horizon")
    return rows


async def forget(rows: Rows) -> None:
    """Collects as if two days had passed, and sets the clock right again."""
    assert isinstance(rows.backend, GarbageCollection) and isinstance(rows.runtime, Clock)
    rows.runtime.ahead_ns = LATER_NS
    assert await rows.backend.collect(100) > 0
    rows.runtime.ahead_ns = 0
    await rows.runtime.sleep(0.005)  # whoever comes later has a later id


async def test_a_swap_in_flight_stays_refused_when_the_clock_jumps_and_its_mark_is_collected(forgetful: Rows) -> None:
    rows, token = forgetful, forgetful.token()
    assert not await rows.backend.settle(PATH, token)
    await forget(rows)
    assert not await rows.swap(PATH, token, None, tombstone(PATH, token))
    assert not await rows.backend.put_inline(PATH, token, inline(token))
    assert not await rows.backend.delete_inline(PATH, token)
    assert await rows.read() == Row(None)


async def test_a_repeated_swap_has_no_effect_when_its_won_mark_was_collected(forgetful: Rows) -> None:
    rows, token, other = forgetful, forgetful.token(), forgetful.token()
    assert await rows.swap(PATH, token, None, tombstone(PATH, token))
    assert await rows.swap(PATH, other, blob_name(PATH, token), None)
    await forget(rows)
    assert not await rows.swap(PATH, token, None, tombstone(PATH, token))
    assert (await rows.read()).state is None


async def test_a_token_whose_marks_may_be_gone_is_said_to_be_forgotten_and_younger_ones_are_welcome(forgetful: Rows) -> None:
    rows, old = forgetful, forgetful.token()
    assert not await rows.backend.settle(PATH, old)
    assert not (await rows.backend.read(PATH, marks=old)).forgotten
    await forget(rows)
    assert (await rows.backend.read(PATH, marks=old)).forgotten
    assert await rows.backend.settle(PATH, old) is False, "to settle it once more does no harm"
    assert await rows.backend.read(PATH, marks=old) == Row(None, refused=frozenset({old}), forgotten=True)
    for path in (PATH, f"{PATH}/other"):
        young = rows.token()
        assert await rows.swap(path, young, None, tombstone(path, young))
        assert await rows.backend.read(path, marks=young) == Row(tombstone(path, young), frozenset({young}))


async def test_the_horizon_never_goes_back(forgetful: Rows) -> None:
    rows, first, second = forgetful, forgetful.token(), forgetful.token()
    assert not await rows.backend.settle(PATH, second)
    await forget(rows)
    assert not await rows.backend.settle(PATH, first)
    await forget(rows)
    assert not await rows.swap(PATH, second, None, tombstone(PATH, second))


async def test_a_token_that_is_older_than_the_horizon_takes_effect_if_nobody_sent_it_before(forgetful: Rows) -> None:
    rows, open_upload, other = forgetful, forgetful.token(), forgetful.token()
    assert not await rows.backend.settle(PATH, other)
    await forget(rows)
    assert not await rows.swap(PATH, open_upload, None, tombstone(PATH, open_upload))
    now_ms = rows.runtime.wall_ns() // NS_PER_MS
    soon_s = rows.runtime.boot_time() + 60
    assert await rows.backend.swap(PATH, open_upload, None, tombstone(PATH, open_upload), soon_s, None, now_ms)


async def test_the_horizon_passes_the_time_at_which_a_collected_mark_was_written(forgetful: Rows) -> None:
    rows, open_upload = forgetful, forgetful.token()
    assert isinstance(rows.runtime, Clock)
    rows.runtime.ahead_ns = LATER_NS
    refused_ms = rows.runtime.wall_ns() // NS_PER_MS
    assert not await rows.backend.settle(PATH, open_upload)
    rows.runtime.ahead_ns = 2 * LATER_NS
    assert isinstance(rows.backend, GarbageCollection)
    assert await rows.backend.collect(100) == 1
    soon_s = rows.runtime.boot_time() + 60
    assert not await rows.backend.swap(PATH, open_upload, None, tombstone(PATH, open_upload), soon_s, None, refused_ms - 1000)


async def test_a_mark_whose_token_was_made_by_a_clock_that_was_ahead_stays_and_stops_nobody(forgetful: Rows) -> None:
    rows = forgetful
    assert isinstance(rows.runtime, Clock) and isinstance(rows.backend, GarbageCollection)
    rows.runtime.ahead_ns = 365 * 86_400 * NS_PER_S
    ahead = rows.token()
    rows.runtime.ahead_ns = 0
    assert not await rows.backend.settle(PATH, ahead)
    rows.runtime.ahead_ns = LATER_NS
    assert await rows.backend.collect(100) == 0
    rows.runtime.ahead_ns = 0
    assert not await rows.swap(PATH, ahead, None, None)
    token = rows.token()
    assert await rows.swap(PATH, token, None, None)


async def test_where_the_clock_is_behind_the_horizon_each_write_says_so_and_reads_go_on(forgetful: Rows) -> None:
    rows, token = forgetful, forgetful.token()
    assert await rows.swap(PATH, token, None, inline(token))
    before = (await rows.read()).state
    await forget(rows)
    assert isinstance(rows.runtime, Clock)
    rows.runtime.ahead_ns = -LATER_NS
    behind = rows.token()
    for write in (
        rows.swap(PATH, behind, None, None), rows.backend.put_inline(PATH, behind, inline(behind)), rows.backend.delete_inline(PATH, behind)
    ):
        with pytest.raises(ClockBehindError):
            await write
    assert (await rows.read()).state == before
    rows.runtime.ahead_ns = 0
    right = rows.token()
    assert await rows.backend.put_inline(PATH, right, inline(right))


# --- touch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["inline", "tombstone", "described"])
async def test_touch_extends_the_deadline_and_changes_nothing_else(rows: Rows, kind: str) -> None:
    token, deadline_ns, later_ns = rows.token(), rows.in_ns(HOUR_NS), rows.in_ns(2 * HOUR_NS)

    def build(deadline_ns: int) -> Inline | Tombstone:
        described = kind == "described"
        return inline(token, deadline_ns=deadline_ns) if kind == "inline" else tombstone(PATH, token, deadline_ns, described=described)

    await rows.replace(PATH, build(deadline_ns))
    refused = rows.token()
    assert not await rows.backend.settle(PATH, refused)
    before = await rows.read()
    assert isinstance(before.state, (Inline, Tombstone))
    assert await rows.backend.touch(PATH, before.state, later_ns)
    after = await rows.read()
    assert isinstance(after.state, (Inline, Tombstone)) and after.state.deadline_ns == later_ns
    assert after == replace(before, state=build(later_ns))
    assert kind == "inline" or (await rows.backend.redirects_at([PATH.encode()])).redirects == [
        Redirect(PATH, blob_name(PATH, token), later_ns)
    ]


async def test_a_touched_tombstone_tells_what_its_reader_saw_of_the_blob(rows: Rows) -> None:
    """So what older software wrote is told from then on."""
    token, deadline_ns, later_ns = rows.token(), rows.in_ns(HOUR_NS), rows.in_ns(2 * HOUR_NS)
    conditional = replace(tombstone(PATH, token, deadline_ns), conditional=True)
    await rows.replace(PATH, conditional)
    seen = replace(tombstone(PATH, token, deadline_ns, described=True), conditional=True)
    assert not await rows.backend.touch(PATH, seen, deadline_ns)
    assert (await rows.read()).state == conditional, "nothing was extended, so nothing is told"
    assert await rows.backend.touch(PATH, seen, later_ns)
    assert (await rows.read()).state == replace(tombstone(PATH, token, later_ns, described=True), conditional=True)
    other = tombstone(PATH, rows.token(), deadline_ns)
    await rows.replace(PATH, other)
    assert not await rows.backend.touch(PATH, seen, rows.in_ns(3 * HOUR_NS))
    assert (await rows.read()).state == other, "it is not told of another write"


@pytest.mark.parametrize("kind", ["inline", "tombstone"])
async def test_touch_never_shortens(rows: Rows, kind: str) -> None:
    token, deadline_ns = rows.token(), rows.in_ns(HOUR_NS)
    state = inline(token, deadline_ns=deadline_ns) if kind == "inline" else tombstone(PATH, token, deadline_ns)
    await rows.replace(PATH, state)
    for sooner_ns in (deadline_ns, deadline_ns - NS_PER_MS, rows.in_ns(0)):
        assert not await rows.backend.touch(PATH, state, sooner_ns)
    assert (await rows.read()).state == state


@pytest.mark.parametrize("kind", ["inline", "tombstone"])
async def test_touch_gives_no_deadline_to_what_has_none(rows: Rows, kind: str) -> None:
    token = rows.token()
    state = inline(token) if kind == "inline" else tombstone(PATH, token)
    await rows.replace(PATH, state)
    assert not await rows.backend.touch(PATH, state, rows.in_ns(HOUR_NS))
    assert (await rows.read()).state == state


@pytest.mark.parametrize("now", ["nothing", "inline", "tombstone"])
@pytest.mark.parametrize("seen", ["inline", "tombstone"])
async def test_touch_of_what_was_replaced_has_no_effect(rows: Rows, seen: str, now: str) -> None:
    old, new, deadline_ns = rows.token(), rows.token(), rows.in_ns(HOUR_NS)
    state = inline(old, deadline_ns=deadline_ns) if seen == "inline" else tombstone(PATH, old, deadline_ns)
    await rows.replace(PATH, state)
    states: dict[str, RowState] = {
        "nothing": None, "inline": inline(new, deadline_ns=deadline_ns), "tombstone": tombstone(PATH, new, deadline_ns),
    }
    await rows.replace(PATH, states[now])
    before = await rows.read()
    assert not await rows.backend.touch(PATH, state, rows.in_ns(2 * HOUR_NS))
    assert await rows.read() == before


# --- scan --------------------------------------------------------------------------------------------

KEYS = ["a", "a/b", "a/b/c", "a0", "ab", "A", "_", "%", "é", "z", "\uffff", "\U00010000", "a_b", "aXb"]


async def test_scan_lists_paths_in_byte_order_page_by_page(rows: Rows) -> None:
    paths = sorted((f"notes/objects/{key}" for key in KEYS), key=str.encode)
    for path in reversed(paths):
        await rows.replace(path, inline(rows.token()))
    for limit in (1, 3, len(paths), 100):
        found: list[str] = []
        start: bytes | None = b""
        while start is not None:
            page = await rows.backend.scan("notes/", start, limit)
            assert len(page.rows) <= limit and not page.corrupt
            assert page.rows or page.next_start is None
            found += [name.path for name in page.rows]
            start = page.next_start
        assert found == paths


@pytest.mark.parametrize("prefix", [*(f"notes/objects/{key}" for key in ("a", "a/", "a_", "%", "é")), "note", "x", ""])
async def test_scan_lists_what_begins_with_the_prefix_and_nothing_else(rows: Rows, prefix: str) -> None:
    paths = [f"{usecase}/objects/{key}" for usecase in ("notes", "notes2", "m") for key in KEYS]
    for path in paths:
        await rows.replace(path, tombstone(path, rows.token()))
    expected = sorted((path for path in paths if path.startswith(prefix)), key=str.encode)
    assert [name.path for name in (await rows.backend.scan(prefix, b"", 100)).rows] == expected
    assert [name.path for name in (await rows.backend.scan(prefix, b"a", 100)).rows] == expected, "the start may lie before the prefix"
    assert await rows.backend.scan(prefix, b"zzz", 100) == RowPage([], [], None)


async def test_scan_ends_before_its_end(rows: Rows) -> None:
    paths = sorted((f"notes/objects/{key}" for key in KEYS), key=str.encode)
    for path in paths:
        await rows.replace(path, inline(rows.token()))
    for prefix, end in product(("", "notes/"), [*map(str.encode, paths), b"a", b"~", b"notes/objects/\xff"]):
        found = [row.path for row in (await rows.backend.scan(prefix, b"", 100, end)).rows]
        assert found == [path for path in paths if path.encode() < end]
    assert await rows.backend.scan("", b"b", 100, b"a") == RowPage([], [], None)


async def test_scan_tells_deadlines_and_leaves_expired_rows_to_its_reader(rows: Rows) -> None:
    states: list[Inline | Tombstone] = [
        inline(rows.token()), inline(rows.token(), deadline_ns=rows.in_ns(HOUR_NS)), tombstone(PATH, rows.token(), PAST_NS),
    ]
    for number, state in enumerate(states):
        await rows.replace(f"{PATH}/{number}", state)
    found = (await rows.backend.scan(PATH, b"", 10)).rows
    assert [(name.path, name.deadline_ns) for name in found] == [(f"{PATH}/{n}", state.deadline_ns) for n, state in enumerate(states)]


async def test_scan_tells_all_of_a_row_but_its_payload(rows: Rows) -> None:
    states: list[Inline | Tombstone] = [
        inline(rows.token(), b"12345"), tombstone(f"{PATH}/1", rows.token(), rows.in_ns(HOUR_NS)),
        inline(rows.token(), b"", rows.in_ns(HOUR_NS)), tombstone(f"{PATH}/3", rows.token(), described=True),
        tombstone(f"{PATH}/4", rows.token(), rows.in_ns(HOUR_NS), described=True),
    ]
    for number, state in enumerate(states):
        await rows.replace(f"{PATH}/{number}", state)
    for row, state in zip((await rows.backend.scan(PATH, b"", 10)).rows, states, strict=True):
        assert (row.token, row.deadline_ns, row.target) == (state.token, state.deadline_ns, Row(state).target)
        assert row.metadata == state.metadata


@pytest.mark.parametrize("start", [b"notes/objects/b\xff", "notes/objects/é".encode()[:-1] + b"\xff"])
async def test_scan_begins_at_bytes_that_are_no_text(rows: Rows, start: bytes) -> None:
    """So does a listing after all names of a folder."""
    paths = [f"notes/objects/{key}" for key in ("a", "b", "bb", "c", "é", "éé", "ê", "\U00010000")]
    for path in paths:
        await rows.replace(path, inline(rows.token()))
    found = [row.path for row in (await rows.backend.scan("notes/", start, 100)).rows]
    assert found == [path for path in paths if path.encode() >= start]


async def test_scan_omits_rows_of_marks_only(rows: Rows) -> None:
    deleted, settled, kept = (f"{PATH}/{name}" for name in ("deleted", "settled", "kept"))
    await rows.replace(deleted, tombstone(deleted, rows.token()))
    await rows.replace(deleted, None)
    assert not await rows.backend.settle(settled, rows.token())
    await rows.replace(kept, inline(rows.token()))
    assert [name.path for name in (await rows.backend.scan(PATH, b"", 2)).rows] == [kept]


async def test_what_other_software_called_with_a_tilde_is_scanned_as_any_other(rows: Rows) -> None:
    tilde = [f"{usecase}/objects/k" for usecase in ("~", "~change", "~changelogs", "~theirs", "~~")]
    paths = ["}/objects/k", *tilde, "\x7f/objects/k"]
    for path in paths:
        await rows.replace(path, tombstone(path, rows.token()))
    for prefix, start, end in (("", b"", None), ("~", b"", None), ("~", b"}", b"\x7f"), ("~c", b"~", None), ("~theirs/", b"", None)):
        assert [row.path for row in (await rows.backend.scan(prefix, start, 10, end)).rows] == [
            path for path in paths if path.startswith(prefix)
        ]
    assert [row.path for row in (await rows.backend.redirects(b"~", b"\x7f", 10)).redirects] == tilde
    assert [row.path for row in (await rows.backend.redirects_at([path.encode() for path in paths])).redirects] == paths


async def test_scans_while_rows_change_find_what_was_there_all_the_time_once_and_in_order(rows: Rows) -> None:
    kept = [f"{PATH}/{number:02d}/kept" for number in range(12)]
    for path in kept:
        await rows.replace(path, inline(rows.token()))

    done = anyio.Event()

    async def churn() -> None:
        while not done.is_set():
            for number in range(12):
                path = f"{PATH}/{number:02d}/churned"
                await rows.backend.put_inline(path, token := rows.token(), inline(token))
                await rows.backend.delete_inline(f"{PATH}/{(number + 5) % 12:02d}/churned", rows.token())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(churn)
        for limit in (1, 5, 100):
            found: list[str] = []
            start: bytes | None = b""
            while start is not None:
                page = await rows.backend.scan(PATH, start, limit)
                found += [name.path for name in page.rows]
                start = page.next_start
            assert found == sorted(set(found)) and set(kept) <= set(found)
        done.set()


# --- redirects ---------------------------------------------------------------------------------------


async def redirects(rows: Rows, start: bytes = b"", end: bytes | None = None, limit: int = 1000) -> list[Redirect]:
    """All of the range, in pages of up to `limit`."""
    found: list[Redirect] = []
    next_start: bytes | None = start
    while next_start is not None:
        page = await rows.backend.redirects(next_start, end, limit)
        assert len(page.redirects) <= limit and not page.corrupt
        assert page.next_start is None or next_start < page.next_start
        found += page.redirects
        next_start = page.next_start
    return found


async def put_tombstones(rows: Rows, paths: Iterable[str]) -> list[Redirect]:
    """As a scan of all of them shows them."""
    found = []
    for path in paths:
        token = rows.token()
        await rows.replace(path, tombstone(path, token))
        found.append(Redirect(path, blob_name(path, token), None))
    return sorted(found, key=lambda each: each.path.encode())


async def test_redirects_are_the_tombstones_with_their_deadlines_expired_or_not_and_nothing_else(rows: Rows) -> None:
    past_ns, later_ns = rows.in_ns(-HOUR_NS), rows.in_ns(HOUR_NS)
    assert await redirects(rows) == []
    for number, deadline_ns in enumerate((None, past_ns, later_ns)):
        token = ChangeId(f"018bcfe5-6800-7000-8000-00000000000{number}")
        await rows.replace(f"n/objects/{number}", tombstone(f"n/objects/{number}", token, deadline_ns))
        await rows.replace(f"n/objects/inline{number}", inline(rows.token(), b"x" * 1000, deadline_ns))
    assert await rows.swap("n/objects/marks", rows.token(), None, None)
    await rows.replace("n/uploads/u/x", tombstone("n/uploads/u/x", A))
    assert await redirects(rows) == [
        Redirect("n/objects/0", "n/objects/0/018bcfe5-6800-7000-8000-000000000000", None),
        Redirect("n/objects/1", "n/objects/1/018bcfe5-6800-7000-8000-000000000001", past_ns),
        Redirect("n/objects/2", "n/objects/2/018bcfe5-6800-7000-8000-000000000002", later_ns),
        Redirect("n/uploads/u/x", f"n/uploads/u/x/{A}", None),
    ]


@pytest.mark.parametrize("limit", [1, 2, 1000])
async def test_a_range_of_redirects_begins_with_its_start_and_ends_before_its_end(rows: Rows, limit: int) -> None:
    paths = ["foo", "foo-bar", "foo/r", "foo0", "foo\0", "{", "\x7f", "é", "\uffff", "\U0001f642"]
    stored = await put_tombstones(rows, paths)
    await rows.replace("fop", inline(rows.token()))
    assert [each.path for each in stored] == ["foo", "foo\0", "foo-bar", "foo/r", "foo0", "{", "\x7f", "é", "\uffff", "\U0001f642"]
    assert await redirects(rows, limit=limit) == stored
    assert await redirects(rows, b"foo", b"foo0", limit) == stored[:4]
    assert await redirects(rows, b"foo\0", b"foo-bar\0", limit) == stored[1:3]
    assert await redirects(rows, b"foo", b"foo\0", limit) == stored[:1]
    assert await redirects(rows, b"foo0\0", "é".encode(), limit) == stored[5:7]
    assert await redirects(rows, "é".encode()[:1], None, limit) == stored[7:]
    assert await redirects(rows, b"\xef", b"\xf0\x9f", limit) == stored[8:9]
    for start, end in ((b"b", b"b"), (b"b", b"a"), (b"\xff", None), (b"", b""), (b"", b"f"), (b"foo", b"foo")):
        assert await redirects(rows, start, end, limit) == []


some_names = st.lists(st.text("\0-/0a\x7fé\uffff\U0001f642", min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


@examples(25)
@given(some_names, st.lists(st.integers(0, 7), max_size=3), st.lists(st.binary(max_size=3), max_size=2), st.integers(1, 5))
async def test_pages_of_any_size_and_ranges_of_any_cut_are_together_the_whole(
    rows: Rows, names: list[str], at_names: list[int], between: list[bytes], limit: int
) -> None:
    root = f"{rows.token()}/".encode()
    stored = await put_tombstones(rows, [root.decode() + name for name in names])
    cuts = [root + names[number % len(names)].encode() for number in at_names] + [root + each for each in between]
    bounds = [root, *sorted(each for each in cuts if each < root + b"\xf5"), root + b"\xf5"]
    found = [each for start, end in pairwise(bounds) for each in await redirects(rows, start, end, limit)]
    assert found == stored
    keys = [root + name.encode() for name in names]
    at = await rows.backend.redirects_at([*keys, keys[0], root + b"none"])
    assert (list(at.redirects), list(at.corrupt), at.next_start) == (stored, [], None)


async def test_redirects_at_keys_leave_out_what_is_no_tombstone(rows: Rows) -> None:
    [stored] = await put_tombstones(rows, ["n/objects/a"])
    await rows.replace("n/objects/b", inline(rows.token()))
    found = await rows.backend.redirects_at([b"n/objects/b", b"n/objects/a", b"n/objects/", b"\xff", b"n/objects/a/b"])
    assert list(found.redirects) == [stored]
    assert not (await rows.backend.redirects_at([])).redirects
    many = [f"n/objects/{number}".encode() for number in range(2000)]
    assert not (await rows.backend.redirects_at(many)).redirects


@pytest.mark.parametrize("count", [1, 2, 7, 100])
async def test_boundaries_split_the_table_in_order_into_about_so_many_parts(rows: Rows, count: int) -> None:
    assert list(await rows.backend.boundaries(count)) == []
    for number in range(40):
        await rows.replace(f"n/objects/{number:02}", inline(rows.token(), b"x" * 100))
    points = await rows.backend.boundaries(count)
    assert list(points) == sorted(set(points)) and all(points)
    assert len(points) < max(count, 2)


# --- many at once ------------------------------------------------------------------------------------


async def test_of_many_swaps_that_expect_the_same_exactly_one_wins(rows: Rows) -> None:
    old = rows.token()
    await rows.replace(PATH, tombstone(PATH, old))
    told: dict[ChangeId, bool] = {}

    async def swap(token: ChangeId) -> None:
        told[token] = await rows.swap(PATH, token, blob_name(PATH, old), tombstone(PATH, token))

    async with anyio.create_task_group() as tasks:
        for _ in range(32):
            tasks.start_soon(swap, rows.token())
    winners = [token for token, effective in told.items() if effective]
    assert len(told) == 32 and len(winners) == 1
    assert await rows.read() == Row(tombstone(PATH, winners[0]), frozenset({old, winners[0]}))


async def test_of_many_repeats_of_one_swap_exactly_one_takes_effect(rows: Rows) -> None:
    token, told = rows.token(), []

    async def swap() -> None:
        told.append(await rows.swap(PATH, token, None, tombstone(PATH, token)))

    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            tasks.start_soon(swap)
    assert sorted(told) == [False] * 15 + [True]


async def test_a_swap_and_the_settling_of_its_token_agree(rows: Rows) -> None:
    for number in range(16):
        path, token = f"{PATH}/{number}", rows.token()
        told: dict[str, bool] = {}

        async def swap(path: str = path, token: ChangeId = token, told: dict[str, bool] = told) -> None:
            told["swap"] = await rows.swap(path, token, None, tombstone(path, token))

        async def settle(path: str = path, token: ChangeId = token, told: dict[str, bool] = told) -> None:
            told["live"] = await rows.backend.settle(path, token)

        async with anyio.create_task_group() as tasks:
            for task in (swap, settle) if number % 2 else (settle, swap):
                tasks.start_soon(task)
        row = await rows.read(path)
        assert told["swap"] == told["live"] == (token in row.won) == (token not in row.refused) == (row.target is not None)


async def test_many_puts_of_different_objects_are_all_there(rows: Rows) -> None:
    async def put(number: int) -> None:
        token = rows.token()
        assert await rows.backend.put_inline(f"{PATH}/{number:02}", token, inline(token, str(number).encode()))

    async with anyio.create_task_group() as tasks:
        for number in range(64):
            tasks.start_soon(put, number)
    for number in range(64):
        state = (await rows.backend.read(f"{PATH}/{number:02}")).state
        assert isinstance(state, Inline) and state.payload == str(number).encode()


async def test_many_puts_of_one_object_leave_one_of_them_whole(rows: Rows) -> None:
    states = [inline(token, str(token).encode() * number) for number, token in enumerate(rows.token() for _ in range(32))]

    async def put(state: Inline) -> None:
        assert state.token is not None and await rows.backend.put_inline(PATH, state.token, state)

    async with anyio.create_task_group() as tasks:
        for state in states:
            tasks.start_soon(put, state)
    assert (await rows.read()).state in states


# --- any sequence, beside a model --------------------------------------------------------------------


class ModelRow:
    """The row operations in a few lines of Python."""

    def __init__(self) -> None:
        self.state: RowState = None
        self.won: set[ChangeId] = set()
        self.refused: set[ChangeId] = set()

    def row(self) -> Row:
        return Row(self.state, frozenset(self.won), frozenset(self.refused))

    def marked(self, token: ChangeId) -> bool:
        return token in self.won | self.refused

    def swap(self, token: ChangeId, expected: str | None, state: RowState) -> bool:
        if self.marked(token) or self.row().target not in (None, expected):
            return False
        self.state = state
        self.won.add(token)
        return True

    def settle(self, path: str, token: ChangeId) -> bool:
        live = self.row().target == blob_name(path, token) or (self.state is not None and self.state.token == token)
        if not live:
            self.refused.add(token)
        return live

    def write_inline(self, token: ChangeId, state: Inline | None) -> bool:
        if self.marked(token) or self.row().target is not None:
            return False
        self.state = state
        return True


TOKENS = [ChangeId(f"018bcfe5-6800-7000-8000-00000000000{n}") for n in range(4)]
tokens = st.sampled_from(TOKENS)
operations = st.one_of(
    st.tuples(st.just("swap"), tokens, st.none() | tokens | st.just("legacy"), st.sampled_from(["nothing", "inline", "tombstone"])),
    st.tuples(st.just("settle"), tokens, st.none(), st.none()),
    st.tuples(st.just("put"), tokens, st.none(), st.none()),
    st.tuples(st.just("delete"), tokens, st.none(), st.none()),
)


@examples(60)
@given(history=st.lists(operations, max_size=25))
async def test_any_history_of_calls_agrees_with_the_model(
    rows: Rows, history: list[tuple[str, ChangeId, ChangeId | str | None, str | None]]
) -> None:
    path, model = f"{PATH}/{rows.token()}", ModelRow()
    for verb, token, expects, writes in history:
        if verb == "settle":
            assert await rows.backend.settle(path, token) == model.settle(path, token)
        elif verb == "put":
            assert await rows.backend.put_inline(path, token, inline(token)) == model.write_inline(token, inline(token))
        elif verb == "delete":
            assert await rows.backend.delete_inline(path, token) == model.write_inline(token, None)
        else:
            expected = path if expects == "legacy" else blob_name(path, expects) if isinstance(expects, ChangeId) else None
            large = tombstone(path, token, described=token in TOKENS[2:])
            state = {"nothing": None, "inline": inline(token), "tombstone": large}[writes or "nothing"]
            assert await rows.swap(path, token, expected, state) == model.swap(token, expected, state)
        assert await rows.read(path) == model.row()
