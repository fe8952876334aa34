"""The demo's director: raises the curtain, kills and stops, drains, and has the outcome judged.

    start      all processes; the clock runs when every writer has had its first answer
    play       every moment or so, one process is killed, or stopped for longer than its lease lasts
    drain      writers finish what they are at; daemons work until the log and `uploads/` are empty, within a bound
    judge      `emulators.demo_check`, when all processes have ended

Each second a line says how it stands, and rows are compared with files while everything runs: I1 holds at every
moment, not only at the end.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rich.console import Console

from changelog.errors import UnavailableError
from emulators.demo_check import FLAWS, Findings, check, dangling, unfinished
from emulators.demo_journal import DIRECTOR, Answer, Journal, Tail, read_lines
from emulators.demo_network import BACK_MAX_S, THERE_MAX_S
from emulators.demo_stage import EXPIRY_S, DemoOptions, Stage
from emulators.demo_troupe import Actor, Troupe
from emulators.demo_writer import TASKS, Orders

STOP_S = (1.5, 2.2)
PAUSE_S = (0.2, 0.6)
FIRST_KILL_S = 0.3
KILL_SHARE = 0.5
DAEMON_SHARE = 0.15
START_WAIT_S = 30.0
LEAVE_WAIT_S = 6.0
DRAIN_WAIT_S = 12.0
TICK_S = 0.02

_RECOVERED = re.compile(rb"\brecovered id=(\S+)")


@dataclass(slots=True)
class Score:
    """What happened so far."""

    begun: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    writer_kills: int = 0
    daemon_kills: int = 0
    stops: int = 0
    recovered: set[bytes] = field(default_factory=set)
    dangling: set[str] = field(default_factory=set)
    news: list[str] = field(default_factory=list)


class Director:
    def __init__(self, options: DemoOptions, stage: Stage, said: Console) -> None:
        stage.set_up()
        self._options = options
        self._stage = stage
        self._said = said
        self._seed = Random().getrandbits(32) if options.seed is None else options.seed
        self._chance = Random(f"director {self._seed}")
        self._writers = [f"w{number}" for number in range(options.writers)]
        self._daemons = [f"d{number}" for number in range(options.daemons)]
        self._journal = Journal(stage.journal / DIRECTOR)
        self._troupe = Troupe(stage, self._journal, self._command)
        self._score = Score()
        self._journals = Tail(stage.journal, "w*.jsonl")
        self._logs = Tail(stage.log, "d*.log")
        self._began_at = 0.0
        self._line_at = 0.0

    def run(self) -> dict[str, Any]:
        """The whole of it; returns the report. No process of it is left, whatever happens."""
        try:
            self._introduce()
            self._raise_curtain()
            self._play()
            self._drain()
        finally:
            self._troupe.end_all()
            self._journal.close()
        self._look()
        return self._report(check(self._stage.store, self._stage.journal, self._score.dangling))

    # --- scenes ----------------------------------------------------------------------------------

    def _introduce(self) -> None:
        options = self._options
        protocol = "the naive protocol, without the fence" if options.unfenced else "the protocol as it is"
        self._said.print(
            f"{options.writers} writers of {TASKS} tasks, {options.daemons} recovery daemons, {options.objects} objects,"
            f" {options.seconds:g} s, seed {self._seed}: {protocol}."
        )
        self._said.print(
            f"Real processes, files and signals in {self._stage.root}; simulated is only a network of up to "
            f"{(THERE_MAX_S + BACK_MAX_S) * 1000:g} ms between a writer and its tiers. Leases of {EXPIRY_S:g} s."
        )

    def _raise_curtain(self) -> None:
        """Ends when every writer has had an answer, so that a slow start is not part of the show."""
        self._began_at = time.monotonic()
        while not all(self._has_answered(part) for part in self._writers):
            if time.monotonic() - self._began_at > START_WAIT_S:
                raise UnavailableError(f"the demo's writers did not begin within {START_WAIT_S:g} s, see the logs in {self._stage.log}")
            self._troupe.revive(self._writers + self._daemons)
            time.sleep(TICK_S)
        self._began_at = time.monotonic()

    def _has_answered(self, part: str) -> bool:
        return any("end" in line for path in self._stage.journal.glob(f"{part}.*.jsonl") for line in read_lines(path))

    def _play(self) -> None:
        ends_at = self._began_at + self._options.seconds
        # The first is a kill of a writer, and soon: so that the shortest run has one.
        strike_at, strike = self._began_at + FIRST_KILL_S, self._kill_writer
        while (now := time.monotonic()) < ends_at:
            self._troupe.revive(self._writers + self._daemons)
            self._troupe.resume_due()
            if now >= strike_at:
                strike()
                strike_at, strike = time.monotonic() + self._chance.uniform(*PAUSE_S), self._strike
            self._say_each_second()
            time.sleep(TICK_S)

    def _drain(self) -> None:
        late = self._troupe.dismiss("w", LEAVE_WAIT_S)
        self._score.news.append(f"writers finished{', but for ' + ', '.join(late) if late else ''}")
        give_up_at = time.monotonic() + DRAIN_WAIT_S
        while unfinished(self._stage.store) != (0, 0) and time.monotonic() < give_up_at:
            self._troupe.revive(self._daemons)
            self._troupe.resume_due()
            self._say_each_second()
            time.sleep(TICK_S)
        self._troupe.dismiss("d", LEAVE_WAIT_S)
        self._score.news.append("daemons stopped")
        self._say()

    # --- strikes ---------------------------------------------------------------------------------

    def _strike(self) -> None:
        letter = "d" if self._chance.random() < DAEMON_SHARE else "w"
        if self._chance.random() < KILL_SHARE:
            self._kill(letter)
        else:
            self._stop(letter)

    def _kill_writer(self) -> None:
        self._kill("w")

    def _kill(self, letter: str) -> None:
        if (actor := self._victim(letter)) is None:
            return
        self._troupe.kill(actor)
        if letter == "w":
            self._score.writer_kills += 1
        else:
            self._score.daemon_kills += 1
        self._score.news.append(f"killed {actor.part}")

    def _stop(self, letter: str) -> None:
        actor = self._victim(letter)
        if actor is not None and self._troupe.stop(actor, self._chance.uniform(*STOP_S)):
            self._score.stops += 1
            self._score.news.append(f"stopped {actor.part}")

    def _victim(self, letter: str) -> Actor | None:
        able = list(self._troupe.idle(letter))
        return self._chance.choice(able) if able else None

    # --- the score -------------------------------------------------------------------------------

    def _say_each_second(self) -> None:
        if time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + 1
            self._say()

    def _say(self) -> None:
        self._look()
        score = self._score
        news, score.news = ", ".join(score.news), []
        (entries, _), kills = unfinished(self._stage.store), score.writer_kills + score.daemon_kills
        self._said.print(
            f"{time.monotonic() - self._began_at:5.1f} s {score.answers[Answer.OK]:7,} ok {score.answers[Answer.NO]:4,} refused"
            f" {kills:4,} kills {score.stops:3,} stops {entries:4,} open {len(score.recovered):5,} recovered"
            f" {len(score.dangling):3,} dangling   {news}"
        )

    def _look(self) -> None:
        """Takes in what the processes have written since the last look, and compares rows with files."""
        for line in self._journals.lines():
            if b'"begin":' in line:
                self._score.begun += 1
            else:
                self._score.answers[json.loads(line)["answer"]] += 1
        for line in self._logs.lines():
            self._score.recovered.update(_RECOVERED.findall(line))
        self._score.dangling |= dangling(self._stage.store)

    def _report(self, findings: Findings) -> dict[str, Any]:
        score, answers = self._score, self._score.answers
        flaws = {flaw: findings.flaws[flaw] for flaw in FLAWS} | {"crashes": len(self._troupe.crashes)}
        found = ", ".join(f"{count} {flaw.replace('_', '-')}" for flaw, count in flaws.items() if count)
        verdict = found or ("nothing was wrong" if answers[Answer.OK] else "no operation was acknowledged, so nothing was tried")
        return {
            "ok": verdict == "nothing was wrong",
            "verdict": verdict,
            "seed": self._seed,
            "unfenced": self._options.unfenced,
            "objects": findings.objects, "inline": findings.inline, "blobs": findings.blobs,
            "operations": {
                "begun": score.begun, "ok": answers[Answer.OK], "no": answers[Answer.NO],
                "unknown": answers[Answer.UNKNOWN] + answers[Answer.SETTLED], "unanswered": score.begun - answers.total(),
            },
            "happened": {
                "writer_kills": score.writer_kills, "daemon_kills": score.daemon_kills, "stops": score.stops,
                "recovered": len(score.recovered),
            },
            "flaws": flaws,
            "details": findings.details + self._troupe.crashes,
        }

    def _command(self, name: str) -> list[str]:
        """How the process of this name is started."""
        if name.startswith("w"):
            journal = self._stage.journal / f"{name}.jsonl"
            return Orders(
                str(self._stage.config), str(journal), name, self._seed, self._options.objects, os.getpid(), self._options.unfenced
            ).command()
        unfenced = ["--unfenced"] if self._options.unfenced else []
        return [sys.executable, "-m", "emulators.demo_daemon", str(self._stage.config), str(os.getpid()), *unfenced]
