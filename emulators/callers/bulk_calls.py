"""One bulk call. The seed chose how its requests come. Each result is judged as that of the single call would be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from emulators.callers.ended import Ended, described
from emulators.callers.episode_recipe import CallerStep, CallKind, Item
from emulators.callers.interrupt import ELSEWHERE, ForeignTask
from emulators.callers.model import ModelWrite, SeenObject, WriteCertainty
from emulators.callers.oracle import path_of
from emulators.callers.payloads import Made, OwnError
from emulators.callers.values import Is, said
from emulators.callers.verdict import Violation
from emulators.callers.ways_to_read import of_head
from tiered import InvalidRequestError, ItemResult, LoadedObject, ObjectHead, ObjectId, PutRequest, PutResult, TieredError

if TYPE_CHECKING:
    from emulators.callers.episode import Episode


@dataclass(slots=True)
class _Request:
    """One request. `began`: the tick at which it was handed out."""

    item: Item
    request: Any
    verdict: Is
    made: Made | None = None
    condition: dict[str, Any] = field(default_factory=dict)
    write: ModelWrite | None = None
    began: int = 0
    has_result: bool = False


class BulkCall:
    """One bulk call, from its requests to the last of its results."""

    def __init__(self, host: Episode, step: CallerStep, arguments: dict[str, Any], verdict: Is) -> None:
        self._host = host
        self._step = step
        self._arguments = arguments
        self._source, _, self._manner = step.manner.partition(", ")
        self._verdict = Is.WRONG if self._source == "no iterable" else verdict
        self._own = OwnError("of the requests")
        self._requests: list[_Request] = []
        self._results: list[ItemResult[Any, Any]] = []
        self._reached = False

    async def run(self) -> None:
        host = self._host
        for item in self._step.items:
            with suppress(InvalidRequestError):
                self._requests.append(await self._request(item))
        ended = await host.call(self._step, self._call())
        try:
            for result in self._results:
                self._judge(result)
            self._judge_all(ended)
        finally:
            for each in self._requests:
                if each.write is not None and not each.has_result:
                    host.oracle.model.end(each.write, WriteCertainty.MAYBE)
                if each.made is not None:
                    await host.afterwards(each.made)

    async def _request(self, item: Item) -> _Request:
        host = self._host
        if item.wrong is not None:
            return _Request(item, host.oracle.make(item.wrong), Is.WRONG)
        object_id, verdict = host.oracle.make(item.object_id), item.object_id.verdict
        if item.payload is None:
            return _Request(item, object_id, verdict)
        assert item.metadata is not None, "drawn"
        metadata, condition = host.oracle.make(item.metadata), {}
        made = await item.payload.make(host)
        verdict &= item.metadata.verdict & made.verdict
        if item.condition is not None:
            condition, verdict = host.condition(item.condition.make(), object_id), verdict & item.condition.verdict
        try:
            return _Request(item, PutRequest(object_id, made.payload, metadata, **condition), verdict, made, condition)
        except InvalidRequestError:
            await host.afterwards(made)
            raise

    def _hand_out(self, each: _Request) -> Any:
        """Returns a request to the store. From now on it may take effect."""
        oracle, request = self._host.oracle, each.request
        each.began = oracle.model.tick()
        if each.made is not None:
            each.write = oracle.begin(request.object_id, request.metadata, each.made)
        elif self._step.call is CallKind.DELETE_MANY and isinstance(request, ObjectId):
            each.write = oracle.model.begin(path_of(request), None, None)
        return request

    def _sync(self) -> Iterator[Any]:
        yield from map(self._hand_out, self._requests)
        if self._source == "a generator that raises":
            raise self._own

    async def _async(self) -> AsyncIterator[Any]:
        for each in self._requests:
            await anyio.lowlevel.checkpoint()
            yield self._hand_out(each)
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
                requests = [*map(self._hand_out, self._requests)]
            case "no iterable":
                requests = self._host.random.choice((None, 5, "text", b"bytes", object(), ObjectId.create("a", "b")))
            case _ if "async" in self._source:
                requests = self._async()
            case _:
                requests = self._sync()
        return getattr(self._host.storage, self._step.call.verb)(requests, **self._arguments)

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
        if not 0 <= position < len(self._requests) or result.request is not self._requests[position].request:
            raise Violation("wrong answer", f"a result has position {position} and request {said(result.request)}")
        each = self._requests[position]
        if each.has_result:
            raise Violation("wrong answer", "an item has two results")
        each.has_result = True
        ended = Ended(error=result.error) if result.error is not None else Ended(result.value)
        what = f"item {position}, {each.item}: "
        try:
            self._judge_item(each, ended)
        except Violation as found:
            raise Violation(found.kind, what + found.finding) from found.__cause__
        finally:
            if ended.error is not None:
                host.trace.append(f"    {what}{ended}")

    def _judge_item(self, each: _Request, ended: Ended) -> None:
        oracle, request = self._host.oracle, each.request
        if self._step.call not in (CallKind.GET_MANY, CallKind.HEAD_MANY):
            object_id = request.object_id if isinstance(request, PutRequest) else request
            oracle.judge_write(
                each.write, ended, each.verdict, each.made or Made(None, None), object_id, condition=each.condition,
                blocks=each.item.payload is not None and each.item.payload.blocks,
                result=PutResult if self._step.call is CallKind.PUT_MANY else type(None),
            )  # fmt: skip
        elif ended.error is not None:
            limited = self._step.arguments.get("payload_bytes_max")
            oracle.judge_error(ended, each.verdict if limited is None else each.verdict & limited.verdict)
        else:
            oracle.check_own_row(request)
            found: LoadedObject | ObjectHead | None = ended.value
            seen = SeenObject(found.payload, found.head.metadata, found.head.revision) if isinstance(found, LoadedObject) else of_head(found)
            oracle.model.check(path_of(request), seen, each.began)

    def _judge_all(self, ended: Ended) -> None:
        error = ended.error
        raises = error is self._own
        misused = self._manner in ("entered twice", "not entered", "iterated afterwards")
        if ended.cancelled or ended.asked:
            if not (error is None or raises or isinstance(error, ELSEWHERE) or self._documented(error, misused)):
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
        if not self._documented(error, misused):
            raise Violation("raw error" if not isinstance(error, TieredError) else "refused", described(ended)) from error

    def _documented(self, error: BaseException, misused: bool) -> bool:
        return isinstance(error, InvalidRequestError) and (self._verdict is not Is.GOOD or misused or self._host.oracle.closed)
