"""An ASGI application under a real server, for as long as a test wants it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn


@asynccontextmanager
async def served(app: Any, **options: Any) -> AsyncIterator[int]:
    """The port of the application under uvicorn. `options`: of `uvicorn.Config`."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, **options))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [bound])
            try:
                yield bound.getsockname()[1]
            finally:
                server.should_exit = True
