"""The DSN: each parameter of libpq is taken or refused, and the environment decides nothing."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.postgres import dsn as dsns
from changelog.postgres.dsn import PARAMETERS, parsed
from changelog.postgres.pool import PostgresPool
from emulators.postgres.server import QUICK, PostgresServer, find_postgres
from tests.conftest import postgres_or_skip
from tests.given.fresh_schema import ask

BASE = "postgresql://me:s3cret@db/shop"
FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")
ONLY_INSIDE = {"authtype", "tty"}
"""What libpq lists and documents nowhere."""


class _Option(ctypes.Structure):
    _fields_ = [(name, ctypes.c_char_p) for name in ("keyword", "envvar", "compiled", "val", "label", "dispchar")] + [
        ("dispsize", ctypes.c_int)
    ]


def of_libpq() -> Iterator[tuple[str, str | None]]:
    """The parameters of libpq, and the variable of each. It comes with the server, as a wheel has it."""
    beside = (find_postgres().parent / "lib").glob("libpq.*5*")
    library = ctypes.CDLL(next(map(str, beside), None) or ctypes.util.find_library("pq"))
    library.PQconndefaults.restype = ctypes.POINTER(_Option)
    for option in library.PQconndefaults():
        if option.keyword is None:
            return
        yield option.keyword.decode(), None if option.envvar is None else option.envvar.decode()


VARIABLES = (
    "PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSWORD", "PGPASSFILE", "PGREQUIREAUTH", "PGCHANNELBINDING", "PGSERVICE",
    "PGSERVICEFILE", "PGOPTIONS", "PGAPPNAME", "PGSSLMODE", "PGREQUIRESSL", "PGSSLNEGOTIATION", "PGSSLCOMPRESSION", "PGSSLCERT", "PGSSLKEY",
    "PGSSLCERTMODE", "PGSSLROOTCERT", "PGSSLCRL", "PGSSLCRLDIR", "PGSSLSNI", "PGREQUIREPEER", "PGSSLMINPROTOCOLVERSION",
    "PGSSLMAXPROTOCOLVERSION", "PGGSSENCMODE", "PGKRBSRVNAME", "PGGSSLIB", "PGGSSDELEGATION", "PGCONNECT_TIMEOUT", "PGCLIENTENCODING",
    "PGTARGETSESSIONATTRS", "PGLOADBALANCEHOSTS", "PGMINPROTOCOLVERSION", "PGMAXPROTOCOLVERSION", "PGDATESTYLE", "PGTZ", "PGGEQO",
    "PGSYSCONFDIR", "PGLOCALEDIR", "PGREALM", "PGTTY", "PGSSLKEYLOGFILE", "SSLKEYLOGFILE", "USER", "LOGNAME", "USERNAME",
)  # fmt: skip
"""All that the manuals of libpq 14 to 18 name, and what Python and the driver look at."""


def test_every_parameter_of_libpq_is_taken_or_refused_by_its_name_and_every_variable_is_tried() -> None:
    found = dict(of_libpq())
    assert found.keys() - ONLY_INSIDE <= PARAMETERS.keys()
    assert {variable for variable in found.values() if variable} <= set(VARIABLES)


GOOD = {
    "user": "me", "password": "x", "passfile": "/x", "target_session_attrs": "read-write", "load_balance_hosts": "disable",
    "connect_timeout": "3", "application_name": "a b", "fallback_application_name": "c", "options": "-c work_mem=8MB",
    "client_encoding": "UTF8", "replication": "off", "keepalives": "0", "keepalives_idle": "10", "keepalives_interval": "10",
    "keepalives_count": "3", "tcp_user_timeout": "1000", "min_protocol_version": "3.0", "max_protocol_version": "3.0",
    "sslmode": "require", "ssl": "true", "sslnegotiation": "postgres", "sslrootcert": "system", "sslcert": "/x", "sslkey": "/x",
    "sslcrl": "/x", "sslpassword": "x", "ssl_min_protocol_version": "TLSv1.2", "ssl_max_protocol_version": "TLSv1.3",
    "sslcompression": "0", "sslsni": "1", "sslcertmode": "allow", "channel_binding": "prefer", "gssencmode": "disable",
    "krbsrvname": "postgres", "gsslib": "gssapi", "gssdelegation": "0",
}  # fmt: skip
TOGETHER = {"sslcert": "&sslkey=/x", "sslkey": "&sslcert=/x", "sslcrl": "&sslrootcert=/x&sslmode=verify-ca"}
ANY = {"user", "password", "application_name", "fallback_application_name", "options", "sslpassword", "krbsrvname"}
"""What may be any text. Empty, it is refused."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_is_taken_with_a_good_value_and_refused_by_its_name_with_any_other(name: str) -> None:
    base = "postgresql://db/shop" if name in ("user", "password", "passfile") else BASE
    if PARAMETERS[name].takes is None:
        assert name not in GOOD
    else:
        value = GOOD[name].replace(" ", "%20").replace("=", "%3D")
        taken = parsed(f"{base}?{name}={value}{TOGETHER.get(name, '')}")
        assert taken.given.get(name) == GOOD[name] or name == "ssl"
    for wrong in ("", *([] if name in ANY else ["s3cret", "require%00", "relative/s3cret", "-1.5", "99999999999999", "TRUE "])):
        with pytest.raises(ValueError, match=rf"\b{name}\b") as failed:
            parsed(f"{base}?{name}={wrong}{TOGETHER.get(name, '')}")
        assert "s3cret" not in str(failed.value)


