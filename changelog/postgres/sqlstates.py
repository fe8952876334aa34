"""What an error of PostgreSQL, or of its driver, proves: one table.

    the server said ERROR        the statement was a transaction of its own, and PostgreSQL has rolled it back: it never
                                 says ERROR of a transaction that has committed. Nothing happened.
    57014, 40003                 an ERROR that may also come just after the commit, if somebody cancels by hand: unknown
    FATAL, PANIC, no answer      the connection is gone. The transaction may have committed before that, and a backend
                                 that has read the statement may still commit it: unknown
    it was never sent            no connection could be had, or an argument could not be encoded. Nothing happened.

A read has no effect, so there "unknown" is `UnavailableError`, too. The driver gives the error of a server that says
FATAL as a lost connection, mostly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    "this server takes no writes: it is a standby, or it was told to be read-only; name the primary in postgres.dsn, or all "
    "servers with target_session_attrs=primary"
)
POOLER = (
    "a pooler between this process and PostgreSQL keeps no prepared statements: set postgres.prepared: false, or let the pooler keep them"
)

ADVICE: Mapping[str, tuple[type[TieredError], str]] = {
    # codes first, then classes
    "25006": (UnavailableError, _READ_ONLY),
    "25001": (ConfigurationError, "it was not READ COMMITTED: let the role's default_transaction_isolation be 'read committed'"),
    "26000": (ConfigurationError, POOLER),
    "42P05": (ConfigurationError, POOLER),
    "40001": (UnavailableError, "another transaction was in its way, and it was rolled back"),
    "40P01": (UnavailableError, "it and another transaction waited for one another, and it was rolled back"),
    "42501": (ConfigurationError, "'tiered check', as this role, says what to grant; or run 'tiered provision --grant-writer ROLE'"),
    "42P01": (ConfigurationError, f"a table is missing: {_MISSING}"),
    "42883": (ConfigurationError, f"a function is missing: {_MISSING}"),
    "42703": (ConfigurationError, f"a column is missing: {_MISSING}"),
    "3F000": (ConfigurationError, f"the schema is missing: {PROVISION}"),
    "3D000": (ConfigurationError, "create the database, or correct postgres.dsn"),
    "28000": (UnavailableError, "the server does not let this role in; look at its pg_hba.conf and at postgres.dsn"),
    "28P01": (UnavailableError, "the password was not accepted; correct postgres.dsn"),
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

UNKNOWN_CODES = frozenset({"57014", "40003"})
CAUGHT = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""All that the driver raises of a call, but cancellation."""
ELSEWHERE = (OSError, TimeoutError, asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError, asyncpg.ConnectionDoesNotExistError)
"""What one of several hosts may say while another one lets us in."""
LOST = "08003"
"""The driver's own code for a connection that ended in the middle of a call."""


def translated(error: BaseException, doing: str, *, sent: bool) -> TieredError:
    """The error in this project's terms. `sent`: the statement may have had an effect. `doing`: a phrase for people."""
    code = code_of(error)
    severity = getattr(error, "severity_en", "ERROR")
    has_ended = isinstance(error, asyncpg.PostgresConnectionError) or (sent and severity in ("FATAL", "PANIC"))
    if code and code not in UNKNOWN_CODES and not has_ended:
        kind, advice = ADVICE.get(code) or ADVICE.get(code[:2]) or (UnavailableError, "nothing was changed")
        refusal = kind(f"{doing} failed with {code}: {advice} ({sentence(error)})").coded(code, heard=True)
        return refusal.refusing() if code[:2] == "28" else refusal  # it lets this role not in, and will not tomorrow
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
    return said or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
