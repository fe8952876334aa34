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

A *standby* may lag: what it lacks or still shows proves nothing. Who writes is never given one. Who reads gets the
primary, if one of the hosts is it, and otherwise a standby, for `STANDBY_S`; `standby_answers` counts what came from
there, and after `primary_only` no standby answers any more.

*Failure*: a server that is away costs each call one try to connect. Of several hosts each has its share of that time,
so one that swallows every packet hides none of the others. A connection is given back unless its error is one of the
session (`sqlstates.py`); one that says that the server's role has changed ends all connections. The driver runs on
asyncio only, on the event loop that opened the pool, and its connections do not survive a fork. Statements and retries
do not belong here.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the driver runs on nothing else
import math
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import asyncpg

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.base.events import events
from changelog.base.own_waits import own_wait
from changelog.postgres.dsn import keep_alive, os_user, parsed, password, tls
from changelog.postgres.session import DURABLE, LOOK, MAKE_DURABLE, asked, begin, check_session, commit_as
from changelog.postgres.sqlstates import CAUGHT, STANDBY, Verdict, code_of, is_elsewhere, translated, verdict_on_session

CONNECT_S = 5.0
CLOSE_S = 2.0
SERVER_VERSION_MIN = 140_000
STANDBY_S = 30.0
"""So long a connection to a standby is used before the primary is looked for again. So is one through a pooler that
gives each transaction another connection: what is behind it may become another server, without a word to this side.
"""
FRESH_S = 1.0
"""A younger connection tells the role that its server has now. So it stays: each write that a read-only server refuses
would take all connections away from reads.
"""

