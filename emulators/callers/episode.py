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
from collections.abc import Awaitable, Mapping
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
from emulators.callers.episode_recipe import BULK, REWRITES, UPLOADS, CallerStep, CallKind, EpisodeRecipe
from emulators.callers.ground import Ground
from emulators.callers.interrupt import Interrupt, Steps
from emulators.callers.model import SeenObject, WriteCertainty
from emulators.callers.open_uploads import AT_ONCE, UploadCalls
from emulators.callers.oracle import Oracle, is_hung, path_of, raw_error
from emulators.callers.payloads import Made, OwnError
from emulators.callers.values import LAST, Heard, Is, ToldAtEnd, of_all, said
from emulators.callers.verdict import Violation
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
            kind = "hang" if is_hung(ended.error) else "raw error"
            raise Violation(kind, f"the block of the store {described(ended)}") from ended.error
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
        if any(step.call in UPLOADS for step in self.recipe.steps):
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

    # --- calls -----------------------------------------------------------------------------------

    async def run_to_end(
        self, call: Awaitable[Any], interrupt: Interrupt | None = None, steps: Steps | None = None, scope: anyio.CancelScope | None = None
    ) -> Ended:
        """Runs a call to its end, and counts it."""
        self.calls += 1
        return await run_to_end(call, interrupt, steps, scope)

    async def call(self, step: CallerStep, call: Awaitable[Any]) -> Ended:
        """Makes the call of a step, and cancels it if the step says so. Raises the violation that was found in it."""
        ended = await self.run_to_end(call, step.interrupt)
        self.trace.append(f"{step.number} {step.call.verb}: {ended}")
        if isinstance(ended.error, Violation):
            raise ended.error
        return ended

    async def _perform(self, step: CallerStep) -> None:
        try:
            made = {name: self.oracle.make(value) for name, value in step.arguments.items()}
        except InvalidRequestError:
            return  # a constructor refused its arguments, as it may
        verdict = of_all(value.verdict for value in step.arguments.values())
        if "condition" in made:
            made["condition"] = self.condition(made["condition"], made.get("to", made["id"]))
        match step.call:
            case CallKind.PUT | CallKind.OPEN:
                await self._write(step, made, verdict)
            case CallKind.GET:
                await self._get(step, made, verdict)
            case CallKind.HEAD:
                await self._head(step, made, verdict)
            case CallKind.DELETE:
                await self._delete(step, made, verdict)
            case CallKind.LIST:
                await self._list(step, made, verdict)
            case CallKind.OUTCOME:
                await self._outcome(step, made)
            case CallKind.CONSTRUCT:
                self._construct(step, made["value"])
            case CallKind.SETTINGS:
                await self._settings(step, made["source"])
            case CallKind.CLOSE:
                await self._close(step)
            case CallKind.ENTER_AGAIN:
                await self._enter_again(step)
            case _ if step.call in REWRITES:
                await self._rewrite(step, made, verdict)
            case _ if step.call in BULK:
                await BulkCall(self, step, made, verdict).run()
            case _:
                await UploadCalls(self, step, made, verdict, logged=self._recovered or self.recipe.ground == "simulated").run()

    async def _write(self, step: CallerStep, arguments: dict[str, Any], verdict: Is) -> None:
        """Puts an object, or writes it in a block."""
        assert step.payload is not None, "drawn"
        made = await step.payload.make(self)
        object_id, metadata, condition = arguments["id"], arguments["metadata"], arguments.get("condition", {})
        checked, is_checked, stored = self._checked(arguments, metadata, made)
        if "checksums" in arguments and "checksums" not in checked:  # they are not passed
            verdict = of_all(value.verdict for name, value in step.arguments.items() if name != "checksums")
        verdict &= is_checked & (made.verdict if step.call is CallKind.PUT else Is.WRONG if step.manner == "read" else Is.GOOD)
        heard = arguments.get("progress")
        if isinstance(heard, Heard):
            made.own.append(heard.error)
        write = self.oracle.begin(object_id, stored, made)
        if write is not None:
            write.compressed = "compress" in checked
        passed = checked | condition | _only(arguments, "progress")
        if step.call is CallKind.OPEN:
            call: Awaitable[Any] = self._write_in_block(step, object_id, metadata, passed, made)
        else:
            call = self.storage.put(object_id, made.payload, metadata, **passed)
        try:
            ended = await self.call(step, call)
            self.oracle.check_heard(heard, ended, None if made.content is None else len(made.content))
            self.oracle.judge_write(write, ended, verdict, made, object_id, blocks=step.payload.blocks, condition=condition)
        finally:
            await self.afterwards(made)

    async def _write_in_block(self, step: CallerStep, object_id: Any, metadata: Any, passed: dict[str, Any], made: Made) -> object:
        own = OwnError("the block of a caller raised it")
        if step.manner == "block raises":
            made.fails = True
            made.own.append(own)
        mode: Any = "rb" if step.manner == "read" else "wb"
        file = self.storage.open(object_id, mode, metadata, **passed)
        async with file:
            for chunk in step.payload.chunks():  # type: ignore[union-attr]
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

    def _checked(self, arguments: dict[str, Any], metadata: object, made: Made) -> tuple[dict[str, Any], Is, object]:
        """What is declared of a payload, and told at its end: the arguments, a verdict, and what is stored."""
        passed = _only(arguments, "compress", "custom_at_end")
        if "checksums" in arguments and made.content is not None:
            passed["checksums"] = arguments["checksums"](made.content)
        told = passed.get("custom_at_end")
        if isinstance(told, ToldAtEnd):
            made.fails |= told.raises
            made.own.append(told.error)
            if isinstance(metadata, (Metadata, type(None))) and isinstance(told.gives, Mapping):
                given = metadata or Metadata()
                try:
                    return passed, Is.GOOD, replace(given, custom={**given.custom, **told.gives})
                except InvalidRequestError:
                    return passed, Is.WRONG, metadata
        return passed, Is.GOOD, metadata

    async def afterwards(self, made: Made) -> None:
        if made.afterwards is not None and self.directory.exists():
            await to_thread.run_sync(made.afterwards, limiter=anyio.CapacityLimiter(1))
        elif made.afterwards is not None:
            made.afterwards()
        for shown in made.shows:
            kind, _, finding = shown.partition(": ")
            raise Violation(kind, finding)

    async def _delete(self, step: CallerStep, made: dict[str, Any], verdict: Is) -> None:
        object_id, condition = made["id"], made.get("condition", {})
        write = self.oracle.model.begin(path_of(object_id), None, None) if isinstance(object_id, ObjectId) else None
        ended = await self.call(step, self.storage.delete(object_id, **condition))
        self.oracle.judge_write(write, ended, verdict, Made(None, None), object_id, result=type(None), condition=condition)

    async def _rewrite(self, step: CallerStep, made: dict[str, Any], verdict: Is) -> None:
        """A call that writes what is in the store already, under another name or with other metadata."""
        source, condition, storage = made["id"], made.get("condition", {}), self.storage
        written = made.get("to", source)
        if "to" in made and path_of(source) == path_of(written):
            verdict = Is.WRONG
        call: Awaitable[Any]
        match step.call:
            case CallKind.COPY:
                call = storage.copy(source, written, **condition)
            case CallKind.RENAME:
                call = storage.rename(source, written, **condition)
            case CallKind.UPDATE_METADATA:
                call = storage.update_metadata(source, made["what"], **condition)
            case _:
                call = storage.set_expiry(source, **made["what"], **condition)
        writes = [self.oracle.model.begin(path_of(written), b"", None, known=False)]
        writes[0].copied = True
        if step.call is CallKind.RENAME:
            writes.append(self.oracle.model.begin(path_of(source), None, None))
        self.oracle.judge_rewrite(writes, await self.call(step, call), verdict)

    def condition(self, condition: dict[str, Any], object_id: object) -> dict[str, Any]:
        """Returns the arguments that are the condition of a call, with the last revision, if that is meant."""
        if condition.get("if_revision") is not LAST:
            return condition
        last = next((write.revision for write in reversed(self.oracle.model.writes[path_of(object_id)]) if write.revision), None)
        return {} if last is None else {"if_revision": last}

    async def _get(self, step: CallerStep, made: dict[str, Any], verdict: Is) -> None:
        object_id, range, heard = made["id"], made.get("range"), made.get("progress")
        if range is not None:
            verdict &= Is.ODD
        seen: list[SeenObject] = []

        async def get() -> None:
            stored = await self.storage.get(object_id, range, **_only(made, "progress"))
            self.oracle.check_own_row(object_id)
            if stored is None:
                seen.append(SeenObject(None, None, None))
                return
            self._unclosed.append(stored)  # it is closed later, however this call ends
            await read_as(stored, step.manner, seen)

        began = self.oracle.model.tick()
        ended = await self.call(step, get())
        self.oracle.check_heard(heard, ended, None if not seen or seen[0].content is None else len(seen[0].content))
        if "progress" in made and step.arguments["progress"].verdict is Is.WRONG and ended.value is None:
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

    async def _head(self, step: CallerStep, made: dict[str, Any], verdict: Is) -> None:
        began = self.oracle.model.tick()
        ended = await self.call(step, self.storage.head(made["id"]))
        if ended.error is not None:
            self.oracle.judge_error(ended, verdict)
        elif not ended.cancelled:
            self.oracle.check_own_row(made["id"])
            self.oracle.model.check(path_of(made["id"]), of_head(ended.value), began)

    async def _list(self, step: CallerStep, arguments: dict[str, Any], verdict: Is) -> None:
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
        ended = await self.call(step, listed())
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

    async def _outcome(self, step: CallerStep, made: dict[str, Any]) -> None:
        error, verdict = made["error"], Is.WRONG
        if step.manner == "of what was never written":
            change_id, verdict = ChangeId.new(self._ground.runtime), Is.GOOD
            error = OutcomeUnknownError(ObjectId.create("photos", "cat"), change_id, logged=self.random.random() < 0.5)
        ended = await self.call(step, self.storage.outcome(error))
        if ended.error is not None:
            self.oracle.judge_error(ended, verdict)
        elif not ended.cancelled and (verdict is Is.WRONG or not isinstance(ended.value, Outcome) or ended.value is Outcome.TOOK_EFFECT):
            raise Violation("wrong answer", f"{said(error)}: it {described(ended)}")

    async def _close(self, step: CallerStep) -> None:
        self.oracle.closed = True
        ended = await self.call(step, self.storage.aclose())
        if ended.error is not None:
            raise Violation("raw error", described(ended)) from ended.error

    async def _enter_again(self, step: CallerStep) -> None:
        async def enter() -> None:
            async with self.storage:
                pass

        ended = await self.call(replace(step, interrupt=None), enter())
        if not isinstance(ended.error, InvalidRequestError):
            raise Violation("taken", f"a store that is open was entered again, and that {described(ended)}")

    def _construct(self, step: CallerStep, made: object) -> None:
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
        except Violation:
            raise
        except Exception as error:  # whatever a caller gets that is no error of ours, is a fault of ours
            raise raw_error(f"what {step.arguments['value']} made", error) from error

    async def _settings(self, step: CallerStep, source: Any) -> None:
        value = step.arguments["source"]
        try:
            if isinstance(source, dict) and all(isinstance(name, str) for name in source):
                Settings(**source)
            elif isinstance(source, bytes):
                if self.directory.exists():
                    load_settings(self.new_path(source))
            elif not isinstance(source, (str, Settings, dict)):
                async with open_storage(source):
                    pass
        except ConfigurationError as error:
            if not str(error):
                raise Violation("wrong answer", f"{value}: an error without a word") from error
        except Exception as error:  # as above
            raise raw_error(str(value), error) from error

    # --- what payloads may use -------------------------------------------------------------------

    def new_path(self, content: bytes | None = None) -> Path:
        """Returns a path that nobody has. If it has a content, there is a file."""
        self._names += 1
        path = self.directory / f"payload-{self._names}"
        if content is not None:
            path.write_bytes(content)
        return path

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


def _only(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: arguments[name] for name in names if name in arguments}


logging.getLogger("tiered").addHandler(logging.NullHandler())
