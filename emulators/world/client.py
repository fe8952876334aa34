"""`Client`: an open store and its caller. The history records its operations and answers, and the ghost judges them.

A put is known by its *label*. Its payload repeats the label, and its metadata name it. So a read that mixes two writes
is noticed (I7). A copy has the label of its source, and is known by its revision (`rewrite`). Errors that are no valid
answer are passed on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from math import inf
from typing import Any

import anyio

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, UnavailableError
from changelog.change import ChangeId
from emulators.world.by_link import put_by_link
from emulators.world.faults import Process
from emulators.world.ghost import Ghost, acting, acts
from emulators.world.history import Need, Read, RegisterHistory, RegisterWrite, WriteAnswer
from emulators.world.rewrite import EDIT, LABEL, Lives, Rewrite, kept, rewriting, shown, watch
from tiered.bulk import Bulk, PutRequest
from tiered.errors import ConditionFailedError, OffsetMismatchError, OutcomeUnknownError, UploadEndedError
from tiered.metadata import Expiration, Metadata, TimeToIdle, TimeToLive
from tiered.multipart import MultipartUpload
from tiered.object_id import ObjectId
from tiered.payload.streams import Payload
from tiered.protocol.writing import Outcome
from tiered.services.capabilities import Part
from tiered.storage import TieredStorage
from tiered.stored import ObjectHead, PutResult

ANSWERED_WITHIN_S = 400.0
"""More than all budgets of an operation together, in seconds.

A put with a streamed payload has no such limit: it takes as long as its payload takes.
"""

COPIED_WITHIN_S = 600.0
"""Seconds that the request to copy a blob may take besides. Only an adapter bounds it; here it is the longest fault."""
CLOCK_STEP_S = 2.0
"""Seconds by which a deadline may be rounded, here or when it is stored."""


@dataclass(frozen=True, slots=True)
class Over:
    """A condition: the value that must be there (None: nothing), and the arguments of the call that say so."""

    value: object
    arguments: dict[str, Any]


NOTHING = Over(None, {"if_absent": True})
UPLOAD_PARTS, COMPLETIONS_MAX, APPENDS_MAX = 3, 3, 12


@dataclass(frozen=True, slots=True)
class OpenCall:
    """An upload that is open, or was, as one process tells another of it. `parts`: the fields of each part.

    `appends`: the label and the size of what is appended to it, by anybody; None: it has parts.
    """

    write: RegisterWrite
    path: str
    id: str
    parts: Sequence[Mapping[str, Any]]
    appends: tuple[str, int] | None = None


class BrokenPayload(Exception):
    """Raised by a caller's own payload in the middle."""


