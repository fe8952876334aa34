"""`LinkedLibrary`: one process's connection to a `MemoryS3`, on which every request is a call of its `Link`.

A request has the name of the protocol's call that sends it, so one plan serves it and the simulated blobs. A call of
several requests has several points: a blob that expires is `blobs.touch` (its deadline), then `upload.finalise`. The
error of a fault is what S3 or the library would have said, and the adapter judges by that: SlowDown, AccessDenied, a
connection that breaks, 500 after the effect. A request that stood still for 15 minutes is RequestTimeTooSkewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from botocore.exceptions import ClientError, ConnectionClosedError

from changelog.base.errors import ConfigurationError, UnavailableError, UnconfirmedError
from emulators.s3.memory import Answer, MemoryLibrary, MemoryS3, call_name, refused
from emulators.world.faults import Process
from emulators.world.runtime import now_s
from tiered.testing.blobs import REQUEST_LIVES_S


class LinkedLibrary(MemoryLibrary):
    """One process's connection. Every request on it is a call of the process's link."""

    def __init__(self, server: MemoryS3, process: Process) -> None:
        super().__init__(server)
        self._process = process

    async def send(self, operation: str, named: Mapping[str, Any]) -> Answer:
        """Sends a request. An error of the server or of the link is raised as the library's own."""
        name, given_at, times = call_name(operation, named), now_s(), 0

        async def asked() -> Any:
            nonlocal times
            times += 1
            is_copy = times > 1
            if now_s() - given_at > REQUEST_LIVES_S:
                return refused(403, "RequestTimeTooSkewed", operation)
            try:
                return await self.server.call(operation, named, (name, is_copy))
            except ClientError as error:  # as an answer, so it reaches only a caller that still waits
                return error

        try:
            outcome = await self._process.link.call(name, asked)
        except UnconfirmedError as error:
            raise ConnectionClosedError(endpoint_url="memory") from error
        except UnavailableError as error:
            raise refused(*((500, "InternalError") if times else (503, "SlowDown")), operation) from error
        except ConfigurationError as error:
            raise refused(403, "AccessDenied", operation) from error
        if isinstance(outcome, ClientError):
            raise outcome
        answer: Answer = outcome
        return answer

    async def receive(self, body: bytes) -> bytes:
        try:
            return await self._process.link.call("reader.chunks", partial(self.server.piece, body))
        except (UnconfirmedError, UnavailableError, ConfigurationError) as error:
            raise ConnectionClosedError(endpoint_url="memory") from error
