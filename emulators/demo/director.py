"""One run of the demo: start the processes, kill and stop them, let recovery finish, and judge the result.

    start      starts all processes; the time of the run begins when every writer has had its first answer
    play       again and again kills a process, or stops it for longer than its lease lasts. Services fail as
               well, where there are some (`emulators.demo.staging.weather`)
    drain      the writers finish; the daemons work until the log is empty and no upload is left, for a limited time
    judge      calls `emulators.demo.checking.check` when all processes have ended, and leaves a history for others
               (`emulators.histories`)

Each second it prints a line, and compares rows with blobs while everything runs: I1 must hold at every moment, not only
at the end. With services it plays on until each kind of fault has happened at least once. If one has not, the run has
not shown what the store does then, so it fails.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rich.console import Console

from changelog.base.errors import UnavailableError
from emulators.demo.checking.check import FLAWS, CheckResult, check, dangling, kept_for_feed, read_calls, unfinished
from emulators.demo.checking.told import history
from emulators.demo.players.journal import DIRECTOR, JournaledAnswer, OperationJournal, Tail, read_lines
from emulators.demo.players.network import BACK_MAX_S, THERE_MAX_S
from emulators.demo.players.object_writer import TASKS, Orders
from emulators.demo.soak import STATUS, Soak
from emulators.demo.staging.feed_processes import FOLLOWER, ONCE, ONCE_S, RECEIVER
from emulators.demo.staging.interpreters import Interpreter, today
from emulators.demo.staging.stage import EXPIRY_S, DemoOptions, DemoStage
from emulators.demo.staging.troupe import Troupe
from emulators.demo.staging.weather import KINDS, DemoWeather
from emulators.histories.written import write_history

HISTORY = "history.jsonl"
STOP_S = (1.5, 2.2)
FIRST_KILL_S = 0.3
STRIKES: tuple[str, ...] = ("writer_kills",) * 5 + ("writer_stops",) * 5 + ("daemon_kills", "daemon_stops")
"""What is done to processes, and how often. The order is shuffled; when all have been done, it begins again."""
START_WAIT_S = 30.0
ENCORE_S = 60.0
"""A run that still lacks a kind of fault goes on for at most so many seconds more."""
LONG_S = 60.0
"""A run of at least so many seconds with services must include writes that took effect after they had timed out."""
LEAVE_WAIT_S = 6.0
DRAIN_WAIT_S = 30.0
TICK_S = 0.02

_RECOVERED = re.compile(rb"\brecovered id=(\S+)")


def what_is_wrong(flaws: Mapping[str, int], acknowledged: int, missing: Sequence[str]) -> str | None:
    """Returns what is wrong with a run, or None: its flaws, or the kinds of fault that never happened."""
    if found := [f"{count} {flaw.replace('_', '-')}" for flaw, count in flaws.items() if count]:
        return ", ".join(found)
    if not acknowledged:
        return "no operation was acknowledged, so nothing was tried"
    return f"there were no {' and no '.join(missing).replace('_', ' ')}, so that was not tried" if missing else None


@dataclass(slots=True)
class Score:
    """What has happened so far."""

    begun: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    strikes: Counter[str] = field(default_factory=Counter)
    unfinished: int = 0
    recovered: set[bytes] = field(default_factory=set)
    dangling: set[str] = field(default_factory=set)
    news: list[str] = field(default_factory=list)


class Director:
    def __init__(self, options: DemoOptions, stage: DemoStage, said: Console, other: Interpreter | None = None) -> None:
        """`other`: every other process runs on it."""
        self._options = options
        self._stage = stage
        self._said = said
        self._seed = Random().getrandbits(32) if options.seed is None else options.seed
        self._chance = Random(f"director {self._seed}")
        self._weather = DemoWeather(stage.services, Random(f"weather {self._seed}"))
        self._deck: list[str] = []
        self._feed = stage.feed
        self._strikes = STRIKES + (self._feed.strikes if self._feed else ())
        self._writers = [f"w{number}" for number in range(options.writers)]
        self._daemons = [f"d{number}" for number in range(options.daemons)]
        self._soak = self._spare() if options.soak else None
        self._journal = OperationJournal(stage.journal / DIRECTOR)
        mine = today()
        self._interpreters = (mine,) if other is None else (mine, other) if self._seed % 2 else (other, mine)
        self._troupe = Troupe(stage, self._journal, self._command, self._interpreters)
        self._score = Score(strikes=Counter(dict.fromkeys(self._strikes, 0)))
        self._journals = Tail(stage.journal, "w*.jsonl")
        self._logs = Tail(stage.log, "d*.log")
        self._began_at = 0.0
        self._line_at = 0.0

    def _spare(self) -> Soak:
        """Adds a writer and a daemon to the others, which nobody kills."""
        self._writers.append(f"w{len(self._writers)}")
        self._daemons.append(f"d{len(self._daemons)}")
        return Soak(self._stage, self._writers[-1], self._daemons[-1])

    def run(self) -> dict[str, Any]:
        """Runs everything and returns the report. When it returns or raises, all processes have ended."""
        try:
            self._introduce()
            self._raise_curtain()
            self._play()
            self._drain()
        finally:
            self._troupe.end_all()
            self._journal.close()
        soaked = self._soak.end() if self._soak else None
        self._look()
        published = self._feed.published() if self._feed else []
        findings = check(self._stage.stored, self._stage.journal, self._score.dangling, published)
        calls = read_calls(self._stage.journal, self._stage.stored.late_s)
        write_history(self._stage.root / HISTORY, history(calls, findings.contents, time.monotonic()))
        report = self._report(soaked, findings)
        if published:
            report["feed"] = {
                "places": [each.place for each in published], "files": published[0].files, "updates": published[0].updates,
                "references": len(published[0].view), "frontier": published[0].frontier,
            }  # fmt: skip
        return report

    # --- the steps of a run ------------------------------------------------------------------------

    def _introduce(self) -> None:
        options = self._options
        protocol = "the published protocol, without the fence" if options.unfenced else "the protocol as it is"
        self._said.print(
            f"{options.writers} writers of {TASKS} tasks, {options.daemons} recovery daemons, {options.objects} objects,"
            f" {options.seconds:g} s, seed {self._seed}: {protocol}."
        )
        self._said.print(
            f"{self._stage.introduce()}; simulated is only a network of up to {(THERE_MAX_S + BACK_MAX_S) * 1000:g} ms"
            f" between a writer and its tiers. Leases of {EXPIRY_S:g} s."
        )
        if len(self._interpreters) > 1:
            codes = " and ".join(each.code for each in self._interpreters)
            self._said.print(f"The processes run two codes in turn, {codes}: each restart changes it.")
        if self._soak:
            self._said.print("One more writer and one more daemon are never killed: they must not grow, and the status must be true.")

    def _raise_curtain(self) -> None:
        """Starts all processes, and waits until every writer has had an answer: a slow start must not shorten the run.
        """
        self._began_at = time.monotonic()
        while not all(self._has_answered(part) for part in self._writers):
            if time.monotonic() - self._began_at > START_WAIT_S:
                raise UnavailableError(f"the demo's writers did not begin within {START_WAIT_S:g} s, see the logs in {self._stage.log}")
            self._troupe.revive(self._writers + self._daemons + self._of_feed())
            time.sleep(TICK_S)
        self._began_at = time.monotonic()

    def _of_feed(self) -> list[str]:
        return self._feed.parts() if self._feed else []

    def _has_answered(self, part: str) -> bool:
        """Tells whether a process had an answer. `part`: of which a process, or the process's name."""
        names = part if "." in part else f"{part}.*"
        return any("end" in line for path in self._stage.journal.glob(f"{names}.jsonl") for line in read_lines(path))

    def _play(self) -> None:
        self._weather.clear()
        if self._soak:
            self._soak.start()
        ends_at = self._began_at + self._options.seconds
        # The first thing to happen is a kill, and it happens soon. So even the shortest run has one.
        strike_at, self._deck = self._began_at + FIRST_KILL_S, ["writer_kills"]
        while (now := time.monotonic()) < ends_at or (self._missing() and now < ends_at + ENCORE_S):
            self._troupe.revive([*self._writers, *self._daemons, *self._of_feed(), *([STATUS] if self._soak else [])])
            self._troupe.resume_due()
            if self._soak:
                self._soak.sample(self._troupe.actors)
            if passed := self._weather.pass_by():
                self._score.news.append(passed)
            if now >= strike_at:
                self._strike()
                strike_at = time.monotonic() + self._chance.uniform(*self._stage.pause_s)
            self._say_each_second()
            time.sleep(TICK_S)
        self._weather.clear()

    def _missing(self) -> list[str]:
        """Returns the kinds of fault that should have happened and have not, and what the soak has not tried yet."""
        faults = [kind for kind, count in self._happened().items() if not count] if self._stage.services else []
        faults += [] if len(self._interpreters) == 1 else self._one_code_only()
        return faults + (self._soak.status.missing() if self._soak else [])

    def _one_code_only(self) -> list[str]:
        """Returns which code no writer has answered in, no daemon has recovered in, or no feed has run in."""
        by_code = self._lives(only=self._has_worked)
        letters = ("w", "d", *({each[0] for each in self._of_feed()} - {FOLLOWER[0]}))
        wanted = [f"{letter} of {each.code}" for letter in letters for each in self._interpreters]
        return [f"working processes {each}" for each in wanted if not by_code[each]]

    def _has_worked(self, name: str) -> bool:
        if name.startswith("w"):
            return self._has_answered(name)
        log = self._stage.log / f"{name}.log"
        return not name.startswith("d") or _RECOVERED.search(log.read_bytes()) is not None

    def _lives(self, only: Callable[[str], bool] = lambda name: True) -> Counter[str]:
        """Counts processes by letter and code."""
        return Counter(f"{name[0]} of {code}" for name, code in sorted(self._troupe.codes.items()) if only(name))

    def _happened(self) -> dict[str, int]:
        return {**self._score.strikes, **self._weather.happened, "recovered": len(self._score.recovered)}

    def _drain(self) -> None:
        late = self._troupe.dismiss("w", LEAVE_WAIT_S)
        self._score.news.append(f"writers finished{', but for ' + ', '.join(late) if late else ''}")
        give_up_at = time.monotonic() + DRAIN_WAIT_S
        while not self._is_done() and time.monotonic() < give_up_at:
            self._troupe.revive(self._daemons + self._of_feed())
            self._troupe.resume_due()
            self._say_each_second()
            time.sleep(TICK_S)
        if self._feed:
            self._finish_feed()
        self._troupe.dismiss(STATUS, LEAVE_WAIT_S)
        self._troupe.dismiss("d", LEAVE_WAIT_S)
        self._score.news.append("daemons stopped")
        self._say()

    def _finish_feed(self) -> None:
        """Ends the writers of the feed. Then others publish and clean up what is left, for a limited time.

        One run leaves to the next what waits for an upload that may still arrive (`recovery.late_upload_grace_s`).
        """
        assert self._feed is not None, "there is a feed"
        self._troupe.dismiss("f", LEAVE_WAIT_S)
        self._troupe.start(ONCE)
        give_up_at = time.monotonic() + ONCE_S
        while (self._troupe.is_running(ONCE) or kept_for_feed(self._stage.stored)) and time.monotonic() < give_up_at:
            self._troupe.revive([ONCE, *(each for each in self._of_feed() if not each.startswith("f"))])
            self._troupe.resume_due()
            self._say_each_second()
            time.sleep(TICK_S)
        self._feed.await_follower()
        for part in (ONCE, RECEIVER, FOLLOWER):
            self._troupe.dismiss(part, LEAVE_WAIT_S)
        self._score.news.append("the feed has published the rest")

    def _is_done(self) -> bool:
        is_clear = self._soak is None or self._soak.clear()
        return is_clear and unfinished(self._stage.stored) == (0, 0)

    # --- kills and stops ---------------------------------------------------------------------------

    def _strike(self) -> None:
        self._deck = self._deck or self._chance.sample(self._strikes, len(self._strikes))
        kind = self._deck.pop()
        kills, now = kind.endswith("kills"), time.monotonic()
        spared = self._soak.spared if self._soak else ()
        able = [each for each in self._troupe.idle(kind[0]) if each.part not in spared and (kills or now >= each.rests_until)]
        if not able:
            return
        actor = self._chance.choice(able)
        if kills:
            self._troupe.kill(actor)
        elif not self._troupe.stop(actor, self._chance.uniform(*STOP_S)):
            return
        self._score.strikes[kind] += 1
        self._score.news.append(f"{'killed' if kills else 'stopped'} {actor.part}")

    # --- what has happened -------------------------------------------------------------------------

    def _say_each_second(self) -> None:
        if time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + 1
            self._say()

    def _say(self) -> None:
        self._look()
        score = self._score
        news, score.news = ", ".join(score.news), []
        counts = Counter[str]()
        for kind, count in self._happened().items():
            counts[kind.rpartition("_")[2]] += count
        weather = "".join(f" {counts[kind]:3,} {kind}" for kind in KINDS) if self._stage.services else ""
        self._said.print(
            f"{time.monotonic() - self._began_at:5.1f} s {score.answers[JournaledAnswer.OK]:7,} ok"
            f" {score.answers[JournaledAnswer.NO]:4,} refused {score.answers[JournaledAnswer.FAILED]:4,} failed"
            f" {counts['kills']:4,} kills {counts['stops']:3,} stops{weather} {score.unfinished:4,} open {counts['recovered']:5,} recovered"
            f" {len(score.dangling):3,} dangling   {news}"
        )

    def _look(self) -> None:
        """Reads what the processes have written since the last call, and compares rows with blobs."""
        for line in self._journals.lines():
            if b'"begin":' in line:
                self._score.begun += 1
            else:
                self._score.answers[json.loads(line)["answer"]] += 1
        for line in self._logs.lines():
            self._score.recovered.update(_RECOVERED.findall(line))
        if not self._weather.still:
            self._score.unfinished = unfinished(self._stage.stored)[0]
            self._score.dangling |= dangling(self._stage.stored)

    def _report(self, soaked: dict[str, Any] | None, findings: CheckResult) -> dict[str, Any]:
        score, answers = self._score, self._score.answers
        flaws = {flaw: findings.flaws[flaw] for flaw in FLAWS} | {"crashes": len(self._troupe.crashes)}
        if soaked:
            flaws |= soaked["flaws"]
        happened = {**self._happened(), "late": findings.late}
        missing = self._missing()
        if self._stage.services and self._options.seconds >= LONG_S and not findings.late:
            missing.append("late writes")
        wrong = what_is_wrong(flaws, answers[JournaledAnswer.OK], missing)
        return {
            "ok": wrong is None,
            "verdict": wrong or "nothing was wrong",
            "seed": self._seed,
            "backend": self._stage.backend,
            "unfenced": self._options.unfenced,
            "objects": findings.objects, "inline": findings.inline, "blobs": findings.blobs,
            "operations": {
                "begun": score.begun, "ok": answers[JournaledAnswer.OK], "no": answers[JournaledAnswer.NO],
                "failed": answers[JournaledAnswer.FAILED],
                "unknown": answers[JournaledAnswer.UNKNOWN] + answers[JournaledAnswer.SETTLED], "unanswered": score.begun - answers.total(),
            },
            "happened": happened,
            "flaws": flaws,
            "details": findings.details + self._troupe.crashes + (soaked["details"] if soaked else []),
        } | ({"soak": soaked["shown"]} if soaked else {}) | ({} if len(self._interpreters) == 1 else {"lives": dict(self._lives())})

    def _command(self, name: str) -> list[str]:
        """Returns the command that starts the process of this name."""
        if self._soak and (command := self._soak.command(name.partition(".")[0])):
            return command
        if self._feed and (command := self._feed.command(name.partition(".")[0])):
            return command
        if name.startswith("w"):
            journal = self._stage.journal / f"{name}.jsonl"
            return Orders(
                str(self._stage.config), str(journal), name, self._seed, self._options.objects, os.getpid(), self._options.unfenced
            ).command()
        unfenced = ["--unfenced"] if self._options.unfenced else []
        return [sys.executable, "-m", "emulators.demo.players.daemon", str(self._stage.config), str(os.getpid()), *unfenced]
