"""Starts Ceph's object gateway over a cluster of one, in memory: a monitor, an object storage daemon, `radosgw`.

The programs are found on PATH (Debian: ceph-mon, ceph-osd, radosgw, ceph-common). Nobody asks for a key inside the
cluster, which listens on loopback alone. The gateway takes what is signed with `ACCESS` and `SECRET`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from shutil import which

import anyio
from anyio.abc import Process

from emulators.gcs.fake_gcs_server import await_start
from emulators.go import running
from emulators.ports import free_port
from emulators.s3.servers import ACCESS, SECRET, S3ServerNotFoundError

_UUID = "00000000-0000-4000-8000-{:012}"
PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
_SETTINGS = """[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{monitor}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data = {at}/mon
osd data = {at}/osd
osd objectstore = memstore
memstore device bytes = 4294967296
run dir = {at}
admin socket = {at}/$name.asok
pid file =
log file = {at}/$name.log
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw data = {at}/rgw
osd class dir = {libraries}/rados-classes
erasure code dir = {libraries}/ceph/erasure-code
plugin dir = {libraries}/ceph
"""


@asynccontextmanager
async def start_ceph(directory: Path) -> AsyncIterator[str]:
    """Runs it on a free loopback port. Yields its address."""
    if missing := [name for name in PROGRAMS if which(name) is None]:
        raise S3ServerNotFoundError(f"no Ceph: put {', '.join(missing)} on PATH, as Debian's ceph-mon, ceph-osd and radosgw bring them")
    monitor, port, fsid = free_port(), free_port(), _UUID.format(1)
    settings = directory / "ceph.conf"
    settings.write_text(_SETTINGS.format(fsid=fsid, monitor=monitor, port=port, at=directory, libraries=_libraries()))
    for name in ("mon", "osd", "rgw"):
        (directory / name).mkdir()

    async def run(program: str, *words: str) -> None:
        with anyio.fail_after(120):
            await anyio.run_process([program, *words], env=_environment(settings), stderr=subprocess.STDOUT)

    async with AsyncExitStack() as servers:
        async def serve(*command: str) -> Process:
            return await servers.enter_async_context(running([*command, "-f"], subprocess.DEVNULL, _environment(settings)))

        monmap = str(directory / "monmap")
        await run("monmaptool", "--create", "--addv", "a", f"[v2:127.0.0.1:{monitor}]", "--fsid", fsid, monmap)
        await run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
        await serve("ceph-mon", "-i", "a")
        osd = _UUID.format(2)
        await run("ceph", "osd", "new", osd)
        await run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", osd)
        await serve("ceph-osd", "-i", "0")
        await run("radosgw-admin", "user", "create", "--uid", ACCESS, "--display-name", ACCESS, "--access-key", ACCESS, "--secret", SECRET)
        await await_start(await serve("radosgw", "-n", "client.rgw"), port, "Ceph's gateway")
        yield f"http://127.0.0.1:{port}"


def _libraries() -> Path:
    """Where its plugins are: the packages may be unpacked anywhere."""
    found = sorted((Path(which("radosgw") or "").parents[1] / "lib").glob("**/rados-classes"))
    if not found:
        raise S3ServerNotFoundError("no Ceph: radosgw has no plugins beside it")
    return found[0].parent


def _environment(settings: Path) -> Mapping[str, str]:
    libraries = _libraries()
    modules = next((each / "python3" / "dist-packages" for each in libraries.parents if (each / "python3" / "dist-packages").is_dir()), "")
    return {**os.environ, "PYTHONPATH": str(modules), "CEPH_CONF": str(settings)}
