"""The daemon's HTTP server: a socket that is bound before recovery starts, and uvicorn as a task beside the loop.

    with listening(settings.daemon) as server:             port taken, no such host: `ConfigurationError`
        run_daemon(…, partial(serve, server, …))            until the daemon cancels it

The signals stay the daemon's: uvicorn's own handlers are never installed. It stops within `STOP_S` seconds after the
loop has ended. *Failure*: recovery goes on without the server, and the log says so. uvicorn needs asyncio; a daemon
without a port needs neither.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the door to uvicorn, which runs on asyncio alone
import errno
import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from typing import Any, cast

import anyio
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from changelog.base.errors import ConfigurationError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from recovery.http.app import make_app
from recovery.http.decisions import Decisions
from recovery.http.own import Made, RecentCalls
from recovery.http.sampler import Sampler, questions_to
from recovery.http.server_view import ServerView, Worker
from recovery.metrics import StatusMetrics
from recovery.status.known import SERVICES
from recovery.status.look import gather
from recovery.typed_commands import TIERED
from tiered.open import Backends
from tiered.settings import DaemonSettings, Settings
from tiered.telemetry.metrics import metrics_of

logger = logging.getLogger("tiered")

STOP_S = 1
"""Seconds that requests under way have when the server stops."""

CONNECTIONS_MAX = 200
"""Beyond it, the connection that has waited longest without a request is closed for each new one."""
REQUESTS_MAX = 180
"""Beyond it, only /healthz is answered. So there is always a connection without a request to close."""
DESCRIPTORS_LEFT = 64
"""So many descriptors are left to everything else in this process."""
BACKLOG = 100
OUT_OF_DESCRIPTORS_EVERY_S = 60.0
KEEP_ALIVE_S = 5
HEAD_BYTES_MAX = 16 * 1024

OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What the system says that has no descriptor, or no memory, for a connection."""

CONNECTION_S = 30.0
"""A connection lives at most about so many seconds. Clients that stall would otherwise keep all others out for ever."""


@contextmanager
def listening(daemon: DaemonSettings) -> Iterator[socket.socket]:
    """Binds the port that the settings name. `ConfigurationError`, in one sentence, if that cannot be."""
    assert daemon.http_port is not None
    with bound_to(daemon.http_host, daemon.http_port, "daemon.http_host", "daemon.http_port, --http-port") as bound:
        yield bound


@contextmanager
def bound_to(host: str, port: int, host_option: str, port_option: str) -> Iterator[socket.socket]:
    """Binds a port. `host_option`, `port_option`: what errors call the places where the two are set.

    `ConfigurationError`, in one sentence, if that cannot be.
    """
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{host_option} is {host!r}, which is no host that this machine knows: {reason}") from None
    with socket.socket(family, kind, protocol) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just given up is free
        try:
            bound.bind(address)
            bound.listen()
        except OSError as error:
            raise ConfigurationError(_why_not(error, host, port, host_option, port_option)) from None
        bound.setblocking(False)
        yield bound


def _why_not(error: OSError, host: str, port: int, host_option: str, port_option: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} of {host} is taken by another program: choose another one ({port_option})"
        case errno.EACCES:
            return f"this user may not listen on port {port}: choose one above 1023 ({port_option})"
        case errno.EADDRNOTAVAIL:
            return f"{host_option} is {host!r}, which is no address of this machine: use 127.0.0.1, or 0.0.0.0 for all"
        case _:
            return f"this process cannot listen on port {port} of {host}: {error.strerror}"


async def serve(
    bound: socket.socket, backends: Backends, runtime: Runtime, settings: Settings, registry: CollectorRegistry, worker: Worker, *,
    tiered: str = TIERED,
) -> None:  # fmt: skip
    """Serves until it is cancelled. Raises nothing else.

    `registry`: what `/metrics` shows, with the calls of this process. The figures of the status are added to it.
    `tiered`: how commands begin that mean this store.
    """
    decisions = Decisions(runtime)
    metrics = metrics_of(registry)

    def made() -> Made:
        return {SERVICES[service]: calls for service, calls in metrics.calls_made().items()}

    services = {name: service for service, name in SERVICES.items()}

    def hear(name: str, answers: bool) -> None:
        worker.outages.hear(services[name], answers=answers)

    sampler = Sampler(
        partial(gather, backends, settings, runtime), questions_to(backends), runtime, RecentCalls(made, runtime),
        lambda: getattr(backends.tiers.long_term, "odd_files", None), backends.log, hear,
    )  # fmt: skip
    view = ServerView(sampler, decisions, worker, runtime, settings, tiered)
    registry.register(StatusMetrics(view.status, view.age_s))
    app = make_app(view, registry, names_of(bound, settings.daemon.http_host))
    logger.addHandler(decisions)
    events.info("http_started", url=url_of(bound))
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sampler.run)
            tasks.start_soon(run_uvicorn, app, bound)
    except Exception as error:  # noqa: BLE001 - recovery goes on without its page
        events.error("http_failed", error, exc_info=error)
    finally:
        logger.removeHandler(decisions)


