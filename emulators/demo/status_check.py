"""Compares what the status says with what is stored, once a second, while everything else happens.

    read      the entries of the changelog, by the stored formats alone (`emulators.demo.checking.check.Stored`)
    look      `recovery.status.look.gather`, as `tiered status` and the status page do
    read      the entries again
    compare   an entry that was there both times was there all the while, so the look must have counted it; and so on
              (`untrue`)

Now and then an entry is planted and marked as stuck. Some looks later it is given back to recovery, as an operator does
it. The daemon that nobody kills is asked over HTTP as well. Everything here runs in a thread of the director.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from threading import Event, Thread
from urllib.parse import urlsplit

import anyio

from changelog.base.errors import TieredError, UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.log import ChangeLog
from emulators.demo.checking.check import BackendContent, is_stuck
from emulators.demo.players.journal import DIRECTOR, Tail, read_lines
from emulators.demo.staging.stage import DemoStage
from recovery.states import Level
from recovery.statistics.persisted import RECOVERY
from recovery.status.judgement import judge
from recovery.status.known import SILENCE_MAX_S, Status
from recovery.status.look import gather
from tiered.object_id import ObjectId
from tiered.open import open_backends
from tiered.settings import load_settings

EVERY_S = 1.0
PLANT_EVERY, PLANTED_FOR = 8, 4
"""In looks: how often an entry is marked as stuck, and for how long."""

PRESENT_AFTER_S = 30.0
"""A daemon must be seen after it has run for so long."""

ASK_S = 10.0
DETAILS_MAX = 3
MEANT = "planted by the soak"

_RECOVERED = re.compile(rb"\brecovered id=")
_URL = re.compile(rb"\bhttp_started url=(\S+)")


@dataclass(frozen=True, slots=True)
class EntryKeys:
    """The keys of the entries that are stored at a moment. `stuck`: of those that are marked."""

    all: frozenset[str]
    stuck: frozenset[str]


def read(stored: BackendContent) -> EntryKeys:
    found = list(stored.entries())
    return EntryKeys(frozenset(key for key, _ in found), frozenset(key for key, state in found if is_stuck(state)))


@dataclass(frozen=True, slots=True)
class SeenOffsets:
    """What a look said of recovery's work. The next one may not say less."""

    outstanding: int = 0
    processed: int = 0


def untrue(before: EntryKeys, found: Status, after: EntryKeys, recovered: int, daemons: Collection[int]) -> list[str]:
    """Returns a sentence for each thing that a look said and that was not so. Others may write meanwhile.

    `before`, `after`: what was stored before and after the look. `recovered`: how often a daemon wrote in its log that
    it recovered an entry, until after the look. `daemons`: the least and the greatest number of daemons that may be
    shown as alive.
    """
    return list(_untrue(before, found, after, recovered, daemons))


def _untrue(before: EntryKeys, found: Status, after: EntryKeys, recovered: int, daemons: Collection[int]) -> Iterator[str]:
    level = judge(found).level
    if not found.answers:
        # What else was read may have said that somebody is late: over another connection, which was not cut off.
        knows = bool(found.sources) or found.feed is not None
        if level is Level.OK or (level is Level.BEHIND and not knows):
            yield f"the changelog did not answer, and the level is {level}"
        return
    stayed = len(before.all & after.all)
    if found.entries.complete and found.entries.counted < stayed:
        yield f"it counted {found.entries.counted} entries, and {stayed} were there all the while"
    if before.stuck == after.stuck and found.stuck.complete:
        shown = {entry.key for entry in found.stuck.entries}
        if found.stuck.count != len(after.stuck) or shown != after.stuck:
            yield f"it shows {sorted(shown)} as stuck ({found.stuck.count}), and stuck are {sorted(after.stuck)}"
        if (level is Level.STUCK) != bool(after.stuck):
            yield f"its level is {level}, and {len(after.stuck)} entries are stuck"
    if found.alive is not None and not min(daemons) <= found.alive <= max(daemons):
        yield f"it shows {found.alive} daemons as alive, and there are {min(daemons)} to {max(daemons)}"
    if (source := found.sources.get(RECOVERY)) is not None and source.total.updates_committed > recovered:
        yield f"it says that {source.total.updates_committed} entries were cleaned up, and the daemons logged {recovered}"


