"""The failures of the published protocol.

Each is one schedule on the real code: it breaks the unfenced protocol, but not ours.

    schedule                                      breaks unfenced what keeps it whole
    late swap after recovery                      I1              settle refuses the token before the blob is deleted
    absent ABA on a retried swap                  I1              the same: who deleted the blob has refused its token
    the same, of an inline object                 I4              the mark *won*: a swap takes effect at most once
    retried swap that won and reports lost        I1              settle, not the answer, says what is garbage
    the same, and another replaced it             I4 (told no)    the row and its marks are read before the answer
    lost race told ok                             I4 (told ok)    absence is no precondition of a swap
    unconditional idle touch                      I1              a touch compares the row with what was read
    late put after clean-up                       I3              the late-upload clean-up; of a session: its cancelling
    read during overwrite                         I4              a reader whose blob vanished reads the row again

Each schedule is played on the product as it is, and on the product without its fence (`unfenced`). No chance is
involved: the schedule names the calls that are late, lost or last, and its trace must show that they were. Everything
else is the real store and the real recovery.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import anyio

from emulators.simulation.unfenced import PUBLISHED, PublishedVariant, unfenced
from emulators.world.checker import dangling, orphans
from emulators.world.client import Client
from emulators.world.deployment import SETTINGS, World
from emulators.world.faults import CallFault, Mode, Plan, no_faults
from emulators.world.history import WriteAnswer
from emulators.world.runtime import run_world
from tiered.metadata import Expiration, TimeToIdle, TimeToLive
from tiered.object_id import ObjectId

OBJECT = ObjectId.create("attachments", "published")
SMALL, LARGE = 50, 500
HOUR = timedelta(hours=1)
SHORT_S, LONG_S = 5.0, 100.0
"""Seconds. The first is within an operation's budgets and lease, the second is beyond both."""
AFTER_EXPIRY_S = SETTINGS.lease.expiry_s + 1
SEED = 1


# --- the schedules -------------------------------------------------------------------------------


async def late_swap_after_recovery(world: World) -> None:
    """A swap that was given up arrives after recovery has decided that its change is dead.

        1 "old" is there. The writer of "new" finalises its blob and sends its swap. It is not answered and stays under
          way
        2 the writer dies. Its lease ends, and recovery claims its entry
        3 recovery sees that the row shows "old", deletes the blob of "new" and forgets the entry
        4 the swap arrives. Unfenced, the row now names a blob that is gone
    """
    await _live(world, "setup", _put("old"))
    await _live(
        world, "writer", _put("new"), {"rows.swap #1": CallFault(Mode.LATE, LONG_S), "rows.swap #2": CallFault(Mode.CRASH_BEFORE)}.get
    )
    await _recover(world)
    await world.runtime.sleep(LONG_S)


async def absent_aba_on_a_retried_swap(world: World) -> None:
    """A swap is sent again after its result was deleted. The row is absent, as it was the first time.

        1 nothing is there. The writer of "new" swaps from nothing to its blob; the answer is lost
        2 another deletes the object: the row is empty again, and the blob of "new" is deleted
        3 the writer sends its swap again. Unfenced, the row is absent as expected, and then names a blob that is gone
    """
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_live, world, "writer", _put("new"), _swap_sent_twice)
        await world.runtime.sleep(1)
        await _live(world, "other", _delete)


