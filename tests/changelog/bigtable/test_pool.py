"""How calls are spread over the connections to Bigtable, and how a connection is warmed, replaced and closed.

The server is scripted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from google.cloud.bigtable_v2.types import MutateRowRequest, MutateRowResponse, ReadRowsRequest, ReadRowsResponse

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import DELETE_ROW, BigtableTable, answer, column_is, insecure_channel
from changelog.bigtable.pool import AGE_MAX_S, AGE_MIN_S, ChannelPool, connect
from tests.given.scripted_bigtable import Fails

pytestmark = pytest.mark.anyio

INSTANCE = "projects/p/instances/i"
WRITE = ("/google.bigtable.v2.Bigtable/MutateRow", MutateRowRequest.pb().SerializeToString, MutateRowResponse.pb().FromString)
READ = ("/google.bigtable.v2.Bigtable/ReadRows", ReadRowsRequest.pb().SerializeToString, ReadRowsResponse.pb().FromString)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class HandRuntime(SystemRuntime):
    """Whoever sleeps is woken by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.random = Random(7)
        self.asleep: list[tuple[float, anyio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        event = anyio.Event()
        self.asleep.append((seconds, event))
        await event.wait()

    def wake_one(self) -> None:
        self.asleep.pop(0)[1].set()


@pytest.fixture
def runtime() -> HandRuntime:
    return HandRuntime()


def nothing_blocks() -> grpc.Channel:
    pytest.fail("a blocking connection was opened")


def write(channel: Any, timeout_s: float = 10) -> Any:
    return channel.unary_unary(*WRITE)(MutateRowRequest.pb()(), timeout=timeout_s)


def read(channel: Any, timeout_s: float = 10) -> Any:
    return channel.unary_stream(*READ)(ReadRowsRequest.pb()(), timeout=timeout_s)


# --- which connection --------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [write, read])
async def test_calls_that_are_open_at_once_are_spread_evenly(server: Any, runtime: HandRuntime, begin: Callable[[Any], Any]) -> None:
    server.scripts["MutateRow"] = server.scripts["ReadRows"] = [asyncio.Event()]
    async with connect(INSTANCE, runtime, emulator_host=server.host, channels=4) as channel:
        calls = [begin(channel) for _ in range(12)]
        peers = Counter(call.peer for call in (await server.until(16))[4:])
        assert sorted(peers.values()) == [3, 3, 3, 3]
        for call in calls:
            call.cancel()


async def answered(call: Any) -> None:
    if hasattr(call, "read"):
        await call.read()
    assert await call.code() is grpc.StatusCode.OK


async def failed(call: Any) -> None:
    assert await call.code() is grpc.StatusCode.INTERNAL


async def out_of_time(call: Any) -> None:
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def cancelled_at_once(call: Any) -> None:
    call.cancel()


async def cancelled_on_its_way(call: Any) -> None:
    await anyio.sleep(0.01)
    call.cancel()


async def cancelled_with_its_caller(call: Any) -> None:
    with anyio.move_on_after(0.01):
        await (call.read() if hasattr(call, "read") else answer(call))


@pytest.mark.parametrize(("begin", "message"), [(write, MutateRowResponse.pb()()), (read, ReadRowsResponse.pb()())])
@pytest.mark.parametrize("ends", [answered, failed, out_of_time, cancelled_at_once, cancelled_on_its_way, cancelled_with_its_caller])
async def test_a_call_counts_until_it_ends_however_it_does(
    server: Any, runtime: HandRuntime, begin: Callable[..., Any], message: Any, ends: Callable[[Any], Any]
) -> None:
    scripts: dict[Any, list[Any]] = {answered: [message], failed: [Fails(grpc.StatusCode.INTERNAL)]}
    server.scripts["MutateRow"] = server.scripts["ReadRows"] = scripts.get(ends, [asyncio.Event()])
    async with connect(INSTANCE, runtime, emulator_host=server.host, channels=2) as channel:
        assert isinstance(channel, ChannelPool)
        for _ in range(4):
            call = begin(channel, 0.03 if ends is out_of_time else 10)
            assert sum(connection.calls for connection in channel._connections) == 1
            await ends(call)
            await server.comes_true(lambda: sum(connection.calls for connection in channel._connections) == 0)


async def test_a_connection_that_cannot_be_reached_takes_no_calls_while_another_can(server: Any, runtime: HandRuntime) -> None:
    channels = [insecure_channel("127.0.0.1:1"), insecure_channel(server.host)]
    pool = ChannelPool(lambda: channels.pop(0), nothing_blocks, INSTANCE, "", runtime, 2)
    async with pool:
        for _ in range(5):
            await write(pool)
    assert len(await server.until(6)) == 6


# --- warm --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("profile", "route"), [("", f"name={INSTANCE}"), ("one", f"name={INSTANCE}&app_profile_id=one")])
async def test_each_connection_is_warm_before_it_takes_calls(server: Any, runtime: HandRuntime, profile: str, route: str) -> None:
    async with connect(INSTANCE, runtime, emulator_host=server.host, app_profile=profile, channels=3):
        assert [call.method for call in server.arrived] == ["PingAndWarm"] * 3
    assert len({call.peer for call in server.arrived}) == 3
    for call in server.arrived:
        assert (call.request.name, call.request.app_profile_id, call.metadata["x-goog-request-params"]) == (INSTANCE, profile, route)
        assert call.time_left_s is not None


async def test_a_service_that_is_away_for_now_is_no_reason_not_to_open(
    server: Any, runtime: HandRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    server.scripts["PingAndWarm"] = [Fails(grpc.StatusCode.UNAVAILABLE)]
    async with connect(INSTANCE, runtime, emulator_host=server.host, channels=2) as channel:
        await write(channel)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["warm_up_failed"] * 2


async def test_a_mistake_in_the_settings_is_told_at_once(server: Any, runtime: HandRuntime) -> None:
    server.scripts["PingAndWarm"] = [Fails(grpc.StatusCode.PERMISSION_DENIED)]
    opened: list[grpc.aio.Channel] = []

    def opens() -> grpc.aio.Channel:
        opened.append(insecure_channel(server.host))
        return opened[-1]

    with pytest.raises(ConfigurationError, match=r"projects/p/instances/i.*roles/bigtable.user"):
        async with ChannelPool(opens, nothing_blocks, INSTANCE, "", runtime, 2):
            pytest.fail("opened")
    assert [channel.get_state() for channel in opened] == [grpc.ChannelConnectivity.SHUTDOWN] * 2 and not runtime.asleep


@pytest.mark.parametrize("channels", [0, -1])
async def test_no_connections_are_a_mistake(runtime: HandRuntime, channels: int) -> None:
    with pytest.raises(ConfigurationError, match=f"channels is {channels}"):
        async with connect(INSTANCE, runtime, emulator_host="127.0.0.1:1", channels=channels):
            pytest.fail("opened")


# --- for calls that block ----------------------------------------------------------------------------


async def test_a_connection_for_calls_that_block_is_opened_when_it_is_asked_for_and_closed_with_the_pool(
    server: Any, runtime: HandRuntime
) -> None:
    async with connect(INSTANCE, runtime, emulator_host=server.host, channels=2) as pool:
        blocking = pool.blocking()
        assert pool.blocking() is blocking and len(server.arrived) == 2
    with pytest.raises(ValueError, match="closed channel"):
        blocking.unary_stream(*READ)(ReadRowsRequest.pb()())


# --- replaced ----------------------------------------------------------------------------------------


class Opened:
    """A pool of two connections, and the gRPC channels it opened, in order."""

    def __init__(self, server: Any, runtime: HandRuntime) -> None:
        self.channels: list[grpc.aio.Channel] = []
        self._server = server
        self.pool = ChannelPool(self._open, nothing_blocks, INSTANCE, "", runtime, 2)

    def _open(self) -> grpc.aio.Channel:
        self.channels.append(insecure_channel(self._server.host))
        return self.channels[-1]


def is_shut(channel: grpc.aio.Channel) -> bool:
    return bool(channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN)


async def test_each_connection_is_replaced_at_an_age_of_35_to_45_minutes(server: Any, runtime: HandRuntime) -> None:
    made = Opened(server, runtime)
    async with made.pool:
        for number in range(3, 9):
            await server.comes_true(lambda: len(runtime.asleep) == 2)
            ages = [age for age, _ in runtime.asleep]
            assert all(AGE_MIN_S <= age <= AGE_MAX_S for age in ages) and ages[0] != ages[1]
            runtime.wake_one()
            await server.until(number, "PingAndWarm")
            await server.comes_true(lambda: sum(map(is_shut, made.channels)) == len(made.channels) - 2)
    assert len(made.channels) == 8 and all(map(is_shut, made.channels)) and not made.pool._retired


async def test_a_connection_that_is_replaced_is_closed_once_its_calls_have_ended(server: Any, runtime: HandRuntime) -> None:
    go_on = asyncio.Event()
    server.scripts["MutateRow"] = [go_on, MutateRowResponse.pb()()]
    made = Opened(server, runtime)
    async with made.pool:
        on_first, on_second = write(made.pool), write(made.pool)
        first, second = await server.until(2, "MutateRow")
        await server.comes_true(lambda: len(runtime.asleep) == 2)
        runtime.wake_one()
        await server.comes_true(lambda: len(runtime.asleep) == 2)
        fresh = write(made.pool)
        third = (await server.until(3, "MutateRow"))[2]
        assert third.peer == (await server.until(3, "PingAndWarm"))[2].peer not in (first.peer, second.peer)
        assert not is_shut(made.channels[0])
        go_on.set()
        for call in (on_first, on_second, fresh):
            await call
        await server.comes_true(lambda: is_shut(made.channels[0]))
        assert not is_shut(made.channels[1])


async def test_a_connection_that_cannot_be_warmed_replaces_nothing(
    server: Any, runtime: HandRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    made = Opened(server, runtime)
    async with made.pool:
        for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED):
            await server.comes_true(lambda: len(runtime.asleep) == 2)
            server.scripts["PingAndWarm"] = [Fails(code)]
            runtime.wake_one()
            await server.comes_true(lambda: not made.pool._retired and len(runtime.asleep) == 2)
            await write(made.pool)
        assert not is_shut(made.channels[0]) and not is_shut(made.channels[1])
    assert len(made.channels) == 4 and len(caplog.records) == 2


# --- closed ------------------------------------------------------------------------------------------


async def test_at_exit_every_call_ends_also_on_a_connection_that_was_replaced(server: Any, runtime: HandRuntime) -> None:
    server.scripts["MutateRow"] = [asyncio.Event()]
    made = Opened(server, runtime)
    async with made.pool:
        calls = [write(made.pool), write(made.pool)]
        await server.until(2, "MutateRow")
        await server.comes_true(lambda: len(runtime.asleep) == 2)
        runtime.wake_one()
        await server.comes_true(lambda: len(runtime.asleep) == 2)
    assert all(call.cancelled() for call in calls) and all(map(is_shut, made.channels))


async def test_what_the_block_raises_comes_out_as_it_is(server: Any, runtime: HandRuntime) -> None:
    with pytest.raises(KeyError, match="its own"):
        async with connect(INSTANCE, runtime, emulator_host=server.host, channels=2):
            raise KeyError("its own")


async def test_a_cancelled_block_ends_as_cancelled(server: Any, runtime: HandRuntime) -> None:
    with anyio.CancelScope() as scope:
        async with connect(INSTANCE, runtime, emulator_host=server.host, channels=2):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_closed_pool_sends_nothing(server: Any, runtime: HandRuntime) -> None:
    async with connect(INSTANCE, runtime, emulator_host=server.host, channels=2) as channel:
        table = BigtableTable(channel, f"{INSTANCE}/tables/t")
    with pytest.raises(UnavailableError, match="closed"):
        await table.check_and_mutate(b"k", column_is("fg", b"r"))


# --- the service itself ------------------------------------------------------------------------------


async def test_without_credentials_one_sentence_says_where_to_get_them(
    runtime: HandRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(ConfigurationError, match="gcloud auth application-default login") as caught:
        async with connect(INSTANCE, runtime, emulator_host=None, channels=2):
            pytest.fail("opened")
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(caught.value) and "BIGTABLE_EMULATOR_HOST" in str(caught.value)
    assert "\n" not in str(caught.value)


class Numbered:
    """An `Authorize`: tokens with numbers, a new one after each that was refused. `held`: nobody gets one."""

    def __init__(self) -> None:
        self.number = 1
        self.held = False

    async def __call__(self, within_s: float = 10.0) -> Mapping[str, str]:
        if self.held:
            with anyio.move_on_after(within_s):
                await anyio.sleep_forever()
            raise UnavailableError("the Google token could not be renewed, so nothing was sent").telling(heard=False)
        return {"Authorization": f"Bearer {self.number}", "x-goog-user-project": "billing"}

    def refused(self, headers: Mapping[str, str]) -> bool:
        assert headers["Authorization"] == f"Bearer {self.number}"
        self.number += 1
        return True


CALLS: dict[str, Callable[[BigtableTable], Any]] = {
    "CheckAndMutateRow": lambda table: table.check_and_mutate(b"k", column_is("fg", b"r")),
    "MutateRow": lambda table: table.mutate(b"k", DELETE_ROW),
    "ReadModifyWriteRow": lambda table: table.increment(b"k", "fc", b"c"),
    "ReadRows": lambda table: table.read(b"k"),
    "MutateRows": lambda table: table.mutate_rows([(b"k", [DELETE_ROW]), (b"l", [DELETE_ROW])]),
}


@asynccontextmanager
async def authorised(server: Any, runtime: HandRuntime, authorize: Numbered, timeout_s: float = 5.0) -> AsyncIterator[BigtableTable]:
    async with ChannelPool(lambda: insecure_channel(server.host), nothing_blocks, INSTANCE, "", runtime, 2, authorize) as pool:
        yield BigtableTable(pool, f"{INSTANCE}/tables/t", timeout_s=timeout_s, authorize=pool.authorize)


@pytest.mark.parametrize("method", list(CALLS))
async def test_each_call_carries_its_token_and_one_that_was_refused_is_not_sent_again(
    server: Any, runtime: HandRuntime, method: str
) -> None:
    server.scripts = {each: [Fails(grpc.StatusCode.UNAUTHENTICATED)] for each in CALLS}
    async with authorised(server, runtime, Numbered()) as table:
        for number in (1, 2):
            try:
                told = await CALLS[method](table)
            except UnavailableError as error:
                told = [error]
            assert [(type(error), error.code, error.heard) for error in told] == [(UnavailableError, "UNAUTHENTICATED", True)] * len(told)
            arrived = server.arrived[-1]
            assert (arrived.method, arrived.metadata["authorization"]) == (method, f"Bearer {number}")
            assert (arrived.metadata["x-goog-user-project"], arrived.metadata["x-goog-request-params"]) == (
                "billing", f"table_name={INSTANCE}/tables/t",
            )
    assert [call.metadata["authorization"] for call in server.arrived[:2]] == ["Bearer 1"] * 2, "also those that warm"


@pytest.mark.parametrize("method", list(CALLS))
async def test_a_call_that_gets_no_token_was_not_sent_and_ends_in_its_time(server: Any, runtime: HandRuntime, method: str) -> None:
    authorize = Numbered()
    async with authorised(server, runtime, authorize, timeout_s=0.1) as table:
        authorize.held = True
        try:
            told = await CALLS[method](table)
        except UnavailableError as error:
            told = [error]
        assert [(type(error), error.heard) for error in told] == [(UnavailableError, False)] * len(told)
        with anyio.move_on_after(0.01) as scope:
            await CALLS[method](table)
        assert scope.cancelled_caught
    assert [call.method for call in server.arrived] == ["PingAndWarm"] * 2


async def test_what_is_waited_for_a_token_is_taken_from_the_time_of_the_call(server: Any, runtime: HandRuntime) -> None:
    class LateChannel(Numbered):
        async def __call__(self, within_s: float = 10.0) -> Mapping[str, str]:
            await anyio.sleep(0.3)
            return await super().__call__(within_s)

    async with authorised(server, runtime, LateChannel(), timeout_s=5.0) as table:
        await table.mutate(b"k", DELETE_ROW)
        with pytest.raises(UnavailableError, match="nothing was sent"):
            await table.send(table.to_check_and_mutate(b"k", column_is("fg", b"r")), 0.2)
    assert server.arrived[-1].method == "MutateRow" and server.arrived[-1].time_left_s < 4.8


async def test_the_service_is_spoken_to_over_tls_by_connections_of_their_own(
    server: Any, runtime: HandRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Any, dict[str, int]]] = []

    def secure_channel(target: str, credentials: Any, options: Any, **_: Any) -> grpc.aio.Channel:
        asked.append((target, type(credentials), dict(options)))
        return insecure_channel(server.host)

    monkeypatch.setattr(grpc.aio, "secure_channel", secure_channel)
    async with connect(INSTANCE, runtime, emulator_host=None, channels=2, authorize=Numbered()) as channel:
        await write(channel)
    options = {
        "grpc.max_send_message_length": -1, "grpc.max_receive_message_length": -1, "grpc.use_local_subchannel_pool": 1,
        "grpc.keepalive_time_ms": 30_000, "grpc.keepalive_timeout_ms": 10_000,
    }
    assert asked == [("bigtable.googleapis.com:443", grpc.ChannelCredentials, options)] * 2


async def test_an_emulator_is_reached_whatever_the_environment_says_of_proxies(
    server: Any, runtime: HandRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with connect(INSTANCE, runtime, emulator_host=server.host, channels=2) as channel:
        await write(channel)


async def test_the_real_emulator_can_be_warmed(bigtable_host: str, runtime: HandRuntime, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(INSTANCE, runtime, emulator_host=bigtable_host, channels=2):
        assert not caplog.records
