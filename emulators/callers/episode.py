"""Carry out one seed: make its calls as the recipe says, and judge their answers.

    session     the store is opened, the calls of its steps are made, each in a task of its own, and it is closed
    ended       how a call ended: a value, an error, or its cancellation
    at the end  recovery runs; nothing is left behind; every object is what the model says, and can be written again

It raises `Violation`. A call that does not end within the ground's budget is a violation too. If the event loop itself
stops, the worker must notice.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
from anyio import to_thread

from changelog.change import ChangeId
from emulators.callers.ground import Ground
from emulators.callers.interrupt import ELSEWHERE, ForeignTask, How, Interrupt, Steps
from emulators.callers.model import Model, Seen, Told, Violation, Write
from emulators.callers.payloads import Made, OwnError, Payload
from emulators.callers.recipe import Call, Item, Recipe, Step
from emulators.callers.values import Is, Value, said
from emulators.simulation.leaks import held_by_store
from tiered import (
    AtCapacityError,
    ByteRange,
    ConfigurationError,
    InvalidRequestError,
    ItemResult,
    LeaseLostError,
    LoadedObject,
    Metadata,
    ObjectHead,
    ObjectId,
    Outcome,
    OutcomeUnknownError,
    PutRequest,
    PutResult,
    Settings,
    StoredObject,
    TieredError,
    TieredStorage,
    UnavailableError,
    load_settings,
    open_storage,
)

LATEST_S = 0.5
_NO_VALUE = object()


@dataclass(slots=True)
class Ended:
    """How a call ended. `asked`: we cancelled it, whether or not it noticed."""

    value: Any = _NO_VALUE
    error: BaseException | None = None
    asked: bool = False

    @property
    def cancelled(self) -> bool:
        return self.value is _NO_VALUE and self.error is None

    def __str__(self) -> str:
        return "cancelled" if self.cancelled else f"raised {self.error!r}" if self.error is not None else f"returned {said(self.value)}"


class Episode:
    """One seed that is carried out. `trace`: how the calls ended, in order."""

    def __init__(self, recipe: Recipe, ground: Ground) -> None:
        self.recipe = recipe
        self.trace: list[str] = []
        self.calls = 0
        self.loop_thread = threading.get_ident()
        self.directory = ground.directory
        self._ground = ground
        self._model = Model()
        self._random = Random(f"{recipe.seed}/episode")
        self._names = 0
        self._found: Violation | None = None
        self._unclosed: list[StoredObject] = []
        self._closed = False
        self._recovered = recipe.settings["changelog"] != "noop"
        self._abrupt = recipe.closing is not None or "drain_budget_s" in recipe.settings["store"]  # type: ignore[operator]
        troubles = any(step.beside or step.interrupt is not None or step.call is Call.CLOSE for step in recipe.steps)
        self._troubled = troubles or recipe.closing is not None or self._abrupt
        store: Any = recipe.settings["store"]
        self._tight = store["concurrency_max"] <= 2 or store["queue_max"] == 0
        self._storage: TieredStorage

    # --- sessions --------------------------------------------------------------------------------

    async def run(self) -> None:
        sessions: list[list[Step]] = [[]]
        for step in self.recipe.steps:
            if step.call is Call.REOPEN:
                sessions.append([])
            else:
                sessions[-1].append(step)
        for number, steps in enumerate(sessions):
            await self._session(steps, self.recipe.closing if number == len(sessions) - 1 else None)
        await self._look_around()

    async def _session(self, steps: list[Step], closing: Interrupt | None) -> None:
        stepper, reached = Steps(), False

        async def session() -> None:
            nonlocal reached
            async with self._ground.open(self.recipe.settings) as self._storage:
                self._closed = False
                await self._make_calls(steps)
                reached = True
                if closing is not None:
                    stepper.arm(self._moments(closing, scope))

        # The scope is outside of everything that may be cancelled, because scopes must be left in reverse order.
        scope = anyio.CancelScope()
        ended = await self._ended(session(), None, stepper, scope)
        self._closed = True
        self._raise_found()
        if not reached and ended.error is None:
            raise Violation("skipped", f"the block of the store was left before its end, and nothing was raised: {ended}")
        if ended.error is not None and not (closing is not None and isinstance(ended.error, TieredError)):
            raise Violation("raw error", f"the block of the store {_told(ended)}") from ended.error
        if ended.cancelled and closing is None:
            raise Violation("cancelled", "the block of the store was cancelled by nobody")
        for stored in self._unclosed:
            late = await self._ended(stored.read())
            if not isinstance(late.error, (InvalidRequestError, UnavailableError, type(None))):
                raise Violation("raw error", f"a stored object read after the store was closed {_told(late)}") from late.error
            await stored.aclose()
        self._unclosed.clear()

    async def _make_calls(self, steps: list[Step]) -> None:
        async with anyio.create_task_group() as tasks:
            pending: list[tuple[Step, anyio.Event]] = []
            for step in steps:
                done = anyio.Event()
                tasks.start_soon(self._take, step, done)
                pending.append((step, done))
                if not step.beside:
                    await self._wait(pending)
                if self._found is not None:
                    break
            await self._wait(pending)
            tasks.cancel_scope.cancel()
        if self._found is None and not self._closed:
            await self._wait_until_idle()

    async def _wait(self, pending: list[tuple[Step, anyio.Event]]) -> None:
        while pending:
            step, done = pending[0]
            with anyio.move_on_after(self._ground.budget_s):
                await done.wait()
            if not done.is_set():
                self._find(Violation("hang", f"{step} did not end within {self._ground.budget_s:g} s"))
                return
            pending.pop(0)

    async def _take(self, step: Step, done: anyio.Event) -> None:
        try:
            await self._perform(step)
        except Violation as found:
            self._find(Violation(found.kind, f"{step}\n    {found.finding}"), found.__cause__)
        done.set()

    def _find(self, found: Violation, cause: BaseException | None = None) -> None:
        if self._found is None:
            found.__cause__ = cause
            self._found = found

    def _raise_found(self) -> None:
        if self._found is not None:
            raise self._found

    async def _wait_until_idle(self) -> None:
        """Wait until the clean-up after the answers is done. The store must hold nothing then."""
        with anyio.move_on_after(self._ground.budget_s) as waiting:
            for admission in (self._storage._writes, self._storage._reads, self._storage._touches):
                await admission.wait_idle()
            held: list[str] = ["?"]
            for _ in range(100):
                if not (held := held_by_store(self._storage)):
                    return
                await anyio.sleep(0.01)
        what = "operations" if waiting.cancelled_caught else ", ".join(held)
        self._find(Violation("left behind", f"the store still holds {what} when all calls have ended"))

    async def _look_around(self) -> None:
        """Check what is left when all stores are closed. Recovery runs first."""
        checked = self._recovered or not self._abrupt
        left = await self._ground.left_behind(recovered=self._recovered)
        if left and checked:
            raise Violation("left behind", "; ".join(sorted(left)))
        self._model.settled()
        self._troubled = self._tight = False
        settings = {**self.recipe.settings, "store": {}}
        async with self._ground.open(settings) as self._storage:
            self._closed = False
            paths = sorted(self._model.writes)
            listed_from = self._model.tick()
            listed = [str(object_id) async for object_id in self._storage.list()]
            self._check_listed(listed, "", listed_from)
            for path in paths:
                try:
                    object_id = ObjectId.parse(path)
                    object_id.validate()
                except InvalidRequestError:
                    if any(write.content is not None and write.told is Told.OK for write in self._model.writes[path]):
                        raise
                    continue  # nothing was ever stored under this path
                await self._read_whole(object_id)
                await self._storage.put(object_id, b"anew")
                if (stored := await self._storage.get(object_id)) is None or await stored.read() != b"anew":
                    raise Violation("wrong answer", f"{path} was put anew, and reads as something else")
                await self._storage.delete(object_id)
        if checked and (left := await self._ground.left_behind(recovered=False)):
            raise Violation("left behind", "after everything was deleted: " + "; ".join(sorted(left)))

    # --- cancellation ----------------------------------------------------------------------------

    async def _ended(
        self, call: Awaitable[Any], interrupt: Interrupt | None = None, steps: Steps | None = None, scope: anyio.CancelScope | None = None
    ) -> Ended:
        """Run a call to its end. Cancel it if `interrupt` says so, and report how it ended."""
        self.calls += 1
        steps, scope, ended = steps or Steps(), scope or anyio.CancelScope(), Ended()
        task = _current_task()
        timer: asyncio.TimerHandle | None = None
        if interrupt is not None:
            ended.asked = True
            if interrupt.at is not None:
                steps.arm(self._moments(interrupt, scope))
            after_s = LATEST_S if interrupt.at is not None else interrupt.after_ms / 1000  # the call may end before that await
            if interrupt.how is How.SCOPE or task is None:
                scope.deadline = anyio.current_time() + after_s
            else:
                timer = asyncio.get_running_loop().call_later(after_s, task.cancel)
        try:
            with scope:
                ended.value = await steps.through(call)
        except anyio.get_cancelled_exc_class() as error:
            if task is None:
                raise
            if not task.cancelling():
                ended.error = error
        except BaseException as error:  # noqa: BLE001 - all of it is judged
            ended.error = error
        finally:
            if timer is not None:
                timer.cancel()
        if task is not None and task.cancelling():
            await self._take_back(task, ended)
        return ended

    async def _take_back(self, task: asyncio.Task[Any], ended: Ended) -> None:
        """Check that a cancelled task was told so, now or at its next await, and take the cancellation back."""
        pending = False
        for _ in range(2):  # a task that was cancelled twice may be told twice
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                pending = True
        while task.cancelling():
            task.uncancel()
        if not pending and ended.value is not _NO_VALUE:
            raise Violation("swallowed", f"its task was cancelled, and it {_told(ended)} as if nothing had happened")

    def _moments(self, interrupt: Interrupt, scope: anyio.CancelScope) -> dict[int, Callable[[], object]]:
        assert interrupt.at is not None or interrupt.how, "counted"
        at = interrupt.at or 1
        task = _current_task()
        if interrupt.how is How.SCOPE or task is None:
            return {at: scope.cancel}
        return {at: task.cancel} | ({at + 2: task.cancel} if interrupt.how is How.TASK_TWICE else {})

    # --- calls -----------------------------------------------------------------------------------

    async def _perform(self, step: Step) -> None:
        match step.call:
            case Call.PUT:
                await self._put(step)
            case Call.GET:
                await self._get(step)
            case Call.HEAD:
                await self._head(step)
            case Call.DELETE:
                await self._delete(step)
            case Call.LIST:
                await self._list(step)
            case Call.OUTCOME:
                await self._outcome(step)
            case Call.PUT_MANY | Call.GET_MANY | Call.DELETE_MANY:
                await self._bulk(step)
            case Call.CONSTRUCT:
                self._construct(step)
            case Call.SETTINGS:
                await self._settings(step)
            case Call.CLOSE:
                await self._close(step)
            case Call.ENTER_AGAIN:
                await self._enter_again(step)

    def _make(self, value: Value) -> Any:
        """Make a value. Raises `InvalidRequestError` if its constructor refused it, as it may."""
        try:
            return value.make()
        except InvalidRequestError as error:
            if value.verdict is Is.GOOD:
                raise Violation("refused", f"{value} is good, and was refused: {error}") from error
            raise
        except Exception as error:
            raise Violation("raw error", f"{value} raised {type(error).__name__}: {str(error)[:200]}") from error

    async def _put(self, step: Step) -> None:
        try:
            object_id, metadata = self._make(step.arguments["id"]), self._make(step.arguments["metadata"])
        except InvalidRequestError:
            return
        assert step.payload is not None, "drawn"
        made = await step.payload.make(self)
        verdict = step.arguments["id"].verdict & step.arguments["metadata"].verdict & made.verdict
        write = self._begin(object_id, metadata, made)
        ended = await self._ended(self._storage.put(object_id, made.payload, metadata), step.interrupt)
        self._note(step, ended)
        try:
            self._judge_write(write, ended, verdict, made, object_id, blocks=step.payload.blocks)
        finally:
            await self._afterwards(made)

    def _begin(self, object_id: object, metadata: object, made: Made) -> Write | None:
        """Begin a write in the model, if the call can take effect at all."""
        if not isinstance(object_id, ObjectId) or not isinstance(metadata, (Metadata, type(None))):
            return None
        content = b"" if made.content is None else made.content
        return self._model.begin(_path(object_id), content, metadata, known=made.content is not None)

    async def _afterwards(self, made: Made) -> None:
        if self.directory.exists():
            await to_thread.run_sync(made.afterwards, limiter=anyio.CapacityLimiter(1))
        else:
            made.afterwards()
        for shown in made.shows:
            kind, _, finding = shown.partition(": ")
            raise Violation(kind, finding)

    def _judge_write(
        self, write: Write | None, ended: Ended, verdict: Is, made: Made, object_id: object, *,
        blocks: bool = False, result: type = PutResult,
    ) -> None:
        error = ended.error
        own = error is not None and (any(error is each for each in made.own) or isinstance(error, made.may_raise))
        if ended.value is not _NO_VALUE:
            if verdict is Is.WRONG or made.fails or blocks:
                raise Violation("taken", f"it must not be taken, and {_told(ended)}")
            if not isinstance(ended.value, result):
                raise Violation("wrong answer", f"it {_told(ended)}")
            if write is None:
                raise Violation("taken", f"no object id, or no metadata, and it {_told(ended)}")
            self._check_own_row(object_id)
            if isinstance(ended.value, PutResult):
                if write.known and ended.value.size != len(write.content or b""):
                    raise Violation("wrong answer", f"of {len(write.content or b'')} bytes it {_told(ended)}")
                self._model.end(write, Told.OK, ended.value.revision)
            else:
                self._model.end(write, Told.OK)
            return
        told = Told.NO
        if ended.cancelled or isinstance(error, OutcomeUnknownError):
            told = Told.MAYBE
        if write is not None:
            self._model.end(write, told)
        if not ended.cancelled and not own:
            self._judge_error(ended, verdict, writes=True)

    def _judge_error(self, ended: Ended, verdict: Is, *, writes: bool = False) -> None:
        error = ended.error
        assert error is not None, "told"
        if isinstance(error, InvalidRequestError):
            if verdict is Is.GOOD and not self._closed:
                raise Violation("refused", f"a good call was refused: {error}") from error
            return
        if isinstance(error, LeaseLostError):
            raise Violation("wrong answer", f"nobody runs a recovery here: {error}") from error
        if isinstance(error, AtCapacityError) and (self._tight or self._troubled):
            return
        if self._troubled and isinstance(error, (UnavailableError, OutcomeUnknownError) if writes else UnavailableError):
            return
        kind = "refused" if isinstance(error, UnavailableError) else "corrupt" if isinstance(error, TieredError) else "raw error"
        if type(error).__name__ == "Stuck":
            kind = "hang"
        raise Violation(kind, _told(ended)) from error

    def _check_own_row(self, object_id: object) -> None:
        """Check that the call reached its own object's row and no other."""
        path = _path(object_id)
        with suppress(InvalidRequestError):
            if (parsed := ObjectId.parse(path)) == object_id:
                return
            raise Violation("another's row", f"{object_id!r} reached the row {path!r}, which is that of {parsed!r}")
        raise Violation("another's row", f"{object_id!r} reached the row {path!r}, which is no object's")

    async def _delete(self, step: Step) -> None:
        try:
            object_id = self._make(step.arguments["id"])
        except InvalidRequestError:
            return
        write = self._model.begin(_path(object_id), None, None) if isinstance(object_id, ObjectId) else None
        ended = await self._ended(self._storage.delete(object_id), step.interrupt)
        self._note(step, ended)
        self._judge_write(write, ended, step.arguments["id"].verdict, Made(None, None), object_id, result=type(None))

    async def _get(self, step: Step) -> None:
        try:
            object_id = self._make(step.arguments["id"])
            range = self._make(step.arguments["range"]) if "range" in step.arguments else None
        except InvalidRequestError:
            return
        verdict = step.arguments["id"].verdict & (Is.ODD if range is not None else Is.GOOD)
        seen: list[Seen] = []

        async def get() -> None:
            stored = await self._storage.get(object_id, range)
            self._check_own_row(object_id)
            if stored is None:
                seen.append(Seen(None, None, None))
                return
            self._unclosed.append(stored)  # it is closed later, however this call ends
            await self._use(stored, step.manner, seen)

        began = self._model.tick()
        ended = await self._ended(get(), step.interrupt)
        self._note(step, ended)
        if isinstance(ended.error, Violation):
            raise ended.error
        if seen:
            self._model.check(_path(object_id), seen[0], began, cut=lambda content: _within(content, range))
        if ended.error is not None:
            self._judge_error(ended, verdict)

    async def _use(self, stored: StoredObject, manner: str, seen: list[Seen]) -> None:
        def see(content: bytes | None) -> None:
            if content is not None or stored.metadata is not None:
                seen.append(Seen(content, stored.metadata, stored.revision, whole=content is not None))

        async def refused(use: Callable[[], Awaitable[object]]) -> None:
            try:
                await use()
            except InvalidRequestError:
                return
            raise Violation("taken", f"a stored object was used in a way that it must refuse: {manner}")

        repr(stored)
        match manner:
            case "read whole":
                see(await stored.read())
            case "read twice":
                see(await stored.read())
                await refused(stored.read)
            case "in pieces":
                see(b"".join([piece async for piece in stored]))
            case "left half-way":
                async for _ in stored:
                    break
                see(None)
                await stored.aclose()
            case "closed unread":
                await stored.aclose()
                see(None)
            case "never closed":
                see(None)
            case "closed twice":
                see(await stored.read())
                await stored.aclose()
                await stored.aclose()
            case "read after closing":
                await stored.aclose()
                await refused(stored.read)
            case "inside async with":
                async with stored:
                    see(await stored.read())
                await refused(stored.read)
            case _:
                read: list[bytes] = []
                others: list[BaseException] = []

                async def reader() -> None:
                    try:
                        read.append(await stored.read())
                    except InvalidRequestError as error:
                        others.append(error)

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(reader)
                    tasks.start_soon(reader)
                if len(read) != 1 or len(others) != 1:
                    raise Violation("taken", f"of two readers at once {len(read)} have read it")
                see(read[0])

    async def _read_whole(self, object_id: ObjectId) -> None:
        began = self._model.tick()
        stored = await self._storage.get(object_id)
        seen = Seen(None, None, None) if stored is None else Seen(await stored.read(), stored.metadata, stored.revision)
        self._model.check(object_id.path, seen, began)
        began = self._model.tick()
        head = await self._storage.head(object_id)
        self._model.check(object_id.path, _of_head(head), began)

    async def _head(self, step: Step) -> None:
        try:
            object_id = self._make(step.arguments["id"])
        except InvalidRequestError:
            return
        began = self._model.tick()
        ended = await self._ended(self._storage.head(object_id), step.interrupt)
        self._note(step, ended)
        if ended.error is not None:
            self._judge_error(ended, step.arguments["id"].verdict)
        elif not ended.cancelled:
            self._check_own_row(object_id)
            self._model.check(_path(object_id), _of_head(ended.value), began)

    async def _list(self, step: Step) -> None:
        prefix = self._make(step.arguments["prefix"])

        async def listed() -> list[str] | None:
            async with aclosing(self._storage.list(prefix)) as ids:  # type: ignore[type-var]
                if step.manner == "left half-way":
                    async for _ in ids:
                        break
                    return None
                return [str(object_id) async for object_id in ids]

        began = self._model.tick()
        ended = await self._ended(listed(), step.interrupt)
        self._note(step, ended)
        if ended.error is not None:
            self._judge_error(ended, step.arguments["prefix"].verdict)
        elif not ended.cancelled and ended.value is not None:
            self._check_listed(ended.value, prefix, began)

    def _check_listed(self, listed: list[str], prefix: str, began: int) -> None:
        if listed != sorted(set(listed), key=str.encode):
            raise Violation("wrong answer", f"a list is not in order: {listed}")
        for path in {*self._model.writes, *listed}:
            may, may_not = self._model.names(path, began)
            if path in listed and not (may and path.startswith(prefix)):
                raise Violation("wrong answer", f"{path!r} was listed under {prefix!r}")
            if path not in listed and path.startswith(prefix) and not may_not:
                raise Violation("wrong answer", f"{path!r} was not listed under {said(prefix)}")

    async def _outcome(self, step: Step) -> None:
        error = self._make(step.arguments["error"])
        verdict = Is.WRONG
        if step.manner == "of what was never written":
            change_id, verdict = ChangeId.new(self._ground.runtime), Is.GOOD
            error = OutcomeUnknownError(ObjectId.create("photos", "cat"), change_id, logged=self._random.random() < 0.5)
        ended = await self._ended(self._storage.outcome(error), step.interrupt)
        self._note(step, ended)
        if ended.error is not None:
            self._judge_error(ended, verdict)
        elif not ended.cancelled and (verdict is Is.WRONG or not isinstance(ended.value, Outcome) or ended.value is Outcome.TOOK_EFFECT):
            raise Violation("wrong answer", f"{said(error)}: it {_told(ended)}")

    async def _close(self, step: Step) -> None:
        self._closed = True
        ended = await self._ended(self._storage.aclose(), step.interrupt)
        self._note(step, ended)
        if ended.error is not None:
            raise Violation("raw error", _told(ended)) from ended.error

    async def _enter_again(self, step: Step) -> None:
        async def enter() -> None:
            async with self._storage:
                pass

        ended = await self._ended(enter())
        self._note(step, ended)
        if not isinstance(ended.error, InvalidRequestError):
            raise Violation("taken", f"a store that is open was entered again, and that {_told(ended)}")

    def _construct(self, step: Step) -> None:
        value = step.arguments["value"]
        try:
            made = self._make(value)
        except InvalidRequestError:
            return
        try:
            if isinstance(made, (ObjectId, Metadata)):
                repr(made)
            if isinstance(made, ObjectId):
                hash(made)
                with suppress(InvalidRequestError):
                    made.validate()
                    self._check_own_row(made)
            if isinstance(made, Metadata):
                _ = made.time_created, made.time_expires
        except Exception as error:
            if isinstance(error, Violation):
                raise
            raise Violation("raw error", f"what {value} made raised {type(error).__name__}: {str(error)[:200]}") from error

    async def _settings(self, step: Step) -> None:
        value = step.arguments["source"]
        source = self._make(value)
        try:
            if isinstance(source, dict) and all(isinstance(name, str) for name in source):
                Settings(**source)
            elif isinstance(source, bytes):
                if not self.directory.exists():
                    return
                path = self.new_path()
                path.write_bytes(source)
                load_settings(path)
            elif not isinstance(source, (str, Settings, dict)):
                async with open_storage(source):
                    pass
        except ConfigurationError as error:
            if not str(error):
                raise Violation("wrong answer", f"{value}: an error without a word") from error
        except Exception as error:
            raise Violation("raw error", f"{value} raised {type(error).__name__}: {str(error)[:200]}") from error

    # --- bulk ------------------------------------------------------------------------------------

    async def _bulk(self, step: Step) -> None:
        await _BulkCall(self, step).run()

    def _note(self, step: Step, ended: Ended) -> None:
        self.trace.append(f"{step.number} {step.call.value}: {ended}")

    # --- what payloads may use -------------------------------------------------------------------

    def new_path(self) -> Path:
        self._names += 1
        return self.directory / f"payload-{self._names}"

    async def stored(self) -> tuple[StoredObject | None, bytes | None]:
        for value in self.recipe.ids:
            object_id = value.make()
            with suppress(TieredError):
                first = await self._storage.get(object_id)
                if first is None:
                    continue
                content = await first.read()
                second = await self._storage.get(object_id)
                if second is not None:
                    self._unclosed.append(second)
                if second is not None and second.revision == first.revision:
                    return second, content
        return None, None

    async def call_back(self) -> None:
        with suppress(TieredError):
            await self._storage.head(self.recipe.ids[0].make())


