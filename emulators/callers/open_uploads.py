"""One upload in parts, or one that is appended to: its calls, one after the other, and what each must be told.

Nobody else knows the upload, so what it has and what became of it is known. The first call that finds no place, or a
store that is being closed, is the last. What stays open is aborted at the end of the episode.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from emulators.callers.ended import Ended, described
from emulators.callers.episode_recipe import CallerStep, CallKind
from emulators.callers.model import ModelWrite, WriteCertainty
from emulators.callers.payloads import Made
from emulators.callers.values import Is
from emulators.callers.verdict import Violation
from emulators.world.by_link import put_by_link
from tiered import (
    AtCapacityError,
    ConditionFailedError,
    ConfigurationError,
    InvalidRequestError,
    OffsetMismatchError,
    Part,
    PutResult,
    ResumableUpload,
    TieredError,
    UnavailableError,
    UploadEndedError,
)

if TYPE_CHECKING:
    from emulators.callers.episode import Episode

AT_ONCE = ("abort beside", "two at once")
"""Calls that are in each other's way."""


class _LastCallError(Exception):
    """What the upload has is not known any more."""


class UploadCalls:
    """`logged`: a changelog keeps open uploads."""

    def __init__(self, host: Episode, step: CallerStep, made: dict[str, Any], verdict: Is, *, logged: bool) -> None:
        assert step.payload is not None, "drawn"
        self._host = host
        self._step = step
        self._id = made["id"]
        self._metadata = made["metadata"]
        self._condition = made.get("condition", {})
        self._verdict = verdict
        self._logged = logged
        self._random = step.payload.random()
        self._size_max = step.payload.size
        self._parts: dict[int, tuple[Part, bytes]] = {}
        self._appended: bytes | None = None
        self._had_two = False
        self._spoilt = Is.GOOD
        self._ended: bool | None = None
        """As `UploadEndedError.completed`; None: it is open."""
        self._result: PutResult | None = None
        self._list: Sequence[Part] = ()

    async def run(self) -> None:
        ended = await self._host.call(self._step, self._calls())
        if ended.error is not None:
            self._host.oracle.judge_error(ended, Is.GOOD)

    async def _calls(self) -> None:
        storage, is_resumable = self._host.storage, self._step.call is CallKind.RESUMABLE
        begin: Callable[..., Awaitable[Any]] = storage.begin_resumable if is_resumable else storage.begin_multipart
        begun = await _end_of(begin(self._id, self._metadata, **self._condition))
        if begun.error is not None:
            if self._logged or not isinstance(begun.error, ConfigurationError):
                self._host.oracle.judge_error(begun, self._verdict, writes=True)
            return
        if self._verdict is Is.WRONG or not self._logged:
            raise Violation("taken", f"an upload was begun that must be refused, and it {described(begun)}")
        self._upload: Any = begun.value
        with suppress(_LastCallError):
            for name in self._step.manner.split(", "):
                try:
                    await self._call(name)
                except Violation as found:
                    raise Violation(found.kind, f"{name}: {found.finding}") from found.__cause__
                self._host.trace.append(f"    {name}: {'open' if self._ended is None else 'completed' if self._ended else 'aborted'}")

    async def _call(self, name: str) -> None:
        upload = self._upload
        match name:
            case "part" | "part by link":
                number, piece = self._random.randint(1, 3), self._piece()
                if isinstance(upload, ResumableUpload):
                    if self._appended is None:
                        return
                    number, piece, upload = 1, piece + b"other", self._host.storage.multipart(self._id, upload.id)
                    self._spoilt = Is.ODD if self._had_two else Is.WRONG  # of two, one may have left that number out
                part = await self._told(self._by_link(number, piece) if "link" in name else upload.upload_part(number, piece))
                if isinstance(part, Part):
                    self._parts[number] = part, piece
            case "append":
                piece, there = self._piece(), self._appended or b""
                if (kept := await self._told(upload.append(len(there), piece, final=True))) == len(there + piece):
                    self._appended = there + piece
                elif not isinstance(kept, TieredError):
                    raise Violation("wrong answer", f"{len(piece)} bytes were appended to {len(there)}, and it has {kept}")
            case "append elsewhere":
                there = self._appended or b""
                offset = self._random.choice([each for each in (0, len(there) - 1, len(there) + 1, 10**12) if each >= 0 and each != len(there)])
                error = await self._told(upload.append(offset, b"elsewhere", final=True), OffsetMismatchError)
                if isinstance(error, OffsetMismatchError) and error.offset != len(there):
                    raise Violation("wrong answer", f"it has {len(there)} bytes, and was told {error!r}")
            case "two at once":
                await self._append_two()
            case "another part_bytes":
                if self._appended is not None:
                    await self._told(upload.append(len(self._appended), b"other", final=True, part_bytes=6 << 20), InvalidRequestError)
            case "status":
                if (kept := await self._told(upload.status())) != len(self._appended or b"") and not isinstance(kept, TieredError):
                    raise Violation("wrong answer", f"it has {len(self._appended or b'')} bytes, and was told {kept}")
            case "overwrite":
                made = Made(None, self._piece())
                write = self._host.oracle.begin(self._id, None, made)
                self._host.oracle.judge_write(write, await _end_of(self._host.storage.put(self._id, made.content or b"")), Is.GOOD, made, self._id)
            case "abort":
                await self._told(self._abort(), again=self._ended is False)
                self._ended = self._ended or False
            case "abort beside" if self._ended is None:
                await self._abort_beside()
            case _:
                await self._complete(name)

    def _piece(self) -> bytes:
        return self._random.randbytes(self._random.randint(0, self._size_max))

    async def _by_link(self, number: int, piece: bytes) -> Part:
        url = await self._upload.sign_part(number, timedelta(days=1), size_max=self._random.choice((None, len(piece))))
        try:
            await put_by_link(self._host.storage, url, piece)
        except UnavailableError as error:  # a status does not say why
            raise AtCapacityError(str(error)) from error
        for part in await self._upload.parts():
            if part.number == number:
                return part  # type: ignore[no-any-return]
        raise Violation("wrong answer", f"part {number} was taken by a link, and is not there")

    async def _append_two(self) -> None:
        there, pieces = self._appended or b"", [self._piece() + b"1", self._piece() + b"2"]
        if self._ended is not None:
            await self._told(self._upload.append(len(there), pieces[0], final=True))
            return
        self._had_two = True
        ends = await _both(*(partial(self._upload.append, len(there), piece, final=True) for piece in pieces))
        for end in ends:
            if not isinstance(end.error, (OffsetMismatchError, type(None))):
                self._host.oracle.judge_error(end, Is.GOOD, writes=True)
                raise _LastCallError
        won = [there + piece for piece, end in zip(pieces, ends, strict=True) if end.error is None]
        if len(won) != 1 or [end.value for end in ends if end.error is None] != [len(won[0])]:
            raise Violation("wrong answer", f"two appended at once: it {' and '.join(map(described, ends))}")
        self._appended = won[0]

    # --- its end ---------------------------------------------------------------------------------

    def _abort(self) -> Awaitable[None]:
        return self._upload.cancel() if isinstance(self._upload, ResumableUpload) else self._upload.abort()

    def _completion(self, parts: Sequence[Part] | None) -> Awaitable[PutResult]:
        return self._upload.finish() if isinstance(self._upload, ResumableUpload) else self._upload.complete(parts)

    async def _complete(self, name: str) -> None:
        numbers = sorted(self._parts)[: -1 if name == "a shorter list" and len(self._parts) > 1 else None]
        parts: list[Part] | None = [self._parts[number][0] for number in numbers] or None
        if name == "no list":
            parts = None
        elif name == "a changed list":
            forged = Part(7, 999_999, None, "forged")
            parts = [replace(parts[0], etag="of somebody else"), *parts[1:]] if parts and self._random.random() < 0.7 else [forged]
        completion = self._completion(parts)
        if self._ended is not None:
            wanted = None if parts in (None, self._list) else InvalidRequestError
            if (told := await self._told(completion, wanted, again=self._ended)) != self._result and not isinstance(told, TieredError):
                raise Violation("wrong answer", f"it was completed as {self._result}, and was told {told}")
            return
        write, made, verdict = self._begin(numbers, is_wrong=name == "a changed list")
        end = await _end_of(completion)
        self._judge(write, end, verdict, made)
        if end.error is None:
            self._ended, self._result, self._list = True, end.value, parts or [self._parts[number][0] for number in numbers]

    def _begin(self, numbers: Sequence[int], *, is_wrong: bool = False) -> tuple[ModelWrite | None, Made, Is]:
        """The write of a completion, and its verdict."""
        content = self._appended
        if self._step.call is CallKind.MULTIPART and numbers:
            content = b"".join(self._parts[number][1] for number in numbers)
        made, is_wrong = Made(None, content), is_wrong or content is None
        return self._host.oracle.begin(self._id, self._metadata, made), made, Is.WRONG if is_wrong else self._spoilt

    def _judge(self, write: ModelWrite | None, end: Ended, verdict: Is, made: Made) -> None:
        self._host.oracle.judge_write(write, end, verdict, made, self._id, condition=self._condition)
        if not isinstance(end.error, (InvalidRequestError, ConditionFailedError, type(None))):
            raise _LastCallError

    async def _abort_beside(self) -> None:
        """Of both, one is told ok, and the other which one it was."""
        write, made, verdict = self._begin(sorted(self._parts))
        completed, aborted = await _both(partial(self._completion, None), self._abort)
        told = described(completed), described(aborted)
        if isinstance(aborted.error, UploadEndedError):
            if aborted.error.completed is not True or isinstance(completed.error, (UploadEndedError, ConditionFailedError, InvalidRequestError)):
                raise Violation("wrong answer", f"of two at once, the completion {told[0]}, and the abortion {told[1]}")
        elif completed.error is None and aborted.error is None:
            raise Violation("wrong answer", "it was completed, and aborted")
        elif aborted.error is not None:
            self._host.oracle.judge_error(aborted, Is.GOOD, writes=True)
        if isinstance(completed.error, UploadEndedError) and completed.error.completed is False and write is not None:
            self._host.oracle.model.end(write, WriteCertainty.NO)
        else:
            self._judge(write, completed, verdict, made)
        if completed.error is not None and aborted.error is not None:
            raise _LastCallError
        self._ended, self._result = completed.error is None, None if completed.error is not None else completed.value
        self._list = [part for _, (part, _) in sorted(self._parts.items())]

    # --- what it is told -------------------------------------------------------------------------

    async def _told(self, call: Awaitable[Any], wanted: type[TieredError] | None = None, *, again: bool = False) -> Any:
        """What a call returns, or its error, if that is `wanted`: None: it must not fail.

        If the upload has ended, that is wanted, unless the call may come `again`.
        """
        if self._ended is not None and not again:
            wanted = UploadEndedError
        end = await _end_of(call)
        if end.error is None:
            if wanted is not None:
                raise Violation("taken", f"{wanted.__name__} was to be told, and it {described(end)}")
            return end.value
        if self._ended is not None and type(end.error) is UnavailableError and not self._host.oracle.closed:
            raise Violation("refused", f"whether it was completed is {self._ended}, and it {described(end)}") from end.error
        if wanted is None or not isinstance(end.error, wanted):
            self._host.oracle.judge_error(end, Is.GOOD, writes=True)
            raise _LastCallError
        if isinstance(end.error, UploadEndedError) and end.error.completed is not self._ended:
            raise Violation("wrong answer", f"whether it was completed is {self._ended}, and it {described(end)}") from end.error
        return end.error


async def _end_of(call: Awaitable[Any]) -> Ended:
    try:
        return Ended(await call)
    except TieredError as error:
        return Ended(error=error)


async def _both(*calls: Callable[[], Awaitable[Any]]) -> Sequence[Ended]:
    ends = [Ended() for _ in calls]

    async def run(number: int, call: Callable[[], Awaitable[Any]]) -> None:
        ends[number] = await _end_of(call())

    async with anyio.create_task_group() as tasks:
        for number, call in enumerate(calls):
            tasks.start_soon(run, number, call)
    return ends
