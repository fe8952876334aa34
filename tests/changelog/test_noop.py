"""The log that records nothing lets its owners work, and gives nobody anything to claim."""

from __future__ import annotations

import pytest

from changelog.change import Change, ChangeId
from changelog.lease import Renewal
from changelog.log import ChangeLog
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
