"""Where a bucket is cut, and a rest that is handed back: every name in one part, whatever is cut where."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.base.errors import UnavailableError
from changelog.noop import NoopChangeLog
from recovery.audit.files.partitions import Header, Partition, is_key, tiled
from recovery.audit.finding import Finding, Summary
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds
from recovery.audit.running.cuts import SMALL_NAMES, cut_names
from recovery.audit.sweeping.sweep import audit_until
from tests.given.audit_grounds import SetRuntime
from tests.given.planted_world import CUTOFF
from tests.recovery.audit.sweeping.test_merge import Blobs, MergedRows, MergedWorld, worlds
from tiered.services.backends import HighVolumeBackend, LongTermBackend, Tiers
from tiered.services.scans import BlobPage

ALL = Bounds(start="", end=None)
ID = "018bcfe5-6800-7000-8000-00000000000"


class CountedListings(Blobs):
    """Counts the listings."""

    asked = 0

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        self.asked += 1
        return await super().list(start, end, limit)


def cut(names: Sequence[str], wanted: int, bounds: Bounds = ALL) -> tuple[list[str], list[int], int]:
    """Returns the cuts, how many names each part has, and the number of listings."""
    blobs = CountedListings(names, 1000)
    found = anyio.run(cut_names, cast(LongTermBackend, blobs), bounds, wanted, SetRuntime())
    inside = [name for name in names if bounds.holds(name)]
    edges = list(zip([bounds.start, *found], [*found, bounds.end], strict=True))
    sizes = [sum(low <= name and (high is None or name < high) for name in inside) for low, high in edges]
    assert sum(sizes) == len(inside) and found == sorted(set(found))
    return found, sizes, blobs.asked


def test_many_orphans_are_many_ranges_though_the_table_is_small() -> None:
    """The 60,000 orphans that were one worker's work."""
    chance = Random(1)
    names = [f"media/org.{number % 3}/objects/{chance.getrandbits(64):016x}/{ID}0" for number in range(60_000)]
    cuts, sizes, asked = cut(names, 12)
    assert len(cuts) == 11 and max(sizes) <= len(names) / 4 and asked <= 11 * 25


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["", f"a-very-long-usecase/organisation.{'450' * 9}/project.{'451' * 9}/objects/2026/11/", "é😀/"])
def test_what_all_names_share_at_their_beginnings_is_no_hindrance(shared: str) -> None:
    names = [f"{shared}{number:08}" for number in range(30_000)]
    cuts, sizes, asked = cut(names, 8)
    assert len(cuts) == 7 and max(sizes) <= len(names) / 2 and asked <= 7 * 35


def test_one_large_usecase_among_many_small_ones_is_cut() -> None:
    names = [f"{chr(97 + number)}/objects/one" for number in range(26)] + [f"m/objects/{number:05}" for number in range(20_000)]
    _, sizes, _ = cut(names, 12)
    assert max(sizes) <= 8000


def test_names_that_extend_each_other_are_cut() -> None:
    _, sizes, _ = cut(["a" * length for length in range(1, 3000)], 4)
    assert max(sizes) < 2500


def test_names_within_bounds_only_are_cut() -> None:
    names = [f"{number:05}" for number in range(40_000)]
    cuts, sizes, _ = cut(names, 8, Bounds(start="10000", end="30000"))
    assert len(cuts) == 7 and cuts[0] > "10000" and cuts[-1] < "30000" and max(sizes) <= 10_000


def test_few_names_are_not_cut() -> None:
    assert cut([f"{number:05}" for number in range(SMALL_NAMES)], 8)[0] == []
    assert cut([], 8)[0] == [] and cut(["a"], 8)[0] == [] and cut([f"{number:05}" for number in range(5000)], 1)[0] == []


def test_bucket_that_cannot_be_listed_is_an_error() -> None:
    class Gone(Blobs):
        async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
            if start:
                raise UnavailableError("gone")
            return await super().list(start, end, limit)

    class Hurried(SetRuntime):
        async def sleep(self, seconds: float) -> None:
            self.moment = getattr(self, "moment", 0.0) + 1000.0

        def monotonic(self) -> float:
            return getattr(self, "moment", 0.0)

    blobs = cast(LongTermBackend, Gone([f"{number:05}" for number in range(5000)], 1000))
    with pytest.raises(UnavailableError):
        anyio.run(cut_names, blobs, ALL, 8, Hurried())


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6), max_size=60), st.integers(2, 9))
def test_any_names_are_cut_into_parts_that_hold_names(monkeypatch_small: None, names: list[str], wanted: int) -> None:
    names = sorted(set(names))
    cuts, sizes, _ = cut(names, wanted)
    assert len(cuts) < wanted and (not names or all(sizes))