async def absent_aba_of_an_inline_object(world: World) -> None:
    """The same without a blob: an object that was deleted comes back.

        1 "old" is there. The writer of "new", a small one, swaps "old" for it; the answer is lost. A reader finds "new"
        2 another deletes the object, and a reader finds nothing
        3 the writer sends its swap again. Unfenced, the row has no tombstone, as expected, and "new" is there again
    """
    await _live(world, "setup", _put("old"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_live, world, "writer", _put("new", size=SMALL), _swap_sent_twice)
        await world.runtime.sleep(1)
        await _live(world, "reader", _get)
        await _live(world, "other", _delete)
        await _live(world, "later reader", _get)


async def retried_swap_that_won_and_reports_lost(world: World) -> None:
    """A swap that has won is sent again and conflicts with itself. Its writer takes its own live blob for garbage.

        1 "old" is there. The writer of "new" swaps, and wins; the answer is lost
        2 it sends its swap again. Unfenced, the row does not show "old" as expected: the race seems lost
        3 unfenced, the writer deletes the blob of "new", which the row names
    """
    await _live(world, "setup", _put("old"))
    await _live(world, "writer", _put("new"), _swap_sent_twice)


async def retried_swap_that_won_and_was_replaced(world: World) -> None:
    """A swap that has won is sent again after another has replaced it. Its caller is told that nothing happened.

        1 "old" is there. The writer of "new" swaps, and wins; the answer is lost. A reader finds "new"
        2 another puts "other" over it
        3 the writer sends its swap again. The row shows neither "old" nor "new". Unfenced, the caller is told that it
          lost
    """
    await _live(world, "setup", _put("old"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_live, world, "writer", _put("new"), _swap_sent_twice)
        await world.runtime.sleep(1)
        await _live(world, "reader", _get)
        await _live(world, "other", _put("other"))


async def lost_race_told_ok(world: World) -> None:
    """What a swap expects has expired in the meantime. So the swap loses a race that nobody has won.

        1 "old" is there for an hour. Shortly before the end, the writer of "new" reads the row, and is stopped before
          its swap
        2 "old" expires, and both services collect it
        3 the writer swaps. Unfenced, it expects "old" and finds nothing; its caller is told ok, as if another had
          replaced it
    """
    await _live(world, "setup", _put("old", TimeToLive(HOUR)))
    await world.runtime.sleep(HOUR.total_seconds() - 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_live, world, "writer", _put("new"), {"rows.swap #1": CallFault(Mode.STALL_BEFORE, SHORT_S)}.get)
        await world.runtime.sleep(2)
        await world.rows.collect(10)
        await world.blobs.collect(10)
    await _live(world, "reader", _get)


async def unconditional_idle_touch(world: World) -> None:
    """A reader's touch brings back what was replaced since it was read.

        1 "old" is there, with a time to idle. A reader gets it, and is stopped before it writes the new deadline to the
          row
        2 another puts "new" over it, and deletes the blob of "old"
        3 the reader goes on. Unfenced, it writes what it has read: the row names the blob of "old", which is gone.
          "new" is lost
    """
    await _live(world, "setup", _put("old", TimeToIdle(HOUR)))
    await world.runtime.sleep(HOUR.total_seconds() / 2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_live, world, "reader", _get, {"rows.touch #1": CallFault(Mode.STALL_BEFORE, SHORT_S)}.get)
        await world.runtime.sleep(1)
        await _live(world, "other", _put("new"))


async def late_put_after_clean_up(world: World) -> None:
    """An upload that was given up arrives after recovery has cleaned up after it.

        1 the writer of "new" sends the end of its upload. It is not answered and stays under way. The caller is told
          that nothing happened. The writer dies before it can clean up
        2 its lease ends; recovery claims its entry, and there is no blob to delete yet. Unfenced, it forgets the entry
        3 the upload arrives. Unfenced, it is a blob that no row names and no entry remembers
    """
    plan = {"upload.finalise #1": CallFault(Mode.LATE, LONG_S), "upload.abort #1": CallFault(Mode.CRASH_BEFORE)}.get
    await _live(world, "writer", _put("new"), plan)
    await _recover(world)
    await world.runtime.sleep(LONG_S)


async def read_during_overwrite(world: World) -> None:
    """A reader opens a blob that was replaced after the reader has read the row.

        1 "old" is there. A reader reads the row, and is stopped
        2 another puts "new" over it, and deletes the blob of "old"
        3 the reader opens the blob of "old", which is gone. Unfenced, it finds nothing, though there was an object all
          the time
    """
    await _live(world, "setup", _put("old"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_live, world, "reader", _get, {"rows.read #1": CallFault(Mode.STALL_AFTER, SHORT_S)}.get)
        await world.runtime.sleep(1)
        await _live(world, "other", _put("new"))


@dataclass(frozen=True, slots=True)
class PublishedSchedule:
    """One schedule. `breaks`: the invariant that does not hold unfenced.

    `steps`: how lines of the trace begin, in order, in both cases.

    With our protocol, the caller of "new" is told `answer`, and afterwards `left` is there.
    """

    play: Callable[[World], Awaitable[None]]
    breaks: str
    answer: WriteAnswer
    left: str | None
    steps: tuple[str, ...]
    published: PublishedVariant = PUBLISHED
    sessions: bool = True


I1, I3, I4 = "I1 no dangling", "I3 no leak", "I4 honest"

SENT_TWICE = ("writer: rows.swap #1 [LOST", "writer: rows.swap #2 [STALL_BEFORE")
LATE_PUT = (
    "writer: upload.finalise #1 [LATE", "writer: upload.abort #1 [CRASH",
    "recoverer: log.claim #1", "recoverer: blobs.delete #1", "network: upload.finalise #1 has arrived",
)  # fmt: skip

SCHEDULES: dict[str, PublishedSchedule] = {
    "late swap after recovery": PublishedSchedule(
        late_swap_after_recovery, I1, WriteAnswer.UNKNOWN, "old",
        ("writer: rows.swap #1 [LATE", "writer: rows.swap #2 [CRASH", "recoverer: blobs.delete #1", "network: rows.swap #1 has arrived"),
    ),
    "absent ABA on a retried swap": PublishedSchedule(
        absent_aba_on_a_retried_swap, I1, WriteAnswer.OK, None,
        (*SENT_TWICE, "other: rows.swap #1", "other: blobs.delete #1", "writer: log.forget #1"),
    ),
    "absent ABA on a retried swap, of an inline object": PublishedSchedule(
        absent_aba_of_an_inline_object, I4, WriteAnswer.OK, None,
        (*SENT_TWICE, "reader: rows.read #1", "other: rows.delete_inline #1", "later reader: rows.read #1", "writer: log.forget #1"),
    ),
    "retried swap that won and reports lost": PublishedSchedule(
        retried_swap_that_won_and_reports_lost, I1, WriteAnswer.OK, "new",
        (*SENT_TWICE, "writer: blobs.delete #1", "writer: log.forget #1"), PublishedVariant(shown_is_ok=False),
    ),
    "retried swap that won and was replaced": PublishedSchedule(
        retried_swap_that_won_and_was_replaced, I4, WriteAnswer.OK, "other",
        (*SENT_TWICE, "reader: blobs.open #1", "other: blobs.delete #1", "writer: log.forget #1"), PublishedVariant(lost_is_ok=False),
    ),
    "lost race told ok": PublishedSchedule(
        lost_race_told_ok, I4, WriteAnswer.OK, "new",
        ("writer: rows.swap #1 [STALL_BEFORE", "writer: log.forget #1", "reader: rows.read #1"),
    ),
    "unconditional idle touch": PublishedSchedule(
        unconditional_idle_touch, I1, WriteAnswer.OK, "new",
        ("reader: blobs.touch #1", "reader: rows.touch #1 [STALL_BEFORE", "other: rows.swap #1", "other: blobs.delete #1"),
    ),
    "late put after clean-up": PublishedSchedule(late_put_after_clean_up, I3, WriteAnswer.NO, None, LATE_PUT, sessions=False),
    "late put after clean-up, of a session": PublishedSchedule(late_put_after_clean_up, I3, WriteAnswer.NO, None, LATE_PUT),
    "read during overwrite": PublishedSchedule(
        read_during_overwrite, I4, WriteAnswer.OK, "new",
        ("reader: rows.read #1 [STALL_AFTER", "other: rows.swap #1", "other: blobs.delete #1", "reader: blobs.open #1"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a schedule. `missing`: the first of its steps that did not happen, and those after it.

    `findings`: what does not hold at the end. `answer`: what the caller of "new" was told. `left`: what is there
    afterwards.
    """

    missing: list[str]
    findings: list[str]
    answer: WriteAnswer
    left: str | None


def play(schedule: PublishedSchedule) -> Played:
    """Plays a schedule with our protocol.

    Raises the first `InvariantViolation`, also one that only the watch saw on the way.
    """
    return run_world(partial(_play, schedule, verified=True), SEED)


def play_unfenced(schedule: PublishedSchedule) -> Played:
    with unfenced(schedule.published):
        return run_world(partial(_play, schedule, verified=False), SEED)


async def _play(schedule: PublishedSchedule, *, verified: bool) -> Played:
    async with World(SEED, sessions=schedule.sessions) as world:
        await schedule.play(world)
        missing = _missing(schedule.steps, world.network.trace)
        await world.drain()
        async with world.client(world.process("auditor")) as client:
            left = await client.get(OBJECT)
        if verified:
            world.verify()
        rows, blobs, now_ns = world.rows, world.blobs, world.runtime.wall_ns()
        findings = [
            *(f"{I1}: {path} names a blob that does not exist" for path in dangling(rows, blobs, now_ns)),
            *(f"{I3}: no row names {blob}" for blob in orphans(rows, blobs, now_ns)),
            *(f"{I4}: {sentence}" for sentence in world.history.unexplained()),
        ]
        [answer] = [write.answer for write in world.history.writes if write.value == "new"]
        return Played(missing, findings, answer, left)


def _missing(steps: tuple[str, ...], trace: list[str]) -> list[str]:
    lines = iter([line.split(maxsplit=1)[1] for line in trace])
    return [step for step in steps if not any(line.startswith(step) for line in lines)]


# --- who acts ------------------------------------------------------------------------------------

Act = Callable[[Client], Awaitable[object]]


async def _live(world: World, name: str, act: Act, plan: Plan = no_faults) -> None:
    """Runs a process that opens a store and does one thing."""
    process = world.process(name, plan)

    async def life() -> None:
        async with world.client(process) as client:
            await act(client)

    await process.run(life)


async def _recover(world: World) -> None:
    """Runs one pass of recovery, after the leases of the dead have ended."""
    await world.runtime.sleep(AFTER_EXPIRY_S)
    await world.recovery(world.process("recoverer")).run_once()


def _put(label: str, expiration: Expiration = None, size: int = LARGE) -> Act:
    return lambda client: client.put(OBJECT, label, size, expiration=expiration)


async def _delete(client: Client) -> None:
    await client.delete(OBJECT)


async def _get(client: Client) -> None:
    await client.get(OBJECT)


_swap_sent_twice: Plan = {"rows.swap #1": CallFault(Mode.LOST), "rows.swap #2": CallFault(Mode.STALL_BEFORE, SHORT_S)}.get
