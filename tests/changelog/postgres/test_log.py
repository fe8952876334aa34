"""The changelog in PostgreSQL: what is particular to it. What every log must do is in `tests/contracts/`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import LOG_PREFIX, Change, ChangeId, Entry, encode
from changelog.key_values import VALUE_KEY_BYTES_MAX
from changelog.lease import Renewal
from changelog.log import LOG_END, KeyRange
from changelog.postgres import log as log_module
from changelog.postgres.log import PostgresChangeLog
from emulators.postgres.server import PostgresServer
from tests.given.fresh_schema import ask, made_schema, settings_of
from tiered.postgres.open import open_postgres

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
RUNTIME = SystemRuntime()
EVERYTHING = KeyRange(LOG_PREFIX, LOG_END)
Opened = tuple[PostgresServer, str, PostgresChangeLog]


@pytest.fixture
async def opened(postgres: PostgresServer, anyio_backend: str) -> AsyncIterator[Opened]:
    schema = await made_schema(postgres)
    async with open_postgres(settings_of(postgres, schema), RUNTIME) as (_, log):
        yield postgres, schema, log


def change() -> Change:
    return Change(ChangeId.new(RUNTIME), "notes/objects/a")


async def test_long_keys_of_values_that_cannot_be_compressed_keep_their_order(opened: Opened) -> None:
    _, _, log = opened
    chance = RUNTIME.random
    head = "".join(chr(chance.randrange(33, 126)) for _ in range(2000))
    tails = ["".join(chr(chance.randrange(33, 126)) for _ in range(900)) for _ in range(7)]
    keys = sorted(head[:length] + tail for length, tail in zip((5, 1023, 1024, 1025, 2000, 2000, 2000), tails, strict=True))
    keys += ["~" * VALUE_KEY_BYTES_MAX]
    values = {key: b"%d" % number for number, key in enumerate(keys)}
    await log.write_values(values, 7)
    assert await log.read_values(keys) == values
    found: dict[str, bytes] = {}
    start: str | None = "!"
    while start is not None:
        page = await log.scan_values(start, "\x7f", 3)
        found |= page.values
        start = page.next_start
    assert list(found.items()) == list(values.items())
    await log.write_values(dict.fromkeys(keys[:4]), 6)
    assert await log.read_values(keys) == values, "an older version has no effect"
    await log.erase_values(keys[:4])
    assert list((await log.scan_values("!", "\x7f", 100)).values) == keys[4:]


async def test_renewals_and_removals_of_the_same_entries_never_wait_for_one_another(opened: Opened) -> None:
    """Both lock many rows. In different orders, each would sooner or later hold what the other wants."""
    _, _, log = opened
    for _ in range(15):
        entries = [await log.record(change(), "me") for _ in range(24)]
        renewals: list[Renewal] = []

        async def renew(entries: list[Entry] = entries, renewals: list[Renewal] = renewals) -> None:
            renewals += await log.renew(list(reversed(entries)))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(renew)
            for entry in entries:
                tasks.start_soon(log.forget, entry)
        assert len(renewals) == 72 and Renewal.FAILED not in renewals
        assert (await log.entries("", 100)).entries == ()


async def test_entries_that_wait_fill_no_page_however_many_they_are(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, log = opened
    monkeypatch.setattr(log_module, "PAGE_ROWS_MIN", 4)
    now_ms = await log.now_ms()
    entries = sorted([await log.record(change(), "me") for _ in range(60)], key=lambda entry: entry.key)
    due = {entry.key for entry in entries[20::13]}
    for entry in entries:
        assert await log.release(entry, None if entry.key in due else now_ms + 3_600_000)
    page = await log.stale(EVERYTHING, now_ms, 30_000, 2)
    assert len(page.entries) == 2 and page.next_start is not None
    rest = await log.stale(KeyRange(page.next_start, LOG_END), now_ms, 30_000, 100)
    assert {entry.key for entry in (*page.entries, *rest.entries)} == due and rest.next_start is None


async def test_an_entry_that_other_software_spelt_in_other_bytes_is_renewed_by_none_and_can_be_claimed(opened: Opened) -> None:
    server, schema, log = opened
    entry = await log.record(change(), "me")
    await ask(server, f"UPDATE {schema}.entries SET value = $1", encode(entry).replace(b'"v":1,', b'"v": 1, '))
    assert await log.renew([entry]) == [Renewal.NOT_YOURS]
    claimed = await log.claim(entry, "other")
    assert claimed is not None and await log.read(entry.change.id) == claimed
    assert await log.claim(entry, "third") is None


async def test_a_key_that_is_no_text_is_skipped_and_the_others_are_found(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    server, schema, log = opened
    await ask(server, f"INSERT INTO {schema}.entries VALUES ($1, 'x', 0, NULL)", LOG_PREFIX.encode() + b"00/\xff")
    await ask(server, f"INSERT INTO {schema}.log_values VALUES ($1, 'x', 1)", b"a\xff")
    entry = await log.record(change(), "me")
    await log.write_values({"b": b"value"}, 1)
    assert (await log.entries("", 10)).entries == (entry,)
    assert (await log.scan_values("a", "z", 10)).values == {"b": b"value"}
    assert sum("unreadable_key" in record.getMessage() or "unreadable_key" in str(record.__dict__) for record in caplog.records) == 2


async def test_scans_of_entries_use_an_index_from_the_first_row_on(opened: Opened) -> None:
    _, _, log = opened
    assert (await log.stale(EVERYTHING, 1, 1, 1)).entries == ()
    for name, values in (("ended", (b"a", b"b", 10)), ("scan_values", (b"a", b"b", 10)), ("read", ([b"a"],)), ("read_values", ([b"a"],))):
        plan = "\n".join(row[0] for row in await log._pool.read("explaining", f"EXPLAIN {log._sql[name]}", *values))
        assert "Index" in plan and "Seq Scan" not in plan, plan
