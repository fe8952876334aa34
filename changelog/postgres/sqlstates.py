"""What an error of PostgreSQL, of a pooler before it, or of the driver proves: one table each.

    the server said ERROR        the statement was a transaction of its own, and PostgreSQL has rolled it back: it never
                                 says ERROR of a transaction that has committed. Nothing happened.
    57014, 40003                 an ERROR that may also come just after the commit, if somebody cancels by hand: unknown
    FATAL, PANIC, no answer      the connection is gone. The transaction may have committed before that, and a backend
                                 that has read the statement may still commit it: unknown
    it was never sent            no connection could be had, or an argument could not be encoded. Nothing happened.
    a pooler said it             nearly always by 08P01, so its words decide (`POOLERS`)

A read has no effect, so there "unknown" is `UnavailableError`, too. The driver gives the error of a server that says
FATAL as a lost connection, mostly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import asyncpg

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)

PROVISION = "run 'tiered provision' with a role that may create tables there"
_MISSING = f"{PROVISION}; if newer software has changed the schema meanwhile, install a newer tiered"
_READ_ONLY = (
    "this server takes no writes: it is a standby, or it was told to be read-only; name the primary in postgres.dsn, and let "
    "default_transaction_read_only be off"
)
_NONE_KEPT = (
    "a pooler between this process and PostgreSQL keeps no prepared statements and no settings: set postgres.prepared: false, or let the"
    " pooler have a pool in session mode"
)
_MIXED_UP = "the pooler gave the parts of one statement different connections: let it have a pool in transaction or session mode"
_WITHOUT = "the pooler does not take the options of postgres.dsn: leave them out, or add them to its ignore_startup_parameters"

ADVICE: Mapping[str, tuple[type[TieredError], str]] = {
    # codes first, then classes
    "25006": (UnavailableError, _READ_ONLY),
    "25001": (ConfigurationError, "the session was not one of this software's: a pooler changes them, so set postgres.prepared: false"),
    "26000": (ConfigurationError, _NONE_KEPT),
    "42P05": (ConfigurationError, _NONE_KEPT),
    "40001": (UnavailableError, "another transaction was in its way, and it was rolled back"),
    "40P01": (UnavailableError, "it and another transaction waited for one another, and it was rolled back"),
    "42501": (ConfigurationError, "'tiered check', as this role, says what to grant; or run 'tiered provision --grant-writer ROLE'"),
    "42P01": (ConfigurationError, f"a table is missing: {_MISSING}"),
    "42883": (ConfigurationError, f"a function is missing: {_MISSING}"),
    "42703": (ConfigurationError, f"a column is missing: {_MISSING}"),
    "42P10": (ConfigurationError, "a unique index is missing: 'tiered check' says which"),
    "3F000": (ConfigurationError, f"the schema is missing: {PROVISION}"),
    "3D000": (ConfigurationError, "create the database, or correct postgres.dsn"),
    "28000": (UnavailableError, "the server does not let this role in; look at its pg_hba.conf and at postgres.dsn"),
    "28P01": (UnavailableError, "the password was not accepted; correct it in postgres.dsn, or in the passfile that it names"),
    "53100": (UnavailableError, "the server's disk is full"),
    "53200": (UnavailableError, "the server has no memory left for it; if it is the lock table, raise max_locks_per_transaction"),
    "53300": (UnavailableError, "the server takes no more connections: lower postgres.connections_max, or raise max_connections"),
    "55P03": (UnavailableError, "another transaction held the row, or the lock of its key, for too long"),
    "57P03": (UnavailableError, "the server is starting or stopping"),
    "22": (InvalidRequestError, "the server does not take a value"),
    "23": (CorruptRecordError, "what is stored there breaks a rule of its table"),
    "54": (InvalidRequestError, "it breaks a limit of the server"),
    "XX001": (CorruptRecordError, "a page of the table is damaged: restore it from a backup"),
    "XX002": (CorruptRecordError, "an index is damaged: run REINDEX"),
}
"""Answers that prove that nothing was written: a code of five characters, or a class of two. Any other ERROR is
`UnavailableError`.
"""



class Word(NamedTuple):
    """What a pooler says, as a pattern. `is_sure`: it says that only while the statement has not gone on to PostgreSQL.

    `reached`: PostgreSQL was there. `refuses`: it says so until somebody changes something. `unprepared`: the advice
    where `postgres.prepared` is false already.
    """

    pattern: str
    kind: type[TieredError]
    advice: str
    is_sure: bool = True
    reached: bool = True
    refuses: bool = False
    unprepared: str = ""


POOLERS: Sequence[Word] = (
    # PgBouncer's words first, then those of others: Supavisor's (E…), pgcat's, Odyssey's, and of the proxy of RDS
    Word("unsupported (options )?startup parameter", ConfigurationError, _NONE_KEPT, unprepared=_WITHOUT),
    Word(
        "prepared statement (did|does) not exist|prepared statement name is already in use", ConfigurationError, _NONE_KEPT,
        unprepared=_MIXED_UP,
    ),
    Word("statement pooling mode", ConfigurationError, "let the pooler have a pool in transaction or session mode"),
    Word(
        r"no more connections allowed|client connections exceeded|resources exhaustion|max client connections reached|MaxClients|EMAXCONN"
        "|too many (active )?clients|max_(db_|user_)?(client_)?connections", UnavailableError,
        "the pooler takes no more connections: lower postgres.connections_max, or raise its max_client_conn",
    ),
    Word(
        "query_wait_timeout|get connection from the pool|ECHECKOUTTIMEOUT|unable to check out|attach timed out"
        "|acquire (a )?database connection", UnavailableError,
        "all connections of the pooler to PostgreSQL were taken for too long: raise its default_pool_size",
    ),
    Word(
        r"server login has been failing|server_login_retry|cannot connect to server|client_login_timeout \(server down\)|DNS lookup failed"
        "|all servers are down|failed to connect to (the )?(remote )?server", UnavailableError,
        "the pooler cannot reach PostgreSQL, or is not let in there; its log says why", reached=False,
    ),
    Word("client_login_timeout", UnavailableError, "the login through the pooler took too long"),
    Word(
        "is disabled|does not allow connections", UnavailableError, "an administrator of the pooler has disabled it: run ENABLE there",
        refuses=True,
    ),
    Word(
        "no such database|tenant or user not found|ETENANTNOTFOUND|route for .* not found|no pool configured", ConfigurationError,
        "the pooler has no such database: add it to its databases, or correct postgres.dsn",
    ),
    Word(
        "no such user|authentication failed|login rejected|empty password|not allowed|no authentication method|no credentials for the role",
        UnavailableError, "the pooler does not let this role in; correct user and password in postgres.dsn, or add it to its users",
        refuses=True,
    ),
    Word("SSL required|requires TLS", ConfigurationError, "the pooler wants TLS: add sslmode=verify-full&sslrootcert=… to postgres.dsn"),
    Word("config error", ConfigurationError, "the pooler lacks this database or user, or has a wrong setting; its log says which"),
    Word("shutting down|admin forced|database removed|pause|suspend", UnavailableError, "somebody stops or changes the pooler", False),
    Word("query.timeout|transaction timeout|idle.timeout|lifetime|conn crashed|closed", UnavailableError, "the pooler ended it", False),
)  # fmt: skip
"""The first that fits counts. PgBouncer's are tried with the real one; the others are only known from their sources and
manuals. All else that a pooler says is as a connection that broke.
"""
_POOLERS = [(re.compile(said.pattern, re.IGNORECASE), said) for said in POOLERS]
_MAY_BE_POOLER = ("08", "58", "XX")
"""The classes of the codes with which poolers say it. Supavisor has XX000, pgcat 58000, the proxy of RDS 08000."""


class Verdict(Enum):
    """What an error says of the connection on which it came."""

    GOES_ON = "the statement failed, and the session is as before"
    ENDS = "the session is not what it should be, or nobody knows what it is"
    ALL_END = "the server has another role than when the connections opened"


SESSIONS: Mapping[str, Verdict] = {
    # codes first, then classes
    "25006": Verdict.ALL_END,  # read-only, or a standby
    "57P01": Verdict.ALL_END, "57P02": Verdict.ALL_END, "57P03": Verdict.ALL_END,  # it stops, crashed, starts
    "57P04": Verdict.ENDS, "57P05": Verdict.ENDS, "42P05": Verdict.ENDS, "57014": Verdict.GOES_ON,
    "08": Verdict.ENDS, "0A": Verdict.ENDS, "25": Verdict.ENDS, "26": Verdict.ENDS, "28": Verdict.ENDS, "3D": Verdict.ENDS,
    "58": Verdict.ENDS, "F0": Verdict.ENDS, "XX": Verdict.ENDS,
}  # fmt: skip
"""Errors that say something of the session or of the server. After any other ERROR the connection is given back."""

UNKNOWN_CODES = frozenset({"57014", "40003"})
STANDBY = "25006"
CAUGHT = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""All that the driver raises of a call, but cancellation."""
_ELSEWHERE = (OSError, TimeoutError, asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError, asyncpg.PostgresConnectionError)
LOST = "08003"
"""The driver's own code for a connection that ended in the middle of a call."""


