"""Apicurio Registry, a server of others with Confluent's REST API. It keeps what it is told in memory.

Maven Central has it whole, as `io.apicurio:apicurio-registry-app`, 142 MB. It is fetched once, by `mvn`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from tests.given.maven import NotFetchedError, fetched

VERSION = "2.6.13.Final"
NAME = f"apicurio-registry-app-{VERSION}"
CACHE = Path.home() / ".cache/tiered" / NAME
START_S = 60.0


def _unpacked() -> Path:
    """Returns the folder with the server."""
    if shutil.which("java") is None:
        raise NotFetchedError("Apicurio Registry needs java")
    if CACHE.exists():
        return CACHE
    packed = fetched("io.apicurio", "apicurio-registry-app", VERSION, "tar.gz", "all")
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=CACHE.parent) as beside, tarfile.open(packed) as archive:
        archive.extractall(Path(beside) / NAME, filter="data")
        if not CACHE.exists():
            (Path(beside) / NAME).rename(CACHE)
    return CACHE


@contextmanager
def apicurio() -> Iterator[str]:
    """Runs the server on a free loopback port. Yields the address of its Confluent API.

    `NotFetchedError`: it is not to be had here.
    """
    folder = _unpacked()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = int(listening.getsockname()[1])
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m", "-Dquarkus.log.level=ERROR"]
    where = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    command = ["java", *quick, *where, "-jar", str(folder / f"{NAME}-runner.jar")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        ends_at = time.monotonic() + START_S
        while True:
            assert server.poll() is None, f"Apicurio Registry ended with {server.returncode}"
            try:
                if httpx.get(f"{url}/subjects", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                assert time.monotonic() < ends_at, "Apicurio Registry does not answer"
            time.sleep(0.1)
        yield url
    finally:
        server.kill()
        server.wait()
