"""Counts the decisions of the product, and the checks at the end of a world.

The product has no hooks. Each decision is a function, a method or a returned enum, which is wrapped from outside for as
long as `decisions_counted` is entered. The wrapper names the decision by its arguments and its answer. The names are
those of `emulators.simulation.coverage.REQUIRED`; there a decision that has moved is reported as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import anyio

import emulators.world.deployment
import recovery.loop
import tiered.protocol.finishing
import tiered.protocol.reading
import tiered.protocol.writing
import tiered.testing.log
from changelog.change import Change
from changelog.heartbeat import Heartbeat
from changelog.lease import DUE, EntryState, Lease, Renewal
from emulators.simulation.coverage import Coverage
from emulators.simulation.replaced import replaced
from emulators.world.deployment import World
from emulators.world.history import RegisterHistory
from emulators.world.services import SimulatedBlobs, SimulatedRows
from recovery.loop import RecoveryLoop, RecoveryReport
from tiered.errors import ConditionFailedError, DanglingTombstoneError, OutcomeUnknownError
from tiered.object_id import revision_of
from tiered.protocol.assembling import Assembler
from tiered.protocol.reading import Reader
from tiered.protocol.writing import Writer, WriteResult
from tiered.services.backends import Row
from tiered.services.breaker import Breaker
from tiered.storage import TieredStorage

Count = Callable[..., None]

_counting: list[Coverage] = []
"""The last of them counts."""


@contextmanager
def decisions_counted(coverage: Coverage) -> Iterator[None]:
    """Counts into `coverage` for as long as it is entered. Within another one, only the inner one counts.

    Wrapping takes longer than counting. If you enter it for each of many runs, enter one more around all of them.
    """
    _counting.append(coverage)
    wrapped = (
        (owner, name, wraps(original := getattr(owner, name))(wrapping(original, _count)))
        for owner, name, wrapping in _WRAPPINGS if len(_counting) == 1
    )
    try:
        with replaced(wrapped):
            yield
    finally:
        _counting.pop()


def _count(name: str, section: str = "decisions") -> None:
    _counting[-1].sections[section][name] += 1


# --- the wrappers --------------------------------------------------------------------------------

Wrapping = Callable[[Callable[..., Any], Count], Callable[..., Any]]


def _answer(name: Callable[[Any], str]) -> Wrapping:
    """Wraps a coroutine function. `name` gets what it returned."""

    def wrapping(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
        async def counted(*args: Any, **named: Any) -> Any:
            answer = await original(*args, **named)
            count(name(answer))
            return answer

        return counted

    return wrapping


def _told(call: str) -> Wrapping:
    """Wraps an operation, and counts what its caller is told: `ok`, or the class of the error."""

    def wrapping(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
        async def counted(*args: Any, **named: Any) -> Any:
            try:
                answer = await original(*args, **named)
            except BaseException as error:
                count(f"{call}: {type(error).__name__}")
                raise
            count(f"{call}: ok")
            return answer

        return counted

    return wrapping


def _given_up(end: Any) -> str:
    return "upload lost to others" if end is None else "upload given up" if end.error else "upload given up, and had won"


def _answer_sync(name: Callable[..., str]) -> Wrapping:
    """Wraps a function. `name` gets what it returned, and then its arguments."""

    def wrapping(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            answer = original(*args)
            count(name(answer, *args))
            return answer

        return counted

    return wrapping


def _judged(verdict: WriteResult) -> str:
    if verdict.error is None:
        return "judged ok"
    if isinstance(verdict.error, ConditionFailedError):
        return "judged condition false"
    return "judged unknown" if isinstance(verdict.error, OutcomeUnknownError) else "judged no"


def _may_tell_ok(may: bool, change: Change, live: bool, row: Row) -> str:
    if not may:
        return "may not tell ok"
    return "may tell ok: " + ("live" if live else "won" if change.id in row.won else "superseded")


def _may_delete_legacy(may: bool, change: Change, row: Row) -> str:
    return "legacy is kept" if not may else "legacy is garbage: " + ("won" if row.state is None else "another state")


def _old(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
    async def counted(tiers: Any, change: Change, old: str) -> bool:
        garbage: bool = await original(tiers, change, old)
        if revision_of(change.object, old) is not None:  # the others are counted as legacy
            count("old is garbage" if garbage else "old is live")
        return garbage

    return counted


def _not_due(original: Callable[..., EntryState], count: Count) -> Callable[..., EntryState]:
    """Counts the log's own judgement, because recovery never sees what the log leaves out of a page."""

    def counted(*args: Any, **named: Any) -> EntryState:
        where = original(*args, **named)
        if where not in DUE:
            count(f"entry {where.name}")
        return where

    return counted


def _renewed(original: Callable[..., None], count: Count) -> Callable[..., None]:
    def counted(lease: Lease, renewal: Renewal, sent_at: float) -> None:
        count(f"renewal {renewal.name}")
        original(lease, renewal, sent_at)

    return counted


