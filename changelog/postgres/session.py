"""What a session must be, whatever the database's owner, the role's defaults or a pooler say: one table.

    SETTINGS             asked for with the connection, and looked at then, because a pooler may drop what is asked for.
                         Behind a pooler that gives each transaction another session: set anew in each transaction
    synchronous_commit   `on`, or `remote_apply` where the role has that: as the others
    REFUSED              only a superuser may set it, and it makes absence of damage: looked at, and refused

All else that a role or a database may set changes no answer: a test tries each setting that the server knows. What was
done to the tables is looked at by `tiered/postgres/shape.py`. Pure; no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from changelog.base.errors import ConfigurationError

LOCK_SHARE = 0.8
"""A statement waits for locks for this part of its time. So it ends with an ERROR, which proves that nothing happened.
"""

SEARCH_PATH = "pg_catalog, pg_temp"
"""`pg_temp` stands last, because it is searched first where it is not named, for tables and types."""

SETTINGS: Mapping[str, str] = {
    "quote_all_identifiers": "off",  # first: the others are stored as it says; and what `check` compares
    "search_path": SEARCH_PATH,  # what is planted in another schema is nobody's function, operator or type
    "row_security": "off",  # rows that a policy would hide are an error
    "exit_on_error": "off",  # an ERROR stays one, and proves that nothing happened
    "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "jit": "off",  # what a plan costs
}  # fmt: skip
REFUSED = ("zero_damaged_pages", "ignore_checksum_failure")
DURABLE = ("on", "remote_apply")
"""The values of `synchronous_commit` with which a commit survives a crash of the server, and of a synchronous standby.
"""

_READ_COMMITTED = "read committed"
_LOOKED_AT = (
    "synchronous_commit", "server_version_num", "server_encoding", "default_transaction_read_only", *REFUSED, "transaction_isolation",
    *SETTINGS,
)  # fmt: skip
LOOK = "SELECT pg_catalog.pg_is_in_recovery() AS is_standby, " + ", ".join(
    f"pg_catalog.current_setting('{name}') AS {name}" for name in _LOOKED_AT
)
"""It names no operator and no type: whose they are is what it looks at."""
MAKE_DURABLE = "SET synchronous_commit = on"


def asked(timeout_s: float) -> dict[str, str]:
    """What is asked for with a connection."""
    return {**SETTINGS, "default_transaction_isolation": _READ_COMMITTED, **_timeouts(timeout_s), "application_name": "tiered"}


def begin(timeout_s: float) -> str:
    """The begin of a transaction in a session of which nothing is known. After a look, `commit_as` follows it."""
    wanted = {**SETTINGS, **_timeouts(timeout_s)}
    return "; ".join(["BEGIN ISOLATION LEVEL READ COMMITTED", *(f"SET LOCAL {name} = {value}" for name, value in wanted.items())])


def commit_as(found: Mapping[str, str]) -> str:
    """What makes the commit of a transaction durable. `found`: by `LOOK`."""
    return f"; SET LOCAL synchronous_commit = {'remote_apply' if found['synchronous_commit'] == 'remote_apply' else 'on'}"


def _timeouts(timeout_s: float) -> dict[str, str]:
    return {"statement_timeout": f"{timeout_s * 1000:.0f}", "lock_timeout": f"{timeout_s * 1000 * LOCK_SHARE:.0f}"}


def check_session(found: Mapping[str, str], shown: str) -> None:
    """Raises `ConfigurationError` if the session is not as it was told to be, or can be told by a superuser only."""
    for name in REFUSED:
        if found[name] != "off":
            raise ConfigurationError(
                f"{name} is {found[name]} in {shown}, so what is damaged would count as absent, and its blobs as garbage: run"
                f" 'ALTER ROLE … RESET {name}', or set it to off wherever it is set"
            )
    for name, wanted in {**SETTINGS, "transaction_isolation": _READ_COMMITTED}.items():
        if found[name] != wanted:
            raise ConfigurationError(
                f"{name} is {found[name]} in {shown}, although this connection asked for {wanted}: a pooler on the way drops what is asked "
                "for (set postgres.prepared: false), or postgres.dsn sets it otherwise"
            )
