"""An upload that goes up in lanes: parts of one blob, several at once, from one stream of chunks.

    write -> [the part that is gathered] -> a lane: the part's PUT, in a task of the adapter's own, again if it fails
                                            …up to `UploadLanes.count` parts, the one that is gathered among them
    finalise: the last part -> all lanes have ended -> the completion -> the blob is compared with what was written

One stream is as fast as one connection: a window of bytes for each round trip. So large blobs go up in several. A lane
holds its part until the service has it, so an upload holds `UploadLanes.count` parts at most, and all uploads in lanes
together `UploadLanes.memory_bytes`; one more goes up as a single stream. Chunks that cannot change are not copied. The
checksum of a part is made while its chunks come, and that of the whole is joined from those.

Only a name that ends with a revision goes up like this: a completion replaces, and such a name belongs to one change.
Metadata that no header carries are set by one more request, a PATCH, after the blob and before `finalise` returns.
Nothing is visible before `finalise` (I1, I4). The session is cancelled by `abort` and by recovery (I3), and by the
bucket's rule if nobody knows it. *Failure*: `write` or `finalise` raises what a part failed with in the end, and
nothing is stored then: that is when no part was done for `Resuming.budget_s`. A completion that was not confirmed is
looked into by whoever takes the parts, and asked for again as long; else it is `UnconfirmedError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from anyio import CancelScope, Event, get_cancelled_exc_class
from anyio.abc import TaskGroup

from changelog.base.errors import TieredError, UnavailableError, UnconfirmedError
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk, unchanging
from tiered.payload.crc32c import extend_crc
from tiered.services.capabilities import PART_NUMBER_MAX, Part
from tiered.transfer.counted import CountedUpload, cancel_soon
from tiered.transfer.parts import BucketParts
from tiered.transfer.resuming import Resuming

T = TypeVar("T")
Told = TypeVar("Told")
"""What the service tells of a blob."""

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class UploadLanes:
    """When a blob goes up in lanes: if it is larger than `from_bytes`. `count` 1: none does.

    `part_bytes`: of each part, or more if the blob would have too many. `memory_bytes`: what the parts of all uploads
    that are under way may take together.
    """

    count: int = 8
    from_bytes: int = 64 * MIB
    part_bytes: int = 6 * MIB
    memory_bytes: int = 512 * MIB

    def part_of(self, size: int | None) -> int:
        """How many bytes the parts of a blob of `size` bytes have, in whole MiB if they are larger than usual."""
        least = -(-(size or 0) // PART_NUMBER_MAX)
        return self.part_bytes if least <= self.part_bytes else -(-least // MIB) * MIB

    def memory_of(self, size: int | None) -> int:
        """How many bytes the lanes of such a blob hold at most."""
        return self.count * self.part_of(size)


class LaneUpload(CountedUpload, Generic[Told]):
    """`Upload`. `settle` looks at what is stored, or amends it. `held`: how many bytes `Resuming.begin` took for it.

    `before_end`: called with what `amend` brought, or with None, before the completion. `creates_only`: the completion
    itself refuses to replace a blob, so nobody looks for one first.
    """

    def __init__(
        self, parts: BucketParts[Told], tasks: TaskGroup, resuming: Resuming, lanes: UploadLanes, name: str, declared: int | None,
        session: str, settle: Callable[[Told, Metadata | None], Awaitable[None]], held: int,
        before_end: Callable[[Metadata | None], Awaitable[None]] | None = None, creates_only: bool = False,
    ) -> None:
        super().__init__(name, declared)
        self.session: str | None = session
        self._open_session = session
        self._parts = parts
        self._tasks = tasks
        self._resuming = resuming
        self._count_max = lanes.count
        self._part_bytes = lanes.part_of(declared)
        self._settle = settle
        self._held = held
        self._before_end = before_end
        self._creates_only = creates_only
        self._gathered = _Gathered(1)
        self._done: dict[int, Part] = {}
        self._under_way: set[CancelScope] = set()
        self._changed = Event()
        self._failure: Exception | None = None
        self._stored = False

    async def write(self, chunk: Chunk) -> None:
        """Takes one chunk, and waits for a lane. After an error or a cancellation the upload has ended."""
        rest = memoryview(unchanging(chunk))
        self._count(len(rest))
        while rest:
            part_bytes = self._part_bytes_of(self._gathered.number)
            if self._gathered.size == part_bytes:
                self._send(self._gathered)
                self._gathered = _Gathered(self._gathered.number + 1)
            if not self._gathered.chunks:
                await self._wait_until(lambda: len(self._under_way) < self._count_max)
            rest = self._gathered.add(rest, part_bytes)

    async def finalise(self) -> None:
        """Sends the last part, and makes the blob visible. It must not be there."""
        self._count_all()
        self._send(self._gathered)
        self._gathered = _Gathered(0)
        try:
            if not self._creates_only and await self._patiently(lambda: self._parts.look(self._name), lambda error: False) is not None:
                raise self._end(UnavailableError(f"blob {self._name!r} exists already, and nothing is overwritten").telling(heard=True))
            await self._wait_until(lambda: not self._under_way)
            if (before_end := self._before_end) is not None:
                await self._patiently(lambda: before_end(self._amended), lambda error: False)
            self._ended = True
            parts = [self._done[number] for number in sorted(self._done)]
            told = await self._complete(parts)
            await self._settle(told, self._amended)
            self._stored = True
        finally:
            self._end()

    async def abort(self) -> None:
        """Drops the parts. The session is cancelled in the background."""
        if not self._stored:
            self._end()
            cancel_soon(self._tasks, self._parts.cancel, self._open_session)

    # --- lanes

    def _part_bytes_of(self, number: int) -> int:
        """Of a stream that may have any size, the second half of the parts are twice as large."""
        is_late = self._declared is None and number > PART_NUMBER_MAX // 2
        return self._part_bytes * (2 if is_late else 1)

    def _send(self, part: _Gathered) -> None:
        scope = CancelScope()
        self._under_way.add(scope)
        try:
            self._tasks.start_soon(self._run, part, scope)
        except RuntimeError:  # the adapter is closed
            raise self._end(self._closed()) from None

    async def _run(self, part: _Gathered, scope: CancelScope) -> None:
        failure: Exception | None = self._closed()
        try:
            with scope:
                self._done[part.number] = await self._put(part)
                failure = None
        except Exception as error:  # noqa: BLE001 - raised where the caller waits for it
            failure = error
        finally:
            self._under_way.discard(scope)
            if failure is not None and not scope.cancel_called:
                self._failure = self._failure or failure
            self._changed.set()

    async def _put(self, part: _Gathered) -> Part:
        """Uploads a part, and again as long as any part of the upload makes progress."""
        return await self._patiently(
            lambda: self._parts.send(self._name, self._open_session, part.number, part.chunks, part.size, part.crc),
            lambda error: error.code == "404" and isinstance(error, UnavailableError),
            part.number,
        )

    async def _patiently(self, call: Callable[[], Awaitable[T]], is_over: Callable[[TieredError], bool], part: int | None = None) -> T:
        try:
            return await self._resuming.try_on(call, is_over, lambda: len(self._done), part)
        except (UnavailableError, UnconfirmedError) as error:
            done = sum(part.size for part in self._done.values())
            how_far = f"{error}; the service has {done} bytes of {self._declared}"
            raise type(error)(how_far).like(error) from None

    async def _complete(self, parts: Sequence[Part]) -> Told:
        """Makes the blob, and asks again if nobody confirms it. What was not confirmed may have been done."""
        unclear: UnconfirmedError | None = None

        async def once() -> Told:
            nonlocal unclear
            try:
                return await self._parts.complete(self._name, self._open_session, parts)
            except UnconfirmedError as error:
                unclear = error
                raise
            except TieredError as error:
                if unclear is None or _is_over(error):
                    raise
                raise unclear from None

        return await self._patiently(once, _is_over)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Raises if a part has failed, or if the caller is cancelled: then the upload has ended."""
        try:
            while self._failure is None and not condition():
                self._changed = Event()
                await self._changed.wait()
        except get_cancelled_exc_class():
            self._end()
            raise
        if self._failure is not None:
            raise self._end(self._refused(self._failure))

    # --- beside

    def _failed(self) -> Exception | None:
        return None if self._failure is None else self._refused(self._failure)

    def _refused(self, failure: Exception) -> Exception:
        """Whatever became of the part: nothing is stored, because nobody completes the blob."""
        if isinstance(failure, UnconfirmedError):
            return UnavailableError(f"{self._doing} was given up: {failure}").like(failure)
        return failure

    def _end(self, error: Exception | None = None) -> Exception:
        for scope in self._under_way:
            scope.cancel()
        self._gathered = _Gathered(0)
        held, self._held = self._held, 0
        self._resuming.hold(-held)
        return super()._end(error)


class _Gathered:
    """The chunks of a part, and their checksum."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.chunks: list[memoryview] = []
        self.size = 0
        self.crc = 0

    def add(self, chunk: memoryview, bytes_max: int) -> memoryview:
        """Takes what fits. Returns the rest."""
        taken = chunk[: bytes_max - self.size]
        self.chunks.append(taken)
        self.size += len(taken)
        self.crc = extend_crc(self.crc, taken)
        return chunk[len(taken) :]


def _is_over(error: TieredError) -> bool:
    """Whether a completion that failed has told what became of the blob."""
    return bool(error.heard) and error.code in ("", "404")
