"""PgBouncer before a server, by default in transaction mode: each transaction may get another connection to PostgreSQL.

It is found on PATH, or where Debian installs it. Like the server, it refuses to run as root. It asks for no password.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from emulators.go import WITH_WARDEN
from emulators.ports import free_port
from emulators.postgres.server import START_S, USER, PostgresNotFoundError, PostgresServer, other_user, server_directory

_SETTINGS = """[databases]
{database} = host=127.0.0.1 port={server} dbname={database} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_file = {users}
default_pool_size = {connections}
"""
_CHOICES = {"auth_type": "any", "pool_mode": "transaction"}


def find_pgbouncer() -> str:
    """`PostgresNotFoundError`: there is none here."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise PostgresNotFoundError("there is no pgbouncer here: install Debian's package pgbouncer")
    return found


@contextmanager
def pooled(
    server: PostgresServer, connections: int = 3, database: str = "postgres", user: str = USER,
    passwords: Mapping[str, str] | None = None, choices: Mapping[str, object] | None = None,
) -> Iterator[int]:
    """Runs one before the server, with so many connections to it, as this user. Yields its port, where it listens.

    `choices`: other settings of PgBouncer. `passwords`: of users, where its `auth_type` asks for them.
    """
    program, port = find_pgbouncer(), free_port()
    as_other, uid, gid = other_user()
    with server_directory() as directory:
        said, settings = directory / "log", directory / "pgbouncer.ini"
        users = directory / "users"
        users.write_text("".join(f'"{name}" "{password}"\n' for name, password in (passwords or {}).items()))
        whole = _SETTINGS.format(database=database, server=server.port, user=user, port=port, connections=connections, users=users)
        settings.write_text(whole + "".join(f"{name} = {value}\n" for name, value in {**_CHOICES, **(choices or {})}.items()))
        for path in (directory, settings, users):
            os.chown(path, uid, gid)
        with said.open("wb") as out:
            process = subprocess.Popen(
                ["sh", "-c", WITH_WARDEN, "sh", *as_other, program, "-q", str(settings)], cwd="/", stdin=subprocess.PIPE, stdout=out,
                stderr=out, start_new_session=True,
            )  # fmt: skip
        try:
            _await_ready(port, process, said)
            yield port
        finally:
            process.terminate()
            process.wait(START_S)
            assert process.stdin is not None
            process.stdin.close()


def _await_ready(port: int, process: subprocess.Popen[bytes], said: Path) -> None:
    """Logs in nowhere: after a login it knows the server's greeting, and lets clients in while the server is away."""
    for _ in range(600):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, said.read_text(errors="replace")
        subprocess.run(["sleep", "0.05"], check=True)
    raise AssertionError(f"pgbouncer does not start: {said.read_text(errors='replace')}")
