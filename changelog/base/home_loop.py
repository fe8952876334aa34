"""What was opened in an event loop is used in that loop alone.

An event of one loop does not wake a task of another, so a call from elsewhere would hang for ever, and no timeout would
end it. It is refused at once instead, with an error that names both loops. `in_home_loop` sees to all asynchronous
methods of a class, so none can be forgotten. What is made once for each call is not checked but by who made it.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from inspect import iscoroutinefunction
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, TypeVar

import anyio

from changelog.base.errors import InvalidRequestError
from changelog.base.tasks import running_loop


class HomeLoop:
    """The event loop that runs now. Make it where something is opened. `what`: how messages name that."""

    __slots__ = ("_loop", "_thread", "_what")

    def __init__(self, what: object) -> None:
        self._what = what
        self._loop = running_loop()
        self._thread = threading.current_thread().name

    def check(self) -> None:
        """Raises `InvalidRequestError` if another event loop runs now."""
        loop = running_loop()
        if loop is not self._loop:
            raise InvalidRequestError(
                f"{self._what} was opened in {_named(self._loop, self._thread)}, and is used in"
                f" {_named(loop, threading.current_thread().name)}: use it where it was opened, or open one in each event loop"
                " (in pytest, one plugin runs a fixture and its tests; pytest-asyncio also wants one loop_scope for both)"
            )


def _named(loop: object, thread: str) -> str:
    return f"the event loop {id(loop):#x} ({type(loop).__name__}, thread {thread})"


class _AtHome(Protocol):
    @property
    def _home(self) -> HomeLoop | None: ...


T = TypeVar("T", bound=_AtHome)
V = TypeVar("V")
P = ParamSpec("P")


def in_home_loop(kind: type[T]) -> type[T]:
    """Lets each asynchronous method of a class ask `self._home` first, but for those with a name that begins with one
    underscore. None: it was not opened yet.
    """
    for name, method in list(vars(kind).items()):
        if iscoroutinefunction(method) and (name.startswith("__") or not name.startswith("_")):
            setattr(kind, name, _at_home(method))
    return kind


def _at_home(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(method)
    async def call(self: _AtHome, *args: Any, **named: Any) -> Any:
        if self._home is not None:
            self._home.check()
        return await method(self, *args, **named)

    return call


class EnteredOnce:
    """What a block enters, once. Whoever uses it in another way is told how the block is written.

    A class of blocks defines the two methods with which its own kind of block enters and leaves it.
    """

    def __init__(self, what: object, block: str) -> None:
        self._what = what
        self._usage = f"{what} is open inside the block only: {block}(…) as storage: …"
        self._is_entered = False

    def _begin(self) -> None:
        if self._is_entered:
            raise InvalidRequestError(f"{self._what} is entered once; open another")
        self._is_entered = True

    def _refuse(self, *_: object) -> NoReturn:
        raise InvalidRequestError(self._usage)

    if not TYPE_CHECKING:
        __await__ = __enter__ = __exit__ = __aenter__ = __aexit__ = _refuse

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(name if name.startswith("_") else self._usage)


@in_home_loop
class _LeftAtHome(EnteredOnce, AbstractAsyncContextManager[V]):
    def __init__(self, what: object, context: AbstractAsyncContextManager[V], made_by: str) -> None:
        super().__init__(what, f"async with {made_by}")
        self._home: HomeLoop | None = None
        self._task: int | None = None
        self._context = context

    async def __aenter__(self) -> V:
        self._begin()
        entered = await self._context.__aenter__()
        self._home, self._task = HomeLoop(self._what), anyio.get_current_task().id
        return entered

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        if self._home is None:
            self._refuse()
        try:
            return await self._context.__aexit__(kind, error, trace)
        except RuntimeError as refused:  # anyio's: a task group is left by the task that entered it
            if error is refused or self._task == anyio.get_current_task().id:
                raise
            raise InvalidRequestError(
                f"{self._what} is left in another task than the one that entered it, as pytest-asyncio does with a fixture: let"
                " anyio's plugin run the fixture and its tests (pytest.mark.anyio), or enter the block in the test"
            ) from refused


def left_at_home(
    what: object,
) -> Callable[[Callable[P, AbstractAsyncContextManager[V]]], Callable[P, AbstractAsyncContextManager[V]]]:
    """Decorates what returns a context: another event loop than that which entered it may not leave it. Refused there,
    it stays entered. Whoever uses it in another way than as a block is told how to.
    """

    def decorated(opening: Callable[P, AbstractAsyncContextManager[V]]) -> Callable[P, AbstractAsyncContextManager[V]]:
        @wraps(opening)
        def opened(*args: P.args, **named: P.kwargs) -> AbstractAsyncContextManager[V]:
            return _LeftAtHome(what, opening(*args, **named), opening.__name__)

        return opened

    return decorated
