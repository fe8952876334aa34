"""Apicurio Registry, a server of others with Confluent's REST API. It keeps what it is told in memory.

Maven Central has it whole, as `io.apicurio:apicurio-registry-app`, 142 MB. It is fetched once, by `mvn`.
"""

from __future__ import annotations

import os
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

VERSION = "2.6.13.Final"
NAME = f"apicurio-registry-app-{VERSION}"
CACHE = Path.home() / ".cache/tiered" / NAME
START_S = 60.0


class RegistryNotFoundError(Exception):
    """It is not on this machine, and cannot be fetched."""


def _fetched() -> Path:
    """Returns the folder with the server."""
    if (java := shutil.which("java")) is None:
        raise RegistryNotFoundError("Apicurio Registry needs java")
    if CACHE.exists():
        return CACHE
    packed = Path.home() / f".m2/repository/io/apicurio/apicurio-registry-app/{VERSION}/{NAME}-all.tar.gz"
    if not packed.exists():
        if (maven := shutil.which("mvn")) is None:
            raise RegistryNotFoundError(f"Apicurio Registry is not in {CACHE}, and there is no mvn to fetch it")
        artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
        command = [maven, "-q", "-B", "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if not packed.exists():
            raise RegistryNotFoundError(f"mvn did not fetch Apicurio Registry with {java}: {ended.stdout[-300:]}")
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=CACHE.parent) as beside, tarfile.open(packed) as archive:
        archive.extractall(Path(beside) / NAME, filter="data")
        if not CACHE.exists():
            (Path(beside) / NAME).rename(CACHE)
    return CACHE


@contextmanager
def apicurio() -> Iterator[str]:
    """Runs the server on a free loopback port. Yields the address of its Confluent API.

    `RegistryNotFoundError`: it is not to be had here.
    """
    folder = _fetched()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = int(listening.getsockname()[1])
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m", "-Dquarkus.log.level=ERROR"]
    where = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    command = ["java", *quick, *where, "-jar", str(folder / f"{NAME}-runner.jar")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, env={**os.environ})
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
