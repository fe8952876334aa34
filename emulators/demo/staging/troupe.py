"""The demo's processes: it starts them, kills them, stops them past their lease, and starts them again.

Each process is a child of this one, in a session of its own, so that Ctrl-C reaches only the director. This module
signals only processes that it started, by their ids. It waits for the end of a process before it notes the end in the
journal, so a process did nothing later than that note. `end_all` ends all processes, also stopped ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from changelog.base.errors import UnavailableError
from emulators.demo.players.journal import OperationJournal
from emulators.demo.players.object_writer import TURNED_AWAY
from emulators.demo.staging.feed_processes import ONCE
from emulators.demo.staging.interpreters import Interpreter, chosen, today
from emulators.demo.staging.stage import DemoStage
from tiered.settings import BIGTABLE_EMULATOR, ENV_PREFIX, GCS_EMULATOR

CRASHES_MAX = 10
STOP_TRIES = 20
FOREIGN = (ENV_PREFIX, BIGTABLE_EMULATOR, GCS_EMULATOR)
BREATH_S = 0.02


@contextmanager
def undisturbed() -> Iterator[None]:
    """SIGINT and SIGTERM do nothing in the block: a second Ctrl-C would leave half of what the first one ends."""
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@dataclass(slots=True, eq=False)
class DemoProcess:
    """One running process. `part`: `w` (writer), `d` (daemon) or another letter (`feed_processes.py`) and a number.

    `name`: the part, and how often it was started again before, as in `w0.3`.
    """

    part: str
    incarnation: int
    running: subprocess.Popen[bytes]
    resume_at: float | None = None
    rests_until: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.part}.{self.incarnation}"


class Troupe:
    """All processes of a run.

    `command`: returns the command line that starts the process of a name. `interpreters`: what it may run on. `codes`:
    which code each process of a name ran.
    """

    def __init__(
        self, stage: DemoStage, journal: OperationJournal, command: Callable[[str], list[str]],
        interpreters: Sequence[Interpreter] | None = None,
    ) -> None:  # fmt: skip
        self.actors: dict[str, DemoProcess] = {}
        self.crashes: list[str] = []
        self.codes: dict[str, str] = {}
        self._interpreters = interpreters or (today(),)
        self._stage = stage
        self._journal = journal
        self._command = command
        self._incarnations: dict[str, int] = {}

    def start(self, part: str) -> DemoProcess:
        incarnation = self._incarnations.get(part, -1) + 1
        self._incarnations[part] = incarnation
        name, interpreter = f"{part}.{incarnation}", chosen(self._interpreters, part, incarnation)
        self.codes[name] = interpreter.code
        _, *arguments = self._command(name)
        with (self._stage.log / f"{name}.log").open("wb") as log:
            running = subprocess.Popen(
                [interpreter.python, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=environment(interpreter),
            )  # fmt: skip
        self.actors[part] = DemoProcess(part, incarnation, running)
        self._note("started", name, pid=running.pid, code=interpreter.code)
        return self.actors[part]

    def kill(self, actor: DemoProcess) -> None:
        """Kills with SIGKILL. The next `revive` starts the part again."""
        actor.running.kill()
        self._lay_off(actor, {-signal.SIGKILL: "killed", TURNED_AWAY: "ended"}.get(actor.running.wait(), "crashed"))

    def stop(self, actor: DemoProcess, seconds: float) -> bool:
        """Stops a process with SIGSTOP for so many seconds. Returns False if it ended, or may not stay stopped.

        If it would block all others where it was stopped, it goes on and is stopped again a moment later, STOP_TRIES
        times at most.
        """
        for _ in range(STOP_TRIES):
            actor.running.send_signal(signal.SIGSTOP)
            time.sleep(BREATH_S)  # until all of its threads stand still
            if actor.running.poll() is not None:
                return False
            if self._stage.may_stand_still():
                actor.resume_at = time.monotonic() + seconds
                self._note("stopped", actor.name)
                return True
            actor.running.send_signal(signal.SIGCONT)
            time.sleep(BREATH_S)
        return False

    def resume_due(self) -> None:
        for actor in self.actors.values():
            if actor.resume_at is not None and time.monotonic() >= actor.resume_at:
                self.resume(actor)

    def resume(self, actor: DemoProcess) -> None:
        actor.resume_at, actor.rests_until = None, time.monotonic() + self._stage.rest_s
        actor.running.send_signal(signal.SIGCONT)
        self._note("resumed", actor.name)

    def revive(self, parts: list[str]) -> None:
        """Starts those of these parts that do not run. A process that ended by itself has crashed.

        Raises `UnavailableError` after more than CRASHES_MAX crashes.
        """
        for actor in list(self.actors.values()):
            if (code := actor.running.poll()) is not None:
                self._lay_off(actor, "ended" if code == TURNED_AWAY or (code == 0 and actor.part == ONCE) else "crashed")
        if len(self.crashes) > CRASHES_MAX:
            raise UnavailableError(f"the demo's processes crash, see the logs in {self._stage.log}: {', '.join(self.crashes)}")
        for part in parts:
            if part not in self.actors:
                self.start(part)

    def dismiss(self, letter: str, within_s: float) -> list[str]:
        """Sends SIGTERM to all parts of this letter, and kills those that do not end in time. Returns their names."""
        leaving = [actor for actor in self.actors.values() if actor.part.startswith(letter)]
        for actor in leaving:
            if actor.resume_at is not None:
                self.resume(actor)
            actor.running.terminate()
        ends_at, late = time.monotonic() + within_s, []
        for actor in leaving:
            try:
                code = actor.running.wait(max(0.0, ends_at - time.monotonic()))
                # A process that gets SIGTERM before it has a handler ends by the signal itself.
                self._lay_off(actor, "ended" if code in (0, -signal.SIGTERM, TURNED_AWAY) else "crashed")
            except subprocess.TimeoutExpired:
                late.append(actor.name)
                self.kill(actor)
        return late

    def is_running(self, part: str) -> bool:
        return part in self.actors and self.actors[part].running.poll() is None

    def end_all(self) -> None:
        """Kills all processes that are left."""
        with undisturbed():
            for actor in list(self.actors.values()):
                self.kill(actor)

    def idle(self, letter: str) -> Iterator[DemoProcess]:
        """Returns the processes of this letter that run and are not stopped."""
        return (actor for actor in self.actors.values() if actor.part.startswith(letter) and actor.resume_at is None)

    def _lay_off(self, actor: DemoProcess, event: str) -> None:
        del self.actors[actor.part]
        self._note(event, actor.name)
        if event == "crashed":
            self.crashes.append(f"{actor.name} (exit code {actor.running.returncode})")

    def _note(self, event: str, name: str, **more: object) -> None:
        self._journal.write(at=time.monotonic(), process=name, event=event, **more)


def environment(interpreter: Interpreter | None = None) -> dict[str, str]:
    """Returns variables for a child: where this interpreter finds packages, and none of the settings of this process.

    `interpreter`: None: that of this process.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return kept | (interpreter or today()).variables()
