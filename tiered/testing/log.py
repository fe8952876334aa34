"""`MemoryChangeLog`: the changelog in memory. Tests may read its state.

    stored     row key -> the stored value (bytes as in `changelog.change`), its heartbeat, its state
    presence   instance -> when it was last announced (Unix ms)
    notes      name -> value
    values     key -> the newest value (None: removed) and its version

All times are the server's clock. Each call is atomic: after its request has travelled, nothing is awaited, except in a
slow scan or renewal. Compare-and-swaps compare the entry in its current form, so entries of older software can be
claimed too (I6).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from changelog.base.errors import LeaseLostError
from changelog.base.runtime import Runtime
from changelog.change import SHARDS_DEFAULT, Change, ChangeId, Entry, Stuck, Unreadable, decode, encode, encode_done, encode_stuck
from changelog.key_values import REMOVED_AGE_MAX_MS, ValuePage, check_note, check_values
from changelog.lease import DUE, Renewal, entry_state
from changelog.log import PRESENCE_AGE_MAX_MS, EntryPage, KeyRange, shard_ranges
from tiered.testing.service import MemoryService


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One row of the log. `state` None: the entry is open."""

    value: bytes
    heartbeat_ms: int
    state: str | None = None


class MemoryChangeLog(MemoryService):
    """The changelog: it implements `ChangeLog` and `GarbageCollection`. `runtime` is the server's."""

    durable = True

    lost_share = 0.25
    """How many of the answers to a slow renewal of many entries are lost, as a share."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.stored: dict[str, StoredEntry] = {}
        self.presence: dict[str, int] = {}
        self.notes: dict[str, bytes] = {}
        self.values: dict[str, tuple[bytes | None, int]] = {}
        self._shards = SHARDS_DEFAULT

    def sharded(self, shards: int) -> Self:
        """Returns the same log, as processes see it that record under this many shards."""
        view = copy.copy(self)
        view._shards = shards
        return view

    async def record(self, change: Change, owner: str) -> Entry:
        """Records a change, as in `ChangeLog`.

        Raises `LeaseLostError` if it was recorded before and claimed since. Recovery has it then.
        """
        await self._travel()
        entry = Entry(change, change.id.row_key(self._shards), owner)
        self.stored.setdefault(entry.key, StoredEntry(encode(entry), 0))
        if not self._swap("log.record", entry, entry):
            raise LeaseLostError(f"change {change.id} of {change.object} was taken over by recovery")
        return entry

    async def open(self, entry: Entry) -> bool:
        await self._travel()
        if entry.key in self.stored:
            return False
        self.stored[entry.key] = StoredEntry(encode(entry), 0)
        return self._swap("log.open", entry, entry)

    async def amend(self, entry: Entry, by: Entry) -> bool:
        await self._travel()
        return self._swap("log.amend", entry, by)

    async def renew(self, entries: Sequence[Entry]) -> Sequence[Renewal]:
        """Renews entries, as in `ChangeLog`.

        A slow renewal renews each entry at another moment, and some of its answers are lost.
        """
        pause_s = await self._travel()
        renewals: list[Renewal] = []
        for entry in entries:
            renewals.append(Renewal.RENEWED if self._swap("log.renew", entry, entry) else Renewal.NOT_YOURS)
            if pause_s:
                await self._pause(pause_s)
                renewals[-1] = Renewal.FAILED if self._runtime.random.random() < self.lost_share else renewals[-1]
        return renewals

    async def forget(self, entry: Entry) -> None:
        await self._travel()
        self.stored.pop(entry.key, None)
        self._took_effect("log.forget", entry.key)

    async def release(self, entry: Entry, cleanup_after_ms: int | None = None) -> bool:
        await self._travel()
        return self._swap("log.release", entry, entry.released(cleanup_after_ms))

    async def keep(self, entry: Entry) -> bool:
        def done(stored: StoredEntry) -> StoredEntry:
            is_kept = self._decoded(entry.key).kept_ms is not None
            return stored if is_kept else replace(stored, state=encode_done(self._now_ms()))

        return await self._replace("log.keep", entry, done)

    async def kept(self, within: KeyRange, limit: int) -> EntryPage:
        def wanted(key: str) -> Entry | Unreadable | None:
            entry = self._decoded(key)
            return None if entry.kept_ms is None else entry

        return _page(await self._read_in_order(self.stored, within.start, lambda key: key < within.end, wanted, limit + 1), limit)

    async def announce(self, instance: str) -> int:
        await self._travel()
        self.presence[instance] = self._now_ms()
        return self.presence[instance]

    async def now_ms(self) -> int:
        await self._travel()
        return self._now_ms()

    def ranges(self) -> Sequence[KeyRange]:
        return shard_ranges(self._shards)

    async def stale(self, within: KeyRange, now_ms: int, expiry_ms: int, limit: int) -> EntryPage:
        def due(key: str) -> Entry | Unreadable | None:
            entry = self._decoded(key)
            return entry if entry_state(entry, now_ms, expiry_ms, attempts_max=1) in DUE else None

        return _page(await self._read_in_order(self.stored, within.start, lambda key: key < within.end, due, limit + 1), limit)

    async def claim(self, entry: Entry, owner: str) -> Entry | None:
        await self._travel()
        claimed = entry.claimed_by(owner)
        return claimed if self._swap("log.claim", entry, claimed) else None

    async def park(self, entry: Entry | Unreadable, error: str) -> bool:
        def parked(stored: StoredEntry) -> StoredEntry | None:
            kept_meanwhile = entry.kept_ms is None and self._decoded(entry.key).kept_ms is not None
            return None if kept_meanwhile else replace(stored, state=encode_stuck(Stuck(error, self._now_ms())))

        return await self._replace("log.park", entry, parked)

    async def retry(self, entry: Entry | Unreadable) -> bool:
        value = encode(entry.retried()) if isinstance(entry, Entry) else entry.raw

        def retried(stored: StoredEntry) -> StoredEntry | None:
            return replace(stored, value=value, state=None) if self._decoded(entry.key).stuck is not None else None

        return await self._replace("log.retry", entry, retried)

    async def entries(self, start: str, limit: int, *, stuck_only: bool = False) -> EntryPage:
        def wanted(key: str) -> Entry | Unreadable | None:
            entry = self._decoded(key)
            return entry if entry.stuck or not stuck_only else None

        return _page(await self._read_in_order(self.stored, start, lambda key: True, wanted, limit + 1), limit)

    async def read(self, change_id: ChangeId) -> Entry | Unreadable | None:
        await self._travel()
        return next((self._decoded(key) for key in sorted(self.stored) if key.endswith(change_id)), None)

    async def presences(self) -> Sequence[tuple[str, int]]:
        await self._travel()
        return list(self.presence.items())

    async def read_note(self, name: str) -> bytes | None:
        await self._travel()
        return self.notes.get(name)

    async def swap_note(self, name: str, expected: bytes | None, value: bytes) -> bool:
        check_note(value)
        await self._travel()
        stored = self.notes.get(name)
        if stored != expected:
            return stored == value
        self.notes[name] = value
        self._took_effect("log.swap_note", name)
        return True

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        await self._travel()
        return {key: value for key in keys if (value := self.values.get(key, (None, 0))[0]) is not None}

    async def write_values(self, values: Mapping[str, bytes | None], version: int) -> None:
        check_values(values, version)
        await self._travel()
        for key, value in values.items():
            if self.values.get(key, (None, 0))[1] <= version:
                self.values[key] = (value, version)
            self._took_effect("log.write_values", key)

    async def scan_values(self, start: str, end: str, limit: int) -> ValuePage:
        def wanted(key: str) -> tuple[str, bytes] | None:
            return None if (value := self.values[key][0]) is None else (key, value)

        found = await self._read_in_order(self.values, start, lambda key: key < end, wanted, limit + 1)
        return ValuePage(dict(found[:limit]), found[limit][0] if len(found) > limit else None)

    async def erase_values(self, keys: Sequence[str]) -> None:
        await self._travel()
        for key in keys:
            self.values.pop(key, None)
            self._took_effect("log.erase_values", key)

    async def collect(self, limit: int) -> int:
        """Removes up to `limit` old presence rows and values that were removed long ago. Returns how many."""
        await self._travel()
        now_ms = self._now_ms()
        instances = [instance for instance, seen_ms in self.presence.items() if seen_ms < now_ms - PRESENCE_AGE_MAX_MS]
        keys = [key for key, (value, version) in self.values.items() if value is None and version < now_ms - REMOVED_AGE_MAX_MS]
        old = self._some([*((self.presence, name) for name in instances), *((self.values, key) for key in keys)], limit)
        for kept_in, name in old:
            del kept_in[name]  # type: ignore[attr-defined]
        return len(old)

    def _decoded(self, key: str) -> Entry | Unreadable:
        stored = self.stored[key]
        return decode(key, stored.value, stored.heartbeat_ms, stored.state)

    def _is_stored(self, seen: Entry | Unreadable) -> bool:
        return seen.key in self.stored and _value(self._decoded(seen.key)) == _value(seen)

    def _swap(self, call: str, seen: Entry, new: Entry) -> bool:
        """Writes `new` with a fresh heartbeat if `seen` is what is stored. Returns whether it was."""
        if not self._is_stored(seen):
            return False
        self.stored[new.key] = replace(self.stored[new.key], value=encode(new), heartbeat_ms=self._now_ms())
        self._took_effect(call, new.key)
        return True

    async def _replace(self, call: str, seen: Entry | Unreadable, change: Callable[[StoredEntry], StoredEntry | None]) -> bool:
        await self._travel()
        changed = change(self.stored[seen.key]) if self._is_stored(seen) else None
        if changed is None:
            return False
        self.stored[seen.key] = changed
        self._took_effect(call, seen.key)
        return True


def _value(entry: Entry | Unreadable) -> bytes:
    return entry.raw if isinstance(entry, Unreadable) else encode(entry)


def _page(found: Sequence[Entry | Unreadable], limit: int) -> EntryPage:
    """Returns the first `limit` of them as a page. The next page begins at the one after."""
    return EntryPage(tuple(found[:limit]), found[limit].key if len(found) > limit else None)
