"""`PostgresPool`: at most so many connections to PostgreSQL. A call borrows one, sends a statement, and gives it back.

    read     a statement without effect                     any failure is `UnavailableError`, or worse of its kind
    write    one statement, which is one transaction        `UnconfirmedError` if nobody knows (`sqlstates.py`)

Each call has a deadline, `timeout_s`, and the server has the same one for each statement. A connection whose call did
not end is cut, and never used again. *No cancel request is ever sent.* It would end the wait for a synchronous standby,
and the server would then call a transaction committed which no standby has. A statement that was cut off goes on in
the server, until it ends or its time is up: it may still commit. That is what settling is for.

A session is *ours* before its first statement (`session.py`): whose functions a name means, that no row is hidden,
durable commits, READ COMMITTED, deadlines, plans that are made once. No default of the role is trusted with these. It
asks for them when it connects, and looks. `transactional` False is for a pooler that gives each transaction another
session. Then each statement is in a transaction of its own that sets them first: two round trips more. And nothing
prepared is kept.

*Failure*: a server that is away costs each call one try to connect. Of several hosts each has its share of that time,
so one that swallows every packet hides none of the others. The driver runs on asyncio only, on the event loop that
opened the pool, and its connections do not survive a fork. Statements and retries do not belong here.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the driver runs on nothing else
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import anyio
import asyncpg

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.own_waits import own_wait
from changelog.postgres.session import DURABLE, LOOK, MAKE_DURABLE, asked, begin, check_session, commit_as
from changelog.postgres.sqlstates import CAUGHT, ELSEWHERE, POOLER, code_of, sentence, translated

CONNECT_S = 5.0
CLOSE_S = 2.0
SERVER_VERSION_MIN = 140_000
STANDBY = "25006"

Record = Any
"""A row of an answer, by position. The driver has no types."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]  # the driver has no types
    """A connection that is cut where the driver would ask the server to cancel its statement."""

    begin = ""
    """What is sent before each statement, behind a pooler."""

    def _cancel_current_command(self, *_: object) -> None:
        asyncio.get_running_loop().call_soon(self.terminate)

    def _abort(self) -> None:
        """As the driver's, which also takes the protocol away: a call between two messages would look for it in vain.

        So it finds it, and is told that nothing can be sent any more.
        """
        self._aborted = True
        self._protocol.abort()


class _PooledConnection(_Connection):
    """Each statement is in a transaction that first makes the session ours: the next may be in another session."""

    async def fetch(self, statement: str, *values: object, **others: Any) -> Any:
        return await self._in_transaction(super().fetch, statement, *values, **others)

    async def fetchrow(self, statement: str, *values: object, **others: Any) -> Any:
        return await self._in_transaction(super().fetchrow, statement, *values, **others)

    async def execute(self, statement: str, *values: object, **others: Any) -> Any:
        return await self._in_transaction(super().execute, statement, *values, **others)

    async def _in_transaction(self, method: Any, *arguments: object, **others: Any) -> Any:
        try:
            await super().execute(self.begin)
            answer = await method(*arguments, **others)
        except CAUGHT:
            try:
                await super().execute("ROLLBACK")
            except CAUGHT:
                self.terminate()
            raise
        if (ended := await super().execute("COMMIT")) != "COMMIT":
            raise asyncpg.InternalClientError(f"the answer to COMMIT was {ended}")
        return answer


@dataclass(eq=False, slots=True)
class _Waiter:
    """A call that waits for a connection. `given`: one that was handed to it; None after `woken`: it may open one."""

    woken: anyio.Event = field(default_factory=anyio.Event)
    given: _Connection | None = None


def one_by_one(dsn: str) -> list[str]:
    """The DSN of each of its hosts: the driver would give all of its time to the first, if that one is silent."""
    parts = urlsplit(dsn)
    user, at, hosts = parts.netloc.rpartition("@")
    if "prefer-standby" in parts.query or "host=" in parts.query or "port=" in parts.query:  # the driver must see all of them
        return [dsn]
    return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]


