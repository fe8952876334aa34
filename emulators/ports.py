"""Ports for servers that must be told theirs, because they say 0 where they were given 0."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from changelog.base.runtime import SystemRuntime

FIRST, RANGE = 20_000, Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_BELOW = 32_768
"""Where the ports begin that Linux gives to whoever asks for any."""


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
