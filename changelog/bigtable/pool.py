"""`connect`: one `Channel` to a Bigtable instance that is made of several connections.

    a call -> the connection with the fewest calls       Google: <= 100 at once on each, best 10-50, two at least
    open -> warm -> serve for 35-45 minutes -> replaced by one that is warm -> its calls end -> close

gRPC lets equal channels share one connection, unless each has a pool of subchannels of its own. The service ends every
connection after an hour, and a new one is slow at first. So each is replaced before that, while calls go on. A
connection that cannot be reached gets calls only if all of them cannot be reached. Otherwise it would get most calls,
because calls that fail at once leave it with the fewest.

*Crash*: nothing is kept. *Failure*: a warm-up that fails is logged, because the first call may still succeed. If it was
for the replacement of an older connection, that one stays for another turn. `grpc.aio` needs the event loop on which
`connect` was entered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any, Self
from urllib.parse import urlencode

import anyio
import grpc
import grpc.aio
from anyio.abc import TaskGroup
from google.cloud.bigtable_v2.types import bigtable

from changelog.base.errors import ConfigurationError, TieredError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.base.tasks import end_tasks
from changelog.bigtable.channel import (
    CALL_TIMEOUT_S,
    CHANNEL_OPTIONS,
    SCAN_TIMEOUT_S,
    SERVICE,
    STREAMS_IN_CALLER,
    answer,
    as_metadata,
    insecure_blocking_channel,
    insecure_channel,
    proven,
    translated,
)
from changelog.google.authorize import Authorize

HOST = "bigtable.googleapis.com:443"
SCOPE = "https://www.googleapis.com/auth/bigtable.data"
AGE_MIN_S, AGE_MAX_S = 35 * 60.0, 45 * 60.0

_KEEPALIVE = [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000)]

_CALLS = attrgetter("calls")
Opens = Callable[[], grpc.aio.Channel]
OpensBlocking = Callable[[], grpc.Channel]


@asynccontextmanager
async def connect(
    instance: str, runtime: Runtime, *, emulator_host: str | None, channels: int, app_profile: str = "",
    authorize: Authorize | None = None,
) -> AsyncIterator[ChannelPool]:
    """A channel of `channels` connections to `instance` (projects/…/instances/…). All are closed at exit.

    Calls that are still open then are cancelled. `emulator_host`: `host:port` of an emulator, without encryption and
    tokens; None: Google's service, with tokens from `authorize`, or from the application default credentials. Each call
    takes its token from `ChannelPool.authorize`: gRPC knows none, because it would wait for a renewal in a thread that
    all calls share, and not tell it from a call that was sent. `ConfigurationError`: there are no credentials, or the
    service says what is wrong.
    """
    if channels < 1:
        raise ConfigurationError(f"channels is {channels}: Bigtable needs at least 1, and 2 in production")
    if emulator_host is None and authorize is None:
        from changelog.google.tokens import GoogleAuthorization  # noqa: PLC0415 - an emulator needs none of it

        authorize = await GoogleAuthorization.default(runtime, SCOPE)
    opens, opens_blocking = _opens_secure() if emulator_host is None else _opens_insecure(emulator_host)
    async with ChannelPool(opens, opens_blocking, instance, app_profile, runtime, channels, authorize) as pool:
        yield pool


class PooledChannel:
    """One gRPC channel, and the number of calls that are on it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.calls = 0
        self._channel = channel
        self._idle = anyio.Event()
        self._methods: dict[Any, Any] = {}

    @property
    def fails(self) -> bool:
        return self._channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    def begin(self, method: tuple[str, str, Any, Any], request: Any, options: dict[str, Any]) -> Any:
        """Begins the call. It counts until it has ended, however it ends."""
        bound = self._methods.get(method)
        if bound is None:
            kind, *arguments = method
            bound = self._methods[method] = getattr(self._channel, kind)(*arguments)
        call = bound(request, **options)
        self.calls += 1
        call.add_done_callback(self._ended)
        return call

    async def warm(self, instance: str, app_profile: str, authorize: Authorize | None) -> None:
        """Sets the connection up, on this machine and in the service. Raises as a read does."""
        target = {"name": instance} | ({"app_profile_id": app_profile} if app_profile else {})
        request, response = bigtable.PingAndWarmRequest.pb(), bigtable.PingAndWarmResponse.pb()
        method = ("unary_unary", f"{SERVICE}PingAndWarm", request.SerializeToString, response.FromString)
        metadata = [("x-goog-request-params", urlencode(target, safe="/"))]
        left_s = CALL_TIMEOUT_S
        if authorize is not None:
            proof, left_s = await proven(authorize, CALL_TIMEOUT_S)
            metadata += as_metadata(proof)
        try:
            await answer(self.begin(method, request(**target), {"timeout": left_s, "metadata": tuple(metadata)}))
        except grpc.RpcError as error:
            raise translated(error, f"connecting to {instance}", sent=False) from error

    async def retire(self, grace_s: float) -> None:
        """Closes the connection once its calls have ended, or after `grace_s`. It must not get new calls any more."""
        with anyio.move_on_after(grace_s):
            while self.calls:
                self._idle = anyio.Event()
                await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        """Closes the connection and ends the calls that are left. Safe to repeat."""
        await self._channel.close()

    def _ended(self, _: Any) -> None:
        self.calls -= 1
        if not self.calls:
            self._idle.set()


