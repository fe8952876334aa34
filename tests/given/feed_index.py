"""What the writer of a change feed leaves in the changelog, written directly: its index, its sentinel, its checkpoint.

    publish    the index as given
    keep_up    one transaction of a small writer, which is alone: hints -> commit -> index -> clean up -> forget
"""

from __future__ import annotations

import json
from dataclasses import replace

from changelog.base.runtime import Runtime
from changelog.change import Entry
from changelog.log import ChangeLog
from recovery.audit.manifest import FeedReferences
from recovery.audit.sweeping.references import references_of
from recovery.feed.index_value import blob_of, index_value
from recovery.feed.writer.checkpoint import NOTE, Checkpoint, Pass
from tiered.metadata import NS_PER_MS
from tiered.protocol.finishing import clean_up, settle_change
from tiered.services.backends import HighVolumeBackend, Tiers

GENERATION = 1_780_000_000_000
STORE = "the store"


async def rows_of(rows: HighVolumeBackend) -> dict[str, str]:
    """The reference of each object, as the writer reads it: a row that is corrupt tells none."""
    found: dict[str, str] = {}
    start: bytes | None = b""
    while start is not None:
        page = await rows.redirects(start, None, 1000)
        found |= {redirect.path: redirect.target for redirect in page.redirects}
        for row in page.corrupt:
            found.pop(row.path, None)
        start = page.next_start
    return found


async def publish(
    log: ChangeLog, published: dict[str, str], now_ns: int, *, store: str = STORE, generation: int = GENERATION, live: int | None = None,
    records: int | None = None, gap: bool = False, withheld: bool | None = None, lower: int | None = None,
) -> None:  # fmt: skip
    """Makes this the index. `withheld`: a pass is under way, and whether its progress is withheld."""
    now_ms = now_ns // NS_PER_MS
    prefix = f"feed/{generation}/"
    stale = (await log.scan_values(f"{prefix}index/", f"{prefix}index0", 100_000)).values
    values: dict[str, bytes | None] = dict.fromkeys(stale)
    values |= {f"{prefix}index/{path}": index_value(path, blob) for path, blob in published.items()}
    await log.write_values({f"{prefix}began": b"1", **values}, now_ms)
    assert await log.swap_note(NOTE, await log.read_note(NOTE), Checkpoint(
        timestamp=now_ms - 1, num_records=0, next=now_ms, lower=now_ms if lower is None else lower, epoch=1, seq=7, generation=generation,
        staged=None, bindings=((now_ms - 1, len(published) if records is None else records),), store=store,
        live=len(published) if live is None else live,
        scan=None if withheld is None else Pass(b"", 0, None, estimated=False, withheld=withheld, began=now_ms - 1, scanned=0),
        passed=now_ms - 1000, gap=gap, closed=False, writer="somebody",
    ).to_bytes())  # fmt: skip


async def keep_up(log: ChangeLog, tiers: Tiers, runtime: Runtime) -> None:
    """Publishes what the entries that are kept have changed. Call it again after a crash, or an error."""
    raw = await log.read_note(NOTE)
    assert raw is not None, "publish an index first"
    told = Checkpoint.from_bytes(raw)
    prefix = f"feed/{told.generation}/"

    async def apply(changed: dict[str, str | None], time: int) -> None:
        values = {f"{prefix}index/{path}": None if blob is None else index_value(path, blob) for path, blob in changed.items()}
        await log.write_values(values, time)

    staged = await log.read_values([f"{prefix}staged/{told.timestamp}"])
    for value in staged.values():  # the index may have missed the last commit
        await apply(json.loads(value), told.timestamp)
    hints = [hint for within in log.ranges() for hint in (await log.kept(within, 1000)).entries if isinstance(hint, Entry)]
    paths = sorted({hint.change.object for hint in hints})
    wanted = {each.path: each.target for each in (await tiers.high_volume.redirects_at([path.encode() for path in paths])).redirects}
    values = await log.read_values([f"{prefix}index/{path}" for path in paths])
    before = {(path := key.removeprefix(f"{prefix}index/")): blob_of(path, value) for key, value in values.items()}
    changed = {path: wanted.get(path) for path in paths if wanted.get(path) != before.get(path)}
    time = max(told.next, runtime.wall_ns() // NS_PER_MS)
    records = told.records + sum((path in before) + (path in wanted) for path in changed)
    await log.write_values({f"{prefix}staged/{time}": json.dumps(changed).encode()}, time)
    committed = replace(
        told, timestamp=time, next=time + 1, lower=time + 1, seq=told.seq + 1, bindings=told.bound(time, records),
        live=told.live + sum((path in wanted) - (path in before) for path in changed),
    )  # fmt: skip
    if not await log.swap_note(NOTE, raw, committed.to_bytes()):
        return
    await apply(changed, time)
    for hint in hints:
        await clean_up(tiers, hint.change, await settle_change(tiers, hint.change), lambda: None)
        await log.forget(hint)


async def perfect(log: ChangeLog, rows: HighVolumeBackend, now_ns: int) -> FeedReferences:
    """Publishes what the rows say now. Returns what a run notes that begins now."""
    await publish(log, await rows_of(rows), now_ns)
    return await references_of(log, STORE, now_ns, 60.0)
