"""A relay whose answers are late: `python -m benchmarks.relay HOST:PORT MS[/KIB] [HOST:PORT MS …]`, until stdin ends.

    client --at once--> server        client <--MS milliseconds later, in order-- server

With `>` before the MS it is the requests that are late, and not the answers. It says the addresses that it listens on,
in the same order. The delay does not limit the throughput: what is sent while other bytes wait is delayed by the same
time and no more. But with KIB, that many KiB of a connection wait at most, as with the window of TCP. So a connection
has at most KIB each MS, and several have more.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from math import inf
from typing import cast

from benchmarks.servers import left_alone


class _Leg(asyncio.Protocol):
    """The receiving end of one direction. It writes what comes to the other leg, `delay_s` later.

    A full buffer stops the sender.
    """

    def __init__(self, delay_s: float, window_bytes: float = inf) -> None:
        self.other: _Leg | None = None
        self.transport: asyncio.Transport | None = None
        self._delay_s = delay_s
        self._window_bytes = window_bytes
        self._waiting = 0
        self._is_full = self._is_slow = False
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._delay_s:
            self._waiting += len(data)
            self._look(is_full=self._waiting >= self._window_bytes)
            asyncio.get_running_loop().call_later(self._delay_s, self._arrive, data)
        else:
            self._pass_on(data)

    def _arrive(self, data: bytes) -> None:
        self._waiting -= len(data)
        self._pass_on(data)
        self._look(is_full=self._waiting >= self._window_bytes)

    def _look(self, *, is_full: bool | None = None, is_slow: bool | None = None) -> None:
        """Reads on, unless the window is full or the other end is slow."""
        self._is_full = self._is_full if is_full is None else is_full
        self._is_slow = self._is_slow if is_slow is None else is_slow
        if self.transport is not None:
            (self.transport.pause_reading if self._is_full or self._is_slow else self.transport.resume_reading)()

    def connection_lost(self, exc: Exception | None) -> None:
        asyncio.get_running_loop().call_later(self._delay_s, self._close_other)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other._look(is_slow=True)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other._look(is_slow=False)

    def join(self, other: _Leg) -> None:
        self.other, other.other = other, self
        for chunk in self._early:
            self._pass_on(chunk)
        self._early.clear()

    def _pass_on(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        elif self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.write(data)

    def _close_other(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Accepted(_Leg):
    def __init__(self, host: str, port: int, delay_s: float, window_bytes: float, of_requests: bool) -> None:
        super().__init__(*((delay_s, window_bytes) if of_requests else (0.0,)))
        self._target = host, port, *((0.0, inf) if of_requests else (delay_s, window_bytes))
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        host, port, delay_s, window_bytes = self._target
        try:
            _, server = await asyncio.get_running_loop().create_connection(lambda: _Leg(delay_s, window_bytes), host, port)
        except OSError:
            assert self.transport is not None
            self.transport.abort()
        else:
            self.join(server)


Target = tuple[str, int, float, float, bool]
"""The host and the port of a server, the delay of its answers in seconds, and the window in bytes; or of requests."""


async def main(targets: list[Target]) -> None:
    loop = asyncio.get_running_loop()
    addresses = []
    for target in targets:
        listening = await loop.create_server(partial(_Accepted, *target), "127.0.0.1", 0)
        addresses.append(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    print(*addresses, flush=True)
    await left_alone()


def _target(address: str, late: str) -> Target:
    (host, _, port), (ms, _, kib) = address.rpartition(":"), late.removeprefix(">").partition("/")
    return host, int(port), float(ms) / 1000, float(kib) * 1024 if kib else inf, late.startswith(">")


if __name__ == "__main__":
    asyncio.run(main([_target(*each) for each in zip(sys.argv[1::2], sys.argv[2::2], strict=True)]))
