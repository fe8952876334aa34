"""Calls of each operation, one after the other: what a caller waits for where nobody else calls.

The promises are tried by many calls at once, so their latencies are those of a queue. *Failure*: what fails ends the
phase, and only what was measured before is told; whether a promise holds is for the tables.
"""

from __future__ import annotations

from changelog.base.errors import TieredError
from recovery.prove.probes.bench import Bench
from recovery.prove.probes.entries import change_of
from tiered.metadata import Metadata
from tiered.object_id import blob_name

_PAYLOAD = b"x" * 1024


async def be_calm(bench: Bench) -> None:
    """As many rounds as `Sizes.calm`, each a call of each operation. `bench`: whose `Measured` gets them alone."""
    ends_at = bench.runtime.monotonic() + bench.sizes.calm_s
    for _ in range(bench.sizes.calm):
        if bench.runtime.monotonic() >= ends_at:
            return
        try:
            await _rows(bench)
            await _blobs(bench)
            await _changelog(bench)
        except TieredError:
            return


async def _rows(bench: Bench) -> None:
    path, token = bench.path(), bench.token()
    await bench.rows.put_inline(path, token, bench.inline(token, _PAYLOAD))
    await bench.rows.read(path)
    large, settled = bench.token(), bench.path()
    await bench.swap(settled, large, None, bench.tombstone(settled, large))
    await bench.rows.settle(settled, large)
    await bench.rows.delete_inline(path, bench.token())


async def _blobs(bench: Bench) -> None:
    name = blob_name(bench.path(), bench.token())
    upload = await bench.blobs.open_upload(name, Metadata(size=len(_PAYLOAD)), len(_PAYLOAD))
    await upload.write(_PAYLOAD)
    await upload.finalise()
    reader = await bench.blobs.open(name)
    if reader is not None:
        try:
            async for _ in reader.chunks():
                pass
        finally:
            await reader.aclose()
    await bench.blobs.head(name)
    await bench.blobs.delete(name)


async def _changelog(bench: Bench) -> None:
    log = bench.ours.log
    entry = await log.record(change_of(bench), "prove")
    await log.renew([entry])
    await log.now_ms()
    await log.forget(entry)