class PostgresPool:
    """Open it with `async with`. `dsn` may hold a password, and is never shown. `shown`: what errors call the server.

    `writes` False: any server will do, a standby, too. Otherwise a server that takes no writes is looked for elsewhere,
    if the DSN names several.
    """

    def __init__(
        self, dsn: str, shown: str, *, connections_max: int, timeout_s: float, writes: bool, transactional: bool = True
    ) -> None:
        self.shown = shown
        self._dsns = one_by_one(dsn)  # the one that let us in last is the first
        self._max = connections_max
        self._timeout_s = timeout_s
        self._writes = writes
        self._transactional = transactional
        self._idle: list[_Connection] = []  # the one that was used last is the next
        self._open = 0
        self._waiting: deque[_Waiter] = deque()
        self._deadlines: dict[_Connection, float] = {}  # of each call that is under way, by the loop's clock, in their order
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def __aenter__(self) -> PostgresPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        if self._timer is not None and not self._deadlines:
            self._timer.cancel()
        with anyio.CancelScope(shield=True):
            for connection in self._idle:
                try:
                    await connection.close(timeout=CLOSE_S)
                except CAUGHT:
                    connection.terminate()
        self._open -= len(self._idle)
        self._idle.clear()
        while self._waiting:
            self._waiting.popleft().woken.set()

    async def read(self, doing: str, statement: str, *values: object) -> Sequence[Record]:
        """The rows of a statement without effect. `doing`: a phrase for errors, such as "reading the row x"."""
        connection = self._at_hand() or await self._borrow(doing)
        return await self._call(connection, connection.fetch, False, doing, statement, values)  # type: ignore[no-any-return]

    async def write(self, doing: str, statement: str, *values: object, may_send: Callable[[], object] | None = None) -> Record | None:
        """The first row of a statement that is a transaction of its own.

        `may_send`: is called when nothing stands between the statement and its sending, and may raise.
        """
        connection = self._at_hand() or await self._borrow(doing)
        if may_send is not None:
            try:
                may_send()
            except BaseException:
                self._give_back(connection)
                raise
        return await self._call(connection, connection.fetchrow, True, doing, statement, values)

    async def write_many(self, doing: str, statement: str, *values: object) -> Sequence[Record]:
        """All rows of a statement that is a transaction of its own."""
        connection = self._at_hand() or await self._borrow(doing)
        return await self._call(connection, connection.fetch, True, doing, statement, values)  # type: ignore[no-any-return]

    async def run(self, doing: str, script: str) -> None:
        """Runs a script of statements, in one transaction: all of it happens, or nothing."""
        connection = self._at_hand() or await self._borrow(doing)
        await self._call(connection, connection.execute, True, doing, script, ())

    async def _call(
        self, connection: _Connection, method: Any, sent: bool, doing: str, statement: str, values: tuple[object, ...]
    ) -> Any:
        self._watch(connection)
        try:
            answer = await method(statement, *values)
        except CAUGHT as raised:
            in_time = self._deadlines.pop(connection, None) is not None
            # The server may have answered while this process stood still past the deadline.
            error = raised if in_time or code_of(raised) else TimeoutError(f"no answer for {self._timeout_s:g} s")
            if code_of(error) in ("", STANDBY) and not isinstance(error, ValueError):
                self._cut(connection)
            else:
                self._give_back(connection)
            raise translated(error, f"{doing} in {self.shown}", sent=sent) from raised
        except BaseException:  # cancelled: what it sent may still take effect
            self._deadlines.pop(connection, None)
            self._cut(connection)
            raise
        self._deadlines.pop(connection, None)
        self._give_back(connection)
        return answer

    def _watch(self, connection: _Connection) -> None:
        """Has the connection cut when its call has lasted too long. One timer serves all: one each costs 20 µs."""
        loop = asyncio.get_running_loop()
        deadline = self._deadlines[connection] = loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._cut_overdue)

    def _cut_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        overdue = [connection for connection, deadline in self._deadlines.items() if deadline <= loop.time()]
        for connection in overdue:
            del self._deadlines[connection]
            connection.terminate()
        # All calls have the same time, so the first that is left began before the others.
        following = next(iter(self._deadlines.values()), None)
        self._timer = None if following is None else loop.call_at(following, self._cut_overdue)

    def _at_hand(self) -> _Connection | None:
        """A connection that is free now, as there is nearly always."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._open -= 1
        return None

    async def _borrow(self, doing: str) -> _Connection:
        while True:
            if self._closed:
                raise UnavailableError(f"{doing} was not sent: the store was closed; open it again").telling(heard=False)
            if (connection := self._at_hand()) is not None:
                return connection
            if self._open < self._max:
                return await self._connected(doing)
            waiter = _Waiter()
            self._waiting.append(waiter)
            try:
                with own_wait(), anyio.fail_after(self._timeout_s):
                    await waiter.woken.wait()
            except BaseException as error:
                self._left(waiter)
                if not isinstance(error, TimeoutError):
                    raise
                raise UnavailableError(
                    f"{doing} was not sent: all {self._max} connections to {self.shown} were taken for {self._timeout_s:g} s; "
                    "lower the load or raise postgres.connections_max"
                ).telling(heard=False) from None
            if waiter.given is not None and not waiter.given.is_closed():
                return waiter.given
            if waiter.given is not None:
                self._open -= 1

    def _left(self, waiter: _Waiter) -> None:
        """Takes back a waiter that gave up, and gives what it was handed to the next."""
        if not waiter.woken.is_set():
            self._waiting.remove(waiter)
        elif waiter.given is not None:
            self._give_back(waiter.given)
        else:
            self._wake(None)

    async def _connected(self, doing: str) -> _Connection:
        self._open += 1
        try:
            return await self._connect(doing)
        except BaseException:
            self._open -= 1
            self._wake(None)
            raise

    async def _connect(self, doing: str) -> _Connection:
        timeout_s = min(CONNECT_S, self._timeout_s)
        lost: BaseException | None = None
        for dsn in list(self._dsns):
            try:
                connection = await self._connect_to(dsn, timeout_s / len(self._dsns))
            except asyncpg.TargetServerAttributeNotMatched as error:
                lost = lost or error
            except CAUGHT as error:
                lost = error
                if not isinstance(error, ELSEWHERE):
                    break
            else:
                self._dsns.remove(dsn)
                self._dsns.insert(0, dsn)
                return await self._prepared(connection, timeout_s)
        assert lost is not None, "there is a host"
        if isinstance(lost, asyncpg.TargetServerAttributeNotMatched):
            raise UnavailableError(f"{doing} was not sent: no server of {self.shown} takes writes, all are standbys").coded(
                STANDBY, heard=True
            ) from lost
        raise translated(lost, f"connecting to {self.shown}", sent=False) from lost

    async def _connect_to(self, dsn: str, timeout_s: float) -> _Connection:
        cache = {"statement_cache_size": 100, "max_cached_statement_lifetime": 0} if self._transactional else {"statement_cache_size": 0}
        wanted = {"target_session_attrs": "primary"} if self._writes and "target_session_attrs" not in dsn else {}
        try:
            opened: _Connection = await asyncpg.connect(
                dsn, timeout=timeout_s, connection_class=_Connection if self._transactional else _PooledConnection,
                server_settings=asked(self._timeout_s) if self._transactional else None, **cache, **wanted,
            )  # fmt: skip
            return opened
        except asyncpg.ClientConfigurationError as error:
            raise ConfigurationError(f"postgres.dsn is no address of a server: {sentence(error)}") from None
        except asyncpg.ProtocolViolationError as error:
            raise ConfigurationError(f"connecting to {self.shown} failed: {POOLER} ({sentence(error)})") from error

    async def _prepared(self, connection: _Connection, timeout_s: float) -> _Connection:
        try:
            await self._prepare(connection, timeout_s)
        except CAUGHT as error:
            connection.terminate()
            raise translated(error, f"connecting to {self.shown}", sent=False) from error
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _prepare(self, connection: _Connection, timeout_s: float) -> None:
        if not self._transactional:
            connection.begin = begin(self._timeout_s)
        found = await connection.fetchrow(LOOK, timeout=timeout_s)
        version, encoding, standby = int(found["server_version_num"]), found["server_encoding"], found["is_standby"]
        if version < SERVER_VERSION_MIN:
            raise ConfigurationError(f"{self.shown} runs PostgreSQL {version // 10_000}; this software needs 14 or newer")
        if encoding != "UTF8":
            raise ConfigurationError(f"the database of {self.shown} has the encoding {encoding}; create one with UTF8")
        if self._writes and standby:
            raise UnavailableError(f"{self.shown} is a standby, which takes no writes; name the primary in postgres.dsn").coded(
                STANDBY, heard=True
            )
        check_session(found, self.shown)
        if not self._transactional:
            connection.begin += commit_as(found)
        elif found["synchronous_commit"] not in DURABLE:
            await connection.execute(MAKE_DURABLE, timeout=timeout_s)

    def _give_back(self, connection: _Connection) -> None:
        if self._closed or connection.is_closed():
            self._cut(connection)
        elif self._waiting:
            self._wake(connection)
        else:
            self._idle.append(connection)

    def _cut(self, connection: _Connection) -> None:
        connection.terminate()
        self._open -= 1
        self._wake(None)

    def _wake(self, given: _Connection | None) -> None:
        """Hands the connection, or the place for one, to the call that has waited longest."""
        if self._waiting:
            waiter = self._waiting.popleft()
            waiter.given = given
            waiter.woken.set()
