"""Ports for servers that must be told theirs, because they say 0 where they were given 0; ports that others have."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from changelog.base.errors import TieredError
from changelog.base.runtime import SystemRuntime

FIRST, RANGE = 20_000, Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_BELOW = 32_768
"""Where the ports begin that Linux gives to whoever asks for any."""


class PortTakenError(TieredError):
    """Somebody else has the port that was asked for."""


def refuse_taken(port: int, option: str) -> None:
    """Raises `PortTakenError` if the port is taken. Asked first, since each server would say it in other words.

    `option`: what asks for it. Port 0, any free one, never is.
    """
    if port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortTakenError(f"{option} {port} cannot be had: {error.strerror}; stop who has it, or give another") from None


def free_port() -> int:
    """A port of loopback that nobody has, and that the system gives to nobody who asks for any.

    The server binds it a while later. Meanwhile others, such as the tests beside this one, ask for any port hundreds of
    times, and would sometimes get this one.
    """
    below = int(RANGE.read_text().split()[0]) if RANGE.exists() else USUAL_BELOW
    chance = SystemRuntime().random
    for _ in range(100 if below > FIRST + 1000 else 0):
        port = chance.randrange(FIRST, below)
        with suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