class Client:
    """A caller of an open store.

    `ghost`: judges at once what this caller is told. `skew_max_s`: how wrong clocks may be; an expiry may come earlier
    or later by that. `unknown`: the writes whose outcome this caller does not know; `ask` asks for them.
    """

    def __init__(
        self, process: Process, storage: TieredStorage, history: RegisterHistory, ghost: Ghost | None = None, skew_max_s: float = 0.0
    ) -> None:
        self.storage = storage
        self.unknown: list[tuple[RegisterWrite, OutcomeUnknownError]] = []
        self.process = process
        self._history = history
        self._ghost = Ghost(history, lambda invariant, finding: None) if ghost is None else ghost
        self._skew_max_s = skew_max_s
        self._cancelled: list[RegisterWrite] = []
        self._stay_open: list[RegisterWrite] = []
        watch(storage, process, history, self._ghost)

    async def put(
        self, object_id: ObjectId, label: str, size: int, *, payload: Payload | None = None, expiration: Expiration = None,
        over: Over | None = None, named_at_end: bool = False,
    ) -> WriteAnswer:
        """Puts `content(label, size)`, as `payload` if that is given. A payload that gives up raises `BrokenPayload`.

        `over`: only over this. `named_at_end`: its label is told after the last byte. So whoever sees the object
        without it sees a mixture.
        """
        named = {LABEL: label}
        metadata = Metadata(expiration, custom={LABEL: "not named yet"} if named_at_end else named)
        lives_s = inf if expiration is None else expiration.ns / 1e9 - 2 * self._skew_max_s
        async with self._write(object_id, label, anyio.current_time() + lives_s, over) as write:
            result = await self.storage.put(
                object_id, content(label, size) if payload is None else payload, metadata,
                custom_at_end=(lambda: named) if named_at_end else None, **_arguments(over),
            )
            self._ghost.sized(write, result.size, size)
            write.dead_at_s = anyio.current_time() + lives_s + 4 * self._skew_max_s if isinstance(expiration, TimeToLive) else inf
        return write.answer

    async def upload(
        self, object_id: ObjectId, label: str, size: int, uploads: list[OpenCall], *, expiration: Expiration = None,
        over: Over | None = None, leaves: bool = False,
    ) -> WriteAnswer:  # fmt: skip
        """Puts `content(label, size)` in parts. From `uploads`, others complete or abort it, too.

        `leaves`: it completes nothing itself. Until it is told that the upload has ended, it knows nothing.
        """
        lives_s = inf if expiration is None else expiration.ns / 1e9 - 2 * self._skew_max_s
        async with self._write(object_id, label, anyio.current_time() + lives_s, over) as write:
            upload = await self.storage.begin_multipart(object_id, Metadata(expiration, custom={LABEL: label}), **_arguments(over))
            self._history.revisions[upload.id] = write
            self._stay_open.append(write)
            whole, piece = content(label, size), -(-size // UPLOAD_PARTS)
            parts = [await self._sent(upload, 1 + start // piece, whole[start : start + piece]) for start in range(0, size, piece)]
            uploads.append(OpenCall(write, object_id.path, str(upload.id), [asdict(part) for part in parts]))
            unknown = OutcomeUnknownError(object_id, upload.id, logged=True)
            if leaves:
                raise unknown
            result = await self._completed(upload, parts, unknown)
            if result is not None:
                self._ghost.sized(write, result.size, size)
            write.dead_at_s = anyio.current_time() + lives_s + 4 * self._skew_max_s if isinstance(expiration, TimeToLive) else inf
        return write.answer

    async def _sent(self, upload: MultipartUpload, number: int, payload: bytes) -> Part:
        """Uploads a part, every second one by a link, if this store signs any."""
        if number % 2 or self.storage.links is None:
            return await upload.upload_part(number, payload)
        url = await upload.sign_part(number, timedelta(days=1), size_max=len(payload))  # which is the app's everywhere
        await put_by_link(self.storage, url, payload)
        for part in await upload.parts():
            if part.number == number:
                return part
        raise AssertionError(f"part {number} was taken by a link, and is not there")

    async def append(
        self, object_id: ObjectId, label: str, size: int, uploads: list[OpenCall], *, expiration: Expiration = None,
        over: Over | None = None,
    ) -> WriteAnswer:  # fmt: skip
        """Appends `content(label, size)` to an upload, piece by piece and twice at once, and completes it.

        From `uploads`, others append to it, too.
        """
        lives_s = inf if expiration is None else expiration.ns / 1e9 - 2 * self._skew_max_s
        async with self._write(object_id, label, anyio.current_time() + lives_s, over) as write:
            upload = await self.storage.begin_resumable(object_id, Metadata(expiration, custom={LABEL: label}), **_arguments(over))
            self._history.revisions[upload.id] = write
            self._stay_open.append(write)
            uploads.append(OpenCall(write, object_id.path, str(upload.id), (), (label, size)))
            unknown = OutcomeUnknownError(object_id, upload.id, logged=True)
            done: list[bool] = []

            async def append() -> None:
                done.append(await self._appended(object_id, upload.id, label, size))

            async with anyio.create_task_group() as group:
                group.start_soon(append)
                group.start_soon(append)
            if not any(done):
                raise unknown
            result = await self._completed(self.storage.multipart(object_id, upload.id), None, unknown)
            if result is not None:
                self._ghost.sized(write, result.size, size)
            write.dead_at_s = anyio.current_time() + lives_s + 4 * self._skew_max_s if isinstance(expiration, TimeToLive) else inf
        return write.answer

    async def _appended(self, object_id: ObjectId, upload_id: str, label: str, size: int) -> bool:
        """Appends what is missing, beside whoever else does. False: it was not possible. True: all is there, or it has
        ended."""
        upload, whole, piece = self.storage.resumable(object_id, upload_id), content(label, size), -(-size // UPLOAD_PARTS)
        for _ in range(APPENDS_MAX):
            try:
                there = await upload.status()
                if there >= size:
                    return there == size
                kept = await upload.append(there, whole[there : there + piece], final=True)
                self._ghost.kept(object_id, kept, there + len(whole[there : there + piece]))
            except UploadEndedError:
                return True
            except OffsetMismatchError:
                await self.process.runtime.sleep(0.3)
            except (UnavailableError, ConfigurationError):  # a permission may be taken away for one call
                await self.process.runtime.sleep(1.0)
        return False

    async def complete_otherwise(self, call: OpenCall) -> None:
        """Completes somebody's upload with parts that never were. Nobody may be told that this is the object."""
        upload = self.storage.multipart(ObjectId.parse(call.path), ChangeId(call.id))
        parts = [Part(**each) for each in call.parts] or [Part(1, call.appends[1] if call.appends else 1, None, "x")]
        forged = [replace(parts[0], etag="of somebody else"), *parts[1:]]
        with acts(call.write):
            try:
                result = await upload.complete(forged)
            except (
                UploadEndedError, ConditionFailedError, UnavailableError, ConfigurationError, InvalidRequestError, OutcomeUnknownError,
            ):  # fmt: skip
                return
            except CorruptRecordError as error:
                if "newer software wrote it" not in str(error):
                    raise
                return
        if self.process.alive:
            self._ghost.forged(call.write, result.size)

    async def _completed(
        self, upload: MultipartUpload, parts: Sequence[Part] | None, unknown: OutcomeUnknownError
    ) -> PutResult | None:
        """Completes it, and tries again. None: it was completed. Raises what becomes an answer that stays true."""
        for _ in range(COMPLETIONS_MAX):
            try:
                return await upload.complete(parts)
            except UploadEndedError as error:
                if error.completed is None:
                    raise OutcomeUnknownError(upload.object_id, upload.id, settled=True) from error
                if error.completed:
                    return None
                raise UnavailableError("it has ended") from error
            except ConditionFailedError:
                try:
                    await upload.abort()  # somebody else might complete it later
                except UploadEndedError:
                    return None
                except (UnavailableError, OutcomeUnknownError) as error:
                    raise unknown from error
                raise
            except InvalidRequestError:  # a part arrived once more, late
                if parts is None:
                    raise unknown from None
                with suppress(UnavailableError, UploadEndedError, InvalidRequestError):
                    parts = await upload.parts()
            except (UnavailableError, OutcomeUnknownError):
                await self.process.runtime.sleep(1.0)
        raise unknown

    async def end_upload(self, call: OpenCall, *, completes: bool, lists: bool) -> None:
        """Completes or aborts somebody's upload. `lists`: completes it with the list of its parts."""
        upload = self.storage.multipart(ObjectId.parse(call.path), ChangeId(call.id))
        told: tuple[str, bool] | None = None
        with acts(call.write):
            try:
                if completes and call.appends is not None:
                    if not await self._appended(upload.object_id, upload.id, *call.appends):
                        return
                    await self.storage.resumable(upload.object_id, upload.id).finish()
                elif completes:
                    await upload.complete([Part(**each) for each in call.parts] if lists else None)
                else:
                    await upload.abort()
                told = "ok" if completes else "aborted", completes
            except UploadEndedError as error:
                told = None if error.completed is None else (str(error), error.completed)
            except ConditionFailedError as error:
                told = str(error), False
            except (UnavailableError, InvalidRequestError, OutcomeUnknownError):
                pass
            except CorruptRecordError as error:
                if "newer software wrote it" not in str(error):
                    raise  # newer software left its upload open, and completes it
        if told is not None and self.process.alive:
            self._ghost.ended(call.write, told[0], completed=told[1])

    async def delete(self, object_id: ObjectId, over: Over | None = None) -> WriteAnswer:
        async with self._write(object_id, None, over=over) as write:
            with self._timed("delete"):
                await self.storage.delete(object_id, **_arguments(over))
        return write.answer

    async def copy(self, name: str, source: ObjectId, target: ObjectId, over: Over | None = None) -> WriteAnswer:
        """Copies an object. `name`: of this write. `over`: only over this."""
        call = Rewrite(name, _need(over), kept)
        return await self._rewrite(call, lambda: self.storage.copy(source, target, **_arguments(over)), "copy", 1)

    async def rename(self, name: str, source: ObjectId, target: ObjectId, over: Over | None = None) -> WriteAnswer:
        """Renames an object. `name`: of the copy. `over`: only over this."""
        call = Rewrite(name, _need(over), kept, deletes=True)
        return await self._rewrite(call, lambda: self.storage.rename(source, target, **_arguments(over)), "rename", 2)

    async def update_metadata(
        self, name: str, object_id: ObjectId, over: Over | None = None, *, expiration: Expiration = None, takes_s: float = 0.0
    ) -> WriteAnswer:
        """Notes its name in the metadata. `expiration`: the new one; None: as it was. `takes_s`: how long the function
        takes.
        """

        async def change(metadata: Metadata) -> Metadata:
            await self.process.runtime.sleep(takes_s)
            return replace(
                metadata, custom={**metadata.custom, EDIT: name}, expiration=metadata.expiration if expiration is None else expiration
            )

        def lives(found: RegisterWrite, metadata: Metadata) -> Lives:
            after = metadata.expiration if expiration is None else expiration
            if after is None or (after == metadata.expiration and not isinstance(after, TimeToIdle)):
                return kept(found, metadata)
            mortal_at_s, dead_at_s = self._lives(after.ns / 1e9)
            return mortal_at_s, dead_at_s if isinstance(after, TimeToLive) else inf

        call = Rewrite(name, _need(over), lives, edit=name, changes=True)
        return await self._rewrite(
            call, lambda: self.storage.update_metadata(object_id, change, **_arguments(over)), "change of metadata", None
        )

    async def set_expiry(
        self, name: str, object_id: ObjectId, over: Over | None = None, *, lives_s: float | None = None, of_creation: bool = False,
        extend_only: bool = False,
    ) -> WriteAnswer:
        """Sets when the object expires: `lives_s` from now, or from its creation; None: never."""
        at = None if lives_s is None else datetime.fromtimestamp(self.process.runtime.wall_ns() // 10**9 + lives_s, UTC)
        arguments: dict[str, Any] = {"extend_only": extend_only}
        if lives_s is not None:
            arguments |= {"from_creation": timedelta(seconds=lives_s)} if of_creation else {"at": at}

        def lives(found: RegisterWrite, metadata: Metadata) -> Lives:
            if at is None or lives_s is None:
                return inf, inf
            created_ns = metadata.time_created_ns
            deadline_s = (created_ns or 0) / 1e9 + lives_s if of_creation else at.timestamp()
            mortal_at_s, dead_at_s = self._lives(deadline_s - self.process.runtime.wall_ns() / 1e9)
            return (max(found.mortal_at_s, mortal_at_s), max(found.dead_at_s, dead_at_s)) if extend_only else (mortal_at_s, dead_at_s)

        call = Rewrite(name, _need(over), lives, changes=True)
        return await self._rewrite(
            call, lambda: self.storage.set_expiry(object_id, **arguments, **_arguments(over)), "change of expiry", None
        )

    def _lives(self, seconds: float) -> Lives:
        """Returns the lives of what expires so much later by the clock of this process."""
        now_s, apart_s = anyio.current_time(), 2 * self._skew_max_s
        return now_s + seconds - apart_s - CLOCK_STEP_S, now_s + seconds + apart_s + CLOCK_STEP_S

    async def _rewrite(
        self, call: Rewrite, do: Callable[[], Awaitable[PutResult | None]], what: str, budgets: int | None
    ) -> WriteAnswer:
        """`budgets`: how many operations it consists of; None: it may begin again and again."""
        call.began_s, answer = anyio.current_time(), WriteAnswer.OK
        token, unknown = rewriting.set(call), None
        try:
            with self._timed(what, (ANSWERED_WITHIN_S + COPIED_WITHIN_S) * budgets if budgets else inf):
                result = await do()
            if self.process.alive:
                self._ghost.answered(f"the {what} {call.name} returned {result}", is_true=call.is_told(result, self._history))
            answer = WriteAnswer.NO if result is None else WriteAnswer.OK
        except (UnavailableError, InvalidRequestError):
            answer = WriteAnswer.NO
        except ConditionFailedError as error:
            answer = WriteAnswer.FAILED
            if self.process.alive:
                self._ghost.answered(f"the {what} {call.name} raised: {error}", is_true=call.may_fail(error))
        except OutcomeUnknownError as error:
            unknown = error
            if self.process.alive:
                is_open = self._history.revisions.get(error.change_id) is call.open
                self._ghost.answered(f"the {what} {call.name} raised: {error}", is_true=is_open)
        except anyio.get_cancelled_exc_class():
            self._cancelled += [call.open] if call.open is not None else []
            raise
        finally:
            rewriting.reset(token)
        if call.open is not None:
            self._answered(call.open, answer, unknown)
        return answer

    async def seen(self, object_id: ObjectId) -> Over | None:
        """Looks at the object, for a write over what is there. None: there is no answer, or it has no revision."""
        over: Over | None = None
        with self._read(object_id) as read:
            found = await self.storage.head(object_id)
            read.found = self._found(found)
            if found is None:
                over = NOTHING
            elif found.revision is not None:
                over = Over(read.found, {"if_revision": found.revision})
        return over

    async def get(self, object_id: ObjectId, pause_s: float = 0.0) -> str | None:
        """Reads an object `pause_s` after it was opened. Returns its value, or None if there is nothing or no answer.
        """
        with self._read(object_id) as read:
            with self._timed("get"):
                stored = await self.storage.get(object_id)
            if stored is not None:
                async with stored:
                    if pause_s:
                        # The content must be that of the opening, whatever is written while it is read.
                        await self.process.runtime.sleep(pause_s)
                    read.found = self._found(stored.head, await stored.read())
        return read.found if isinstance(read.found, str) else None

    async def head(self, object_id: ObjectId) -> str | None:
        """Returns the value of the object, or None if there is nothing or no answer."""
        with self._read(object_id) as read:
            with self._timed("head"):
                found = await self.storage.head(object_id)
            read.found = self._found(found)
        return read.found if isinstance(read.found, str) else None

    async def list(self, *, metadata: bool) -> None:
        """Lists objects, and lets the ghost judge what is in the list and what is not."""
        began, began_s = self._history.tick(), anyio.current_time()
        try:
            found = {entry.object_id.path: entry async for entry in self.storage.list(metadata=metadata)}
        except (UnavailableError, InvalidRequestError):
            return
        if self.process.alive:
            self._ghost.listed(began, set(found), began_s)
            for path, entry in found.items():
                if entry.fault is not None:
                    raise CorruptRecordError(f"{path} was listed with a fault: {entry.fault}")
                if entry.metadata is not None:
                    self._ghost.showed(path, self._history.value(path, entry.revision, shown(entry.metadata)), began)

    async def put_many(self, object_ids: Sequence[ObjectId], label: str, size: int) -> None:
        """Puts to each of these objects. Each write's label ends with its position."""
        writes: dict[int, RegisterWrite] = {}
        begun: list[RegisterWrite] = []

        async def requests() -> AsyncIterator[PutRequest]:
            for position, object_id in enumerate(object_ids):
                writes[position] = write = self._history.begin_write(object_id.path, f"{label}.{position}")
                begun.append(write)
                acting.set(write)  # set in the task that begins the writes one after the other; each write's tasks inherit it
                yield PutRequest(object_id, content(f"{label}.{position}", size), Metadata(custom={LABEL: f"{label}.{position}"}))

        await self._many(self.storage.put_many(requests()), writes)
        for earlier, later in combinations([write for write in begun if write.answer is WriteAnswer.OK], 2):
            if earlier.path == later.path:
                self._ghost.ordered(earlier, later)

    async def delete_many(self, object_ids: Sequence[ObjectId]) -> None:
        writes: dict[int, RegisterWrite] = {}

        async def requests() -> AsyncIterator[ObjectId]:
            for position, object_id in enumerate(object_ids):
                writes[position] = write = self._history.begin_write(object_id.path, None)
                acting.set(write)
                yield object_id

        await self._many(self.storage.delete_many(requests()), writes)

    async def get_many(self, object_ids: Sequence[ObjectId]) -> None:
        reads = [self._history.begin_read(object_id.path) for object_id in object_ids]
        async with self.storage.get_many(object_ids) as results:
            async for result in results:
                if result.error is None and self.process.alive:
                    loaded = result.value
                    found = None if loaded is None else self._found(loaded.head, loaded.payload)
                    self._end_read(reads[result.position], found)
                elif not isinstance(result.error, (UnavailableError, InvalidRequestError, type(None))):
                    raise result.error

    async def _many(self, bulk: Bulk[Any, Any], writes: dict[int, RegisterWrite]) -> None:
        """Reads the results.

        What was begun but not answered when the caller was cancelled stays unknown until the store has closed.
        """
        try:
            async with bulk as results:
                async for result in results:
                    write, error = writes.pop(result.position), result.error
                    unknown = error if isinstance(error, OutcomeUnknownError) else None
                    if error is not None and unknown is None and not isinstance(error, (UnavailableError, InvalidRequestError)):
                        raise error
                    self._answered(write, WriteAnswer.OK if error is None else WriteAnswer.NO, unknown)
        finally:
            self._cancelled += writes.values()

    async def ask(self) -> None:
        """Asks for the outcome of the writes that this caller does not know."""
        asked, self.unknown = self.unknown, []
        for write, error in asked:
            try:
                outcome = await self.storage.outcome(error)
            except (UnavailableError, OutcomeUnknownError, InvalidRequestError):
                outcome = Outcome.PENDING
            if not self.process.alive or outcome is Outcome.PENDING:
                self.unknown.append((write, error))
                continue
            answers = {
                Outcome.TOOK_EFFECT: WriteAnswer.OK,
                Outcome.NO_EFFECT: WriteAnswer.NO,
                Outcome.UNKNOWABLE: WriteAnswer.OVER,
            }
            self._end(write, answers[outcome], outcome)

    def note_end(self) -> None:
        """Notes that the store has closed and left nothing behind.

        A cancelled write has then had its effect, or never will.

        There are two exceptions. If a settle of the row was not answered, an inline write may still arrive. And an
        upload in parts stays open, so somebody else may complete it. Nobody was told otherwise.
        """
        if all(point in self.process.link.answered for point in self.process.link.points if point.startswith("rows.settle")):
            for write in self._cancelled:
                if not any(write is each for each in self._stay_open):
                    self._end(write, WriteAnswer.OVER)

    @asynccontextmanager
    async def _write(
        self, object_id: ObjectId, label: str | None, mortal_at_s: float = inf, over: Over | None = None
    ) -> AsyncIterator[RegisterWrite]:
        write = self._history.begin_write(object_id.path, label, mortal_at_s, _need(over), anyio.current_time())
        answer = WriteAnswer.OK
        unknown: OutcomeUnknownError | None = None
        try:
            with acts(write):
                yield write
        except (UnavailableError, InvalidRequestError, UploadEndedError, BrokenPayload):
            answer = WriteAnswer.NO
        except ConditionFailedError:
            answer = WriteAnswer.FAILED
        except OutcomeUnknownError as error:
            unknown = error
        except anyio.get_cancelled_exc_class():
            self._cancelled.append(write)
            raise
        self._answered(write, answer, unknown)

    @contextmanager
    def _timed(self, what: str, within_s: float = ANSWERED_WITHIN_S) -> Iterator[None]:
        """Checks that the operation ends within its budgets, however it ends, if its process did not stand still."""
        began_s = anyio.current_time()
        try:
            yield
        finally:
            if self.process.alive and not self.process.stopped_until:
                self._ghost.lasted(what, anyio.current_time() - began_s, within_s)

    @contextmanager
    def _read(self, object_id: ObjectId) -> Iterator[Read]:
        """Records a read. A read that fails has found nothing out."""
        read = self._history.begin_read(object_id.path)
        read.began_s = anyio.current_time()
        try:
            yield read
        except (UnavailableError, InvalidRequestError):
            return
        if self.process.alive:
            self._end_read(read, read.found)

    def _found(self, head: ObjectHead | None, payload: bytes | None = None) -> object:
        """Returns the value of the write that a read has found. `payload` None: it was not read."""
        if head is None:
            return None
        if payload is not None and payload != content(label := head.metadata.custom.get(LABEL, ""), len(payload)):
            return f"metadata of {label!r} with payload {payload[:40]!r}"
        return self._history.value(head.object_id.path, head.revision, shown(head.metadata))

    def _end_read(self, read: Read, found: object) -> None:
        self._history.end_read(read, found, anyio.current_time())
        self._ghost.found(read)

    def _answered(self, write: RegisterWrite, answer: WriteAnswer, unknown: OutcomeUnknownError | None) -> None:
        """Records the answer to a write. If the process is dead, nobody heard the answer."""
        if not self.process.alive:
            return
        if unknown is not None:
            answer = WriteAnswer.OVER if unknown.settled else WriteAnswer.UNKNOWN
            self.unknown.append((write, unknown))
        self._end(write, answer)

    def _end(self, write: RegisterWrite, answer: WriteAnswer, outcome: Outcome | None = None) -> None:
        self._history.end_write(write, answer, anyio.current_time())
        self._ghost.told(write, outcome)


def content(label: str, size: int) -> bytes:
    """Returns `size` bytes that repeat the label."""
    word = f"{label} ".encode()
    return (word * (size // len(word) + 1))[:size]


def _need(over: Over | None) -> Need | None:
    return None if over is None else Need(over.value)


def _arguments(over: Over | None) -> dict[str, Any]:
    return {} if over is None else over.arguments
