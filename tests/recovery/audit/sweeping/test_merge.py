"""The merge against a plain set difference: names and rows made to be misread, cut anywhere, read page by page.

    referenced   blobs & targets          orphans   blobs - targets          dangling   targets - blobs
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.noop import NoopChangeLog
from recovery.audit.finding import Finding, Summary, Tally
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds
from recovery.audit.sweeping.sweep import audit_range
from recovery.audit.sweeping.window import WINDOW_NAMES
from tests.given.audit_grounds import OLD_NS, SetRuntime
from tests.given.planted_world import CUTOFF
from tiered.metadata import Metadata
from tiered.services.backends import BlobHead, HighVolumeBackend, LongTermBackend, Tiers
from tiered.services.scans import BlobPage, ListedBlob, Redirect, RedirectPage

MANY = 60_000


class Blobs:
    """What the audit asks of a long-term tier. `page`: the most that one answer holds."""

    def __init__(self, names: Iterable[str], page: int) -> None:
        self._names = sorted(names)
        self._infos = [ListedBlob(name, 1, OLD_NS, None, "7") for name in self._names]
        self._page = page

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        first, last = bisect_left(self._names, start), len(self._names) if end is None else bisect_left(self._names, end)
        stop = max(first, min(first + min(limit, self._page), last))
        return BlobPage(self._infos[first:stop], (), self._names[stop] if stop < last else None)

    async def head(self, name: str) -> BlobHead | None:
        place = bisect_left(self._names, name)
        return BlobHead(Metadata(), 1, OLD_NS, "7") if self._names[place : place + 1] == [name] else None

    async def now_ns(self) -> int:
        return CUTOFF.as_of_ns


class MergedRows:
    """What it asks of a high-volume tier. `targets`: row key -> blob."""

    def __init__(self, targets: Mapping[str, str], page: int) -> None:
        self._redirects = [Redirect(path, targets[path], None) for path in sorted(targets)]
        self._keys = [redirect.path.encode() for redirect in self._redirects]
        self._page = page

    async def redirects(self, start: bytes, end: bytes | None, limit: int) -> RedirectPage:
        first, last = bisect_left(self._keys, start), len(self._keys) if end is None else bisect_left(self._keys, end)
        stop = max(first, min(first + min(limit, self._page), last))
        return RedirectPage(self._redirects[first:stop], (), self._keys[stop] if stop < last else None)

    async def redirects_at(self, keys: Sequence[bytes]) -> RedirectPage:
        places = [(place, key) for key in keys if (place := bisect_left(self._keys, key)) < len(self._keys)]
        return RedirectPage([self._redirects[place] for place, key in places if self._keys[place] == key], (), None)


@dataclass
class MergedWorld:
    blobs: set[str]
    targets: dict[str, str]

    def assert_exact(self, bounds: Sequence[str], window_names: int, page: int) -> None:
        """What the ranges have found, together, is the difference of the sets."""
        tiers = Tiers(cast(HighVolumeBackend, MergedRows(self.targets, page)), cast(LongTermBackend, Blobs(self.blobs, page)))
        summary, findings = Summary(), list[Finding]()

        async def audit() -> None:
            for start, end in zip(("", *bounds), (*bounds, None), strict=True):
                within = Bounds(start=start, end=end)
                summary.merge(await audit_range(
                    tiers, NoopChangeLog(), within, CUTOFF, SetRuntime(), findings.extend, window_names=window_names
                ))  # fmt: skip

        anyio.run(audit)
        named = set(self.targets.values())
        lost = {finding.name for finding in findings if finding.class_ is not FindingClass.DANGLING}
        dangling = {finding.name for finding in findings if finding.class_ is FindingClass.DANGLING}
        assert lost == self.blobs - named
        assert dangling == named - self.blobs
        assert len(findings) == len(lost) + len(dangling), "each once"
        assert {finding.class_ for finding in findings} <= {FindingClass.ORPHAN, FindingClass.LEGACY_ORPHAN, FindingClass.DANGLING}
        assert (summary.names, summary.redirects) == (len(self.blobs), len(self.targets))
        assert summary.totals().get(FindingClass.REFERENCED, Tally()).number == len(self.blobs & named)


# --- small worlds --------------------------------------------------------------------------------

IDS = [f"018bcfe5-6800-7000-8000-00000000000{digit}" for digit in "01"] + ["018bcfe5-6800-7fff-bfff-ffffffffffff"]
PIECES = ["/", "-", ".", "!", "0", "a", "é", "\uffee", "😀", *(f"/{each}" for each in IDS[:1])]

usecases = st.sampled_from(["a", "a-", "a!", "a.", "a0", "aa", "é", "😀"])
keys = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join)
paths = st.builds("{}/objects/{}".format, usecases, keys)
names = st.one_of(paths, st.builds("{}/{}".format, paths, st.sampled_from(IDS)))


@st.composite
def worlds(draw: st.DrawFn) -> MergedWorld:
    blobs = set(draw(st.lists(names, max_size=12)))
    targets = {path: draw(st.sampled_from([path, *(f"{path}/{each}" for each in IDS)])) for path in draw(st.sets(paths, max_size=8))}
    for name in draw(st.lists(st.sampled_from(sorted(blobs)), max_size=8)) if blobs else []:
        path = draw(st.sampled_from([name, name.rpartition("/")[0]]))  # both readings
        targets[path] = name
    return MergedWorld(blobs, targets)


@st.composite
def cuts(draw: st.DrawFn, world: MergedWorld) -> list[str]:
    """Anywhere, and just before, after and inside of what there is."""
    things = sorted(world.blobs | set(world.targets) | set(world.targets.values()))
    near = st.builds(lambda name, length, more: name[:length] + more, st.sampled_from(things), st.integers(0, 70), keys | st.just(""))
    return sorted(set(draw(st.lists(st.one_of(names, near) if things else names, max_size=6))) - {""})


@pytest.mark.slow
@settings(max_examples=100)
@given(data=st.data(), world=worlds(), window_names=st.integers(1, 5), page=st.integers(1, 4))
def test_any_cut_of_any_small_world_finds_the_difference_of_the_sets(
    data: st.DataObject, world: MergedWorld, window_names: int, page: int
) -> None:
    world.assert_exact(data.draw(cuts(world)), window_names, page)


# --- a big one -----------------------------------------------------------------------------------


def big_world(chance: Random, number: int) -> MergedWorld:
    """So many blobs; of a hundred objects two have a blob that no row names, and one a row whose blob is gone."""
    blobs: set[str] = set()
    targets: dict[str, str] = {}
    stems = ["".join(chance.choices(PIECES, k=chance.randrange(1, 12))) for _ in range(number // 10)]
    while len(blobs) < number:
        path = f"{chance.choice(('a', 'a-', 'a!', 'b', 'é'))}/objects/{chance.choice(stems)}{chance.choice(stems)}"
        luck, tail = chance.random(), chance.getrandbits(60)
        name = path if 0.5 < luck < 0.6 else f"{path}/018bcfe5-6800-7000-8{tail >> 48:03x}-{tail & 0xFFFFFFFFFFFF:012x}"
        if luck < 0.99:
            blobs.add(name)
        if luck > 0.02:
            targets[path] = name
    return MergedWorld(blobs, targets)


@pytest.mark.slow
def test_many_names_in_ranges_find_the_difference_of_the_sets() -> None:
    chance = Random(3)
    world = big_world(chance, MANY)
    some = chance.sample(list(world.targets.values()), 6)
    bounds = {name[: chance.randrange(1, len(name))] for name in some}
    # Right between a row and the blob that it names, and that is gone: one that the second look would not bring back.
    bounds.update(f"{path}/" for path, target in islice(world.targets.items(), 1000) if target not in world.blobs)
    assert len(bounds) > 10
    world.assert_exact(sorted(bounds), WINDOW_NAMES, 10_000)
