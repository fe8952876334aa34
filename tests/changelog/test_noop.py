"""The log that records nothing lets its owners work, and gives nobody anything to claim."""

from __future__ import annotations

import pytest

from changelog.change import LOG_PREFIX, Change, ChangeId
from changelog.key_values import ValuePage
from changelog.lease import Renewal
from changelog.log import LOG_END, ChangeLog, KeyRange
from changelog.noop import NoopChangeLog

pytestmark = pytest.mark.anyio

CHANGE = Change(ChangeId("018bcfe5-6800-7000-8000-000000000001"), "notes/objects/k")


async def test_every_lease_lasts_and_nothing_is_recorded(anyio_backend: str) -> None:
    log: ChangeLog = NoopChangeLog()
    entry = await log.record(CHANGE, "me")
    assert (log.durable, entry.change, entry.owner) == (False, CHANGE, "me")
    assert await log.renew([entry, entry]) == [Renewal.RENEWED] * 2
    assert await log.release(entry) is True
    assert await log.claim(entry, "recovery") is None
    assert await log.park(entry, "why") is await log.retry(entry) is False
    assert await log.read(CHANGE.id) is None
    assert (await log.entries("", 10)).entries == () and list(log.ranges()) == []
    await log.forget(entry)


async def test_it_keeps_no_note_and_knows_nobody(anyio_backend: str) -> None:
    log: ChangeLog = NoopChangeLog()
    assert await log.announce("me") == await log.now_ms() == 0
    assert await log.swap_note("a", None, b"1") and await log.swap_note("a", b"another", b"2")
    assert await log.read_note("a") is None and list(await log.presences()) == []
    with pytest.raises(ValueError, match="a note has"):
        await log.swap_note("a", None, b"")


async def test_it_keeps_no_value_and_no_entry_for_a_feed(anyio_backend: str) -> None:
    log: ChangeLog = NoopChangeLog()
    entry = await log.record(CHANGE, "me")
    assert await log.keep(entry) and (await log.kept(KeyRange(LOG_PREFIX, LOG_END), 10)).entries == ()
    await log.write_values({"a": b"1"}, 1)
    await log.erase_values(["a"])
    assert await log.read_values(["a"]) == {} and await log.scan_values("", "z", 10) == ValuePage({}, None)
    with pytest.raises(ValueError, match="a value has"):
        await log.write_values({"a": b""}, 1)
