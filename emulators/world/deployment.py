"""`World`: one simulated deployment, what its callers do, and what they are told.

    rows, log, blobs    the services, with a clock of their own, and a `Watch` that checks them after every effect
    network             carries what is late; its trace is the world's
    process(name)       a process with its own seed, clock and faults; a `client` or a `recovery` lives in it
    Client              an open store and its one caller (`emulators.world.client`)

At the end, `drain` lets recovery finish, `repeat` cleans up once more what was cleaned up (I5), and `verify` raises the
first `InvariantViolation`. The code that makes the world decides who crashes when, and who runs beside whom.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from anyio.abc import TaskGroup

from changelog.base.runtime import Runtime
from changelog.change import Change
from changelog.log import ChangeLog
from changelog.noop import NoopChangeLog
from emulators.world.checker import InvariantViolation, Watch, left_over, orphans, read_by
from emulators.world.client import Client, content
from emulators.world.code import TODAY, Code
from emulators.world.faults import Network, Plan, Process, Travel, no_faults, no_time
from emulators.world.ghost import acts
from emulators.world.history import RegisterHistory, WriteAnswer
from emulators.world.inside import open_client, recovery_in
from emulators.world.runtime import SimulatedRuntime
from emulators.world.services import SimulatedBlobs
from emulators.world.stack import BlobBucket, SimulatedStack, Stack
from recovery.loop import RecoveryLoop
from tiered.metadata import Metadata, is_expired
from tiered.object_id import ObjectId
from tiered.protocol.finishing import clean_up, settle_change
from tiered.services.backends import MARK_AGE_MAX_S, Inline, Tiers, Tombstone
from tiered.settings import LinkSettings, RecoverySettings, Settings, StoreSettings
from tiered.testing.blobs import Blob

INLINE_BYTES_MAX = 100
LINKS = LinkSettings.model_validate({"base_url": "http://links", "keys": "0123456789 for simulated worlds only"})
DRAIN_PASSES_MAX = 10

UPLOAD_AGE_MAX_S = 900.0
SETTINGS = Settings(
    directory=Path("simulated"), changelog="noop", inline_bytes_max=INLINE_BYTES_MAX, links=LINKS,
    store=StoreSettings(upload_age_max_s=UPLOAD_AGE_MAX_S),
)  # fmt: skip
"""The settings as shipped, but with a smaller inline limit, so that payloads are easy to read. Open uploads are
given up soon.

The components are simulated, whatever the settings say.
"""

TIGHT = SETTINGS.model_copy(update={
    "store": StoreSettings(concurrency_max=2, queue_max=1, upload_age_max_s=UPLOAD_AGE_MAX_S),
    "recovery": RecoverySettings(concurrency_max=1)
})  # fmt: skip
"""Settings with few places and small pages.

