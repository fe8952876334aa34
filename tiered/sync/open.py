"""`open_storage` for blocking callers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import tiered.open
import tiered.storage
from changelog.base.home_loop import EnteredOnce
from changelog.base.runtime import Runtime
from tiered.settings import Settings
from tiered.sync.loop import HeldContext, LoopThread, loop_thread, refuse_in_event_loop
from tiered.sync.storage import SyncTieredStorage

if TYPE_CHECKING:
    from tiered.telemetry.telemetry import Telemetry

A = TypeVar("A", bound=tiered.storage.TieredStorage)
S = TypeVar("S", bound=SyncTieredStorage)


class Opening(EnteredOnce, AbstractContextManager[S], Generic[A, S]):
    """What `open_storage` returns. Enter it with `with`, once.

    A storage that was entered and never left is left when the interpreter exits.
    """

    def __init__(
        self, open_async: Callable[[], AbstractAsyncContextManager[A]], make: Callable[[LoopThread, A], S], made_by: str = "open_storage"
    ) -> None:
        """`make` makes the blocking storage from the open one. `made_by`: whom a caller calls for it."""
        super().__init__("this storage", f"with {made_by}")
        self._open_async = open_async
        self._make = make
        self._kept: HeldContext[A] | None = None
        self._storage: S | None = None

    def __enter__(self) -> S:
        refuse_in_event_loop()
        return self.enter_anywhere()

    def enter_anywhere(self) -> S:
        """Enters it also where an event loop runs, which it blocks."""
        self._begin()
        loop = loop_thread()
        self._kept = HeldContext(loop, self._open_async())
        self._storage = self._make(loop, self._kept.enter())
        return self._storage

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._kept is None or self._storage is None:
            self._refuse()
        self._storage._calls.is_open = False
        self._kept.leave()


def open_storage(
    source: str | Path | Settings, runtime: Runtime | None = None, *,
    writes: bool = True, recover: bool = False, telemetry: Telemetry | None = None,
) -> Opening[tiered.storage.TieredStorage, SyncTieredStorage]:
    """Opens a store for blocking callers: `with open_storage(…) as storage`.

    `source` is the path of a YAML file, or `Settings`. Raises `ConfigurationError`, which says what to change.

    The arguments are those of `tiered.open_storage`. Open a store after a fork, and not before it: gunicorn's
    `post_fork`, Celery's `worker_process_init`. A forked child cannot use a storage of its parent. In embedded mode it
    cannot open a directory either that its parent had open at the fork.
    """
    opening = partial(tiered.open.open_storage, source, runtime, writes=writes, recover=recover, telemetry=telemetry)
    return Opening(opening, SyncTieredStorage)
