"""The DSN of a server: each parameter of libpq is taken with its meaning there, or refused by its name.

    parsed       the DSN -> `Dsn`, or ValueError with a sentence that shows no value, because it may be a password
    tls          the context for its sslmode; None: no TLS
    password     the one of the DSN, or of its passfile, which is read anew for each connection

Only the DSN counts. No variable PG…, no ~/.pgpass, no service file and no ~/.postgresql decides anything: the driver is
given each value, so that it looks for none. Without a user, it is the one of this process, as the system knows it.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from changelog.base.errors import ConfigurationError

FORM = "give postgresql://user:password@host:port/database?sslmode=verify-full&sslrootcert=system, with a host and a database"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.%-]+))(?::([0-9]{1,5}))?")
PORT = 5432


class Param(NamedTuple):
    """`takes`: a pattern of the whole value; None: the parameter is refused. `says`: what it may be, or why not."""

    takes: str | None
    says: str


_ANY, _FILE, _SWITCH, _COUNT, _TLS = (
    Param(".+", "a text"), Param("/.+", "the whole path of a file, from / on"), Param("[01]", "0 or 1"),
    Param("-?[0-9]{1,9}", "a whole number"), Param(r"TLSv1(\.[123])?", "TLSv1, TLSv1.1, TLSv1.2 or TLSv1.3"),
)  # fmt: skip
_BEFORE = "it stands before the ?, as in postgresql://USER@HOST:PORT/DATABASE"
_NO_GSS, _NO_OAUTH = "this software encrypts by TLS, and not by GSSAPI", "this software knows no OAuth for PostgreSQL"

PARAMETERS: Mapping[str, Param] = {
    # whom, and who
    "host": Param(None, _BEFORE), "port": Param(None, _BEFORE), "dbname": Param(None, _BEFORE), "database": Param(None, _BEFORE),
    "hostaddr": Param(None, "write the address as the host"), "user": _ANY, "password": _ANY, "passfile": _FILE,
    "service": Param(None, "a service file is not read: write what it says into the DSN"),
    "servicefile": Param(None, "a service file is not read: write what it says into the DSN"),
    # the choice of the server
    "target_session_attrs": Param(
        "any|primary|standby|prefer-standby|read-write|read-only", "any, primary, standby, prefer-standby, read-write or read-only"
    ),
    "load_balance_hosts": Param("disable", "disable: who writes has one primary to go to"),
    "connect_timeout": _COUNT,
    # the session
    "application_name": _ANY, "fallback_application_name": _ANY, "options": _ANY,
    "client_encoding": Param("(?i)utf-?8|auto", "UTF8: this software speaks nothing else"),
    "replication": Param("(?i)false|off|no|0", "off: a store replicates nothing"),
    # the network
    "keepalives": _SWITCH, "keepalives_idle": _COUNT, "keepalives_interval": _COUNT, "keepalives_count": _COUNT,
    "tcp_user_timeout": _COUNT,
    "min_protocol_version": Param(r"3\.0", "3.0"), "max_protocol_version": Param(r"3\.0", "3.0: this software speaks nothing newer"),
    # TLS
    "sslmode": Param("disable|allow|prefer|require|verify-ca|verify-full", "disable, allow, prefer, require, verify-ca or verify-full"),
    "ssl": Param("true", "true, which is sslmode=require; or use sslmode"),
    "sslnegotiation": Param("postgres|direct", "postgres or direct"),
    "sslrootcert": Param("system|/.+", "the whole path of a file, from / on, or system"),
    "sslcert": _FILE, "sslkey": _FILE, "sslcrl": _FILE, "sslpassword": _ANY,
    "ssl_min_protocol_version": _TLS, "ssl_max_protocol_version": _TLS,
    "sslcrldir": Param(None, "name one file, in sslcrl"), "sslcompression": Param("0", "0: TLS compresses nothing"),
    "sslsni": Param("1", "1: the host is always told"), "requiressl": Param(None, "use sslmode"),
    "sslcertmode": Param("disable|allow", "disable or allow: whether the server asks for a certificate is not looked at"),
    "sslkeylogfile": Param(None, "keys are not written to a file"),
    # the proof of who is there
    "channel_binding": Param("disable|prefer", "disable or prefer: the driver binds no channel; sslmode=verify-full proves the server"),
    "require_auth": Param(None, "how the server asks is not looked at; sslmode=verify-full proves the server"),
    "requirepeer": Param(None, "the owner of a socket is not looked at"),
    "gssencmode": Param("disable|prefer", f"disable or prefer: {_NO_GSS}"), "krbsrvname": _ANY,
    "gsslib": Param("gssapi", "gssapi"), "gssdelegation": Param("0", "0: no credentials are passed on"),
    "oauth_issuer": Param(None, _NO_OAUTH), "oauth_client_id": Param(None, _NO_OAUTH), "oauth_client_secret": Param(None, _NO_OAUTH),
    "oauth_scope": Param(None, _NO_OAUTH), "oauth_ca_file": Param(None, _NO_OAUTH),
    "scram_client_key": Param(None, "give the password"), "scram_server_key": Param(None, "give the password"),
}  # fmt: skip
"""Every parameter of libpq 14 to 18. What a value means here is what it means there."""

_VERIFIES = ("require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class Dsn:
    """Where the servers are, in the order in which they are tried. A host that begins with / holds sockets.

    `given`: the parameters, all of which are in `PARAMETERS`.
    """

    hosts: Sequence[tuple[str, int]]
    user: str | None
    database: str
    given: Mapping[str, str]

    @property
    def sslmode(self) -> str:
        return self.given.get("sslmode") or ("verify-full" if self.given.get("sslrootcert") == "system" else "prefer")

    @property
    def wanted(self) -> str:
        return self.given.get("target_session_attrs", "any")

    @property
    def connect_s(self) -> float | None:
        """How long each host is waited for at most. None: as long as there is time."""
        seconds = int(self.given.get("connect_timeout", 0))
        return seconds if seconds > 0 else None

    def session(self) -> dict[str, str]:
        """What the server is told of the session, as far as the DSN says."""
        name = self.given.get("application_name") or self.given.get("fallback_application_name")
        options = {"options": self.given["options"]} if "options" in self.given else {}
        return options if name is None else {"application_name": name, **options}


def parsed(dsn: str) -> Dsn:
    """Raises ValueError. Its sentence says nothing of what the DSN holds but the name of a parameter of libpq."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        raise ValueError(FORM) from None
    signed, at, hosts = parts.netloc.rpartition("@")
    if "@" in parts.path or parts.fragment or ("@" in parts.query and not at):
        raise ValueError(f"percent-encode what is not a letter or a digit in user and password, such as / as %2F; {FORM}")
    user, colon, password = signed.partition(":")
    found = [_HOST.fullmatch(each) for each in hosts.split(",")]
    if parts.scheme not in ("postgresql", "postgres") or not all(found) or not parts.path.strip("/"):
        raise ValueError(FORM)
    if any(each is not None and each[3] is not None and not 1 <= int(each[3]) <= 65535 for each in found):
        raise ValueError("a port in it is not from 1 to 65535")
    given = dict(_given(parts.query))
    for name, value, there in (("user", user, bool(user)), ("password", password, bool(colon and password))):
        if there and name in given:
            raise ValueError(f"it names the {name} twice")
        if there:
            given[name] = unquote(value)
    if given.pop("ssl", None):
        given.setdefault("sslmode", "require")
    servers = [(each[1] or unquote(each[2]), int(each[3] or PORT)) for each in found if each is not None]
    made = Dsn(servers, given.get("user"), unquote(parts.path.lstrip("/")), given)
    for problem in _contradictions(made):
        raise ValueError(problem)
    return made


