"""What aiohttp must not do with a connection: give it out again with an answer on it that nobody asked for."""

from __future__ import annotations

from typing import Any


def unspoilt(connector: Any) -> Any:
    """The same connector of aiohttp. It gives out no kept connection on which bytes came that nobody had asked for.

    aiohttp looks at that only when a connection is given back. An answer that came twice, the second time a little
    later, was then the answer to the next request.
    """
    taken = connector.connect

    async def connect(*args: Any, **named: Any) -> Any:
        while (connection := await taken(*args, **named)).protocol.should_close:
            connection.close()
        return connection

    connector.connect = connect
    return connector
