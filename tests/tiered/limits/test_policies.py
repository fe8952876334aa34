"""What a policy says of a lifetime, a size and a rate, as a table; what a store does with it is in tests/store/."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest

from changelog.base.observe import Event, Observer
from tests.tiered.limits.test_rate import HandClock
from tiered import InvalidRequestError, Metadata, ObjectId, ObjectPrefix, RateLimitedError, Settings, TimeToIdle, TimeToLive
from tiered.limits.policies import Policies

pytestmark = pytest.mark.anyio
DAY, WEEK = timedelta(days=1), timedelta(days=7)
DAY_S = 86_400
FILE = ObjectId.create("files", "key", {"org": "17", "project": "4"})
OTHER = ObjectId.create("files", "key", {"org": "18", "project": "4"})


class Refusals(Observer):
    """Lists what was refused, by policy."""

    def __init__(self) -> None:
        self.of: list[str] = []

    def count(self, event: Event, kind: str = "", amount: int = 1) -> None:
        assert (event, amount) == (Event.REFUSED, 1)
        self.of.append(kind)


class JudgedCalls(Policies):
    """The policies of some settings, with a clock that a test sets."""

    def __init__(self, budgets_max: int = 100, **usecases: Any) -> None:
        self.clock, self.refusals = HandClock(), Refusals()
        given = {name.replace("others", "*"): policy for name, policy in usecases.items()}
        super().__init__(Settings(directory="unused", usecases=given).usecases, self.clock, self.refusals, budgets_max)

    async def passes(self, *addresses: ObjectId | ObjectPrefix, moves: bool = False) -> bool:
        try:
            await self.admit(addresses, moves=moves, waits=False)
        except RateLimitedError:
            return False
        return True


# --- lifetimes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "given", "stored"), [
    ({}, None, None),
    ({}, TimeToLive(WEEK), TimeToLive(WEEK)),
    ({"time_to_live_default_s": DAY_S}, None, TimeToLive(DAY)),
    ({"time_to_idle_default_s": DAY_S}, None, TimeToIdle(DAY)),
    ({"time_to_live_default_s": DAY_S}, TimeToIdle(WEEK), TimeToIdle(WEEK)),
    ({"time_to_live_default_s": 1e-3}, None, TimeToLive(ns=1_000_000)),
    ({"time_to_live_default_s": DAY_S, "lifetime_max_s": DAY_S}, None, TimeToLive(DAY)),
    ({"lifetime_max_s": DAY_S}, TimeToLive(DAY), TimeToLive(DAY)),
    ({"lifetime_max_s": DAY_S}, TimeToIdle(DAY), TimeToIdle(DAY)),
    ({"lifetime_max_s": DAY_S}, TimeToLive(DAY + timedelta(microseconds=1)), "86400 s, and it would live for 86400 s"),
    ({"lifetime_max_s": DAY_S}, TimeToIdle(WEEK), "it would live for 604800 s"),
    ({"lifetime_max_s": DAY_S}, None, "it would stay until it is deleted"),
    ({"closed": True}, TimeToLive(DAY), "no new objects are taken (usecases.files.closed)"),
], ids=str)  # fmt: skip
def test_a_put_gets_the_default_and_no_more_than_the_maximum(policy: dict[str, Any], given: Any, stored: Any) -> None:
    judge = JudgedCalls(files=policy)
    if isinstance(stored, str):
        with pytest.raises(InvalidRequestError) as refused:
            judge.new_object(FILE, Metadata(given, filename="a.jpg"))
        assert stored in str(refused.value) and str(FILE) in str(refused.value) and "usecases.files." in str(refused.value)
        assert judge.refusals.of == ["files"]
    else:
        assert judge.new_object(FILE, Metadata(given, filename="a.jpg")) == Metadata(stored, filename="a.jpg")
        assert judge.refusals.of == []


def test_a_deadline_that_no_put_may_set_is_not_hidden_by_the_default() -> None:
    told = Metadata(time_expires_ns=5)
    assert JudgedCalls(files={"time_to_live_default_s": DAY_S}).new_object(FILE, told) == told


def of(told: tuple[TimeToLive | TimeToIdle | None, timedelta | None], now_ns: int) -> Metadata:
    expiration, ends_in = told
    ends_ns = None if ends_in is None else now_ns + ends_in // timedelta(microseconds=1) * 1000
    return Metadata(expiration, time_expires_ns=ends_ns)


@pytest.mark.parametrize(("before", "after", "allowed"), [
    ((None, None), (None, None), True),
    ((TimeToLive(WEEK), WEEK), (TimeToLive(WEEK), WEEK), True),
    ((TimeToIdle(WEEK), DAY), (TimeToIdle(WEEK), WEEK), True),
    ((None, None), (TimeToLive(DAY), DAY), True),
    ((TimeToLive(DAY), DAY), (None, None), False),
    ((TimeToLive(DAY), DAY), (TimeToLive(WEEK), WEEK), False),
    ((TimeToLive(DAY), DAY), (TimeToIdle(WEEK), WEEK), False),
    ((TimeToLive(WEEK), DAY), (TimeToLive(WEEK), WEEK), False),
    ((None, DAY), (TimeToLive(ns=1), WEEK), False),  # as a creation in the future would make it
    ((TimeToLive(ns=1), DAY), (TimeToLive(ns=1), WEEK), False),
    ((None, None), (TimeToLive(WEEK), DAY), True),  # it was created long ago: whoever shortens a life may do so
    ((TimeToIdle(WEEK), WEEK), (TimeToLive(WEEK), DAY), True),
    ((TimeToLive(DAY), timedelta(hours=1)), (TimeToLive(WEEK), DAY), False),
    ((None, None), (TimeToLive(DAY), WEEK), False),
    ((None, None), (TimeToIdle(WEEK), DAY), False),
])  # fmt: skip
def test_a_change_of_metadata_may_not_make_an_object_live_for_longer(before: Any, after: Any, allowed: bool) -> None:
    judge = JudgedCalls(others={"lifetime_max_s": DAY_S})
    now_ns = judge.clock.wall_ns()
    with nullcontext() if allowed else pytest.raises(InvalidRequestError, match=r"\(usecases\.\*\.lifetime_max_s\)"):
        judge.check_change(FILE, of(before, now_ns), of(after, now_ns))
    assert judge.refusals.of == ([] if allowed else ["*"])


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "kept", "allowed"), [(10, 0, True), (11, 0, False), (5, 5, True), (5, 6, False), (0, 0, True)])
def test_a_payload_has_at_most_so_many_bytes_with_what_its_upload_has(size: int, kept: int, allowed: bool) -> None:
    judge = JudgedCalls(files={"object_bytes_max": 10, "bytes_per_s": 100})
    with nullcontext() if allowed else pytest.raises(InvalidRequestError, match=r"at most 10 bytes.*\(usecases\.files\.object_bytes_max\)"):
        judge.receive(FILE, size, None, kept=kept)
    assert judge.refusals.of == ([] if allowed else ["files"])


@pytest.mark.parametrize(("asked", "limit", "told"), [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (9, 7, 7), (9, 0, 0)])
def test_a_link_takes_no_more_than_its_object_may_have(asked: int | None, limit: int | None, told: int | None) -> None:
    assert JudgedCalls(files={"object_bytes_max": limit}).bytes_max(FILE, asked) == told


# --- rates ---------------------------------------------------------------------------------------


async def test_requests_are_refused_until_there_is_one_again() -> None:
    judge = JudgedCalls(files={"requests_per_s": 2, "burst_s": 1.5})
    assert [await judge.passes(FILE) for _ in range(4)] == [True, True, True, False]
    with pytest.raises(RateLimitedError, match=r"usecase 'files' has used up its rate \(usecases\.files\.requests_per_s\)") as refused:
        await judge.admit([FILE], moves=False, waits=False)
    assert (refused.value.usecase, refused.value.limit) == ("files", "usecases.files.requests_per_s")
    assert refused.value.retry_after_s == pytest.approx(0.5)
    judge.clock.now_s += refused.value.retry_after_s or 0
    assert [await judge.passes(FILE) for _ in range(2)] == [True, False]
    assert judge.refusals.of == ["files"] * 3


async def test_what_moves_no_payload_is_not_refused_for_bytes() -> None:
    judge = JudgedCalls(files={"bytes_per_s": 10})
    assert await judge.passes(FILE, moves=True)
    judge.spend(FILE, 1000)
    assert not await judge.passes(FILE, moves=True) and await judge.passes(FILE)
    judge.clock.now_s += 99.2
    assert await judge.passes(FILE, moves=True)


async def test_each_value_of_a_scope_has_a_rate_of_its_own_below_that_of_the_usecase() -> None:
    judge = JudgedCalls(files={"requests_per_s": 3, "per_scope": {"org": {"requests_per_s": 1}}})
    assert [await judge.passes(each) for each in (FILE, FILE, OTHER, OTHER)] == [True, False, True, False]
    with pytest.raises(RateLimitedError, match=r"org\.17 of usecase 'files'.*\(usecases\.files\.per_scope\.org\.requests_per_s\)"):
        await judge.admit([FILE], moves=False, waits=False)
    assert await judge.passes(ObjectId.create("files", "key")), "what was refused took nothing from the usecase"
    assert not await judge.passes(ObjectId.create("files", "key"))


async def test_usecases_without_a_policy_share_one_and_no_rate() -> None:
    judge = JudgedCalls(files={}, others={"requests_per_s": 1})
    a, b = ObjectId.create("a", "k"), ObjectId.create("b", "k")
    assert [await judge.passes(each) for each in (a, a, b, b, FILE, FILE)] == [True, False, True, False, True, True]
    assert judge.refusals.of == ["*", "*"]


async def test_a_listing_counts_for_what_its_prefix_names() -> None:
    judge = JudgedCalls(files={"requests_per_s": 2, "per_scope": {"org": {"requests_per_s": 1}}})
    org = ObjectPrefix.create("files", scopes={"org": "17"})
    assert [await judge.passes(each) for each in (org, org, ObjectPrefix.create("files"), ObjectPrefix.create("files"))] == [
        True, False, True, False,
    ]  # fmt: skip
    assert await judge.passes(ObjectPrefix())


async def test_a_call_that_names_two_objects_counts_for_both_or_for_none() -> None:
    judge = JudgedCalls(files={"requests_per_s": 5, "per_scope": {"org": {"requests_per_s": 1}}})
    assert await judge.passes(OTHER)
    assert not await judge.passes(FILE, OTHER) and await judge.passes(FILE)


async def test_bulk_work_waits_for_its_turn() -> None:
    judge = JudgedCalls(files={"requests_per_s": 2})
    began_s = judge.clock.now_s
    for _ in range(6):
        await judge.admit([FILE], moves=True, waits=True)
    assert judge.clock.now_s - began_s == pytest.approx(2, abs=0.01)
    assert judge.refusals.of == []


async def test_only_so_many_are_remembered_and_the_ones_used_last_stay() -> None:
    judge = JudgedCalls(budgets_max=3, others={"requests_per_s": 1})
    calls = [ObjectId.create(usecase, "k") for usecase in "abcadaba"]
    assert [await judge.passes(call) for call in calls] == [True, True, True, False, True, False, True, False]
    assert len(judge._budgets) == 3
