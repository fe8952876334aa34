"""A relay whose answers are late: `python -m benchmarks.relay HOST:PORT MS [HOST:PORT MS …]`, until stdin ends.

    client --at once--> server        client <--MS milliseconds later, in order-- server

It says the addresses that it listens on, in the same order. The delay does not limit the throughput: what is sent while
other bytes wait is delayed by the same time and no more.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import cast

from benchmarks.servers import left_alone


class _Leg(asyncio.Protocol):
    """The receiving end of one direction. It writes what comes to the other leg, `delay_s` later.

    A full buffer stops the sender.
    """

    def __init__(self, delay_s: float) -> None:
        self.other: _Leg | None = None
        self.transport: asyncio.Transport | None = None
        self._delay_s = delay_s
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._delay_s:
            asyncio.get_running_loop().call_later(self._delay_s, self._pass_on, data)
        else:
            self._pass_on(data)

    def connection_lost(self, exc: Exception | None) -> None:
        asyncio.get_running_loop().call_later(self._delay_s, self._close_other)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

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
    def __init__(self, host: str, port: int, delay_s: float) -> None:
        super().__init__(0.0)
        self._target = host, port, delay_s
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        host, port, delay_s = self._target
        try:
            _, server = await asyncio.get_running_loop().create_connection(lambda: _Leg(delay_s), host, port)
        except OSError:
            assert self.transport is not None
            self.transport.abort()
        else:
            self.join(server)


async def main(targets: list[tuple[str, int, float]]) -> None:
    loop = asyncio.get_running_loop()
    addresses = []
    for host, port, delay_s in targets:
        listening = await loop.create_server(partial(_Accepted, host, port, delay_s), "127.0.0.1", 0)
        addresses.append(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    print(*addresses, flush=True)
    await left_alone()


if __name__ == "__main__":
    told = [address.rpartition(":") for address in sys.argv[1::2]]
    asyncio.run(main([(host, int(port), float(ms) / 1000) for (host, _, port), ms in zip(told, sys.argv[2::2], strict=True)]))