class _StatusServer(uvicorn.Server):
    """uvicorn without signal handlers: the daemon's stay in place."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _TimedConnection(H11Protocol):
    """A connection that ends after `connection_s` seconds, and at the latest `STOP_S` seconds later.

    uvicorn itself waits without an end for the first request, for the rest of one, and for a client to read its answer.
    If there are more than `connections_max`, the oldest one without a request makes way for this one.
    """

    _ending: Any = None

    def __init__(self, *said: Any, connection_s: float, connections_max: int, **named: Any) -> None:
        super().__init__(*said, **named)
        self._connection_s = connection_s
        self._connections_max = connections_max

    def connection_made(self, transport: Any) -> None:
        self.since = self.loop.time()
        super().connection_made(transport)
        self._ending = self.loop.call_later(self._connection_s, self._end)
        if len(self.connections) > self._connections_max:
            idle = [each for each in cast(set[_TimedConnection], self.connections) if each.is_idle and not each.transport.is_closing()]
            min(idle, key=lambda each: each.since).transport.abort()  # there is one: this one has no request yet

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ending is not None:
            self._ending.cancel()
        super().connection_lost(exc)

    def _end(self) -> None:
        """Closes the connection if no request is under way. A request that is has `STOP_S` more seconds."""
        self._ending = self.loop.call_later(STOP_S, self.transport.abort)
        self.shutdown()


async def run_uvicorn(app: ASGIApp, bound: socket.socket, connection_s: float = CONNECTION_S) -> None:
    """Serves the application on the socket until this is cancelled. Only on asyncio.

    `connection_s`: how long a connection lives at most, about.
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    connections_max = max(2, min(CONNECTIONS_MAX, descriptors - DESCRIPTORS_LEFT if descriptors > 0 else CONNECTIONS_MAX))
    requests_max = max(1, min(REQUESTS_MAX, connections_max * 9 // 10))
    connection = cast(type[H11Protocol], partial(_TimedConnection, connection_s=connection_s, connections_max=connections_max))
    server = _StatusServer(uvicorn.Config(
        _Bounded(app, requests_max), http=connection, ws="none", lifespan="off", interface="asgi3", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX, backlog=BACKLOG,
    ))  # fmt: skip

    async def run() -> None:
        with anyio.CancelScope(shield=True):  # it stops when it is told to, and closes its connections then
            await server.serve([bound])

    with _quiet_without_descriptors():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            try:
                await anyio.sleep_forever()
            finally:
                server.should_exit = True


class _Bounded:
    """Refuses a request beyond so many that are under way, unless it asks whether the process lives."""

    def __init__(self, app: ASGIApp, requests_max: int) -> None:
        self._app = app
        self._left = requests_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._left <= 0 and scope["path"] != "/healthz":
            await PlainTextResponse("too many requests are under way: try again later\n", 503)(scope, receive, send)
            return
        self._left -= 1
        began = False

        async def send_noted(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except asyncio.CancelledError:
            if began:
                raise
            # uvicorn ends, and has waited for STOP_S. It would tell a defect, and answer 500.
            await PlainTextResponse("this server ends: try again later\n", 503)(scope, receive, send)
        finally:
            self._left += 1


@contextmanager
def _quiet_without_descriptors() -> Iterator[None]:
    """Tells at most once a minute that no connection could be accepted. asyncio tells it thousands of times."""
    loop = asyncio.get_running_loop()
    before, told_at = loop.get_exception_handler(), -OUT_OF_DESCRIPTORS_EVERY_S

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told_at
        error = context.get("exception")
        if "socket" in context and isinstance(error, OSError) and error.errno in OUT_OF:
            if loop.time() - told_at >= OUT_OF_DESCRIPTORS_EVERY_S:
                told_at = loop.time()
                events.warning("http_connection_not_accepted", error)
        elif before is None:
            loop.default_exception_handler(context)
        else:
            before(loop, context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(before)


def names_of(bound: socket.socket, host: str) -> set[str] | None:
    """The names that requests may use for a server that listens on this machine alone. None: any name."""
    address = str(bound.getsockname()[0])
    return {"localhost", "127.0.0.1", "::1", host, address} if ip_address(address.partition("%")[0]).is_loopback else None


def url_of(bound: socket.socket) -> str:
    """Returns the address of the server, with a slash at its end."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
