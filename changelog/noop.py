"""`NoopChangeLog`, the log that records nothing.

For a store that accepts garbage after a crash, in order to save the write to the log.

Owners work with it as with any other log: every renewal succeeds, and no entry is ever there to be claimed. *Crash*:
what a process leaves behind when it dies stays until the audit finds it. So I3 holds only if no process dies. I1, I2
and I4 do not depend on the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from changelog.change import Change, ChangeId, Entry, Unreadable
from changelog.key_values import ValuePage, check_note, check_values
from changelog.lease import Renewal
from changelog.log import EntryPage, KeyRange


class NoopChangeLog:
    """Implements `ChangeLog`. Records nothing."""

    durable = False

    async def record(self, change: Change, owner: str) -> Entry:
        return Entry(change, change.id.row_key(), owner)

    async def open(self, entry: Entry) -> bool:
        """Keeps none, so nobody could complete it: who opens an upload asks `durable` first."""
        return False

    async def amend(self, entry: Entry, by: Entry) -> bool:
        return False

    async def renew(self, entries: Sequence[Entry]) -> Sequence[Renewal]:
        return [Renewal.RENEWED] * len(entries)

    async def forget(self, entry: Entry) -> None:
        return None

    async def release(self, entry: Entry, cleanup_after_ms: int | None = None) -> bool:
        return True

    async def keep(self, entry: Entry) -> bool:
        return True

    async def kept(self, within: KeyRange, limit: int) -> EntryPage:
        return EntryPage((), None)

    async def announce(self, instance: str) -> int:
        return 0

    async def now_ms(self) -> int:
        return 0

    def ranges(self) -> Sequence[KeyRange]:
        return ()

    async def stale(self, within: KeyRange, now_ms: int, expiry_ms: int, limit: int) -> EntryPage:
        return EntryPage((), None)

    async def claim(self, entry: Entry, owner: str) -> Entry | None:
        return None

    async def park(self, entry: Entry | Unreadable, error: str) -> bool:
        return False

    async def retry(self, entry: Entry | Unreadable) -> bool:
        return False

    async def entries(self, start: str, limit: int, *, stuck_only: bool = False) -> EntryPage:
        return EntryPage((), None)

    async def read(self, change_id: ChangeId) -> Entry | Unreadable | None:
        return None

    async def presences(self) -> Sequence[tuple[str, int]]:
        return ()

    async def read_note(self, name: str) -> bytes | None:
        return None

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        return {}

    async def write_values(self, values: Mapping[str, bytes | None], version: int) -> None:
        check_values(values, version)

    async def scan_values(self, start: str, end: str, limit: int) -> ValuePage:
        return ValuePage({}, None)

    async def erase_values(self, keys: Sequence[str]) -> None:
        return None

    async def swap_note(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Keeps nothing, and says that it did: who works with this log has chosen to remember nothing."""
        check_note(value)
        return True