Record = Any
"""A row of an answer, by position. The driver has no types."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]  # the driver has no types
    """A connection that is cut where the driver would ask the server to cancel its statement.

    `of_standby`: the server was a standby when it opened. `opened_at`, `until`: it is used from and until then at most,
    by the loop's clock. `age`: how often the server's role had changed before.
    """

    of_standby = False
    opened_at = -math.inf
    until = math.inf
    age = 0

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


def _rank(wanted: str, primary_only: bool, is_standby: bool, is_read_only: bool) -> int | None:
    """How well a server serves: 0: well; 1: if there is no better one; None: not. `wanted`: `target_session_attrs`."""
    if primary_only and is_standby:
        return None
    match wanted:
        case "primary":
            return None if is_standby else 0
        case "standby":
            return 0 if is_standby else None
        case "prefer-standby":
            return 0 if is_standby else 1
        case "read-write":
            return None if is_standby or is_read_only else 0
        case "read-only":
            return 0 if is_standby or is_read_only else None
    return 1 if is_standby else 0


class PostgresPool:
    """Open it with `async with`. `dsn` may hold a password, and is never shown. `shown`: what errors call the server.

    `writes` False: a standby will do, if no primary answers. `standby_answers`: how many answers came from one so far.
    `tells_of_standby`: the next one is told as a warning. Whoever sets it reads from then on what others rest on.
    """

    def __init__(
        self, dsn: str, shown: str, *, connections_max: int, timeout_s: float, writes: bool, transactional: bool = True
    ) -> None:
        self.shown = shown
        self.standby_answers = 0
        self.tells_of_standby = False
        self._dsn = parsed(dsn)
        self._hosts = list(self._dsn.hosts)  # the one that let us in last is the first
        self._max = connections_max
        self._timeout_s = timeout_s
        self._writes = writes
        self._primary_only = writes
        self._age = 0
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

    def primary_only(self) -> None:
        """From now on no standby answers: each call is `UnavailableError` then."""
        self._primary_only = True

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

    async def is_pooled(self) -> bool:
        """Whether something stands between us and the server: then the id of the process that a connection was told
        when it began is not that of the process which answers.
        """
        doing = "asking which process of the server answers"
        connection = self._at_hand() or await self._borrow(doing)
        told = connection.get_server_pid()
        [(answers,)] = await self._call(connection, connection.fetch, False, doing, "SELECT pg_catalog.pg_backend_pid()", ())
        return bool(told != answers)

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
            verdict = verdict_on_session(error)
            if code_of(error) == STANDBY and asyncio.get_running_loop().time() - connection.opened_at < FRESH_S:
                verdict = Verdict.GOES_ON  # a new one would hear the same
            if verdict is Verdict.ALL_END:
                self._age += 1  # the others began before that, too
            if verdict is Verdict.GOES_ON:
                self._give_back(connection)
            else:
                self._cut(connection)
            raise translated(error, f"{doing} in {self.shown}", sent=sent, prepared=self._transactional) from raised
        except BaseException:  # cancelled: what it sent may still take effect
            self._deadlines.pop(connection, None)
            self._cut(connection)
            raise
        self._deadlines.pop(connection, None)
        if connection.of_standby:
            self._count_standby()
        self._give_back(connection)
        return answer

    def _count_standby(self) -> None:
        self.standby_answers += 1
        if self.tells_of_standby:
            self.tells_of_standby = False  # once is enough
            why = "no primary does" if self._dsn.wanted == "any" else "postgres.dsn asks for one"
            events.warning("standby_answers", f"{why}, so what is read may be older than what was acknowledged", server=self.shown)

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
            if self._is_good(connection):
                return connection
            connection.terminate()
            self._open -= 1
        return None

    def _is_good(self, connection: _Connection) -> bool:
        if connection.is_closed() or connection.age != self._age:
            return False
        if connection.of_standby and self._primary_only:
            return False
        return connection.until == math.inf or asyncio.get_running_loop().time() < connection.until

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
            if waiter.given is not None and self._is_good(waiter.given):
                return waiter.given
            if waiter.given is not None:
                waiter.given.terminate()
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
        """A connection to the server that serves best. `UnavailableError`: none of them lets us in, or serves."""
        timeout_s = min(CONNECT_S, self._timeout_s) / len(self._hosts)
        lost: BaseException | None = None
        second: _Connection | None = None
        refused = 0
        age = self._age
        try:
            for at in list(self._hosts):
                try:
                    connection, rank = await self._connect_to(at, timeout_s)
                except CAUGHT as error:
                    lost = error
                    if is_elsewhere(error):
                        continue
                    break
                connection.age = age
                if rank == 0:
                    self._hosts.remove(at)
                    self._hosts.insert(0, at)
                    return self._taken(connection)
                if rank == 1 and second is None:
                    second = connection
                else:
                    refused += rank is None
                    connection.terminate()
            if second is not None:
                taken, second = second, None
                return self._taken(taken)
        finally:
            if second is not None:
                second.terminate()
        if lost is None:
            raise UnavailableError(f"{doing} was not sent: {self._none_serves()}").coded(STANDBY, heard=True)
        failed = self._translated(lost)
        if refused:
            failed = type(failed)(f"{failed}; of those that answer, {self._none_serves()}").like(failed)
        raise failed from lost

    def _none_serves(self) -> str:
        if self._dsn.wanted in ("any", "primary"):
            all_are = "it is a standby; name the primary in postgres.dsn" if len(self._hosts) == 1 else "all are standbys"
            return f"no server of {self.shown} takes writes, {all_are}"
        needed = ", and a primary is needed" if self._primary_only else ""
        return f"no server of {self.shown} is what target_session_attrs={self._dsn.wanted} in postgres.dsn asks for{needed}"

    def _taken(self, connection: _Connection) -> _Connection:
        connection.opened_at = asyncio.get_running_loop().time()
        if connection.of_standby or not self._transactional:
            connection.until = connection.opened_at + STANDBY_S
        return connection

    def _translated(self, error: BaseException) -> TieredError:
        failed = translated(error, f"connecting to {self.shown}", sent=False, prepared=self._transactional)
        if failed.code == "28P01" and not {"password", "passfile"} & set(self._dsn.given):
            sentence = f"{failed}: postgres.dsn holds none, and neither PGPASSWORD nor ~/.pgpass is read"
            return type(failed)(sentence).like(failed)
        if isinstance(error, OSError):
            return type(failed)(f"{failed}; check postgres.dsn (host, port, sslmode), and the network").like(failed)
        return failed

    async def _connect_to(self, at: tuple[str, int], timeout_s: float) -> tuple[_Connection, int | None]:
        """A connection to this host, and how well it serves."""
        with anyio.fail_after(min(timeout_s, self._dsn.connect_s or timeout_s)):
            context = tls(self._dsn)
            ways: list[ssl.SSLContext | None] = [None] if at[0].startswith("/") else [context]
            if self._dsn.sslmode in ("prefer", "allow") and ways[0] is not None:
                ways.insert(self._dsn.sslmode == "prefer", None)
            for context in ways[:-1]:
                try:
                    return await self._looked_at(await self._opened(at, context))
                except (ConnectionError, ssl.SSLError, asyncpg.InvalidAuthorizationSpecificationError):
                    pass  # as libpq does, it is tried in the other way
            return await self._looked_at(await self._opened(at, ways[-1]))

    async def _opened(self, at: tuple[str, int], context: ssl.SSLContext | None) -> _Connection:
        cache = {"statement_cache_size": 100, "max_cached_statement_lifetime": 0} if self._transactional else {"statement_cache_size": 0}
        # What is not given here, the driver takes from the environment and from files of the user.
        opened: _Connection = await asyncpg.connect(
            host=[at[0]], port=[at[1]], user=self._dsn.user or os_user(), password=password(self._dsn, *at), database=self._dsn.database,
            ssl=context or False, direct_tls=self._dsn.given.get("sslnegotiation") == "direct", target_session_attrs="any",
            krbsrvname=self._dsn.given.get("krbsrvname", "postgres"), gsslib="gssapi", timeout=None,
            connection_class=_Connection if self._transactional else _PooledConnection,
            server_settings={**(asked(self._timeout_s) if self._transactional else {}), **self._dsn.session()}, **cache,
        )  # fmt: skip
        return opened

    async def _looked_at(self, connection: _Connection) -> tuple[_Connection, int | None]:
        try:
            keep_alive(self._dsn, connection._transport.get_extra_info("socket"))
            return connection, await self._look(connection)
        except BaseException:
            connection.terminate()
            raise

    async def _look(self, connection: _Connection) -> int | None:
        if not self._transactional:
            connection.begin = begin(self._timeout_s)
        found = await connection.fetchrow(LOOK)
        version, encoding, standby = int(found["server_version_num"]), found["server_encoding"], found["is_standby"]
        connection.of_standby = standby
        rank = _rank(self._dsn.wanted, self._primary_only, standby, found["default_transaction_read_only"] == "on")
        if version < SERVER_VERSION_MIN:
            raise ConfigurationError(f"{self.shown} runs PostgreSQL {version // 10_000}; this software needs 14 or newer")
        if encoding != "UTF8":
            raise ConfigurationError(f"the database of {self.shown} has the encoding {encoding}; create one with UTF8")
        check_session(found, self.shown)
        if not self._transactional:
            connection.begin += commit_as(found)
        elif found["synchronous_commit"] not in DURABLE:
            await connection.execute(MAKE_DURABLE)
        return rank

    def _give_back(self, connection: _Connection) -> None:
        if self._closed or not self._is_good(connection):
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