def verdict_on_session(error: BaseException) -> Verdict:
    """Whether the connection may be used again after this error of a call, and the others."""
    code = code_of(error)
    if not code:
        return Verdict.GOES_ON if isinstance(error, ValueError) else Verdict.ENDS  # an argument that the driver refused
    return SESSIONS.get(code) or SESSIONS.get(code[:2]) or Verdict.GOES_ON


def is_elsewhere(error: BaseException) -> bool:
    """Whether another host may let us in, although one said this."""
    said = _said(error)
    return isinstance(error, _ELSEWHERE) if said is None else said.kind is UnavailableError


def _said(error: BaseException) -> Word | None:
    """What a pooler has said. None: it was PostgreSQL, the driver or the system."""
    if getattr(error, "sqlstate", None) == LOST:  # its words are the driver's, and what was said last is the cause
        error = error.__cause__ or error
    code = code_of(error)
    if not code.startswith(_MAY_BE_POOLER) or code in ADVICE:
        return None
    return next((said for pattern, said in _POOLERS if (said.is_sure or code[:2] == "08") and pattern.search(str(error))), None)


def translated(error: BaseException, doing: str, *, sent: bool, prepared: bool = True) -> TieredError:
    """The error in this project's terms. `sent`: the statement may have had an effect. `doing`: a phrase for people.

    `prepared`: as in the settings.
    """
    code = code_of(error)
    severity = getattr(error, "severity_en", "ERROR")
    has_ended = isinstance(error, asyncpg.PostgresConnectionError) or (sent and severity in ("FATAL", "PANIC"))
    if (said := _said(error)) is not None:
        advice = said.advice if prepared else said.unprepared or said.advice
        kind, outcome = (said.kind, "failed") if said.is_sure or not sent else (UnconfirmedError, "was never confirmed")
        failure = kind(f"{doing} {outcome}: {advice} ({sentence(error)})").coded(code, heard=True if said.reached else None)
        return failure.refusing() if said.refuses else failure
    if code and code not in UNKNOWN_CODES and not has_ended:
        kind, advice = ADVICE.get(code) or ADVICE.get(code[:2]) or (UnavailableError, "nothing was changed")
        advice = _MIXED_UP if advice is _NONE_KEPT and not prepared else advice
        refusal = kind(f"{doing} failed with {code}: {advice} ({sentence(error)})").coded(code, heard=True)
        return refusal.refusing(may_pass=code == STANDBY) if code[:2] == "28" or code == STANDBY else refusal  # and will tomorrow
    if isinstance(error, asyncpg.InterfaceError):  # the driver refused before it sent anything
        kind = InvalidRequestError if isinstance(error, ValueError) else UnavailableError
        return kind(f"{doing} was not sent: {sentence(error)}").telling(heard=False)
    heard = True if code in UNKNOWN_CODES else None
    if sent:
        return UnconfirmedError(f"{doing} was never confirmed: {sentence(error)}").coded(code, heard=heard)
    return UnavailableError(f"{doing} failed: {sentence(error)}").coded(code, heard=heard)


def code_of(error: BaseException) -> str:
    """The SQLSTATE that the server said. Empty: it said none."""
    code: Any = getattr(error, "sqlstate", None)
    return code if isinstance(code, str) and code != LOST else ""


def sentence(error: BaseException) -> str:
    """What the error says, in one line, without what could be secret: the driver's errors hold no DSN."""
    said = " ".join(str(error).split())[:300]
    if isinstance(error, asyncpg.InternalClientError) and "cannot switch to state" in said:  # of a server that stops, mostly
        return f"the connection cannot be used any more, as if the server had ended it ({said})"
    return said or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
