"""`python -m emulators up` and `start_emulators`: both emulators, provisioned, and nothing left of them."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import aiohttp
import grpc.aio
import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable
from changelog.change import ChangeId
from emulators.bigtable.emulator import HOST_VARIABLE, EmulatorFailedError
from emulators.ports import PortTakenError, free_port
from emulators.up import BUILT_IN, start_emulators
from tests.given.repository import ROOT
from tests.given.services_up import children, comes_true, is_alive, is_open, up
from tiered.bigtable.rows import BigtableRows
from tiered.kinds.chosen import inspect
from tiered.metadata import Metadata
from tiered.provision.findings import problems
from tiered.services.backends import Inline
from tiered.settings import Settings, load_settings

pytestmark = pytest.mark.asyncio

RUNTIME = SystemRuntime()


@pytest.fixture(autouse=True)
def _own_start(bigtable_host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator can be had here, and each test starts its own."""
    for name in (HOST_VARIABLE, "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)


async def put_and_get(settings: Settings) -> None:
    """A row and a blob, over both addresses."""
    assert settings.bigtable is not None and settings.gcs is not None
    at = settings.bigtable
    async with grpc.aio.insecure_channel(str(at.emulator_host)) as channel:
        rows = BigtableRows(BigtableTable(channel, f"projects/{at.project}/instances/{at.instance}/tables/{at.table}"), RUNTIME)
        await rows.put_inline("a/objects/k", ChangeId.new(RUNTIME), Inline(Metadata(), b"payload"))
        assert isinstance(state := (await rows.read("a/objects/k")).state, Inline) and state.payload == b"payload"
    blobs = f"{settings.gcs.endpoint}/upload/storage/v1/b/{settings.gcs.bucket}/o?uploadType=media&name=blob"
    async with aiohttp.ClientSession() as session, session.post(blobs, data=b"payload") as answer:
        assert answer.status == 200


async def test_it_serves_both_and_ends_with_0_on_a_signal_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with up() as started:
        assert list(started.variables) == ["BIGTABLE_EMULATOR_HOST", "STORAGE_EMULATOR_HOST"]
        for name, value in started.variables.items():
            monkeypatch.setenv(name, value)
        settings = load_settings(ROOT / "deploy" / "emulators.yaml")
        assert problems(await inspect(settings)) == []
        await put_and_get(settings)
        left = children(started.running.pid)
        assert left
        started.running.terminate()
        code, rest, said = await started.end()
        assert (code, rest) == (0, "") and "Traceback" not in said
        assert not any(map(is_open, started.ports)) and not any(map(is_alive, left))


async def test_killed_it_leaves_nothing_either() -> None:
    async with up() as started:
        left = children(started.running.pid)
        started.running.kill()
        await started.running.wait()
        assert await comes_true(lambda: not any(map(is_alive, left)))
        assert not any(map(is_open, started.ports))


async def test_ports_are_those_that_are_asked_for_and_names_those_of_the_settings_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    bigtable, gcs = free_port(), free_port()
    (tmp_path / "names.yaml").write_text(
        "changelog: bigtable\nbigtable: {project: project, instance: i, table: same, changelog_table: same}\ngcs: {bucket: other}\n"
    )
    async with up("--bigtable-port", str(bigtable), "--gcs-port", str(gcs), "--config", str(tmp_path / "names.yaml")) as started:
        assert started.ports == [bigtable, gcs]
        settings = load_settings(tmp_path / "names.yaml", below={
            "bigtable": {"emulator_host": f"127.0.0.1:{bigtable}"}, "gcs": {"endpoint": f"http://127.0.0.1:{gcs}"},
        })
        assert problems(await inspect(settings)) == []
        started.running.send_signal(signal.SIGINT)
        assert (await started.end())[0] == 0
        assert not any(map(is_open, started.ports))


async def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with up("--gcs-port", str(port), lines=0) as started:
            code, rest, said = await started.end()
        with pytest.raises(PortTakenError, match=f"bigtable_port {port} cannot be had"):
            async with start_emulators(bigtable_port=port):
                pass
    assert (code, rest) == (3, "")
    assert said == f"emulators: gcs_port {port} cannot be had: Address already in use; stop who has it, or give another\n"


async def test_a_context_starts_both_and_ends_them() -> None:
    async with start_emulators() as settings:
        await put_and_get(settings)
        assert settings.bigtable is not None and settings.gcs is not None
        addresses = [str(settings.bigtable.emulator_host), str(settings.gcs.endpoint)]
    assert not any(is_open(int(address.rpartition(":")[2])) for address in addresses)


async def test_names_that_cannot_be_provisioned_leave_nothing_running() -> None:
    assert BUILT_IN.gcs is not None
    names = BUILT_IN.model_copy(update={"gcs": BUILT_IN.gcs.model_copy(update={"bucket": "CAPITALS"})})
    with pytest.raises(EmulatorFailedError, match=r"could not create bucket CAPITALS.*Invalid bucket name"):
        async with start_emulators(names):
            pass


async def test_a_store_in_a_directory_needs_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs no emulators"):
        async with start_emulators(Settings(directory=tmp_path)):
            pass


async def test_the_names_that_are_built_in_are_those_of_the_example() -> None:
    assert load_settings(ROOT / "deploy" / "emulators.yaml").model_dump() == BUILT_IN.model_dump()
