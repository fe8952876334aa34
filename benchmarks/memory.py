"""What large uploads take of the client's memory: its peak with many at once, over the peak with as many small puts.

    child 1   64 small puts at once -> peak A -> 64 puts of 64 MiB at once, from generators -> peak B: B - A are ours
    child 2   the same by google-cloud-storage: its BlobWriter in 64 threads

A child per side, because a peak (`ru_maxrss`) never goes down. The generators make each piece of 256 KiB when it is asked for, so
what of the payloads is held is counted too: of each, 1 MiB is read before it is known that it is not inline. The emulator keeps what
it is given: it is another process, and how many uploads it can hold is asked of the machine first.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import AsyncIterator, Iterator

import anyio
import requests.adapters
from anyio import CapacityLimiter, to_thread
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage as google_storage

from benchmarks.figures import Figures
from benchmarks.rounds import run_in_flight
from benchmarks.servers import BUCKET, Servers, started
from tiered import ObjectId
from tiered.compose import open_storage
from tiered.settings import StoreSettings

MIB = 1024 * 1024
PIECE_BYTES = MIB // 4
UPLOAD_BYTES = 64 * MIB
UPLOADS = 64
TIMEOUT_S = 240.0
HELD_BY_THE_EMULATOR = 1.6
"""Bytes of its memory, at worst, for each that it is sent: its buffer grows in steps, and is copied once."""


async def figures(servers: Servers, size: float) -> list[Figures]:
    wanted = max(2, round(UPLOADS * size))
    uploads = min(wanted, int(_available_bytes() / 2 / (UPLOAD_BYTES * HELD_BY_THE_EMULATOR)))
    rows = []
    for name, side in (("ours, streamed", "ours"), ("google-cloud-storage, BlobWriter in threads", "official")):
        # A bucket of its own, in a server of its own: what it holds is gone with it.
        async with started("benchmarks.gcs_server", BUCKET) as [url]:
            with anyio.fail_after(TIMEOUT_S):
                async with started("benchmarks.memory", side, str(uploads), servers.bigtable_host, url) as told:
                    base, peak = map(int, told)
        extra_mib = (peak - base) / 1024
        rows.append([name, f"{uploads} x {UPLOAD_BYTES // MIB} MiB", f"{base / 1024:.0f}", f"{extra_mib:.0f}", f"{extra_mib / uploads:.2f}"])
    notes = [] if uploads == wanted else [f"Only {uploads} uploads of {wanted}: the machine has no memory for an emulator that keeps more."]
    columns = ["at once", "uploads", "peak of as many small puts, MiB", "more with the uploads, MiB", "for each, MiB"]
    return [Figures("Memory of concurrent uploads", columns, rows, notes)]