A place that is not given back, or an entry that is left out, is then noticed soon.
"""


class World:
    """A simulated deployment, for `async with`, inside of `run_world`.

    `skew_max_s`: how wrong its processes' clocks may be. `durable`: False if there is no changelog, and then I3 and I6
    are not checked. `stack`: makes its rows and its log. `bucket`: makes its blobs, for as long as its network's tasks
    run; None: they are simulated, and `sessions` is about them. `reads`: the code with which the judges read entries.
    """

    def __init__(
        self, seed: int, *, sessions: bool = True, settings: Settings = SETTINGS, skew_max_s: float = 0.0, durable: bool = True,
        stack: Callable[[Runtime], Stack] = SimulatedStack, bucket: Callable[[Runtime, TaskGroup], BlobBucket] | None = None,
        reads: Code = TODAY,
    ) -> None:  # fmt: skip
        self.seed = seed
        self.runtime = SimulatedRuntime(f"{seed}/services")
        self.stack = stack(self.runtime)
        self.rows = self.stack.rows
        self.log = self.stack.log
        self.network = Network()
        self._bucket = None if bucket is None else bucket(self.runtime, self.network.tasks)
        simulated = SimulatedBlobs(self.runtime, sessions=sessions)
        self.blobs: SimulatedBlobs = simulated if self._bucket is None else cast(SimulatedBlobs, self._bucket.blobs)
        self.history = RegisterHistory()
        self.legacy: set[str] = set()
        self.watch = Watch(self.rows, self.blobs, self.log, self.runtime, self.network.trace, self.history, read_by(reads))
        self._settings = settings
        self._skew_max_s = skew_max_s
        self._durable = durable

    async def __aenter__(self) -> Self:
        await self.network.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.network.__aexit__(kind, error, trace)

    def process(
        self, name: str, plan: Plan = no_faults, skew_s: float = 0.0, travel: Travel = no_time, code: Code = TODAY
    ) -> Process:
        return Process(name, SimulatedRuntime(f"{self.seed}/{name}", skew_s=skew_s), self.network, plan, travel, code)

    @asynccontextmanager
    async def client(self, process: Process, shards: int | None = None) -> AsyncIterator[Client]:
        """Opens a store in this process. `shards`: how many shards of the log its software knows; None: the default."""
        tiers, log = self.tiers_of(process), self.log_of(process, shards)
        opened = process.code.own(open_client)(process, tiers, log, self._settings, self.history, self.watch.ghost, self._skew_max_s)
        async with opened as client:
            yield client

    def plant_legacy(self, object_id: ObjectId, label: str, size: int) -> None:
        """Stores an object as older software did: a tombstone without a token; the blob's name is the storage path."""
        metadata = Metadata(custom={"label": label}, size=size)
        self.blobs.blobs[object_id.path] = Blob(metadata, content(label, size), self.runtime.wall_ns(), "0")
        self.rows.states[object_id.path] = Tombstone(object_id.path)
        self.legacy.add(object_id.path)
        write = self.history.begin_write(object_id.path, label)
        with acts(write):
            self.watch.ghost.took_effect(object_id.path)
        self.history.end_write(write, WriteAnswer.OK)

    def plant_stray(self, blob: str) -> None:
        """Stores a blob that nothing names."""
        self.blobs.strays.add(blob)
        self.blobs.plant(blob, Metadata(), b"stray")

    def write_as_older_software(self, path: str, label: str | None, size: int) -> None:
        """Puts an object as older software does: over the blob of the same name. `label` None: deletes its row only."""
        if label is None:
            if path in self.rows.states:
                del self.rows.states[path]  # no `pop`: it would not reach rows that are kept elsewhere
        else:
            self.blobs.strays.add(path)
            self.blobs.plant(path, Metadata(custom={"label": label}, size=size), content(label, size))
            self.rows.states[path] = Tombstone(path)
        write = self.history.begin_write(path, label)
        with acts(write):
            self.watch.ghost.took_effect(path)
        self.history.end_write(write, WriteAnswer.OK)

    def recovery(self, process: Process, shards: int | None = None) -> RecoveryLoop:
        return process.code.own(recovery_in)(process, self.tiers_of(process), self.log_of(process, shards), self._settings)

    def log_of(self, process: Process, shards: int | None = None) -> ChangeLog:
        """Returns the log as this process sees it."""
        if not self._durable:
            return process.code.own(NoopChangeLog)()
        return self.stack.log_of(process, shards)

    def tiers_of(self, process: Process) -> Tiers:
        """Returns the tiers as this process sees them."""
        blobs = process.link.blobs(self.blobs) if self._bucket is None else self._bucket.blobs_of(process)
        return process.code.own(Tiers)(self.stack.rows_of(process), blobs)

    async def drain(self, code: Code = TODAY) -> None:
        """Runs passes of a recovery without faults until no entry is open and the network is quiet, or for some hours.
        """
        recovery, pause_s = self.recovery(self.process("drain", code=code), shards=1), SETTINGS.lease.expiry_s + 1
        for _ in range(DRAIN_PASSES_MAX):
            await recovery.run_once()
            if self.network.quiet and all(stored.state for stored in self.log.stored.values()):
                return
            await self.runtime.sleep(pause_s)
            pause_s *= 2

    async def repeat(self) -> None:
        """Cleans up once more after every change that was ever recorded, in a random order.

        That must change nothing (I5). After what a change feed still has, nobody may clean up yet.

        Call it when the log is drained.
        """
        before, of_feed = self._lasting(), self._of_feed()
        changes = [change for key, change in self.watch.recorded.items() if key not in of_feed]
        self.runtime.random.shuffle(changes)
        tiers = self.tiers_of(self.process("repeat"))
        for change in changes:
            await clean_up(tiers, change, await settle_change(tiers, change), lambda: None)
        if self._lasting() != before:
            self.watch.report("I5 repeatable", f"cleaning up once more after {len(changes)} changes has changed what is stored")

    def _orphans(self) -> list[str]:
        found = orphans(self.rows, self.blobs, self.runtime.wall_ns(), self._of_feed())
        return [name for name in found if not self._is_left_to_others(name)]

    def _of_feed(self) -> Mapping[str, Change]:
        """Returns the changes that wait for the writer of the change feed. Without a feed nobody may keep an entry."""
        return self.watch.kept() if self._settings.feed.enabled else {}

    def _is_left_to_others(self, blob: str) -> bool:
        """Tells whether somebody else than recovery deletes this blob.

        The audit deletes a legacy blob if its marks were collected before recovery came: nothing proves then that its
        row has left it (docs/decisions/protocol.md, 2). The bucket's lifecycle deletes a blob that a reader touched
        before that reader died: the reader never touched the row, so the row expired, and the blob follows.
        """
        return blob in self.watch.touched or (blob in self.legacy and self.runtime.boot_time() > MARK_AGE_MAX_S)

    def _lasting(self) -> tuple[dict[str, Inline | Tombstone], dict[str, Blob]]:
        """Returns what is stored, without what others may delete at any time: expired blobs and strays."""
        def lasts(name: str, blob: Blob) -> bool:
            is_ours = name not in self.blobs.strays and not self._is_left_to_others(name)
            return is_ours and not is_expired(blob.metadata.time_expires_ns, self.runtime.wall_ns())

        blobs = {name: blob for name, blob in self.blobs.blobs.items() if lasts(name, blob)}
        return self.rows.states.copy(), blobs

    def verify(self) -> None:
        """Raises the first `InvariantViolation`. Call it when the processes have ended and the log is drained."""
        self.watch.verify()
        uploads = [session for session in (*self.blobs.uploads, *self.blobs.in_parts) if session in self.watch.uploads]
        kept = [("I3 no leak", self._orphans()), ("I6 drained", left_over(self.log, uploads, self._of_feed()))] if self._durable else []
        for invariant, findings in (("I4 honest", self.history.unexplained()), *kept):
            for finding in findings:
                raise InvariantViolation(invariant, finding, self.network.trace)
