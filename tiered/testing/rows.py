"""`MemoryRows`: the high-volume tier in memory. Tests may read its state.

    states    path -> inline object or tombstone, expired or not
    won       path -> token -> when (Unix ms, server's clock); `refused` likewise
    reserved  path -> the tokens for which the state is reserved, as in Bigtable
    horizon   of the collected marks, when the last was written, or its token made (Unix ms)

Each operation is atomic: after its request has travelled, nothing is awaited, except in a slow scan. The deadline is
kept in whole milliseconds and overrides the one in the metadata. In the same way, `size` is the size of the payload
(I7). A swap's deadline is checked when the request *leaves*: a swap that left in time may arrive at any later time, as
on a real network.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from changelog.base.errors import ClockBehindError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from tiered.metadata import is_expired, whole_ms
from tiered.services.backends import MARK_AGE_MAX_S, Inline, Only, Row, RowState, Tombstone, Vacant
from tiered.services.scans import Redirect, RedirectPage, RowPage, ScannedRow
from tiered.testing.service import MemoryService

Marks = dict[str, dict[ChangeId, int]]


class MemoryRows(MemoryService):
    """The high-volume tier: it implements `HighVolumeBackend` and `GarbageCollection`. `runtime` is the server's."""

    def __init__(self, runtime: Runtime, *, horizon: bool = True) -> None:
        """Makes an empty tier. `horizon` False: marks are forgotten only by their age, as in Bigtable's service."""
        super().__init__(runtime)
        self.states: dict[str, Inline | Tombstone] = {}
        self.won: Marks = defaultdict(dict)
        self.refused: Marks = defaultdict(dict)
        self.reserved: dict[str, set[ChangeId]] = defaultdict(set)
        self.horizon_ms = -1
        self._keeps_horizon = horizon

    async def read(self, path: str, *, marks: ChangeId | bool = False) -> Row:
        await self._travel()
        state = _copy_of(self.states.get(path))
        if marks is False:
            return Row(state)
        won, refused = frozenset(self.won.get(path, ())), frozenset(self.refused.get(path, ()))
        if marks is True:
            return Row(state, won, refused)
        return Row(state, won & {marks}, refused & {marks}, marks.created_ms <= self.horizon_ms)

    async def reserve(self, path: str, token: ChangeId, seen: Inline | Tombstone) -> bool:
        await self._travel()
        state = self.states.get(path)
        if isinstance(seen, Tombstone):
            is_there = seen.target != path and self._target(path) == seen.target
        else:
            is_there = seen.token is not None and isinstance(state, Inline) and state.token == seen.token
        if is_there:
            self.reserved[path].add(token)
            self._took_effect("rows.reserve", path)
        return is_there

    async def swap(
        self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None,
        since_ms: int | None = None,
    ) -> bool:  # fmt: skip
        if self._runtime.boot_time() > deadline_s:
            raise UnavailableError(f"the swap of {token} at {path} waited too long for its turn; it was not sent")
        await self._travel()
        if self._conflicts(path, token, expected) or not self._satisfies(path, token, only):
            return False
        if self._is_forgotten(token.created_ms if since_ms is None else since_ms):
            return False
        self._write(path, token, state)
        self.won[path][token] = self._now_ms()
        self._took_effect("rows.swap", path)
        return True

    async def settle(self, path: str, token: ChangeId) -> bool:
        await self._travel()
        state = self.states.get(path)
        if state is not None and (state.token == token or self._target(path) == f"{path}/{token}"):
            return True
        self.refused[path][token] = self._now_ms()
        self._took_effect("rows.settle", path)
        return False

    async def put_inline(self, path: str, token: ChangeId, state: Inline) -> bool:
        return await self._replace_inline("rows.put_inline", path, token, state)

    async def delete_inline(self, path: str, token: ChangeId) -> bool:
        return await self._replace_inline("rows.delete_inline", path, token, None)

    async def touch(self, path: str, seen: Inline | Tombstone, deadline_ns: int) -> bool:
        await self._travel()
        state, deadline_ns = self.states.get(path), whole_ms(deadline_ns)
        if state is None or not _is_same(state, seen) or state.deadline_ns is None or state.deadline_ns >= deadline_ns:
            return False
        if isinstance(state, Tombstone) and isinstance(seen, Tombstone) and seen.metadata is not None:
            state = replace(state, metadata=deepcopy(seen.metadata))
        self.states[path] = with_deadline(state, deadline_ns)
        self._took_effect("rows.touch", path)
        return True

    async def scan(self, prefix: str, start: bytes, limit: int, end: bytes | None = None) -> RowPage:
        # The order of code points is also the byte order of UTF-8.
        def within(path: str) -> bool:
            key = path.encode()
            return path.startswith(prefix) and key >= start and (end is None or key < end)

        found = await self._read_in_order(self.states, "", within, self._scanned, limit)
        return RowPage(found, [], None if len(found) < limit else f"{found[-1].path}\0".encode())

    async def redirects(self, start: bytes, end: bytes | None, limit: int) -> RedirectPage:
        def within(path: str) -> bool:
            return path.encode() >= start and (end is None or path.encode() < end)

        found = await self._read_in_order(self.states, "", within, self._redirect, limit)
        return RedirectPage(found, (), None if len(found) < limit else f"{found[-1].path}\0".encode())

    async def redirects_at(self, keys: Sequence[bytes]) -> RedirectPage:
        wanted = set(keys)
        found = await self._read_in_order(self.states, "", lambda path: path.encode() in wanted, self._redirect, len(wanted))
        return RedirectPage(found, (), None)

    async def boundaries(self, count: int) -> Sequence[str]:
        await self._travel()
        paths = sorted(self.states)
        step = max(1, -(-len(paths) // count))
        return paths[step::step]

    async def collect(self, limit: int) -> int:
        """Removes some of the expired rows and of the marks older than two days. Returns how many cells it removed.

        The service collects when it likes, cell by cell. With a horizon, a mark stays if its token seems younger than
        two days. So the horizon never passes what this clock calls two days ago.
        """
        await self._travel()
        now_ns, oldest_ms = self._runtime.wall_ns(), self._now_ms() - MARK_AGE_MAX_S * 1000
        garbage: list[tuple[str, dict[str, Inline | Tombstone] | dict[ChangeId, int], Any]] = [
            (path, self.states, path) for path, state in self.states.items() if is_expired(state.deadline_ns, now_ns)
        ]
        for kind in (self.won, self.refused):
            for path, tokens in kind.items():
                for token, at_ms in tokens.items():
                    if at_ms < oldest_ms and (token.created_ms < oldest_ms or not self._keeps_horizon):
                        garbage.append((path, tokens, token))
        for path, cells, key in (chosen := self._some(garbage, limit)):
            written = cells.pop(key)
            if isinstance(key, ChangeId) and isinstance(written, int) and self._keeps_horizon:
                self.horizon_ms = max(self.horizon_ms, key.created_ms, written)
            self._took_effect("rows.collect", path)
        return len(chosen)

    async def _replace_inline(self, call: str, path: str, token: ChangeId, state: Inline | None) -> bool:
        await self._travel()
        if self._target(path) is not None or self._is_marked(path, token) or self._is_forgotten(token.created_ms):
            return False
        self._write(path, token, state)
        self._took_effect(call, path)
        return True

    def _conflicts(self, path: str, token: ChangeId, expected: str | None) -> bool:
        return self._is_marked(path, token) or self._target(path) not in (None, expected)

    def _satisfies(self, path: str, token: ChangeId, only: Only | None) -> bool:
        if isinstance(only, Vacant):
            state = self.states.get(path)
            return state is None or is_expired(state.deadline_ns, only.at_ns)
        return only is None or token in self.reserved[path]

    def _is_forgotten(self, since_ms: int) -> bool:
        if self.horizon_ms < 0 or since_ms > self.horizon_ms:
            return False
        if self._now_ms() <= self.horizon_ms:
            raise ClockBehindError("the change is older than what was forgotten, and so would any be that is made now")
        return True

    def _write(self, path: str, token: ChangeId, state: RowState) -> None:
        self._end_reservations(path)
        match state:
            case None:
                self.states.pop(path, None)
            case Inline(metadata, payload):
                described = metadata.with_facts(size=len(payload))
                self.states[path] = with_deadline(Inline(described, bytes(payload), token), state.deadline_ns)
            case Tombstone():
                self.states[path] = with_deadline(replace(state, token=token, metadata=deepcopy(state.metadata)), state.deadline_ns)

    def _scanned(self, path: str) -> ScannedRow:
        state = self.states[path]
        return ScannedRow(path, state.deadline_ns, state.token, Row(state).target, deepcopy(state.metadata))

    def _end_reservations(self, path: str) -> None:
        self.reserved.pop(path, None)

    def _redirect(self, path: str) -> Redirect | None:
        state = self.states[path]
        return Redirect(path, state.target, state.deadline_ns) if isinstance(state, Tombstone) else None

    def _target(self, path: str) -> str | None:
        return Row(self.states.get(path)).target

    def _is_marked(self, path: str, token: ChangeId) -> bool:
        return token in self.won.get(path, ()) or token in self.refused.get(path, ())


def _is_same(state: Inline | Tombstone, seen: Inline | Tombstone) -> bool:
    """Tells whether both are the same write.

    If older software wrote them without a token, it tells whether they hold the same.
    """
    if Row(state).target != Row(seen).target or state.token != seen.token:
        return False
    payloads = [each.payload for each in (state, seen) if isinstance(each, Inline)]
    return state.token is not None or len(set(payloads)) <= 1


def with_deadline(state: Inline | Tombstone, deadline_ns: int | None) -> Inline | Tombstone:
    deadline_ns = None if deadline_ns is None else whole_ms(deadline_ns)
    if isinstance(state, Tombstone):
        told = None if state.metadata is None else state.metadata.with_facts(time_expires_ns=deadline_ns)
        return replace(state, deadline_ns=deadline_ns, metadata=told)
    return replace(state, metadata=state.metadata.with_facts(time_expires_ns=deadline_ns))


def _copy_of(state: RowState) -> RowState:
    """The state for a caller, who may change the mappings in its metadata."""
    match state:
        case None:
            return None
        case Inline():
            return replace(state, metadata=deepcopy(state.metadata))
        case Tombstone():
            return replace(state, metadata=deepcopy(state.metadata))
