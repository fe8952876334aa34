"""What is tried of rows and of the changelog: a healthy tier is green, and each lie turns exactly its line red.

`LIES` is the table: a probe, and what a service does that does not keep to it. A probe without a lie is an error. So is
a lie that another line reports, too, unless the lie breaks that promise as well: then `ALSO` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId, Entry, encode
from changelog.lease import Renewal
from changelog.log import EntryPage
from recovery.prove.probes.bench import Bench, Sizes
from recovery.prove.probes.entries import ENTRIES
from recovery.prove.probes.rows import ROWS
from tiered.open import Backends
from tiered.provision.probes import ProbeOutcome, Result, try_all
from tiered.services.backends import Inline, Only, Row, RowState, Tiers, Tombstone, Vacant
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.log import MemoryChangeLog, StoredEntry
from tiered.testing.rows import MemoryRows, with_deadline

pytestmark = pytest.mark.anyio
SIZES = Sizes(racers=6, rounds=20, rounds_min=2, race_s=60, within_s=60)


class LyingRows(MemoryRows):
    """A tier in memory that does one thing otherwise."""


def bench_of(rows: MemoryRows | None = None, log: MemoryChangeLog | None = None) -> Bench:
    runtime = SystemRuntime()
    backends = Backends(Tiers(rows or MemoryRows(runtime), MemoryBlobs(runtime)), log or MemoryChangeLog(runtime))
    return Bench.of(backends, backends, runtime, SIZES)


async def red(probes: Sequence[Any], bench: Bench) -> dict[str, str]:
    outcomes: list[ProbeOutcome[Bench]] = await try_all(probes, bench, SIZES.within_s)
    assert all(each.result is not Result.UNTRIED for each in outcomes), outcomes
    return {each.probe.name: each.said for each in outcomes if each.result is Result.BROKEN}


# --- rows --------------------------------------------------------------------------------------------


class LosesWrites(MemoryRows):
    async def put_inline(self, path: str, token: ChangeId, state: Inline) -> bool:
        await checkpoint()
        return True


class LooksThenSwaps(MemoryRows):
    """The condition is true when it is looked at, and is forgotten when the write is made."""

    async def swap(
        self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None,
        since_ms: int | None = None,
    ) -> bool:  # fmt: skip
        if only is not None or not isinstance(state, Tombstone) or expected is not None or self._conflicts(path, token, expected):
            return await super().swap(path, token, expected, state, deadline_s, only, since_ms)
        for _ in range(20):
            await checkpoint()
        if self._is_marked(path, token):
            return False
        self._write(path, token, state)
        self.won[path][token] = self._now_ms()
        return True


class ForgetsRefusals(MemoryRows):
    """It writes the mark, and looks at none when a change comes late over nothing."""

    def _is_marked(self, path: str, token: ChangeId) -> bool:
        return token in self.won.get(path, ())


class SettlesBeside(MemoryRows):
    """It tells that it has refused a change, and lets one through that is under way."""

    async def settle(self, path: str, token: ChangeId) -> bool:
        state = self.states.get(path)
        refused = state is None or state.token != token
        for _ in range(6):
            await checkpoint()
        if refused:
            self.refused[path][token] = self._now_ms()
        return not refused


class ForgetsWins(MemoryRows):
    def _is_marked(self, path: str, token: ChangeId) -> bool:
        return token in self.refused.get(path, ())


class SwapsOverAnything(MemoryRows):
    def _conflicts(self, path: str, token: ChangeId, expected: str | None) -> bool:
        """It goes by what was expected only where nothing was."""
        return self._is_marked(path, token) or (expected is None and self._target(path) is not None)


class InlineOverRedirects(MemoryRows):
    async def _replace_inline(self, call: str, path: str, token: ChangeId, state: Inline | None) -> bool:
        if self._target(path) is not None and not self._is_marked(path, token):
            self.states.pop(path)
        return await super()._replace_inline(call, path, token, state)


class ReadsOldRows(MemoryRows):
    """A replica answers: it does not know yet what was removed by the connection that has just written."""

    def __init__(self, runtime: SystemRuntime) -> None:
        super().__init__(runtime)
        self.before: dict[str, RowState] = {}

    def _write(self, path: str, token: ChangeId, state: RowState) -> None:
        if state is None and path in self.states:
            self.before[path] = self.states[path]
        super()._write(path, token, state)

    async def read(self, path: str, *, marks: ChangeId | bool = False) -> Row:
        row = await super().read(path, marks=marks)
        stale = self.before.pop(path, None)
        return row if stale is None or self.refused.get(path) else replace(row, state=stale)


class VacantMeansNothing(MemoryRows):
    def _satisfies(self, path: str, token: ChangeId, only: Only | None) -> bool:
        return isinstance(only, Vacant) or super()._satisfies(path, token, only)

    def _conflicts(self, path: str, token: ChangeId, expected: str | None) -> bool:
        return super()._conflicts(path, token, expected)


class KeepsReservations(MemoryRows):
    def _end_reservations(self, path: str) -> None:
        pass


class LosesUnicode(MemoryRows):
    async def put_inline(self, path: str, token: ChangeId, state: Inline) -> bool:
        plain = {key: value.encode("ascii", "replace").decode() for key, value in state.metadata.custom.items()}
        return await super().put_inline(path, token, replace(state, metadata=replace(state.metadata, custom=plain)))


class ShortensDeadlines(MemoryRows):
    async def touch(self, path: str, seen: Inline | Tombstone, deadline_ns: int) -> bool:
        await checkpoint()
        state = self.states.get(path)
        if state is None or state.token != seen.token:
            return False
        self.states[path] = with_deadline(state, deadline_ns)
        return True


class TouchesAnother(MemoryRows):
    async def touch(self, path: str, seen: Inline | Tombstone, deadline_ns: int) -> bool:
        state = self.states.get(path)
        return await super().touch(path, seen if state is None else state, deadline_ns)


class DropsTheLastOfAPage(MemoryRows):
    async def scan(self, prefix: str, start: bytes, limit: int, end: bytes | None = None) -> Any:
        page = await super().scan(prefix, start, limit, end)
        return replace(page, rows=page.rows[:-1]) if page.next_start is not None else page


class DropsARedirect(MemoryRows):
    async def redirects(self, start: bytes, end: bytes | None, limit: int) -> Any:
        page = await super().redirects(start, end, limit)
        return replace(page, redirects=page.redirects[1:])


class CollectsMarks(MemoryRows):
    """A rule of a minute: marks are gone before the run is over."""

    async def scan(self, prefix: str, start: bytes, limit: int, end: bytes | None = None) -> Any:
        self.won.clear()
        return await super().scan(prefix, start, limit, end)


ROW_LIES: Sequence[tuple[str, type[MemoryRows], Sequence[str]]] = (
    ("one winner", LooksThenSwaps, ()),
    ("a refused change", ForgetsRefusals, ("a change and its settling",)),
    ("a change and its settling", SettlesBeside, ()),
    ("a repeated change", ForgetsWins, ()),
    ("what is expected", SwapsOverAnything, ("if it is still there",)),
    ("small over large", InlineOverRedirects, ()),
    ("reads after writes", ReadsOldRows, ("a repeated change",)),
    ("if nothing is there", VacantMeansNothing, ()),
    ("if it is still there", KeepsReservations, ()),
    ("objects as written", LosesUnicode, ()),
    ("deadlines", ShortensDeadlines, ()),
    ("deadlines", TouchesAnother, ()),
    ("listings of rows", DropsTheLastOfAPage, ()),
    ("listings of rows", DropsARedirect, ()),
    ("marks", CollectsMarks, ()),
)
"""The promise, what breaks it, and which others it breaks, too."""


async def test_healthy_rows_are_green() -> None:
    assert await red(ROWS, bench_of()) == {}


@pytest.mark.parametrize(("name", "lying", "also"), ROW_LIES, ids=lambda each: each.__name__ if isinstance(each, type) else None)
async def test_a_lie_about_rows_turns_its_line_red_and_no_other(name: str, lying: type[MemoryRows], also: Sequence[str]) -> None:
    assert set(await red(ROWS, bench_of(lying(SystemRuntime())))) == {name, *also}


async def test_rows_that_lose_what_is_written_are_tried_no_further() -> None:
    outcomes = await try_all(ROWS, bench_of(LosesWrites(SystemRuntime())), SIZES.within_s)
    assert [(each.probe.name, each.result) for each in outcomes] == [("a row", Result.BROKEN)]


# --- the changelog -----------------------------------------------------------------------------------


class LosesEntries(MemoryChangeLog):
    async def record(self, change: Any, owner: str) -> Entry:
        entry = await super().record(change, owner)
        self.stored.pop(entry.key)
        return entry


class ClaimsForAll(MemoryChangeLog):
    """It looks, and then writes."""

    async def claim(self, entry: Entry, owner: str) -> Entry | None:
        before = self._decoded(entry.key) if entry.key in self.stored else None
        if before != entry:
            return None
        for _ in range(20):
            await checkpoint()
        claimed = replace(entry, owner=owner, attempt=entry.attempt + 1)
        if entry.key not in self.stored:
            return None
        self.stored[entry.key] = StoredEntry(encode(claimed), 0)
        return claimed


class RenewsForAnybody(MemoryChangeLog):
    async def renew(self, entries: Sequence[Entry]) -> Sequence[Renewal]:
        await checkpoint()
        return [Renewal.RENEWED if entry.key in self.stored else Renewal.NOT_YOURS for entry in entries]


class RenewingRecreates(MemoryChangeLog):
    async def renew(self, entries: Sequence[Entry]) -> Sequence[Renewal]:
        renewals = await super().renew(entries)
        for entry, renewal in zip(entries, renewals, strict=True):
            if renewal is Renewal.NOT_YOURS and entry.key not in self.stored:
                self._swap_in(entry)
        return renewals

    def _swap_in(self, entry: Entry) -> None:
        self.stored[entry.key] = StoredEntry(encode(entry), self._now_ms())


class HidesStale(MemoryChangeLog):
    async def stale(self, within: Any, now_ms: int, expiry_ms: int, limit: int) -> EntryPage:
        page = await super().stale(within, now_ms, expiry_ms, limit)
        return replace(page, entries=page.entries[:1])


class CallsTheLivingStale(MemoryChangeLog):
    async def stale(self, within: Any, now_ms: int, expiry_ms: int, limit: int) -> EntryPage:
        return await super().stale(within, now_ms + 2 * expiry_ms, expiry_ms, limit)


class ListsInPagesThatLack(MemoryChangeLog):
    async def entries(self, start: str, limit: int, *, stuck_only: bool = False) -> EntryPage:
        page = await super().entries(start, limit, stuck_only=stuck_only)
        return page if page.next_start is None else replace(page, entries=page.entries[:-1])


class NotesForAll(MemoryChangeLog):
    async def swap_note(self, name: str, expected: bytes | None, value: bytes) -> bool:
        is_right = self.notes.get(name) == expected
        for _ in range(10):
            await checkpoint()
        if is_right:
            self.notes[name] = value
        return is_right


class LastValueCounts(MemoryChangeLog):
    async def write_values(self, values: Mapping[str, bytes | None], version: int) -> None:
        await checkpoint()
        self.values.update({key: (value, version) for key, value in values.items()})


class BeatsByAnotherClock(MemoryChangeLog):
    async def announce(self, instance: str) -> int:
        return await super().announce(instance) + 60_000


class AnotherClock(MemoryChangeLog):
    ahead_ms = 10_000

    def _now_ms(self) -> int:
        return super()._now_ms() + self.ahead_ms


class FarClock(AnotherClock):
    ahead_ms = -2 * 3_600_000


LOG_LIES: Sequence[tuple[str, type[MemoryChangeLog], Sequence[str]]] = (
    ("claims", ClaimsForAll, ()),
    ("an entry of another", RenewsForAnybody, ()),
    ("a forgotten entry", RenewingRecreates, ()),
    ("stale entries", HidesStale, ()),
    ("stale entries", CallsTheLivingStale, ()),
    ("listings of entries", ListsInPagesThatLack, ()),
    ("notes", NotesForAll, ()),
    ("values", LastValueCounts, ()),
    ("heartbeats", BeatsByAnotherClock, ()),
    ("clocks", AnotherClock, ()),
    ("clocks half an hour apart", FarClock, ("clocks",)),
)


async def test_a_healthy_changelog_is_green() -> None:
    assert await red(ENTRIES, bench_of()) == {}


@pytest.mark.parametrize(("name", "lying", "also"), LOG_LIES, ids=lambda each: each.__name__ if isinstance(each, type) else None)
async def test_a_lie_about_entries_turns_its_line_red_and_no_other(name: str, lying: type[MemoryChangeLog], also: Sequence[str]) -> None:
    assert set(await red(ENTRIES, bench_of(log=lying(SystemRuntime())))) == {name, *also}


async def test_a_changelog_that_loses_entries_is_tried_no_further() -> None:
    outcomes = await try_all(ENTRIES, bench_of(log=LosesEntries(SystemRuntime())), SIZES.within_s)
    assert [(each.probe.name, each.result) for each in outcomes] == [("an entry", Result.BROKEN)]


def test_each_promise_has_a_lie() -> None:
    assert {each.name for each in ROWS[1:]} == {name for name, *_ in ROW_LIES}
    assert {each.name for each in ENTRIES[1:]} == {name for name, *_ in LOG_LIES}
