"""The demo's processes: started, killed, stopped past their lease, and started again.

Every process is a child that this module started, in a session of its own, so that Ctrl-C reaches the director alone. It
signals them by their own pids and reaps each before it notes that the process has ended, so nothing that
process did is later than the note. `end_all` leaves none behind, stopped or not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from changelog.base.errors import UnavailableError
from emulators.demo.journal import Journal
from emulators.demo.stage import Stage
from emulators.demo.writer import TURNED_AWAY
from tiered.settings import BIGTABLE_EMULATOR, ENV_PREFIX, GCS_EMULATOR

CRASHES_MAX = 10
STOP_TRIES = 20
FOREIGN = (ENV_PREFIX, BIGTABLE_EMULATOR, GCS_EMULATOR)
BREATH_S = 0.02


@dataclass(slots=True, eq=False)
class Actor:
    """One running process. `part`: `w` or `d` and a number; `name`: with its incarnation, as in `w0.3`."""

    part: str
    incarnation: int
    running: subprocess.Popen[bytes]
    resume_at: float | None = None
    rests_until: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.part}.{self.incarnation}"


class Troupe:
    """`command` says how the process of a part is started, given its name. Parts begin with `w` or `d`."""

    def __init__(self, stage: Stage, journal: Journal, command: Callable[[str], list[str]]) -> None:
        self.actors: dict[str, Actor] = {}
        self.crashes: list[str] = []
        self._stage = stage
        self._journal = journal
        self._command = command
        self._incarnations: dict[str, int] = {}

    def start(self, part: str) -> Actor:
        incarnation = self._incarnations.get(part, -1) + 1
        self._incarnations[part] = incarnation
        name = f"{part}.{incarnation}"
        with (self._stage.log / f"{name}.log").open("wb") as log:
            running = subprocess.Popen(
                self._command(name), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment()
            )
        self.actors[part] = Actor(part, incarnation, running)
        self._note("started", name, pid=running.pid)
        return self.actors[part]

    def kill(self, actor: Actor) -> None:
        """SIGKILL; the next `revive` starts it again."""
        actor.running.kill()
        self._lay_off(actor, {-signal.SIGKILL: "killed", TURNED_AWAY: "ended"}.get(actor.running.wait(), "crashed"))

    def stop(self, actor: Actor, seconds: float) -> bool:
        """SIGSTOP for so long. False: it ended, or stood in everybody's way every time.

        One that may not stand still where it was stopped is let go on, and stopped again a moment later.
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

    def resume(self, actor: Actor) -> None:
        actor.resume_at, actor.rests_until = None, time.monotonic() + self._stage.rest_s
        actor.running.send_signal(signal.SIGCONT)
        self._note("resumed", actor.name)

    def revive(self, parts: list[str]) -> None:
        """Starts whoever of these is not running. One that ended by itself has crashed."""
        for actor in list(self.actors.values()):
            if (code := actor.running.poll()) is not None:
                self._lay_off(actor, "ended" if code == TURNED_AWAY else "crashed")
        if len(self.crashes) > CRASHES_MAX:
            raise UnavailableError(f"the demo's processes crash, see the logs in {self._stage.log}: {', '.join(self.crashes)}")
        for part in parts:
            if part not in self.actors:
                self.start(part)

    def dismiss(self, letter: str, within_s: float) -> list[str]:
        """SIGTERM to all of this letter; who has not ended in time is killed. Returns their names."""
        leaving = [actor for actor in self.actors.values() if actor.part.startswith(letter)]
        for actor in leaving:
            if actor.resume_at is not None:
                self.resume(actor)
            actor.running.terminate()
        ends_at, late = time.monotonic() + within_s, []
        for actor in leaving:
            try:
                code = actor.running.wait(max(0.0, ends_at - time.monotonic()))
                # One that was told before it could listen ends by the signal itself.
                self._lay_off(actor, "ended" if code in (0, -signal.SIGTERM, TURNED_AWAY) else "crashed")
            except subprocess.TimeoutExpired:
                late.append(actor.name)
                self.kill(actor)
        return late

    def end_all(self) -> None:
        """Leaves nobody behind, on any path."""
        for actor in list(self.actors.values()):
            self.kill(actor)

    def idle(self, letter: str) -> Iterator[Actor]:
        """Those of this letter who run and are not stopped."""
        return (actor for actor in self.actors.values() if actor.part.startswith(letter) and actor.resume_at is None)

    def _lay_off(self, actor: Actor, event: str) -> None:
        del self.actors[actor.part]
        self._note(event, actor.name)
        if event == "crashed":
            self.crashes.append(f"{actor.name} (exit code {actor.running.returncode})")

    def _note(self, event: str, name: str, **more: object) -> None:
        self._journal.write(at=time.monotonic(), process=name, event=event, **more)


def environment() -> dict[str, str]:
    """This process's imports, and none of the settings that it was given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return kept | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