class _BulkCall:
    """One bulk call, from its requests to the last of its results."""

    def __init__(self, episode: Episode, step: Step) -> None:
        self._episode = episode
        self._step = step
        self._source, _, self._manner = step.manner.partition(", ")
        self._own = OwnError("of the requests")
        self._requests: list[Any] = []
        self._items: list[Item] = []
        self._made: list[Made | None] = []
        self._writes: list[Write | None] = []
        self._verdicts: list[Is] = []
        self._results: list[ItemResult[Any, Any]] = []
        self._began: list[int] = []
        self._reached = False

    async def run(self) -> None:
        episode, step = self._episode, self._step
        for item in step.items:
            with suppress(InvalidRequestError):
                await self._add(item)
        ended = await episode._ended(self._call(), step.interrupt)
        episode._note(step, ended)
        try:
            for result in self._results:
                self._judge(result)
            self._judge_all(ended)
        finally:
            for write, position in zip(self._writes, range(len(self._writes)), strict=True):
                if write is not None and position not in {result.position for result in self._results}:
                    episode._model.end(write, Told.MAYBE)
            for made in self._made:
                if made is not None:
                    await episode._afterwards(made)

    async def _add(self, item: Item) -> None:
        episode = self._episode
        made: Made | None = None
        if item.wrong is not None:
            request, verdict = episode._make(item.wrong), Is.WRONG
        elif item.payload is None:
            request, verdict = episode._make(item.object_id), item.object_id.verdict
        else:
            assert item.metadata is not None, "drawn"
            object_id, metadata = episode._make(item.object_id), episode._make(item.metadata)
            made = await item.payload.make(episode)
            verdict = item.object_id.verdict & item.metadata.verdict & made.verdict
            try:
                request = PutRequest(object_id, made.payload, metadata)
            except InvalidRequestError:
                await episode._afterwards(made)
                raise
        self._items.append(item)
        self._requests.append(request)
        self._made.append(made)
        self._verdicts.append(verdict)
        self._writes.append(None)
        self._began.append(0)

    def _hand_out(self, position: int) -> Any:
        """Return a request to the store. From now on it may take effect."""
        episode, request = self._episode, self._requests[position]
        self._began[position] = episode._model.tick()
        made = self._made[position]
        if made is not None and isinstance(request, PutRequest):
            self._writes[position] = episode._begin(request.object_id, request.metadata, made)
        elif self._step.call is Call.DELETE_MANY and isinstance(request, ObjectId):
            self._writes[position] = episode._model.begin(_path(request), None, None)
        return request

    def _sync(self) -> Iterator[Any]:
        for position in range(len(self._requests)):
            yield self._hand_out(position)
        if self._source == "a generator that raises":
            raise self._own

    async def _async(self) -> AsyncIterator[Any]:
        for position in range(len(self._requests)):
            await anyio.lowlevel.checkpoint()
            yield self._hand_out(position)
        if self._source == "an async generator that raises":
            raise self._own
        if self._source == "an async generator that blocks":
            await anyio.sleep(10_000)
        if "cancelled by others" in self._source:
            async with ForeignTask() as foreign:
                await foreign.cancelled()

    def _open(self) -> Any:
        requests: Any
        match self._source:
            case "a list":
                requests = [self._hand_out(position) for position in range(len(self._requests))]
            case "no iterable":
                requests = self._episode._random.choice((None, 5, "text", b"bytes", object(), ObjectId.create("a", "b")))
            case _ if "async" in self._source:
                requests = self._async()
            case _:
                requests = self._sync()
        arguments = {name: self._episode._make(value) for name, value in self._step.arguments.items()}
        return getattr(self._episode._storage, self._step.call.value)(requests, **arguments)

    async def _call(self) -> None:
        bulk = self._open()
        if self._manner == "not entered":
            await anext(bulk)
            return
        async with bulk as results:
            if self._manner == "block raises":
                raise self._own
            if self._manner == "entered twice":
                async with bulk:
                    pass
            if self._manner != "never iterated":
                async for result in results:
                    self._results.append(result)
                    if self._manner == "left early":
                        break
            self._reached = True
        if self._manner == "iterated afterwards":
            await anext(bulk)

    def _judge(self, result: ItemResult[Any, Any]) -> None:
        """Judge one result. It must be what the single call would have answered."""
        episode, position = self._episode, result.position
        if not said(result.request).endswith("of many digits"):  # Python itself cannot show such a request
            repr(result)
        if not 0 <= position < len(self._requests) or result.request is not self._requests[position]:
            raise Violation("wrong answer", f"a result has position {position} and request {said(result.request)}")
        ended = Ended(error=result.error) if result.error is not None else Ended(result.value)
        what = f"item {position}, {self._items[position]}: "
        try:
            self._judge_item(position, ended)
        except Violation as found:
            raise Violation(found.kind, what + found.finding) from found.__cause__
        finally:
            if ended.error is not None:
                episode.trace.append(f"    {what}{ended}")

    def _judge_item(self, position: int, ended: Ended) -> None:
        episode, item, request = self._episode, self._items[position], self._requests[position]
        verdict, made = self._verdicts[position], self._made[position]
        if self._step.call is not Call.GET_MANY:
            payload: Payload | None = item.payload
            object_id = request.object_id if isinstance(request, PutRequest) else request
            result = PutResult if self._step.call is Call.PUT_MANY else type(None)
            known = made or Made(None, None)
            blocks = payload is not None and payload.blocks
            episode._judge_write(self._writes[position], ended, verdict, known, object_id, blocks=blocks, result=result)
        elif ended.error is not None:
            limited = self._step.arguments["payload_bytes_max"].verdict
            episode._judge_error(ended, verdict & limited)
        else:
            episode._check_own_row(request)
            loaded: LoadedObject | None = ended.value
            seen = Seen(None, None, None) if loaded is None else Seen(loaded.payload, loaded.head.metadata, loaded.head.revision)
            episode._model.check(_path(request), seen, self._began[position])

    def _judge_all(self, ended: Ended) -> None:
        error = ended.error
        if len({result.position for result in self._results}) != len(self._results):
            raise Violation("wrong answer", "an item has two results")
        raises = error is self._own
        verdict = Is.GOOD
        for value in self._step.arguments.values():
            verdict = verdict & value.verdict
        if self._source == "no iterable":
            verdict = Is.WRONG
        misused = self._manner in ("entered twice", "not entered", "iterated afterwards")
        if ended.cancelled or ended.asked:
            if not (error is None or raises or isinstance(error, ELSEWHERE) or self._documented(error, verdict, misused)):
                raise Violation("raw error", _told(ended)) from error
            return
        if error is None:
            if self._source == "no iterable" or misused:
                raise Violation("taken", "it was used in a way that it must refuse")
            if not self._reached:
                raise Violation("skipped", "the rest of its block was not reached, and nothing was raised")
            if self._manner == "all results":
                if "raises" in self._source or "others" in self._source:
                    raise Violation("swallowed", "what the requests' iterator raised was not raised again")
                if len(self._results) != len(self._requests):
                    raise Violation("wrong answer", f"of {len(self._requests)} requests {len(self._results)} have results")
            return
        if raises or (isinstance(error, ELSEWHERE) and "others" in self._source):
            return
        if not self._documented(error, verdict, misused):
            raise Violation("raw error" if not isinstance(error, TieredError) else "refused", _told(ended)) from error

    def _documented(self, error: BaseException, verdict: Is, misused: bool) -> bool:
        return isinstance(error, InvalidRequestError) and (verdict is not Is.GOOD or misused or self._episode._closed)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _path(object_id: object) -> str:
    return object_id.path if isinstance(object_id, ObjectId) else ""


def _told(ended: Ended) -> str:
    if ended.error is None:
        return str(ended)
    return f"raised {type(ended.error).__name__}: {str(ended.error)[:400]}"


def _of_head(head: ObjectHead | None) -> Seen:
    return Seen(None, None, None) if head is None else Seen(None, head.metadata, head.revision, whole=False)


def _within(content: bytes, range: object) -> bytes | None:
    if not isinstance(range, ByteRange):
        return content
    try:
        start, stop = range.within(len(content))
    except InvalidRequestError:
        return None
    return content[start:stop]


logging.getLogger("tiered").addHandler(logging.NullHandler())