@pytest.mark.parametrize(("query", "says"), [
    ("x=1", "x is none of libpq"), ("statement_timeout=5", "goes into options"), ("sslmode=require&sslmode=disable", "sslmode twice"),
    ("password=x", "names the password twice"), ("sslmode=verify-full", "needs sslrootcert"), ("sslmode=verify-ca", "needs sslrootcert"),
    ("sslrootcert=/x", "proves nothing with sslmode=prefer"), ("sslrootcert=system&sslmode=require", "goes with sslmode=verify-full"),
    ("sslcert=/x", "sslcert and sslkey"), ("sslkey=/x", "sslcert and sslkey"), ("sslnegotiation=direct", "goes with sslmode=require"),
    ("sslcrl=/x", "sslcrl needs sslrootcert"), ("channel_binding=require", "channel_binding must be"), ("gssencmode=require", "gssencmode"),
    ("service=x", "a service file is not read"), ("hostaddr=1.2.3.4", "write the address as the host"), ("host=a", "stands before the"),
    ("connect_timeout", "connect_timeout must be"), ("=x", "none of libpq"), ("%73slmode=wrong", "sslmode must be"),
])  # fmt: skip
def test_what_contradicts_itself_is_refused_with_a_sentence(query: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parsed(f"{BASE}?{query}")


def test_a_passfile_is_read_as_libpq_reads_it(tmp_path: Path) -> None:
    (at := tmp_path / "pass").write_text("# a comment\nother:*:*:*:no\n*:5432:sh\\:op:me:n\\\\o\ndb:*:shop:me:s:3\\:cret\n*:*:*:*:last\n")
    at.chmod(0o600)
    dsn = parsed(f"postgresql://me@db/shop?passfile={at}")
    assert dsns.password(dsn, "db", 5432) == "s" and dsns.password(dsn, "elsewhere", 1) == "last"
    assert dsns.password(parsed(f"postgresql://me:x@db/shop?passfile={at}"), "db", 5432) == "x"
    at.chmod(0o640)
    with pytest.raises(ConfigurationError, match=f"chmod 600 {at}"):
        dsns.password(dsn, "db", 5432)


# --- with a server -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresServer, Path]]:
    """A server with TLS that asks for a password over it, and the file of its certificate."""
    made = tmp_path_factory.mktemp("tls")
    with postgres_or_skip(QUICK) as server:
        data = server.directory / "data"
        subprocess.run([
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
            "subjectAltName=DNS:localhost", "-keyout", str(data / "server.key"), "-out", str(data / "server.crt"),
        ], check=True, capture_output=True)  # fmt: skip
        (made / "root.crt").write_bytes((data / "server.crt").read_bytes())
        (data / "server.key").chmod(0o600)
        owner = data.stat()
        for name in ("server.key", "server.crt"):
            os.chown(data / name, owner.st_uid, owner.st_gid)
        rules = data / "pg_hba.conf"
        rules.write_text("hostssl all guarded 127.0.0.1/32 scram-sha-256\nhostnossl all guarded 127.0.0.1/32 reject\n" + rules.read_text())
        server.stop()
        server.options.append("ssl=on")
        server.start()
        yield server, made / "root.crt"


@pytest.fixture
async def guarded(secure: tuple[PostgresServer, Path], anyio_backend: str) -> str:
    server, root = secure
    if not await ask(server, "SELECT 1 FROM pg_roles WHERE rolname = 'guarded'"):
        await ask(server, "CREATE ROLE guarded LOGIN PASSWORD 'right'")
    return f"postgresql://guarded:right@localhost:{server.port}/postgres?sslmode=verify-full&sslrootcert={root}"


async def session(dsn: str) -> tuple[object, ...]:
    """Who is there, and how."""
    async with PostgresPool(dsn, "the server", connections_max=1, timeout_s=10, writes=True) as pool:
        [found] = await pool.read("looking", (
            "SELECT current_user::text, current_database()::text, ssl, version, current_setting('application_name'),"
            " current_setting('work_mem'), current_setting('DateStyle'), current_setting('TimeZone'), current_setting('client_encoding')"
            " FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        ))  # fmt: skip
        return tuple(found)


def WITH_SERVER(test: Callable[..., object]) -> Any:
    return pytest.mark.slow(pytest.mark.anyio(pytest.mark.parametrize("anyio_backend", ["asyncio"])(test)))


@WITH_SERVER
@pytest.mark.parametrize("alone", [False, pytest.param(True, marks=pytest.mark.night)], ids=["all at once", "each by itself"])
async def test_no_variable_and_no_file_of_the_user_changes_a_session(
    secure: tuple[PostgresServer, Path], guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    server, _ = secure
    plain = guarded.partition("?")[0]
    dsns = [guarded, server.dsn(), f"{plain}?sslmode=require", plain, f"{server.dsn()}?sslmode=allow"]
    expected = [await session(each) for each in dsns]
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".postgresql").mkdir()
    for name in ("root.crt", "root.crl", "postgresql.crt", "postgresql.key"):
        (tmp_path / ".postgresql" / name).write_text("this is no certificate")
    (tmp_path / ".pgpass").write_text("*:*:*:*:wrong\n")
    (tmp_path / ".pgpass").chmod(0o600)
    (tmp_path / ".pg_service.conf").write_text("[s]\nhost=nowhere.invalid\nuser=nobody\n")
    monkeypatch.chdir(tmp_path)
    assert [await session(each) for each in dsns] == expected
    values = {"PGSERVICE": "s", "PGSERVICEFILE": str(tmp_path / ".pg_service.conf"), "PGOPTIONS": "-c work_mem=1MB", "PGSSLMODE": "disable"}
    for variable in VARIABLES if alone else ():
        with monkeypatch.context() as patch:
            patch.setenv(variable, values.get(variable, "wrong"))
            assert [await session(each) for each in (dsns[0], dsns[3])] == [expected[0], expected[3]], variable
    for numbers in (values, dict.fromkeys(VARIABLES, "1")):
        for variable in VARIABLES:
            monkeypatch.setenv(variable, numbers.get(variable, "wrong"))
        assert [await session(each) for each in dsns] == expected


@WITH_SERVER
async def test_the_password_of_the_environment_is_not_used_and_the_error_says_so(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "right")
    with pytest.raises(UnavailableError, match=r"28P01.*neither PGPASSWORD nor") as failed:
        await session(guarded.replace(":right", ""))
    assert failed.value.refused


@WITH_SERVER
async def test_a_password_that_was_changed_is_read_from_the_passfile_by_the_next_connection(
    secure: tuple[PostgresServer, Path], guarded: str, tmp_path: Path
) -> None:
    (at := tmp_path / "pass").write_text("*:*:*:guarded:right\n")
    at.chmod(0o600)
    async with PostgresPool(
        guarded.replace(":right", "") + f"&passfile={at}", "the server", connections_max=1, timeout_s=10, writes=True
    ) as pool:
        assert await pool.read("looking", "SELECT 1")
        await ask(secure[0], "ALTER ROLE guarded PASSWORD 'new'")
        try:
            assert await pool.read("looking", "SELECT 1"), "what is open goes on"
            pool._age += 1
            with pytest.raises(UnavailableError, match="the password was not accepted"):
                await pool.read("looking", "SELECT 1")
            at.write_text("*:*:*:guarded:new\n")
            assert await pool.read("looking", "SELECT 1")
        finally:
            await ask(secure[0], "ALTER ROLE guarded PASSWORD 'right'")


@WITH_SERVER
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["missing", "damaged", "a directory"])
async def test_a_file_that_is_missing_or_damaged_is_named(guarded: str, tmp_path: Path, name: str, kind: str) -> None:
    at = tmp_path / "the-file"
    if kind == "damaged":
        at.write_text("this is nothing")
        at.chmod(0o600 if name != "passfile" else 0o644)
    elif kind == "a directory":
        at.mkdir()
    given = dict(part.split("=") for part in guarded.partition("?")[2].split("&"))
    root = given["sslrootcert"]
    given |= {name: str(at)} | {"sslcert": {"sslkey": root}, "sslkey": {"sslcert": root}}.get(name, {})
    dsn = guarded.partition("?")[0].replace(":right", "" if name == "passfile" else ":right")
    with pytest.raises(ConfigurationError) as failed:
        await session(f"{dsn}?{'&'.join(f'{each}={value}' for each, value in given.items())}")
    assert name in str(failed.value) or name == "sslcert", str(failed.value)
    assert str(at) in str(failed.value)


@WITH_SERVER
@pytest.mark.parametrize(("query", "setting", "value"), [
    ("application_name=mine", "application_name", "mine"), ("fallback_application_name=spare", "application_name", "spare"),
    ("", "application_name", "tiered"), ("options=-c%20work_mem%3D5MB", "work_mem", "5MB"),
    ("application_name=mine&fallback_application_name=spare", "application_name", "mine"),
    ("options=-c%20jit%3Don", "jit", "off"),
    ("connect_timeout=1&keepalives_idle=7&keepalives_count=2&tcp_user_timeout=900", "application_name", "tiered"),
])  # fmt: skip
async def test_what_is_taken_means_what_it_means_to_libpq(postgres: PostgresServer, query: str, setting: str, value: str) -> None:
    async with PostgresPool(f"{postgres.dsn()}?{query}", "x", connections_max=1, timeout_s=10, writes=True) as pool:
        assert (await pool.read("looking", f"SELECT current_setting('{setting}')"))[0][0] == value
        if "keepalives" in query:
            at = pool._idle[0]._transport.get_extra_info("socket")
            told = [at.getsockopt(socket.IPPROTO_TCP, each) for each in (socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)]
            assert told == [7, 2, 900]


@WITH_SERVER
@pytest.mark.parametrize(("mode", "encrypted"), [
    ("sslmode=disable", False), ("sslmode=allow", False), ("sslmode=prefer", True), ("sslmode=require", True), ("ssl=true", True),
    ("", True),
])  # fmt: skip
async def test_each_sslmode_encrypts_as_libpq_does(secure: tuple[PostgresServer, Path], mode: str, encrypted: bool) -> None:
    assert (await session(f"{secure[0].dsn()}?{mode}"))[2] is encrypted


@WITH_SERVER
async def test_a_server_that_is_not_the_one_of_the_certificate_is_refused(secure: tuple[PostgresServer, Path], guarded: str) -> None:
    with pytest.raises(TieredError, match=r"(?i)certificate"):
        await session(guarded.replace("localhost", "127.0.0.1"))
    assert (await session(guarded.replace("localhost", "127.0.0.1").replace("verify-full", "verify-ca")))[2] is True
