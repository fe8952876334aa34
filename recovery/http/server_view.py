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
from recovery.outages import Outages, lately_s
from recovery.redaction import redact_names
from recovery.states import FEED_UNKNOWN, Level
from recovery.status.as_json import as_json
from recovery.status.known import SERVICES, UNKNOWN
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
        out = {name: reach for name, reach in self._services() if reach.answers is False}
        refusing = {*sampler.status.refusing, *(name for name, reach in out.items() if reach.refuses)}
        is_old = sampler.error is not None or sampler.stale
        status = replace(
            sampler.status, away=_of(SERVICES.values(), {*sampler.status.away, *out} - refusing),
            refusing=_of(SERVICES.values(), refusing), still_s=self._still_s,
        )  # fmt: skip
        if is_old:
            failed = f"the last look failed: {sampler.error or 'it takes too long'}"
            status = replace(status, answers=False, complete=False, old_s=sampler.age_s, problems=(failed, *status.problems))
        if sampler.stale:  # as `recovery.status` judges figures that are as old
            feed = status.feed and replace(status.feed, state=FEED_UNKNOWN, why="These figures are old.")
            sources = {name: replace(source, verdict=UNKNOWN) for name, source in status.sources.items()}
            status = replace(status, feed=feed, sources=sources)
        return as_json(status, show_objects=self._names_shown, tiered=self.tiered)

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
            "services": [
                {"name": name, **self._reach(reach, now), "last_outage": self._last_outage(name, now), **sampler.calls.late(name)}
                for name, reach in self._services()
            ],
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
            "level": Level.UNKNOWN.value,
            "headline": "The changelog could not be read yet." if failed else "There are no figures yet: the daemon reads the changelog.",
            "orders": [{"why": "See what is missing or out of reach.", "type": typed("tiered check", self.tiered)}] if failed else [],
            "tiered": self.tiered,
            "problems": [self._failure()] if failed else [],
        }

    def reasons(self) -> list[str]:
        """Returns why the daemon is not ready, one sentence each. Empty: it is."""
        worker = self.worker
        reasons = ["the daemon is stopping"] if worker.stopping else []
        for name, reach in self._services():
            if reach.answers is None:
                reasons.append(f"the {name} was not asked yet")
            elif not reach.answers:
                does = "refuses what it is asked" if reach.refuses else "does not answer"
                if reach.by_recovery:
                    does = "refuses what recovery asks of it" if reach.refuses else "does not answer recovery"
                reasons.append(f"the {name} {does}: {self._hidden(reach.error or '')}")
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
    def _still_s(self) -> float | None:
        """For how many seconds the loop has read nothing. None: it is at work, or may still be."""
        since = self.sampler.made_at if self.worker.answered_at is None else self.worker.answered_at
        silent_s = self.runtime.monotonic() - since
        return silent_s if silent_s > lately_s(self.settings.recovery) else None

    def _services(self) -> Sequence[tuple[str, Reach]]:
        """Returns each service, and whether it answers both the sampler and recovery.

        The sampler's questions do not meet all: reads succeed on a disk that is full, and where a deletion is refused.
        """
        met = {
            SERVICES[service]: Reach(False, text_of(outage.error), outage.since, outage.is_refusal, by_recovery=True)
            for service, outage in self.worker.outages.lately(lately_s(self.settings.recovery)).items()
        }
        return [(name, met.get(name, reach) if reach.answers else reach) for name, reach in self.sampler.services.items()]

    @property
    def _names_shown(self) -> bool:
        return self.settings.daemon.show_objects

    def _hidden(self, text: str) -> str:
        return text if self._names_shown else redact_names(text)

    def _reach(self, reach: Reach, now: float) -> Mapping[str, Any]:
        error = None if reach.error is None else self._hidden(reach.error)
        return {"answers": reach.answers, "for_s": _ago(now, reach.since), "error": error}

    def _last_outage(self, name: str, now: float) -> Mapping[str, Any] | None:
        """When the last outage of the service was that is over, whoever met it. None: this daemon knows of none."""
        met = (self.sampler.services[name].over, self.worker.outages.over.get(_SERVICE_OF[name]))
        last = max((each for each in met if each is not None), key=lambda each: each[1], default=None)
        return None if last is None else {"began_s_ago": _ago(now, last[0]), "ended_s_ago": _ago(now, last[1])}

    def _failure(self) -> str:
        return f"the last look failed: {self._hidden(self.sampler.error or 'it takes too long')}"


_SERVICE_OF = {name: service for service, name in SERVICES.items()}


def _of(order: Iterable[str], names: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in order if name in names)


def _ago(now: float, then: float | None) -> float | None:
    return None if then is None else round(max(0.0, now - then), 1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
