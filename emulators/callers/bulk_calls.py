"""One bulk call. The seed chose how its requests come. Each result is judged as that of the single call would be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from random import Random
from typing import Any, Protocol

import anyio
import anyio.lowlevel

from emulators.callers.ended import Ended, described
from emulators.callers.episode_recipe import CallerStep, CallKind, Item
from emulators.callers.interrupt import ELSEWHERE, ForeignTask, Interrupt
from emulators.callers.model import ModelWrite, SeenObject, Violation, WriteCertainty
from emulators.callers.oracle import Oracle, path_of
from emulators.callers.payloads import Made, OwnError, Payload, PayloadContext
from emulators.callers.values import Is, Value, said
from emulators.callers.ways_to_read import of_head
from tiered import InvalidRequestError, ItemResult, LoadedObject, ObjectHead, ObjectId, PutRequest, PutResult, TieredError, TieredStorage


class Host(PayloadContext, Protocol):
    """What a bulk call uses of the episode."""

    storage: TieredStorage
    oracle: Oracle
    random: Random
    trace: list[str]

    async def run_to_end(self, call: Awaitable[Any], interrupt: Interrupt | None = None) -> Ended: ...
    async def afterwards(self, made: Made) -> None: ...
    def note(self, step: CallerStep, ended: Ended) -> None: ...
    def condition(self, value: Value | None, object_id: object) -> tuple[dict[str, Any], Is]: ...


class BulkCall:
    """One bulk call, from its requests to the last of its results."""

    def __init__(self, host: Host, step: CallerStep) -> None:
        self._host = host
        self._step = step
        self._source, _, self._manner = step.manner.partition(", ")
        self._own = OwnError("of the requests")
        self._requests: list[Any] = []
        self._items: list[Item] = []
        self._made: list[Made | None] = []
        self._writes: list[ModelWrite | None] = []
        self._conditions: list[dict[str, Any]] = []
        self._verdicts: list[Is] = []
        self._results: list[ItemResult[Any, Any]] = []
        self._began: list[int] = []
        self._reached = False

    async def run(self) -> None:
        host, step = self._host, self._step
        for item in step.items:
            with suppress(InvalidRequestError):
                await self._add(item)
        ended = await host.run_to_end(self._call(), step.interrupt)
        host.note(step, ended)
        try:
            for result in self._results:
                self._judge(result)
            self._judge_all(ended)
        finally:
            for write, position in zip(self._writes, range(len(self._writes)), strict=True):
                if write is not None and position not in {result.position for result in self._results}:
                    host.oracle.model.end(write, WriteCertainty.MAYBE)
            for made in self._made:
                if made is not None:
                    await host.afterwards(made)

    async def _add(self, item: Item) -> None:
        host = self._host
        made: Made | None = None
        condition: dict[str, Any] = {}
        if item.wrong is not None:
            request, verdict = host.oracle.make(item.wrong), Is.WRONG
        elif item.payload is None:
            request, verdict = host.oracle.make(item.object_id), item.object_id.verdict
        else:
            assert item.metadata is not None, "drawn"
            object_id, metadata = host.oracle.make(item.object_id), host.oracle.make(item.metadata)
            made = await item.payload.make(host)
            condition, is_wrong = host.condition(item.condition, object_id)
            verdict = item.object_id.verdict & item.metadata.verdict & made.verdict & is_wrong
            try:
                request = PutRequest(object_id, made.payload, metadata, **condition)
            except InvalidRequestError:
                await host.afterwards(made)
                raise
        self._items.append(item)
        self._requests.append(request)
        self._made.append(made)
        self._verdicts.append(verdict)
        self._conditions.append(condition)
        self._writes.append(None)
        self._began.append(0)

    def _hand_out(self, position: int) -> Any:
        """Returns a request to the store. From now on it may take effect."""
        host, request = self._host, self._requests[position]
        self._began[position] = host.oracle.model.tick()
        made = self._made[position]
        if made is not None and isinstance(request, PutRequest):
            self._writes[position] = host.oracle.begin(request.object_id, request.metadata, made)
        elif self._step.call is CallKind.DELETE_MANY and isinstance(request, ObjectId):
            self._writes[position] = host.oracle.model.begin(path_of(request), None, None)
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
                requests = self._host.random.choice((None, 5, "text", b"bytes", object(), ObjectId.create("a", "b")))
            case _ if "async" in self._source:
                requests = self._async()
            case _:
                requests = self._sync()
        arguments = {name: self._host.oracle.make(value) for name, value in self._step.arguments.items()}
        return getattr(self._host.storage, self._step.call.value)(requests, **arguments)

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
        """Judges one result. It must be what the single call would have answered."""
        host, position = self._host, result.position
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
                host.trace.append(f"    {what}{ended}")

    def _judge_item(self, position: int, ended: Ended) -> None:
        host, item, request = self._host, self._items[position], self._requests[position]
        verdict, made = self._verdicts[position], self._made[position]
        if self._step.call not in (CallKind.GET_MANY, CallKind.HEAD_MANY):
            payload: Payload | None = item.payload
            object_id = request.object_id if isinstance(request, PutRequest) else request
            result = PutResult if self._step.call is CallKind.PUT_MANY else type(None)
            known = made or Made(None, None)
            blocks = payload is not None and payload.blocks
            host.oracle.judge_write(
                self._writes[position], ended, verdict, known, object_id, blocks=blocks, result=result, condition=self._conditions[position]
            )
        elif ended.error is not None:
            limited = self._step.arguments.get("payload_bytes_max")
            host.oracle.judge_error(ended, verdict if limited is None else verdict & limited.verdict)
        else:
            host.oracle.check_own_row(request)
            found: LoadedObject | ObjectHead | None = ended.value
            seen = SeenObject(found.payload, found.head.metadata, found.head.revision) if isinstance(found, LoadedObject) else of_head(found)
            host.oracle.model.check(path_of(request), seen, self._began[position])

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
                raise Violation("raw error", described(ended)) from error
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
            raise Violation("raw error" if not isinstance(error, TieredError) else "refused", described(ended)) from error

    def _documented(self, error: BaseException, verdict: Is, misused: bool) -> bool:
        return isinstance(error, InvalidRequestError) and (verdict is not Is.GOOD or misused or self._host.oracle.closed)
