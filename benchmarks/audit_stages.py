"""Where the CPU of an audit goes: `python -m benchmarks.audit_stages` prints a table; `--docs` puts it in place.

Each stage is run alone in one process, as often as there are rounds, over the same world as in `benchmarks.audit`, and
so is the whole audit of it. A stage's cost is the least of its rounds. CPU is that of all threads of the process, those
of gRPC too. What the stages leave of the whole is `the rest`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import anyio
import grpc.aio
from google.cloud.bigtable_v2.types import bigtable

from benchmarks.audit_side import GRACE_S, SideRequest
from benchmarks.audit_world import AuditWorld
from benchmarks.figures import Figures, options, tell
from benchmarks.servers import INSTANCE, PROJECT, started
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import SERVICE, insecure_blocking_channel, insecure_channel
from changelog.bigtable.column_scan import ColumnScan
from changelog.bigtable.row_scan import RowScan
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.running.work import collect_less
from recovery.audit.sweeping.merge import NameMerge
from recovery.audit.sweeping.sweep import audit_range
from tiered.bigtable.cells import EXPIRING, MANUAL, TARGET
from tiered.gcs.format import LISTED_FIELDS, decode_listing
from tiered.gcs.http import GcsRequest
from tiered.open import Backends, open_backends
from tiered.protocol.capabilities import GenerationLookup

NAMES = 200_000
ROUNDS = 7
AGAIN = "look at one blob again, of 100 in a request"
RUNTIME = SystemRuntime()


@dataclass(frozen=True)
class AuditStage:
    """A stage: what it is, whose code most of it is, and how to run it. `part`: it is a part of the whole audit.

    `number`: of how many things it takes the cost.
    """

    what: str
    whose: str
    run: Callable[[], Awaitable[object]]
    number: int
    part: bool = True


async def stages(asked: SideRequest, backends: Backends, blocking: grpc.Channel, aio: grpc.aio.Channel) -> list[AuditStage]:
    blobs, names = backends.tiers.long_term, asked.names
    bodies = await _bodies(asked, backends)
    request = bigtable.ReadRowsRequest.pb()(table_name=f"projects/{PROJECT}/instances/{INSTANCE}/tables/{asked.world}")
    method = (f"{SERVICE}ReadRows", bigtable.ReadRowsRequest.pb().SerializeToString, None)
    messages = await anyio.to_thread.run_sync(lambda: list(blocking.unary_stream(*method)(request)))
    scan = _columns(messages)
    everyone = [each for body in bodies if (page := decode_listing(body)) is not None for each in page.blobs]
    ordered = sorted(each.name for each in everyone)
    listed = everyone[:: max(1, len(everyone) // 100)][:100]
    some = [each.name for each in listed]
    cutoff = Cutoff(as_of_ns=await blobs.now_ns(), grace_s=GRACE_S)

    async def receive_on_the_loop() -> None:
        async for _ in aio.unary_stream(*method)(request):
            pass

    async def look_one_by_one() -> None:
        for name in some:
            await blobs.head(name)

    async def look_together() -> None:
        assert isinstance(blobs, GenerationLookup)
        await blobs.generations(listed)

    async def read_log() -> None:
        for _ in range(10):
            await backends.log.entries("", 1000)

    def one_by_one() -> None:
        old = RowScan()
        for message in messages:
            old.add(message)

    found: list[object] = []
    everything = Bounds(start="", end=None)
    return [
        AuditStage("the whole audit", "", lambda: audit_range(backends.tiers, backends.log, everything, cutoff, RUNTIME, found.append),
        names),
        AuditStage("receive the listing's pages", "aiohttp, the kernel", lambda: _list(asked, backends), names),
        AuditStage("decode them", "msgspec", lambda: _in_this_thread(lambda: [decode_listing(body) for body in bodies]), names),
        AuditStage(
            "receive the rows, in a thread", "gRPC, the kernel",
            lambda: anyio.to_thread.run_sync(lambda: [None for _ in blocking.unary_stream(*method)(request)]), names,
        ),
        AuditStage("decode them into columns", "protobuf, Python's text", lambda: _in_this_thread(lambda: _columns(messages)), names),
        AuditStage("compare names and targets", "ours", lambda: _in_this_thread(lambda: _compare(ordered, scan)), names),
        AuditStage("receive the rows with `grpc.aio` instead", "gRPC, asyncio", receive_on_the_loop, names, part=False),
        AuditStage("decode them cell by cell instead", "protobuf, ours", lambda: _in_this_thread(one_by_one), names, part=False),
        AuditStage(AGAIN, "aiohttp, ours", look_together, len(some), part=False),
        AuditStage("look at one blob again by a request of its own", "aiohttp, asyncio", look_one_by_one, len(some), part=False),
        AuditStage("read the changelog once", "gRPC, asyncio", read_log, 10, part=False),
    ]  # fmt: skip


async def _bodies(asked: SideRequest, backends: Backends) -> list[bytes]:
    """Returns the pages of the listing as they came."""
    bodies: list[bytes] = []
    await _list(asked, backends, bodies)
    return bodies


async def _list(asked: SideRequest, backends: Backends, bodies: list[bytes] | None = None) -> None:
    http = backends.tiers.long_term._blobs._http  # type: ignore[attr-defined]  # the same connections as the audit's
    for number in range(0, asked.names, 1000):
        query = {"fields": LISTED_FIELDS, "maxResults": "1000", "pageToken": str(number), "prettyPrint": "false"}
        answer = await http.call(GcsRequest("GET", http.objects_url(**query), "listing", lambda answer: answer.body))
        if bodies is not None:
            bodies.append(answer.body)


def _columns(messages: Sequence[bytes]) -> ColumnScan:
    scan = ColumnScan(TARGET, MANUAL, EXPIRING)
    for message in messages:
        scan.add(message)
    return scan


def _compare(names: list[str], scan: ColumnScan) -> None:
    merge = NameMerge(names)
    assert all(map(str.startswith, scan.values, map(str.__add__, scan.keys, repeat("/"))))
    merge.take(scan.values)


async def _in_this_thread(work: Callable[[], object]) -> None:
    work()


async def figures(size: float, rounds: int = ROUNDS) -> Figures:
    collect_less()
    names = max(10_000, round(NAMES * size))
    async with started("benchmarks.audit_gcs") as url, started("benchmarks.audit_bigtable") as host:
        asked = SideRequest(names, host.strip(), url.strip(), "")
        async with open_backends(asked.settings, RUNTIME, writes=False) as backends, insecure_channel(host.strip()) as aio:
            with insecure_blocking_channel(host.strip()) as blocking:
                compared = await stages(asked, backends, blocking, aio)
                least: dict[str, float] = {}
                for _ in range(rounds):
                    for stage in compared:
                        began = time.process_time()
                        await stage.run()
                        taken = (time.process_time() - began) / stage.number * 1e6
                        least[stage.what] = min(taken, least.get(stage.what, taken))
    return table(AuditWorld(names), compared, least)


def table(world: AuditWorld, compared: Sequence[AuditStage], least: Mapping[str, float]) -> Figures:
    whole, *parts = [stage for stage in compared if stage.part]
    again = (world.orphans + world.dangling) / world.names * least[AGAIN]
    rest = least[whole.what] - sum(least[stage.what] for stage in parts) - again
    rows = [[whole.what, "", f"{least[whole.what]:.2f}"]]
    rows += [[f"- {stage.what}", stage.whose, f"{least[stage.what]:.2f}"] for stage in parts]
    rows += [
        ["- look again at what seems to be an orphan or dangling", "aiohttp, asyncio", f"{again:.2f}"],
        ["- the rest: windows, requests, the changelog, rows read again", "", f"{rest:.2f}"],
    ]
    rows += [[stage.what, stage.whose, f"{least[stage.what]:,.2f}"] for stage in compared if not stage.part]
    return Figures(
        f"CPU of an audit of {world.names:,} blobs, by stage", ["stage", "whose code most of it is", "µs"], rows,
        [
            "Microseconds a blob, the least of the rounds; each stage ran alone. The last line: microseconds a reading. The stages"
            " that stand for the whole add up to it; the lines after `the rest` are no part of it."
        ],
    )  # fmt: skip


if __name__ == "__main__":
    parser = options("audit_stages", "Where the CPU of an audit goes.", "1: 200,000 names, half a minute")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    shown = anyio.run(figures, chosen.size, chosen.rounds)
    tell("audit_stages", [shown], chosen.size, chosen.load, chosen.docs)