@pytest.fixture(scope="module")
def monkeypatch_small() -> object:
    patch = pytest.MonkeyPatch()
    patch.setattr("recovery.audit.running.cuts.SMALL_NAMES", 2)
    yield
    patch.undo()


# --- rests -----------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data(), world=worlds(), window_names=st.integers(1, 3))
def test_any_rests_of_any_small_world_find_the_difference_of_the_sets(data: st.DataObject, world: MergedWorld, window_names: int) -> None:
    """Ranges, rests and partitions of rests are cut anywhere; some parts are audited twice and end elsewhere then."""
    tiers = Tiers(cast(HighVolumeBackend, MergedRows(world.targets, 3)), cast(LongTermBackend, Blobs(world.blobs, 3)))
    things = sorted(world.blobs | set(world.targets)) or ["a"]
    ends = st.sampled_from(["", "/", "-", "0"])
    near = st.builds(lambda name, length, more: name[:length] + more, st.sampled_from(things), st.integers(1, 70), ends)
    first = sorted({*data.draw(st.lists(near, max_size=2))} - {""})
    ranges = [Bounds(start=start, end=end) for start, end in zip(["", *first], [*first, None], strict=True)]
    headers: dict[str, Header] = {}
    found: dict[str, list[Finding]] = {}

    async def audit(partition: Partition) -> None:
        findings: list[Finding] = []
        summary, stopped = await audit_until(
            tiers, NoopChangeLog(), partition.bounds, CUTOFF, SetRuntime(), findings.extend, lambda _: data.draw(st.booleans()),
            window_names=window_names,
        )  # fmt: skip
        cuts = [] if stopped is None else sorted({*data.draw(st.lists(near, max_size=2))})
        rest = () if stopped is None else (stopped, *(each for each in cuts if Bounds(start=stopped, end=partition.bounds.end).holds(each)))
        rest = tuple(dict.fromkeys(rest))
        headers[partition.key] = Header(partition.key, partition.bounds, rest, summary, len(findings), 0, "")
        found[partition.key] = findings

    async def audit_all() -> None:
        while missing := tiled(ranges, headers).missing:
            again = data.draw(st.sampled_from([None, *headers])) if headers and len(headers) < 30 else None
            if again is not None:  # a worker that was thought dead comes back
                parts = {partition.key: partition for partition, _ in tiled(ranges, headers).done}
                if again in parts:
                    await audit(parts[again])
                    continue
            await audit(missing[0])

    anyio.run(audit_all)
    tiling = tiled(ranges, headers)
    edges = [header.audited for _, header in tiling.done]
    assert edges[0].start == "" and edges[-1].end is None and all(one.end == other.start for one, other in pairwise(edges))
    findings = [finding for partition, _ in tiling.done for finding in found[partition.key]]
    summary = Summary()
    for _, header in tiling.done:
        summary.merge(header.summary)
    named = set(world.targets.values())
    assert sorted(each.name for each in findings if each.class_ is not FindingClass.DANGLING) == sorted(world.blobs - named)
    assert sorted(each.name for each in findings if each.class_ is FindingClass.DANGLING) == sorted(named - world.blobs)
    assert (summary.names, summary.redirects) == (len(world.blobs), len(world.targets))


@pytest.mark.parametrize("key", ["000000", "000017-3", "000017-0-12", "1234567"])
def test_keys_of_parts_are_known(key: str) -> None:
    assert is_key(key)


@pytest.mark.parametrize("key", ["", "17", "0000017", "000017-", "000017-03", "000017--1", "-000017", "000017-a", "000017/0"])
def test_other_spellings_are_no_keys(key: str) -> None:
    assert not is_key(key)


def test_piece_whose_parent_was_replaced_belongs_nowhere() -> None:
    def header(key: str, start: str, end: str | None, *rest: str) -> Header:
        return Header(key, Bounds(start=start, end=end), rest, Summary(), 0, 0, "")

    headers = [header("000000", "", None, "f", "m"), header("000000-0", "f", "m"), header("000000-1", "m", None)]
    whole = {each.key: each for each in headers}
    assert tiled([ALL], whole).missing == () and tiled([ALL], whole).strays == ()
    replaced = whole | {"000000": header("000000", "", None, "g", "m")}
    assert [partition.key for partition in tiled([ALL], replaced).missing] == ["000000-0"] and tiled([ALL], replaced).strays == ()
    ended = whole | {"000000": header("000000", "", None)}
    assert tiled([ALL], ended).missing == () and tiled([ALL], ended).strays == ("000000-0", "000000-1")
    wrong = whole | {"000000": header("000000", "", None, "m", "f")}
    assert [partition.key for partition in tiled([ALL], wrong).missing] == ["000000"]