def _given(query: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        rule, value = PARAMETERS.get(unquote(name)), unquote(value)
        if rule is None:
            shown = name if re.fullmatch(r"[A-Za-z0-9_.]{1,63}", name) else "of another kind"
            raise ValueError(
                f"its parameter {shown} is none of libpq: leave it out; a setting of the session goes into options, such as"
                " options=-c%20work_mem%3D8MB"
            )
        if rule.takes is None:
            raise ValueError(f"its parameter {unquote(name)} is not taken: {rule.says}")
        if not re.fullmatch(rule.takes, value, re.DOTALL) or "\0" in value:
            raise ValueError(f"its parameter {unquote(name)} must be {rule.says}")
        if unquote(name) in seen:
            raise ValueError(f"it has the parameter {unquote(name)} twice")
        seen.add(unquote(name))
        yield unquote(name), value


def _contradictions(dsn: Dsn) -> Iterator[str]:
    given, mode = dsn.given, dsn.sslmode
    if mode.startswith("verify") and "sslrootcert" not in given:
        yield f"sslmode={mode} needs sslrootcert: the file of the authority, or 'system' for those that the system trusts"
    if "sslrootcert" in given and mode not in _VERIFIES:
        yield f"sslrootcert proves nothing with sslmode={mode}: add sslmode=verify-full"
    if given.get("sslrootcert") == "system" and mode != "verify-full":
        yield f"sslrootcert=system goes with sslmode=verify-full, and not with {mode}"
    if given.get("sslnegotiation") == "direct" and mode not in _VERIFIES:
        yield f"sslnegotiation=direct goes with sslmode=require or more, and not with {mode}"
    if ("sslcert" in given) != ("sslkey" in given):
        yield "it needs sslcert and sslkey, or none of them"
    if "sslcrl" in given and "sslrootcert" not in given:
        yield "sslcrl needs sslrootcert: without an authority nothing is looked up in it"


def os_user() -> str:
    """The user of this process, as the system knows it, and not as a variable says."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise ConfigurationError(f"postgres.dsn names no user, and the system knows none with the id {os.geteuid()}: name one") from None


def tls(dsn: Dsn) -> ssl.SSLContext | None:
    """The context, from files that are read now. None: no TLS. `ConfigurationError` names the file that is wrong."""
    mode, given = dsn.sslmode, dsn.given
    if mode == "disable":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = mode == "verify-full"
    root = given.get("sslrootcert")
    context.verify_mode = ssl.CERT_NONE if root is None else ssl.CERT_REQUIRED
    context.minimum_version = _version(given.get("ssl_min_protocol_version", "TLSv1.2"))
    if "ssl_max_protocol_version" in given:
        context.maximum_version = _version(given["ssl_max_protocol_version"])
    for name in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
        if name in given and given[name] != "system":
            _readable(name, given[name])
    doing = "sslrootcert"
    try:
        if root == "system":
            context.load_default_certs()
        elif root is not None:
            context.load_verify_locations(cafile=root)
        doing = "sslcrl"
        if "sslcrl" in given:
            context.load_verify_locations(cafile=given["sslcrl"])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
        doing = "sslkey"
        if "sslcert" in given and given.get("sslcertmode") != "disable":
            # Without a password the library would ask the terminal for one.
            context.load_cert_chain(given["sslcert"], given["sslkey"], password=lambda: given.get("sslpassword", ""))
    except (OSError, ValueError) as error:
        beside = f", or its sslcert {given['sslcert']}," if doing == "sslkey" else ""
        raise ConfigurationError(
            f"postgres.dsn names the {doing} {given.get(doing)}{beside} which is no such file, or not for the others: {error}"
        ) from None
    context.set_alpn_protocols(["postgresql"])
    return context


def _version(name: str) -> ssl.TLSVersion:
    return ssl.TLSVersion[name.replace(".", "_")]


def _readable(name: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"postgres.dsn names the {name} {path}, which cannot be read: {why}") from None


def password(dsn: Dsn, host: str, port: int) -> str:
    """Empty: none is known. `ConfigurationError`: the passfile cannot be read, or others may read it."""
    if "password" in dsn.given or "passfile" not in dsn.given:
        return dsn.given.get("password", "")
    path = dsn.given["passfile"]
    _readable("passfile", path)
    if Path(path).stat().st_mode & 0o077:
        raise ConfigurationError(f"others may read the passfile {path} of postgres.dsn: run 'chmod 600 {path}'")
    wanted = ("localhost" if host.startswith("/") else host, str(port), dsn.database, dsn.user or os_user())
    for line in Path(path).read_text(errors="surrogateescape").splitlines():
        fields = [re.sub(r"\\(.)", r"\1", field) for field in re.findall(r"(?:^|:)((?:\\.|[^:\\])*)", line)]
        if len(fields) >= 5 and not line.startswith("#") and all(f in ("*", w) for f, w in zip(fields, wanted, strict=False)):
            return fields[4]
    return ""


def keep_alive(dsn: Dsn, at: socket.socket) -> None:
    """Sets on the socket what the DSN says of it. What a system does not know, or a value that it refuses, is left."""
    number = {name: int(dsn.given.get(name, 0)) for name in (*_SOCKET, "tcp_user_timeout")}
    if at.family not in (socket.AF_INET, socket.AF_INET6):
        return
    options = []
    if dsn.given.get("keepalives", "1") == "1":
        options = [(socket.SOL_SOCKET, "SO_KEEPALIVE", 1), *((socket.IPPROTO_TCP, _SOCKET[name], number[name]) for name in _SOCKET)]
    for level, option, value in [*options, (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", number["tcp_user_timeout"])]:
        if value > 0 and hasattr(socket, option):
            try:
                at.setsockopt(level, getattr(socket, option), value)
            except OSError as error:
                raise ConfigurationError(f"postgres.dsn wants {option} = {value}, which this system refuses: {error}") from None


_SOCKET = {"keepalives_idle": "TCP_KEEPIDLE", "keepalives_interval": "TCP_KEEPINTVL", "keepalives_count": "TCP_KEEPCNT"}
