"""The store of this process, for programs that fork: gunicorn with or without --preload, Celery, uWSGI."""

from __future__ import annotations

import os
from contextlib import ExitStack
from threading import Lock

from tiered import Settings
from tiered.sync import SyncTieredStorage, open_storage


# --8<-- [start:store]
class ProcessStore:
    """Opens a store at its first use in each process. A process that is forked later opens one of its own.

    It is closed when the interpreter exits, and waits then for what is under way, as leaving `with` would.
    """

    def __init__(self, source: str | Settings) -> None:
        self._source = source
        self._lock = Lock()
        self._storage: SyncTieredStorage | None = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a forked child. Another thread of the parent may have held the lock, and would hold it for ever."""
        self._lock, self._storage = Lock(), None

    def __call__(self) -> SyncTieredStorage:
        with self._lock:
            if self._storage is None:
                self._open = ExitStack()
                self._storage = self._open.enter_context(open_storage(self._source))
            return self._storage
# --8<-- [end:store]

    def close(self) -> None:
        """Closes it now. The next use opens it anew."""
        with self._lock:
            if self._storage is not None:
                self._open.close()
            self._storage = None