def _reported(original: Callable[..., None], count: Count) -> Callable[..., None]:
    def counted(total: RecoveryReport, report: RecoveryReport) -> None:
        for outcome in ("recovered", "deferred", "parked", "lost", "failed"):
            if getattr(report, outcome):
                count(f"recovery {outcome}")
        original(total, report)

    return counted


def _failed(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
    async def counted(*args: Any, alone: bool) -> None:
        count("recovery failed: " + ("the entry's fault" if alone else "an outage"))
        await original(*args, alone=alone)

    return counted


def _released(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
    async def counted(loop: RecoveryLoop) -> None:
        if loop._held:
            count("recovery released at its end")
        await original(loop)

    return counted


def _followed(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
    """Counts where a read ended, and each time that a blob had vanished on the way."""

    async def counted(reader: Reader, object_id: Any, inline: Any, blob: Any) -> Any:
        is_inline = False

        def open_inline(state: Any) -> Any:
            nonlocal is_inline
            is_inline = True
            return inline(state)

        async def open_blob(state: Any) -> Any:
            if (opened := await blob(state)) is None:
                count("read again")
            return opened

        try:
            found = await original(reader, object_id, open_inline, open_blob)
        except DanglingTombstoneError:
            count("read dangling")
            raise
        count("read nothing" if found is None else "read inline" if is_inline else "read blob")
        return found

    return counted


def _inline(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
    async def counted(*args: Any) -> bool:
        try:
            written: bool = await original(*args)
        except anyio.get_cancelled_exc_class():
            count("inline cancelled")
            raise
        count("inline ok" if written else "inline: tombstone in the way")
        return written

    return counted


def _expired(original: Callable[..., bool], count: Count) -> Callable[..., bool]:
    def counted(*args: Any) -> bool:
        if expired := original(*args):
            count("read expired")
        return expired

    return counted


def _repeated(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
    """Does not count what is decided while the checker repeats clean-ups: the world did not do that."""

    async def counted(world: World) -> None:
        count("I5 repeatable", "checks")
        _counting.append(Coverage())
        try:
            await original(world)
        finally:
            _counting.pop()

    return counted


def _check(name: str) -> Wrapping:
    def wrapping(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            count(name, "checks")
            return original(*args)

        return counted

    return wrapping


_WRAPPINGS: tuple[tuple[Any, str, Wrapping], ...] = (
    (Breaker, "_refusal", _answer_sync(lambda answer, *_: "refused: its service is away")),
    (Writer, "swap", _answer(lambda told: f"swap told {told.name}")),
    (Writer, "_judge", _answer(_judged)),
    (tiered.protocol.writing, "may_tell_ok", _answer_sync(_may_tell_ok)),
    (tiered.protocol.writing, "finish", _answer(lambda ending: f"writer's clean-up {ending.name}")),
    (tiered.protocol.finishing, "may_delete_legacy", _answer_sync(_may_delete_legacy)),
    (tiered.protocol.finishing, "_is_garbage", _old),
    (tiered.protocol.finishing, "clean_up", _answer(lambda garbage: f"clean-up: {'something' if garbage else 'nothing'}")),
    (recovery.loop, "finish", _answer(lambda ending: f"recovery's clean-up {ending.name}")),
    (recovery.loop, "entry_state", _answer_sync(lambda where, *_: f"entry {where.name}")),
    (tiered.testing.log, "entry_state", _not_due),
    (Lease, "after", _renewed),
    (Lease, "held", _answer_sync(lambda held, *_: f"lease {'held' if held else 'ended'}")),
    (Heartbeat, "claim", _answer(lambda lease: f"claim {'lost' if lease is None else 'won'}")),
    (RecoveryReport, "add", _reported),
    (RecoveryLoop, "_fail", _failed),
    (RecoveryLoop, "_release_held", _released),
    (TieredStorage, "outcome", _answer(lambda outcome: f"outcome {outcome.name}")),
    (Writer, "_send_inline", _inline),
    (Writer, "_settle_inline", _answer(lambda live: f"inline unknown, then {'live' if live else 'refused'}")),
    (TieredStorage, "_put", _told("put")),
    (TieredStorage, "_delete", _told("delete")),
    (TieredStorage, "_get", _told("get")),
    (Assembler, "_attempt", _answer(lambda end: f"completion {'again' if end is None else 'ended' if end.error else 'ok'}")),
    (Assembler, "_won", _answer(lambda end: "completion had won")),
    (Assembler, "_gave_up", _answer(_given_up)),
    (Assembler, "_give_back", _answer(lambda _: "claim given back")),
    *((TieredStorage, name, _told(name)) for name in ("copy", "rename", "update_metadata", "set_expiry")),
    (Reader, "_follow", _followed),
    (tiered.protocol.reading, "is_expired", _expired),
    (SimulatedRows, "touch", _answer(lambda took: f"row touch{'ed' if took else ' refused'}")),
    (SimulatedBlobs, "touch", _answer(lambda took: f"blob touch{'ed' if took else ': gone'}")),
    (World, "repeat", _repeated),
    (RegisterHistory, "unexplained", _check("I4 an order explains the history")),
    (emulators.world.deployment, "orphans", _check("I3 no leak")),
    (emulators.world.deployment, "left_over", _check("I6 drained")),
)
