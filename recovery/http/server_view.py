"""What the server tells, as plain JSON: the status with its age, readiness, and what it remembers.

It claims only what it knows. Old figures are shown with their age, and then the level is `unknown` and the headline
says since when. The names of objects are left out unless `daemon.show_objects` is set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from changelog.base.events import text_of
from changelog.base.runtime import Runtime
from recovery.http.decisions import Decisions
from recovery.http.own import memory_bytes
from recovery.http.sampler import EVERY_S, Reach, Sampler
from recovery.outages import Outage, Outages, lately_s
from recovery.redaction import redact_names
from recovery.status.advice import away_sentence
from recovery.status.as_json import as_json, verdict_json
from recovery.status.feed import FeedState
from recovery.status.known import SERVICES, UNKNOWN, StatusLevel
from recovery.typed_commands import TIERED, typed
from tiered.settings import Settings


class Worker(Protocol):
    """What is asked of the recovery loop. Times are `Runtime.monotonic`; None: never yet."""

    outages: Outages

    instance: str
    answered_at: float | None
    passed_at: float | None

    @property
    def stopping(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ServerView:
    """All that the server shows. Nothing here waits or asks a service. `tiered`: how commands for this store begin."""

    sampler: Sampler
    decisions: Decisions
    worker: Worker
    runtime: Runtime
    settings: Settings
    tiered: str = TIERED

    def status(self) -> dict[str, Any] | None:
        """Returns the status as `tiered status --json` prints it, corrected for its age. None: there is none yet."""
        sampler = self.sampler
        if sampler.status is None:
            return None
        down = [name for name, reach in self._services() if reach.answers is False]
        refusing = [name for name, outage in self._outages().items() if outage.is_refusal]
        refusing += [name for name, reach in sampler.services.items() if reach.refuses]
        status = replace(
            sampler.status, away=_of(SERVICES.values(), {*sampler.status.away, *down} - {*refusing}),
            refusing=_of(SERVICES.values(), {*sampler.status.refusing, *refusing}),
        )  # fmt: skip
        is_old = sampler.error is not None or sampler.stale
        judged = replace(status, answers=False, complete=False) if is_old else status
        known = as_json(judged, show_objects=self._names_shown, tiered=self.tiered)
        known["problems"] = [self._hidden(each) for each in known["problems"]]
        if is_old:
            lost = known["level"] == StatusLevel.LOST  # that is known still
            known["level"] = StatusLevel.LOST.value if lost else StatusLevel.UNKNOWN.value
            unknown = f"It is not known whether recovery keeps up. These figures are {self._age()} old."
            known["headline"] = f"{'DATA IS LOST. ' if lost else ''}{away_sentence(replace(status, answers=False))}{unknown}"
            known["problems"] = [self._failure(), *known["problems"]]
            if sampler.stale:  # as `recovery.status` judges figures that are as old
                for source in known["sources"].values():
                    source["verdict"] = verdict_json(UNKNOWN)
                if known["feed"] is not None:
                    known["feed"] |= {"state": FeedState.UNKNOWN.value, "why": "These figures are old."}
        elif (still_s := self._still_s) is not None:  # others count it as alive, because its reports go on
            known["level"] = StatusLevel.UNKNOWN.value if known["level"] == StatusLevel.OK else known["level"]
            sentence = f"This daemon does nothing: no pass has read the changelog for {_long(still_s)}."
            known["headline"] = f"{sentence} {known['headline']}"
            known["orders"].append({"why": "This daemon makes no pass. Read its log, and restart it.", "type": None})
        return known

    def age_s(self) -> float:
        """Returns how old the figures are, in seconds. It follows no clock that somebody sets."""
        return self.sampler.age_s

    def about(self) -> dict[str, Any]:
        """Returns what the server knows besides: how old the status is, whether the services answer, and itself."""
        sampler, now = self.sampler, self.runtime.monotonic()
        return {
            "sample": {
                "age_s": _ago(now, sampler.taken_at), "stale": sampler.stale, "every_s": EVERY_S,
                "failing_for_s": _ago(now, sampler.failing_since), "error": None if sampler.error is None else self._hidden(sampler.error),
            },
            "services": [{"name": name, **self._reach(reach, now), **sampler.calls.late(name)} for name, reach in self._services()],
            "daemon": {
                "instance": self.worker.instance, "stopping": self.worker.stopping, "last_pass_s_ago": _ago(now, self.worker.passed_at),
                "not_ready": self.reasons(), "memory_bytes": memory_bytes(), "odd_files": sampler.odd_files(),
            },
            "calls_over_s": sampler.calls.over_s,
            "show_objects": self._names_shown,
        }  # fmt: skip

    def nothing_yet(self) -> dict[str, Any]:
        """Returns what stands for `status` before the first look that succeeded."""
        failed = self.sampler.error is not None
        return {
            "level": StatusLevel.UNKNOWN.value,
            "headline": "The changelog could not be read yet." if failed else "There are no figures yet: the daemon reads the changelog.",
            "orders": [{"why": "See what is missing or out of reach.", "type": typed("tiered check", self.tiered)}] if failed else [],
            "tiered": self.tiered,
            "problems": [self._failure()] if failed else [],
        }

    def reasons(self) -> list[str]:
        """Returns why the daemon is not ready, one sentence each. Empty: it is."""
        worker = self.worker
        reasons = ["the daemon is stopping"] if worker.stopping else []
        for name, reach in self.sampler.services.items():
            if reach.answers is None:
                reasons.append(f"the {name} was not asked yet")
            elif not reach.answers:
                does = "refuses what it is asked" if reach.refuses else "does not answer"
                reasons.append(f"the {name} {does}: {self._hidden(reach.error or '')}")
            elif (outage := self._outages().get(name)) is not None:
                does = "refuses what recovery asks of it" if outage.is_refusal else "does not answer recovery"
                reasons.append(f"the {name} {does}: {self._hidden(text_of(outage.error))}")
        disk = None if self.sampler.status is None else self.sampler.status.disk
        if disk is not None and disk.refuses_puts:
            reasons.append(f"the disk of the store is {'full' if disk.is_full else 'read-only'}")
        if worker.answered_at is None:
            reasons.append("no pass has read the changelog yet")
        elif (still_s := self._still_s) is not None:
            reasons.append(f"no pass has read the changelog for {still_s:.0f} s")
        return reasons

    def recent(self) -> dict[str, Any]:
        """Returns what it remembers: points of the charts, oldest first, and the last log lines, newest first."""
        now, points = self.runtime.monotonic(), self.sampler.history.points()
        status = self.sampler.status
        names = [] if status is None else [name for entry in status.stuck.entries for name in entry.names]
        return {
            "history": {
                "age_s": [round(now - point.at, 1) for point in points],
                **{name: [_rounded(getattr(point, name)) for point in points] for name in ("inflow", "drain", "backlog")},
            },
            "decisions": [
                each.shown(now, names_of_objects=self._names_shown, known=names) for each in self.decisions.newest_first()
            ],
        }  # fmt: skip

    @property
    def _slow_s(self) -> float:
        return lately_s(self.settings.recovery)

    @property
    def _still_s(self) -> float | None:
        """For how many seconds the loop has read nothing. None: it is at work, or may still be."""
        since = self.sampler.made_at if self.worker.answered_at is None else self.worker.answered_at
        silent_s = self.runtime.monotonic() - since
        return silent_s if silent_s > self._slow_s else None

    def _outages(self) -> Mapping[str, Outage]:
        """Returns what recovery itself met lately, by the name of the service.

        The sampler's questions do not meet it: reads succeed on a disk that is full, and where a deletion is refused.
        """
        return {SERVICES[service]: outage for service, outage in self.worker.outages.lately(self._slow_s).items()}

    def _services(self) -> Sequence[tuple[str, Reach]]:
        """Returns each service, and whether it answers both the sampler and recovery."""
        met = {name: Reach(False, text_of(outage.error), outage.since) for name, outage in self._outages().items()}
        return [(name, met.get(name, reach) if reach.answers else reach) for name, reach in self.sampler.services.items()]

    @property
    def _names_shown(self) -> bool:
        return self.settings.daemon.show_objects

    def _hidden(self, text: str) -> str:
        return text if self._names_shown else redact_names(text)

    def _reach(self, reach: Reach, now: float) -> Mapping[str, Any]:
        error = None if reach.error is None else self._hidden(reach.error)
        return {"answers": reach.answers, "for_s": _ago(now, reach.since), "error": error}

    def _failure(self) -> str:
        return f"the last look failed: {self._hidden(self.sampler.error or 'it takes too long')}"

    def _age(self) -> str:
        return _long(_ago(self.runtime.monotonic(), self.sampler.taken_at) or 0.0)


def _of(order: Iterable[str], names: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in order if name in names)


def _long(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _ago(now: float, then: float | None) -> float | None:
    return None if then is None else round(max(0.0, now - then), 1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
