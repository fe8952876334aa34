"""What is sent to Bigtable beside the message, and what each failure means."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.cloud.bigtable_v2.types import CheckAndMutateRowResponse

from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from changelog.bigtable.channel import SCAN_TIMEOUT_S, BigtableTable, KeySpan, column_is

pytestmark = pytest.mark.anyio

NAME = "projects/p/instances/i/tables/my table"
NEVER = {  # statuses that prove that a mutation had no effect
    grpc.StatusCode.RESOURCE_EXHAUSTED: UnavailableError,
    grpc.StatusCode.UNAUTHENTICATED: UnavailableError,
    grpc.StatusCode.PERMISSION_DENIED: ConfigurationError,
    grpc.StatusCode.NOT_FOUND: ConfigurationError,
    grpc.StatusCode.FAILED_PRECONDITION: ConfigurationError,
    grpc.StatusCode.UNIMPLEMENTED: ConfigurationError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
}
FAILURES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FailingWire:
    """A channel that fails every call, or answers each with an empty message, and keeps what it was given."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.sent: list[dict[str, Any]] = []

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        async def call(request: Any, **options: Any) -> Any:
            self.sent.append(options)
            if self.failure is not None:
                raise self.failure
            return CheckAndMutateRowResponse.pb()(predicate_matched=True)

        return call

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        wire = self

        class ChannelStream:
            def __init__(self, request: Any, **options: Any) -> None:
                wire.sent.append(options)

            async def __aiter__(self) -> AsyncIterator[Any]:
                if wire.failure is not None:
                    raise wire.failure
                return
                yield

            def cancel(self) -> None:
                pass

        return ChannelStream


def failure(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "the details")


async def call(table: BigtableTable, verb: str) -> Any:
    match verb:
        case "check_and_mutate":
            return await table.check_and_mutate(b"k", column_is("fg", b"r"))
        case "mutate":
            return await table.mutate(b"k")
        case "increment":
            return await table.increment(b"k", "fc", b"c")
        case "read":
            return await table.read(b"k")
        case _:
            return await table.scan([KeySpan(b"a", b"b")], column_is("fg", b"r"), 10)


@pytest.mark.parametrize("code", FAILURES)
@pytest.mark.parametrize("verb", ["check_and_mutate", "mutate", "increment"])
async def test_a_mutation_that_failed_is_unconfirmed_unless_its_status_proves_the_contrary(verb: str, code: grpc.StatusCode) -> None:
    with pytest.raises(TieredError, match="the details") as caught:
        await call(BigtableTable(FailingWire(failure(code)), NAME), verb)
    assert type(caught.value) is NEVER.get(code, UnconfirmedError) and NAME in str(caught.value)


@pytest.mark.parametrize("code", FAILURES)
@pytest.mark.parametrize("verb", ["read", "scan"])
async def test_a_read_that_failed_is_unavailable_unless_someone_must_mend_something(verb: str, code: grpc.StatusCode) -> None:
    with pytest.raises(TieredError, match="the details") as caught:
        await call(BigtableTable(FailingWire(failure(code)), NAME), verb)
    assert type(caught.value) is NEVER.get(code, UnavailableError)


HEARD = {*NEVER, grpc.StatusCode.ABORTED, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.DATA_LOSS}


@pytest.mark.parametrize("code", FAILURES)
@pytest.mark.parametrize("verb", ["mutate", "read"])
async def test_an_error_tells_whether_the_service_was_heard(verb: str, code: grpc.StatusCode) -> None:
    with pytest.raises(TieredError) as caught:
        await call(BigtableTable(FailingWire(failure(code)), NAME), verb)
    assert (caught.value.code, caught.value.heard) == (code.name, True if code in HEARD else None)


async def test_a_profile_that_forbids_row_transactions_is_named_as_the_cause() -> None:
    with pytest.raises(ConfigurationError, match="single-row transactions"):
        await call(BigtableTable(FailingWire(failure(grpc.StatusCode.FAILED_PRECONDITION)), NAME), "mutate")


@pytest.mark.parametrize("verb", ["mutate", "read"])
async def test_a_closed_channel_sends_nothing(verb: str) -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        table = BigtableTable(channel, NAME)
    with pytest.raises(UnavailableError, match="closed"):
        await call(table, verb)


@pytest.mark.parametrize(("verb", "timeout_s"), [("check_and_mutate", 3), ("mutate", 3), ("read", 3), ("scan", SCAN_TIMEOUT_S)])
@pytest.mark.parametrize("profile", ["", "one cluster"])
async def test_every_call_has_a_deadline_and_says_where_it_goes(verb: str, timeout_s: float, profile: str) -> None:
    wire = FailingWire()
    await call(BigtableTable(wire, NAME, profile, timeout_s=3), verb)
    route = "table_name=projects/p/instances/i/tables/my+table" + ("&app_profile_id=one+cluster" if profile else "")
    assert wire.sent == [{"timeout": timeout_s, "metadata": (("x-goog-request-params", route),)}]


@pytest.mark.parametrize(("asked_s", "timeout_s"), [(1, 1), (9, 3), (None, 3)])
async def test_a_call_may_have_less_time_and_never_more(asked_s: float | None, timeout_s: float) -> None:
    wire = FailingWire()
    table = BigtableTable(wire, NAME, timeout_s=3)
    assert await table.check_and_mutate(b"k", column_is("fg", b"r"), timeout_s=asked_s)
    assert wire.sent[0]["timeout"] == timeout_s


async def test_no_ranges_are_no_rows_and_no_call() -> None:
    wire = FailingWire()
    assert await BigtableTable(wire, NAME).scan([], column_is("fg", b"r"), 10) == [] and wire.sent == []