class ChannelPool:
    """Implements `Channel`. Enter it with `async with`: its tasks replace the connections as they age."""

    def __init__(
        self, opens: Opens, opens_blocking: OpensBlocking, instance: str, app_profile: str, runtime: Runtime, size: int,
        authorize: Authorize | None = None,
    ) -> None:
        self.authorize = authorize
        self._opens = opens
        self._opens_blocking = opens_blocking
        self._blocking: grpc.Channel | None = None
        self._instance = instance
        self._app_profile = app_profile
        self._runtime = runtime
        self._connections = [PooledChannel(opens()) for _ in range(size)]
        self._retired: set[PooledChannel] = set()
        self._tasks: TaskGroup | None = None

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return self._spread(("unary_unary", method, request_serializer, response_deserializer))

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return self._spread(("unary_stream", method, request_serializer, response_deserializer))

    def blocking(self) -> grpc.Channel:
        """One more connection, for calls that block. It is opened when it is asked for first.

        It is not replaced as it ages: only long reads use it. gRPC itself opens a new one when the service ends it.
        """
        if self._blocking is None:
            self._blocking = self._opens_blocking()
        return self._blocking

    async def __aenter__(self) -> Self:
        try:
            await self._warm_all()
        except BaseException:
            await self._close()
            raise
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        for place in range(len(self._connections)):
            self._tasks.start_soon(self._renew, place, self._tasks)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None, "entered before it is left"
        try:
            await end_tasks(tasks, error)
        finally:
            await self._close()

    def _spread(self, method: tuple[str, str, Any, Any]) -> Any:
        connections = self._connections

        def call(request: Any, **options: Any) -> Any:
            best = min(connections, key=_CALLS)
            if best.fails:  # each call pays for this question, so only one connection is asked
                best = min(connections, key=lambda connection: (connection.fails, connection.calls))
            return best.begin(method, request, options)

        return call

    async def _warm_all(self) -> None:
        mistakes: list[ConfigurationError] = []

        async def warm(connection: PooledChannel) -> None:
            try:
                await connection.warm(self._instance, self._app_profile, self.authorize)
            except ConfigurationError as mistake:
                mistakes.append(mistake)
            except TieredError as error:
                events.warning("warm_up_failed", error, instance=self._instance)

        async with anyio.create_task_group() as tasks:
            for connection in self._connections:
                tasks.start_soon(warm, connection)
        if mistakes:
            raise mistakes[0]

    async def _renew(self, place: int, tasks: TaskGroup) -> None:
        """Replaces the connection at `place` again and again, each time before the service would end it."""
        while True:
            await self._runtime.sleep(self._runtime.random.uniform(AGE_MIN_S, AGE_MAX_S))
            fresh, old = PooledChannel(self._opens()), self._connections[place]
            self._retired.add(fresh)  # until it serves
            try:
                await fresh.warm(self._instance, self._app_profile, self.authorize)
            except TieredError as error:
                events.warning("warm_up_failed", f"its older connection stays: {error}", instance=self._instance)
                old = fresh
            else:
                self._connections[place] = fresh
                self._retired.discard(fresh)
                self._retired.add(old)
            tasks.start_soon(self._retire, old)

    async def _retire(self, connection: PooledChannel) -> None:
        await connection.retire(max(CALL_TIMEOUT_S, SCAN_TIMEOUT_S))
        self._retired.discard(connection)

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            for connection in [*self._connections, *self._retired]:
                await connection.close()
        if self._blocking is not None:
            self._blocking.close()


# --- one gRPC channel --------------------------------------------------------------------------------


def _opens_insecure(host: str) -> tuple[Opens, OpensBlocking]:
    return lambda: insecure_channel(host), lambda: insecure_blocking_channel(host)


def _opens_secure() -> tuple[Opens, OpensBlocking]:
    options = [*CHANNEL_OPTIONS, *_KEEPALIVE]
    return (
        lambda: grpc.aio.secure_channel(HOST, grpc.ssl_channel_credentials(), options=options),
        lambda: grpc.secure_channel(HOST, grpc.ssl_channel_credentials(), options=[*options, STREAMS_IN_CALLER]),
    )
