"""Carries out one seed: makes its calls as the recipe says, and judges their answers.

    session     the store is opened, the calls of its steps are made, each in a task of its own, and it is closed
    ended       how a call ended: a value, an error, or its cancellation
    at the end  recovery runs; nothing is left behind; every object is what the model says, and can be written again

It raises `Violation`. A call that does not end within the ground's budget is a violation too. If the event loop itself
stops, the worker must notice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import anyio
from anyio import to_thread

from changelog.change import ChangeId, Entry
from emulators.callers.bulk_calls import BulkCall
from emulators.callers.ended import Ended, described, moments, run_to_end
from emulators.callers.episode_recipe import CallerStep, CallKind, EpisodeRecipe
from emulators.callers.ground import Ground
from emulators.callers.interrupt import Interrupt, Steps
from emulators.callers.model import SeenObject, Violation, WriteCertainty
from emulators.callers.open_uploads import AT_ONCE, UploadCalls
from emulators.callers.oracle import Oracle, path_of
from emulators.callers.payloads import Made, OwnError, cut
from emulators.callers.values import LAST, Heard, Is, ToldAtEnd, Value, said
from emulators.callers.ways_to_read import of_head, read_as, within
from emulators.simulation.leaks import held_by_store
from tiered import (
    ConfigurationError,
    Folder,
    InvalidRequestError,
    ListEntry,
    ListPage,
    Metadata,
    ObjectId,
    ObjectPrefix,
    Outcome,
    OutcomeUnknownError,
    Settings,
    StoredObject,
    TieredError,
    TieredStorage,
    UnavailableError,
    UploadEndedError,
    load_settings,
    open_storage,
)


class Episode:
    """One seed that is carried out. `trace`: how the calls ended, in order."""

    def __init__(self, recipe: EpisodeRecipe, ground: Ground) -> None:
        self.recipe = recipe
        self.trace: list[str] = []
        self.calls = 0
        self.loop_thread = threading.get_ident()
        self.directory = ground.directory
        self._ground = ground
        self.random = Random(f"{recipe.seed}/episode")
        self._names = 0
        self._found: Violation | None = None
        self._unclosed: list[StoredObject] = []
        self._recovered = recipe.settings["changelog"] != "noop"
        self._abrupt = recipe.closing is not None or "drain_budget_s" in recipe.settings["store"]  # type: ignore[operator]
        troubles = any(
            step.beside or step.interrupt is not None or step.call is CallKind.CLOSE or any(each in step.manner for each in AT_ONCE)
            for step in recipe.steps
        )
        store: Any = recipe.settings["store"]
        troubled, tight = troubles or recipe.closing is not None or self._abrupt, store["concurrency_max"] <= 2 or store["queue_max"] == 0
        self.oracle = Oracle(troubled=troubled, tight=tight)
        self.storage: TieredStorage

    # --- sessions --------------------------------------------------------------------------------

    async def run(self) -> None:
        sessions: list[list[CallerStep]] = [[]]
        for step in self.recipe.steps:
            if step.call is CallKind.REOPEN:
                sessions.append([])
            else:
                sessions[-1].append(step)
        for number, steps in enumerate(sessions):
            await self._session(steps, self.recipe.closing if number == len(sessions) - 1 else None)
        await self._look_around()

    async def _session(self, steps: list[CallerStep], closing: Interrupt | None) -> None:
        stepper, reached = Steps(), False

        async def session() -> None:
            nonlocal reached
            async with self._ground.open(self.recipe.settings) as self.storage:
                self.oracle.closed = False
                await self._make_calls(steps)
                reached = True
                if closing is not None:
                    stepper.arm(moments(closing, scope))

        # The scope is outside of everything that may be cancelled, because scopes must be left in reverse order.
        scope = anyio.CancelScope()
        ended = await self.run_to_end(session(), None, stepper, scope)
        self.oracle.closed = True
        self._raise_found()
        if not reached and ended.error is None:
            raise Violation("skipped", f"the block of the store was left before its end, and nothing was raised: {ended}")
        if ended.error is not None and not (closing is not None and isinstance(ended.error, TieredError)):
            raise Violation("raw error", f"the block of the store {described(ended)}") from ended.error
        if ended.cancelled and closing is None:
            raise Violation("cancelled", "the block of the store was cancelled by nobody")
        for stored in self._unclosed:
            late = await self.run_to_end(stored.read())
            if not isinstance(late.error, (InvalidRequestError, UnavailableError, type(None))):
                raise Violation("raw error", f"a stored object read after the store was closed {described(late)}") from late.error
            await stored.aclose()
        self._unclosed.clear()

    async def _make_calls(self, steps: list[CallerStep]) -> None:
        async with anyio.create_task_group() as tasks:
            pending: list[tuple[CallerStep, anyio.Event]] = []
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
        if self._found is None and not self.oracle.closed:
            await self._wait_until_idle()

    async def _wait(self, pending: list[tuple[CallerStep, anyio.Event]]) -> None:
        while pending:
            step, done = pending[0]
            with anyio.move_on_after(self._ground.budget_s):
                await done.wait()
            if not done.is_set():
                self._find(Violation("hang", f"{step} did not end within {self._ground.budget_s:g} s"))
                return
            pending.pop(0)

    async def _take(self, step: CallerStep, done: anyio.Event) -> None:
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
        """Waits until the clean-up after the answers is done. The store must hold nothing then."""
        with anyio.move_on_after(self._ground.budget_s) as waiting:
            for admission in (self.storage._writes, self.storage._reads, self.storage._touches):
                await admission.wait_idle()
            held: list[str] = ["?"]
            for _ in range(100):
                if not (held := held_by_store(self.storage)):
                    return
                await anyio.sleep(0.01)
        what = "operations" if waiting.cancelled_caught else ", ".join(held)
        self._find(Violation("left behind", f"the store still holds {what} when all calls have ended"))

    async def _look_around(self) -> None:
        """Checks what is left when all stores are closed. Open uploads are aborted, and recovery runs first."""
        checked = self._recovered or not self._abrupt
        settings = {**self.recipe.settings, "store": {}}
        async with self._ground.open(settings) as storage:
            for entry in (await storage._assembler._log.entries("", 1000)).entries:
                if isinstance(entry, Entry) and entry.assembling is not None:
                    with suppress(UploadEndedError):
                        await storage.multipart(ObjectId.parse(entry.change.object), entry.change.id).abort()
        left = await self._ground.left_behind(recovered=self._recovered)
        if left and checked:
            raise Violation("left behind", "; ".join(sorted(left)))
        self.oracle.settled()
        async with self._ground.open(settings) as self.storage:
            self.oracle.closed = False
            paths = sorted(self.oracle.model.writes)
            listed_from = self.oracle.model.tick()
            self.oracle.check_listed([entry async for entry in self.storage.list()], {}, listed_from)
            for path in paths:
                try:
                    object_id = ObjectId.parse(path)
                    object_id.validate()
                except InvalidRequestError:
                    if any(write.content is not None and write.told is WriteCertainty.OK for write in self.oracle.model.writes[path]):
                        raise
                    continue  # nothing was ever stored under this path
                await self._read_whole(object_id)
                await self.storage.put(object_id, b"anew")
                if (stored := await self.storage.get(object_id)) is None or await stored.read() != b"anew":
                    raise Violation("wrong answer", f"{path} was put anew, and reads as something else")
                await self.storage.delete(object_id)
        if checked and (left := await self._ground.left_behind(recovered=False)):
            raise Violation("left behind", "after everything was deleted: " + "; ".join(sorted(left)))

    # --- cancellation ----------------------------------------------------------------------------

    async def run_to_end(
        self, call: Awaitable[Any], interrupt: Interrupt | None = None, steps: Steps | None = None, scope: anyio.CancelScope | None = None
    ) -> Ended:
        """Runs a call to its end, and counts it."""
        self.calls += 1
        return await run_to_end(call, interrupt, steps, scope)

    # --- calls -----------------------------------------------------------------------------------

    async def _perform(self, step: CallerStep) -> None:
        match step.call:
            case CallKind.PUT:
                await self._put(step)
            case CallKind.OPEN:
                await self._open(step)
            case CallKind.GET:
                await self._get(step)
            case CallKind.HEAD:
                await self._head(step)
            case CallKind.DELETE:
                await self._delete(step)
            case CallKind.COPY | CallKind.RENAME | CallKind.UPDATE_METADATA | CallKind.SET_EXPIRY:
                await self._rewrite(step)
            case CallKind.LIST:
                await self._list(step)
            case CallKind.OUTCOME:
                await self._outcome(step)
            case CallKind.PUT_MANY | CallKind.GET_MANY | CallKind.HEAD_MANY | CallKind.DELETE_MANY:
                await BulkCall(self, step).run()
            case CallKind.MULTIPART | CallKind.RESUMABLE:
                await UploadCalls(self, step, logged=self._recovered or self.recipe.ground == "simulated").run()
            case CallKind.CONSTRUCT:
                self._construct(step)
            case CallKind.SETTINGS:
                await self._settings(step)
            case CallKind.CLOSE:
                await self._close(step)
            case CallKind.ENTER_AGAIN:
                await self._enter_again(step)

    async def _put(self, step: CallerStep) -> None:
        try:
            object_id, metadata = self.oracle.make(step.arguments["id"]), self.oracle.make(step.arguments["metadata"])
        except InvalidRequestError:
            return
        assert step.payload is not None, "drawn"
        made = await step.payload.make(self)
        heard, told, passed = self._progress(step)
        if isinstance(heard, Heard):
            made.own.append(heard.error)
        condition, is_wrong = self.condition(step.arguments.get("condition"), object_id)
        checked, is_checked, stored = self._checked(step, metadata, made)
        verdict = step.arguments["id"].verdict & step.arguments["metadata"].verdict & made.verdict & told & is_wrong & is_checked
        write = self.oracle.begin(object_id, stored, made)
        if write is not None:
            write.compressed = "compress" in checked
        ended = await self.run_to_end(self.storage.put(object_id, made.payload, metadata, **passed, **checked, **condition), step.interrupt)
        self.note(step, ended)
        try:
            self.oracle.check_heard(heard, ended, None if made.content is None else len(made.content))
            self.oracle.judge_write(write, ended, verdict, made, object_id, blocks=step.payload.blocks, condition=condition)
        finally:
            await self.afterwards(made)

    async def _open(self, step: CallerStep) -> None:
        """Writes an object in a block."""
        try:
            object_id, metadata = self.oracle.make(step.arguments["id"]), self.oracle.make(step.arguments["metadata"])
        except InvalidRequestError:
            return
        assert step.payload is not None, "drawn"
        made = await step.payload.make(self)
        condition, is_wrong = self.condition(step.arguments.get("condition"), object_id)
        checked, is_checked, stored = self._checked(step, metadata, made)
        verdict = step.arguments["id"].verdict & step.arguments["metadata"].verdict & is_wrong & is_checked
        verdict &= Is.WRONG if step.manner == "read" else Is.GOOD
        own = OwnError("the block of a caller raised it")
        if step.manner == "block raises":
            made.fails = True
            made.own.append(own)

        async def written() -> object:
            file = self.storage.open(object_id, "rb" if step.manner == "read" else "wb", metadata, **checked, **condition)  # type: ignore[arg-type]
            async with file:
                for chunk in cut(made.payload, step.payload.random()):  # type: ignore[union-attr]
                    buffer = bytearray(chunk)
                    await file.write(buffer)
                    buffer[:] = bytes(len(buffer))
                if step.manner == "block raises":
                    raise own
                if step.manner == "entered twice":
                    with suppress(InvalidRequestError):
                        async with file:
                            raise Violation("taken", "it was entered while it was open")
            if step.manner == "written afterwards":
                with suppress(InvalidRequestError):
                    await file.write(b"more")
                    raise Violation("taken", "it was written after its end")
            return file.result

        write = self.oracle.begin(object_id, stored, made)
        if write is not None:
            write.compressed = "compress" in checked
        ended = await self.run_to_end(written(), step.interrupt)
        self.note(step, ended)
        if isinstance(ended.error, Violation):
            raise ended.error
        self.oracle.judge_write(write, ended, verdict, made, object_id, condition=condition)

    def _checked(self, step: CallerStep, metadata: object, made: Made) -> tuple[dict[str, Any], Is, object]:
        """What is declared of a payload, and told at its end: the arguments, their verdict, and what is stored."""
        passed: dict[str, Any] = {}
        verdict = Is.GOOD
        if (value := step.arguments.get("checksums")) is not None and made.content is not None:
            passed["checksums"] = value.make()(made.content)
            verdict &= value.verdict
        if (value := step.arguments.get("compress")) is not None:
            passed["compress"] = value.make()
            verdict &= value.verdict
        if (value := step.arguments.get("custom_at_end")) is not None:
            passed["custom_at_end"] = told = value.make()
            verdict &= value.verdict
            if isinstance(told, ToldAtEnd):
                made.fails |= told.raises
                made.own.append(told.error)
                if isinstance(metadata, (Metadata, type(None))) and verdict is Is.GOOD and isinstance(told.gives, Mapping):
                    with suppress(InvalidRequestError):
                        return passed, verdict, replace(metadata or Metadata(), custom={**(metadata or Metadata()).custom, **told.gives})
                    verdict = Is.WRONG
        return passed, verdict, metadata

    def _progress(self, step: CallerStep) -> tuple[Any, Is, dict[str, Any]]:
        """The progress callback of a step, its verdict, and the arguments that pass it on."""
        if (value := step.arguments.get("progress")) is None:
            return None, Is.GOOD, {}
        heard = value.make()
        return heard, value.verdict, {"progress": heard}

    async def afterwards(self, made: Made) -> None:
        if self.directory.exists():
            await to_thread.run_sync(made.afterwards, limiter=anyio.CapacityLimiter(1))
        else:
            made.afterwards()
        for shown in made.shows:
            kind, _, finding = shown.partition(": ")
            raise Violation(kind, finding)

    async def _delete(self, step: CallerStep) -> None:
        try:
            object_id = self.oracle.make(step.arguments["id"])
        except InvalidRequestError:
            return
        condition, is_wrong = self.condition(step.arguments.get("condition"), object_id)
        write = self.oracle.model.begin(path_of(object_id), None, None) if isinstance(object_id, ObjectId) else None
        ended = await self.run_to_end(self.storage.delete(object_id, **condition), step.interrupt)
        self.note(step, ended)
        verdict = step.arguments["id"].verdict & is_wrong
        self.oracle.judge_write(write, ended, verdict, Made(None, None), object_id, result=type(None), condition=condition)

    async def _rewrite(self, step: CallerStep) -> None:
        """A call that writes what is in the store already, under another name or with other metadata."""
        try:
            source = self.oracle.make(step.arguments["id"])
            written = self.oracle.make(step.arguments["to"]) if "to" in step.arguments else source
        except InvalidRequestError:
            return
        condition, is_wrong = self.condition(step.arguments.get("condition"), written)
        what: Any = step.arguments["what"].make() if "what" in step.arguments else None
        verdict = is_wrong
        for name in ("id", "to", "what"):
            verdict &= step.arguments[name].verdict if name in step.arguments else Is.GOOD
        if "to" in step.arguments and (path_of(source) == path_of(written)):
            verdict = Is.WRONG
        calls: dict[CallKind, Callable[[], Awaitable[Any]]] = {
            CallKind.COPY: lambda: self.storage.copy(source, written, **condition),
            CallKind.RENAME: lambda: self.storage.rename(source, written, **condition),
            CallKind.UPDATE_METADATA: lambda: self.storage.update_metadata(source, what, **condition),
            CallKind.SET_EXPIRY: lambda: self.storage.set_expiry(source, **what, **condition),
        }
        writes = [self.oracle.model.begin(path_of(written), b"", None, known=False)]
        writes[0].copied = True
        if step.call is CallKind.RENAME:
            writes.append(self.oracle.model.begin(path_of(source), None, None))
        ended = await self.run_to_end(calls[step.call](), step.interrupt)
        self.note(step, ended)
        self.oracle.judge_rewrite(writes, ended, verdict)

    def condition(self, value: Value | None, object_id: object) -> tuple[dict[str, Any], Is]:
        """Returns the arguments that are the condition of a call, and whether they are wrong."""
        if value is None:
            return {}, Is.GOOD
        condition: dict[str, Any] = value.make()
        if condition.get("if_revision") is LAST:
            last = next((write.revision for write in reversed(self.oracle.model.writes[path_of(object_id)]) if write.revision), None)
            return ({}, Is.GOOD) if last is None else ({"if_revision": last}, Is.GOOD)
        return condition, value.verdict

    async def _get(self, step: CallerStep) -> None:
        try:
            object_id = self.oracle.make(step.arguments["id"])
            range = self.oracle.make(step.arguments["range"]) if "range" in step.arguments else None
        except InvalidRequestError:
            return
        heard, told, passed = self._progress(step)
        verdict = step.arguments["id"].verdict & (Is.ODD if range is not None else Is.GOOD) & told
        seen: list[SeenObject] = []

        async def get() -> None:
            stored = await self.storage.get(object_id, range, **passed)
            self.oracle.check_own_row(object_id)
            if stored is None:
                seen.append(SeenObject(None, None, None))
                return
            self._unclosed.append(stored)  # it is closed later, however this call ends
            await read_as(stored, step.manner, seen)

        began = self.oracle.model.tick()
        ended = await self.run_to_end(get(), step.interrupt)
        self.note(step, ended)
        if isinstance(ended.error, Violation):
            raise ended.error
        self.oracle.check_heard(heard, ended, None if not seen or seen[0].content is None else len(seen[0].content))
        if told is Is.WRONG and ended.value is None:
            raise Violation("taken", f"{said(heard)} is no callback, and it {described(ended)}")
        if isinstance(heard, Heard) and ended.error is heard.error:
            return
        if seen:
            self.oracle.model.check(path_of(object_id), seen[0], began, cut=lambda content: within(content, range))
        if ended.error is not None:
            self.oracle.judge_error(ended, verdict)

    async def _read_whole(self, object_id: ObjectId) -> None:
        began = self.oracle.model.tick()
        stored = await self.storage.get(object_id)
        seen = SeenObject(None, None, None) if stored is None else SeenObject(await stored.read(), stored.metadata, stored.revision)
        self.oracle.model.check(object_id.path, seen, began)
        began = self.oracle.model.tick()
        head = await self.storage.head(object_id)
        self.oracle.model.check(object_id.path, of_head(head), began)

    async def _head(self, step: CallerStep) -> None:
        try:
            object_id = self.oracle.make(step.arguments["id"])
        except InvalidRequestError:
            return
        began = self.oracle.model.tick()
        ended = await self.run_to_end(self.storage.head(object_id), step.interrupt)
        self.note(step, ended)
        if ended.error is not None:
            self.oracle.judge_error(ended, step.arguments["id"].verdict)
        elif not ended.cancelled:
            self.oracle.check_own_row(object_id)
            self.oracle.model.check(path_of(object_id), of_head(ended.value), began)

    async def _list(self, step: CallerStep) -> None:
        try:
            arguments = {name: self.oracle.make(value) for name, value in step.arguments.items()}
        except InvalidRequestError:
            return
        verdict = Is.GOOD
        for value in step.arguments.values():
            verdict &= value.verdict
        by_page = step.manner == "page by page" or "page_token" in arguments
        if by_page and arguments.get("limit", 1) is None:
            verdict = Is.WRONG

        async def listed() -> list[ListEntry | Folder] | None:
            if by_page:
                return await self._list_pages(arguments)
            async with aclosing(self.storage.list(**arguments)) as entries:
                if step.manner == "left half-way":
                    async for _ in entries:
                        break
                    return None
                return [entry async for entry in entries]

        began = self.oracle.model.tick()
        ended = await self.run_to_end(listed(), step.interrupt)
        self.note(step, ended)
        if ended.error is not None:
            self.oracle.judge_error(ended, verdict)
        elif verdict is Is.WRONG and not ended.cancelled:
            raise Violation("taken", f"a wrong argument was taken, and it {described(ended)}")
        elif not ended.cancelled and ended.value is not None:
            self.oracle.check_listed(ended.value, {**arguments, "limit": None} if by_page else arguments, began)

    async def _list_pages(self, arguments: dict[str, Any]) -> list[ListEntry | Folder]:
        """All pages. A token must be refused with another prefix."""
        page: ListPage = await self.storage.list_page(**arguments)
        entries = [*page.entries]
        rest = {name: value for name, value in arguments.items() if name != "start_after"}
        while (token := page.next_page_token) is not None:
            try:
                await self.storage.list_page(ObjectPrefix.create("another"), page_token=token)
            except InvalidRequestError:
                page = await self.storage.list_page(**{**rest, "page_token": token})
            else:
                raise Violation("taken", "a page token was taken with another prefix")
            entries += page.entries
        return entries

    async def _outcome(self, step: CallerStep) -> None:
        error = self.oracle.make(step.arguments["error"])
        verdict = Is.WRONG
        if step.manner == "of what was never written":
            change_id, verdict = ChangeId.new(self._ground.runtime), Is.GOOD
            error = OutcomeUnknownError(ObjectId.create("photos", "cat"), change_id, logged=self.random.random() < 0.5)
        ended = await self.run_to_end(self.storage.outcome(error), step.interrupt)
        self.note(step, ended)
        if ended.error is not None:
            self.oracle.judge_error(ended, verdict)
        elif not ended.cancelled and (verdict is Is.WRONG or not isinstance(ended.value, Outcome) or ended.value is Outcome.TOOK_EFFECT):
            raise Violation("wrong answer", f"{said(error)}: it {described(ended)}")

    async def _close(self, step: CallerStep) -> None:
        self.oracle.closed = True
        ended = await self.run_to_end(self.storage.aclose(), step.interrupt)
        self.note(step, ended)
        if ended.error is not None:
            raise Violation("raw error", described(ended)) from ended.error

    async def _enter_again(self, step: CallerStep) -> None:
        async def enter() -> None:
            async with self.storage:
                pass

        ended = await self.run_to_end(enter())
        self.note(step, ended)
        if not isinstance(ended.error, InvalidRequestError):
            raise Violation("taken", f"a store that is open was entered again, and that {described(ended)}")

    def _construct(self, step: CallerStep) -> None:
        value = step.arguments["value"]
        try:
            made = self.oracle.make(value)
        except InvalidRequestError:
            return
        try:
            if isinstance(made, (ObjectId, Metadata)):
                repr(made)
            if isinstance(made, ObjectId):
                hash(made)
                with suppress(InvalidRequestError):
                    made.validate()
                    self.oracle.check_own_row(made)
            if isinstance(made, Metadata):
                _ = made.time_created, made.time_expires
        except Exception as error:
            if isinstance(error, Violation):
                raise
            raise Violation("raw error", f"what {value} made raised {type(error).__name__}: {str(error)[:200]}") from error

    async def _settings(self, step: CallerStep) -> None:
        value = step.arguments["source"]
        source = self.oracle.make(value)
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

    def note(self, step: CallerStep, ended: Ended) -> None:
        self.trace.append(f"{step.number} {step.call.value}: {ended}")

    # --- what payloads may use -------------------------------------------------------------------

    def new_path(self) -> Path:
        self._names += 1
        return self.directory / f"payload-{self._names}"

    async def stored(self) -> tuple[StoredObject | None, bytes | None]:
        for value in self.recipe.ids:
            object_id = value.make()
            with suppress(TieredError):
                first = await self.storage.get(object_id)
                if first is None:
                    continue
                content = await first.read()
                second = await self.storage.get(object_id)
                if second is not None:
                    self._unclosed.append(second)
                if second is not None and second.revision == first.revision:
                    return second, content
        return None, None

    async def call_back(self) -> None:
        with suppress(TieredError):
            await self.storage.head(self.recipe.ids[0].make())


logging.getLogger("tiered").addHandler(logging.NullHandler())
