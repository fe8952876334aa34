"""Work that blocks, in threads: each kind of it has its own limiter.

anyio's default limiter is shared by the whole process, callers' code included: forty of its threads that wait for a pipe would stop all
that needs a forty-first, such as the renewal of a token. *Failure*: a thread that cannot be started (the process has as many as
it may) is `UnavailableError`, because nothing was begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio import to_thread

from changelog.errors import UnavailableError

T = TypeVar("T")


async def in_thread(function: Callable[[], T], limiter: anyio.CapacityLimiter, *, abandon_on_cancel: bool = False) -> T:
    """Calls it in a thread, and returns its result. `abandon_on_cancel`: whoever is cancelled leaves it to its end unheeded."""
    begun = False

    def run() -> T:
        nonlocal begun
        begun = True
        return function()

    try:
        return await to_thread.run_sync(run, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
    except RuntimeError as error:
        if begun:
            raise
        raise UnavailableError(f"no thread could be started: let this process have more of them, or try again ({error})") from error