def offsets_of(found: Status) -> SeenOffsets | None:
    source = found.sources.get(RECOVERY)
    if source is None or source.total.outstanding_values is None or source.total.processed_values is None:
        return None
    return SeenOffsets(source.total.outstanding_values, source.total.processed_values)


def went_back(before: SeenOffsets, now: SeenOffsets) -> list[str]:
    """Returns a sentence for each rule that is broken: no offset decreases, and the lag is not negative."""
    sentences = []
    if now.outstanding < before.outstanding or now.processed < before.processed:
        sentences.append(f"its offsets went back from {before} to {now}")
    if now.processed > now.outstanding:
        sentences.append(f"more is processed than there ever was: {now}")
    return sentences


class StatusCheck:
    """`daemon`: the part that is never killed. `untrue_count`: how many sentences there were; `details`: the first."""

    def __init__(self, stage: DemoStage, daemon: str) -> None:
        self.looks = self.stuck_looks = self.asked = self.untrue_count = 0
        self.details: list[str] = []
        self._stage = stage
        self._daemon = daemon
        self._logs = Tail(stage.log, "d*.log")
        self._recovered = 0
        self._url: str | None = None
        self._offsets = SeenOffsets()
        self._planted: list[ChangeId] = []
        self._may_plant, self._ends, self._is_clear = True, Event(), Event()
        self._thread = Thread(target=anyio.run, args=(self._look_until_told,), name="status check", daemon=True)
        self._broke: BaseException | None = None
        self._began_at = time.monotonic()

    def start(self) -> None:
        self._began_at = time.monotonic()
        self._thread.start()

    def clear(self) -> bool:
        """Gives back to recovery what was planted. Returns whether nothing is left of it."""
        self._may_plant = False
        return self._is_clear.is_set() or not self._thread.is_alive()

    def end(self) -> None:
        """Ends the thread. Then, with all daemons gone and the log empty, there is a last look."""
        self._ends.set()
        self._thread.join()
        if self._broke is not None:
            self._tell([f"the look at the status failed: {self._broke!r}"])
        elif self.looks:
            self._tell(anyio.run(self._look_for_the_last_time))

    def missing(self) -> list[str]:
        """Returns what was never tried."""
        return [name for name, count in (("looks", self.looks), ("looks_at_a_stuck_entry", self.stuck_looks)) if not count]

    # --- looking -----------------------------------------------------------------------------------

    async def _look_until_told(self) -> None:
        try:
            while not self._ends.is_set():
                with suppress(UnavailableError):  # a service fails while the store is opened; it is opened again
                    await self._open_and_look()
                await anyio.sleep(EVERY_S)
        except BaseException as error:  # noqa: BLE001 - `end` tells it
            self._broke = error

    async def _open_and_look(self) -> None:
        runtime, settings = SystemRuntime(), load_settings(self._stage.config)
        async with open_backends(settings, runtime, verify=False) as backends:
            while not self._ends.is_set():
                due_at = time.monotonic() + EVERY_S
                with suppress(TieredError):  # a service fails; the next look tries it again
                    await self._plant(backends.log)
                before = read(self._stage.stored)
                found = await gather(backends, settings, runtime)
                after = read(self._stage.stored)
                self._judge(before, found, after)
                self._ask()
                await anyio.sleep(max(0.0, due_at - time.monotonic()))

    def _judge(self, before: EntryKeys, found: Status, after: EntryKeys) -> None:
        self._read_logs()
        self.looks += 1
        self.stuck_looks += bool(found.answers and before.stuck and before.stuck == after.stuck)
        sentences = untrue(before, found, after, self._recovered, self._daemons())
        if (offsets := offsets_of(found)) is not None:
            sentences += went_back(self._offsets, offsets)
            self._offsets = offsets
        self._tell(sentences)

    async def _look_for_the_last_time(self) -> list[str]:
        """No daemon runs any more, and nothing is left to do. All that ended in order have said so."""
        runtime, settings = SystemRuntime(), load_settings(self._stage.config)
        async with open_backends(settings, runtime, writes=False, verify=False) as backends:
            stored = read(self._stage.stored)
            found = await gather(backends, settings, runtime)
        self._judge(stored, found, stored)
        sentences = [] if found.answers and found.entries.complete else ["at the end, the changelog was not read as a whole"]
        if found.entries.counted != len(stored.all):
            sentences.append(f"at the end it counted {found.entries.counted} entries, and there are {len(stored.all)}")
        silent = self._daemons(in_order=False)[1]
        if found.alive is None or found.alive > silent:
            sentences.append(f"at the end it shows {found.alive} daemons as alive, and all but {silent} have said that they end")
        ended = self._recovered_by({"ended"})
        source = found.sources.get(RECOVERY)
        if source is None or source.total.updates_committed < ended:
            told = None if source is None else source.total.updates_committed
            sentences.append(f"at the end it says that {told} entries were cleaned up, and daemons that ended in order logged {ended}")
        return sentences

    # --- what is true ------------------------------------------------------------------------------

    def _read_logs(self) -> None:
        for line in self._logs.lines():
            self._recovered += len(_RECOVERED.findall(line))
            if (url := _URL.search(line)) is not None:
                self._url = url[1].decode()

    def _recovered_by(self, ends: Collection[str]) -> int:
        """Returns how much was recovered by daemons that ended in one of these ways, by their logs."""
        names = [line["process"] for line in read_lines(self._stage.journal / DIRECTOR) if line["event"] in ends]
        return sum(len(_RECOVERED.findall((self._stage.log / f"{name}.log").read_bytes())) for name in names if name.startswith("d"))

    def _daemons(self, *, in_order: bool = True) -> tuple[int, int]:
        """Returns the least and the greatest number of daemons that a look may have seen alive until now.

        One that was killed is shown for `SILENCE_MAX_S` seconds more, because nobody knows yet. `in_order`: also count
        those that ended in order a moment ago.
        """
        now, ended, started = time.monotonic(), dict[str, float](), Counter[str]()
        for line in read_lines(self._stage.journal / DIRECTOR):
            if line["process"].startswith("d"):
                started[line["process"]] += line["event"] == "started"
                if line["event"] in ("killed", "ended", "crashed"):
                    ended[line["process"]] = line["at"] if in_order or line["event"] != "ended" else 0.0
        most = sum(ended.get(name, now) > now - SILENCE_MAX_S - ASK_S for name in started)
        spared = f"{self._daemon}.0"
        least = spared in started and spared not in ended and now - self._began_at > PRESENT_AFTER_S
        return int(least), most

    # --- planting and asking -----------------------------------------------------------------------

    async def _plant(self, log: ChangeLog) -> None:
        turn = self.looks % PLANT_EVERY
        if self._may_plant and turn == PLANT_EVERY - PLANTED_FOR and not self._planted:
            change = Change(ChangeId.new(SystemRuntime()), ObjectId.create("demo", "planted").path)
            self._planted.append(change.id)
            await log.park(await log.record(change, "soak"), MEANT)
        elif self._planted and (not self._may_plant or turn == 0):
            found = await log.read(self._planted[0])
            if found is None or found.stuck is None or await log.retry(found):
                self._planted.pop()
        if not self._may_plant and not self._planted:
            self._is_clear.set()

    def _ask(self) -> None:
        """Asks the daemon's HTTP server. It must answer, whatever is wrong with the services."""
        if self._url is None or self._has_ended():
            return
        for path in ("/healthz", "/metrics", "/status.json"):
            try:
                status = self._get(path)
            except (OSError, HTTPException) as error:
                if not self._has_ended():
                    self._tell([f"the daemon did not answer {path}: {error!r}"])
                return
            self.asked += 1
            if status != 200 and path != "/status.json":
                self._tell([f"the daemon answered {path} with {status}"])

    def _has_ended(self) -> bool:
        return not self._may_plant  # from then on the daemons are dismissed

    def _get(self, path: str) -> int:
        connection = HTTPConnection(urlsplit(self._url or "").netloc, timeout=ASK_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def _tell(self, sentences: list[str]) -> None:
        self.untrue_count += len(sentences)
        self.details += [f"untrue: {each}" for each in sentences][: max(0, DETAILS_MAX - len(self.details))]
