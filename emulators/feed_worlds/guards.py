"""The guards of the feed. Each one can be knocked out, and the worlds must then find a violation.

As `emulators.simulation.guards`: a function or a method is replaced from outside for as long as a `with` lasts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import recovery.loop
import tiered.protocol.writing
from changelog.log import ChangeLog
from emulators.feed_worlds.recipe_run import WRITER_LOOKS_EVERY_S
from emulators.simulation.guards import Guard
from emulators.simulation.replaced import Replacement
from emulators.world.services import SimulatedChangeLog
from recovery.feed.messages import Update
from recovery.feed.writer import delivery, stored, writer
from recovery.feed.writer.checkpoint import NOTE, Checkpoint, Pass
from recovery.feed.writer.positions import Position, note_name
from recovery.feed.writer.stored import Journaled
from recovery.feed.writer.writer import CoveredHint, FeedWriter, NextCommit, StepResult
from tiered.protocol.finishing import Ending, clean_up, finish, settle_change


def _guard(protects: str, patches: tuple[Replacement, ...], seed: int | None = None) -> Guard:
    """Any violation shows its absence. `seed` None: no seed of a thousand does;
    tests/recovery/feed/writer/test_zombies.py shows it.
    """
    return Guard(protects, patches, None, seed)


_COMMIT, _PUBLISH, _BEGIN_PASS = FeedWriter._commit, FeedWriter._publish, FeedWriter._begin_pass
_TRIM, _PASS = FeedWriter.trim, writer._pass


async def _commit_over_anything(self: FeedWriter, raw: bytes | None, new: Checkpoint) -> None:
    await _COMMIT(self, await self._log.read_note(NOTE), new)


async def _deliver_first(self: FeedWriter, raw: bytes | None, new: Checkpoint) -> None:
    known = self._checkpoint
    if known is not None and new.staged is not None and new.staged != known.staged and new.generation == known.generation:
        self.waiting.append(Journaled(new.timestamp, new.staged, new.records, known.timestamp))
        await self._runtime.sleep(2 * WRITER_LOOKS_EVERY_S)
        self.waiting.pop()
    await _COMMIT(self, raw, new)


async def _last_arrival_wins(self: SimulatedChangeLog, values: Mapping[str, bytes | None], version: int) -> None:
    await self._travel()
    for key, value in values.items():
        self.values[key] = (value, version)
    self._took_effect("log.write_values", ",".join(values))


async def _redo_nothing(self: FeedWriter, staged: object) -> Sequence[Update]:
    return ()


async def _finish_before_the_feed(*given: Any) -> Ending:
    tiers, log, _, lease, live, _, feed_off = given
    if feed_off is not None:
        return await finish(*given)
    live = await settle_change(tiers, lease.entry.change) if live is None else live
    await clean_up(tiers, lease.entry.change, live, lambda: None)
    await log.keep(lease.entry)
    return Ending.KEPT


async def _keep_unsettled(*given: Any) -> Ending:
    if given[-1] is not None:
        return await finish(*given)
    await given[1].keep(given[3].entry)
    return Ending.KEPT


def _tell_at_once(began_ms: int, *, withheld: bool) -> Pass:
    return _PASS(began_ms, withheld=False)


async def _go_on_telling(self: FeedWriter, known: Checkpoint, *, withheld: bool) -> StepResult:
    return await _BEGIN_PASS(self, known, withheld=False)


async def _publish_only_differences(self: FeedWriter, known: Checkpoint, intent: NextCommit, time: int, *, due: bool) -> None:
    if intent.updates or intent.scan is not None or intent.passed or due:
        await _PUBLISH(self, known, intent, time, due=due)


async def _write_position(log: ChangeLog, position: Position) -> Position:
    raw = await log.read_note(note_name(position.sink))
    await log.swap_note(note_name(position.sink), raw, position.to_bytes())
    return position


async def _trim_all(self: FeedWriter, acknowledged: int) -> None:
    await _TRIM(self, 1 << 62)


def _covered_by_its_own(entry: Any, shown: str | None) -> CoveredHint:
    return CoveredHint(entry, entry.change.new if shown == entry.change.new else None)


def _in_both(instead: Callable[..., Awaitable[Ending]]) -> tuple[Replacement, ...]:
    return (tiered.protocol.writing, "finish", instead), (recovery.loop, "finish", instead)


GUARDS: dict[str, Guard] = {
    "compare-and-swap of the checkpoint": _guard(
        "A writer that was fenced commits, and takes back what its successor has committed.",
        ((FeedWriter, "_commit", _commit_over_anything),), seed=4
    ),
    "commit before delivery": _guard(
        "A sink gets a transaction that is never committed.", ((FeedWriter, "_commit", _deliver_first),), seed=1
    ),
    "version of a value": _guard(
        "A late write of a fenced writer changes the published index.",
        ((SimulatedChangeLog, "write_values", _last_arrival_wins),)
    ),
    "redo after opening": _guard(
        "What was committed and not applied is published once more.", ((FeedWriter, "_updates_of", _redo_nothing),), seed=329
    ),
    "deletion after the -1": _guard("A blob is gone while the feed still shows it.", _in_both(_finish_before_the_feed), seed=1),
    "settled before it is kept": _guard("A change takes effect after the feed has looked at its row.", _in_both(_keep_unsettled),
    seed=1),
    "withheld progress of the first pass": _guard(
        "A reader takes a part of the references for all.", ((writer, "_pass", _tell_at_once),), seed=3
    ),
    "withheld progress after a gap": _guard(
        "A reader is told of references that recovery has deleted.", ((FeedWriter, "_begin_pass", _go_on_telling),), seed=77
    ),
    "commit of a hint without a difference": _guard(
        "A fenced writer that compared with an old index forgets a hint.", ((FeedWriter, "_publish", _publish_only_differences),)
    ),
    "name of the writer in the checkpoint": _guard(
        "Two writers that open at once both believe that they won.", ((writer, "instance_name", lambda runtime, role: role),)
    ),
    "position that only goes forward": _guard(
        "A fenced writer takes the position of a sink back.", ((delivery, "advance", _write_position),), seed=3
    ),
    "trim of what every sink has": _guard("A slow sink never gets a file.", ((FeedWriter, "trim", _trim_all),), seed=2),
    "old blob of a refused change": _guard(
        "A blob that a later change takes away is deleted before its -1.", ((writer, "CoveredHint", _covered_by_its_own),)
    ),
    "sweep of earlier epochs only": _guard(
        "A fenced writer removes the files of its successor.", ((stored, "_epoch_of", lambda key: -1),)
    ),
}  # fmt: skip
