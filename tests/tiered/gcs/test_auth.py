"""Tokens are kept, renewed in time and by one task at a time; what fails says what to do."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import google.auth
import pytest
from google.auth.exceptions import DefaultCredentialsError, RefreshError

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import SystemRuntime
from tiered.gcs.auth import RENEW_EARLY_S, RETRY_S, SCOPE, GoogleAuthorization

pytestmark = pytest.mark.anyio
NOW_NS = 1_700_000_000_000_000_000


class FixedRuntime(SystemRuntime):
    now_ns = NOW_NS
    waited_s = 0.0

    def monotonic(self) -> float:
        return self.waited_s

    def wall_ns(self) -> int:
        return self.now_ns

    def later(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


class FakeCredentials:
    """Tokens of an hour, numbered."""

    def __init__(self, runtime: FixedRuntime) -> None:
        self.token: str | None = None
        self.expiry: datetime | None = None
        self.quota_project_id: str | None = None
        self.refreshed = 0
        self.error: Exception | None = None
        self.threads: set[int] = set()
        self.lifetime: timedelta | None = timedelta(hours=1)
        self._runtime = runtime

    def refresh(self, request: Any) -> None:
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error
        self.refreshed += 1
        self.token = f"token-{self.refreshed}"
        now = datetime.fromtimestamp(self._runtime.wall_ns() / 1e9, UTC).replace(tzinfo=None)
        self.expiry = None if self.lifetime is None else now + self.lifetime


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def runtime() -> FixedRuntime:
    return FixedRuntime()


@pytest.fixture
def credentials(runtime: FixedRuntime) -> FakeCredentials:
    return FakeCredentials(runtime)


@pytest.fixture
def authorize(credentials: FakeCredentials, runtime: FixedRuntime) -> GoogleAuthorization:
    return GoogleAuthorization(credentials, runtime)


async def test_a_token_is_fetched_in_another_thread_and_kept(authorize: GoogleAuthorization, credentials: FakeCredentials) -> None:
    assert await authorize() == {"Authorization": "Bearer token-1"}
    assert await authorize() == {"Authorization": "Bearer token-1"}
    assert credentials.refreshed == 1
    assert threading.get_ident() not in credentials.threads


async def test_a_token_is_renewed_before_it_expires(
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedRuntime
) -> None:
    await authorize()
    runtime.later(3600 - RENEW_EARLY_S - 1)
    assert await authorize() == {"Authorization": "Bearer token-1"}
    runtime.later(1)
    assert await authorize() == {"Authorization": "Bearer token-2"}


async def test_a_token_that_never_expires_is_kept(
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedRuntime
) -> None:
    credentials.lifetime = None
    await authorize()
    runtime.later(1e6)
    assert await authorize() == {"Authorization": "Bearer token-1"}


async def test_a_token_is_renewed_however_many_threads_wait_elsewhere(
    authorize: GoogleAuthorization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As payloads from pipes do, or whatever else the process reads in anyio's own threads."""
    monkeypatch.setattr(google.auth, "default", lambda scopes: (FakeCredentials(FixedRuntime()), "project"))
    busy = threading.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(int(anyio.to_thread.current_default_thread_limiter().total_tokens)):
            tasks.start_soon(partial(anyio.to_thread.run_sync, busy.wait))
        try:
            with anyio.fail_after(30):
                assert await authorize() == {"Authorization": "Bearer token-1"}
                await GoogleAuthorization.default(FixedRuntime())
        finally:
            busy.set()


async def test_a_thread_that_cannot_be_had_is_no_error_while_the_token_is_good(
    authorize: GoogleAuthorization, runtime: FixedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*args: Any, **named: Any) -> Any:
        raise RuntimeError("can't start new thread")

    await authorize()
    runtime.later(3600 - 10)
    monkeypatch.setattr(anyio.to_thread, "run_sync", refuse)
    assert await authorize() == {"Authorization": "Bearer token-1"}
    runtime.later(10)
    with pytest.raises(UnavailableError, match=r"could not be renewed: no thread could be started"):
        await authorize()


async def test_many_tasks_wait_for_one_renewal(authorize: GoogleAuthorization, credentials: FakeCredentials) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(authorize)
    assert credentials.refreshed == 1


async def test_a_failed_renewal_is_unavailable_and_the_next_one_is_tried(
    authorize: GoogleAuthorization, credentials: FakeCredentials
) -> None:
    credentials.error = RefreshError("the metadata server is away")  # type: ignore[no-untyped-call]
    with pytest.raises(UnavailableError, match=r"could not be renewed.*metadata server"):
        await authorize()
    credentials.error = None
    assert await authorize() == {"Authorization": "Bearer token-1"}


async def test_a_failed_early_renewal_is_no_error_while_the_token_is_good(
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedRuntime
) -> None:
    await authorize()
    runtime.later(3600 - 10)
    credentials.error = RefreshError("the metadata server is away")  # type: ignore[no-untyped-call]
    assert await authorize() == {"Authorization": "Bearer token-1"}
    runtime.later(10)
    with pytest.raises(UnavailableError):
        await authorize()


async def test_nobody_waits_for_a_renewal_while_the_token_is_good(
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    await authorize()
    runtime.later(3600 - 60)
    begun, go_on, told = threading.Event(), threading.Event(), list[Mapping[str, str]]()
    renew = credentials.refresh

    def hang(request: Any) -> None:
        begun.set()
        assert go_on.wait(10)
        renew(request)

    async def call() -> None:
        told.append(await authorize())

    monkeypatch.setattr(credentials, "refresh", hang)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.to_thread.run_sync(begun.wait)
        try:
            with anyio.fail_after(5):
                assert [await authorize() for _ in range(20)] == [{"Authorization": "Bearer token-1"}] * 20
        finally:
            go_on.set()
    assert told == [{"Authorization": "Bearer token-2"}]


@pytest.mark.parametrize("fails", [True, False])
async def test_a_renewal_in_vain_is_not_repeated_by_every_call(
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedRuntime, fails: bool
) -> None:
    """It fails, or a metadata server hands out the token that it has once more."""
    await authorize()
    runtime.later(3600 - 60)
    tried: list[object] = []

    def refresh(request: Any) -> None:
        tried.append(request)
        if fails:
            raise RefreshError("the metadata server is away")  # type: ignore[no-untyped-call]

    credentials.refresh = refresh  # type: ignore[method-assign]
    for _ in range(20):
        assert await authorize() == {"Authorization": "Bearer token-1"}
    assert len(tried) == 1
    runtime.waited_s += RETRY_S
    await authorize()
    assert len(tried) == 2


async def test_a_token_that_the_service_refuses_is_not_sent_again(authorize: GoogleAuthorization, credentials: FakeCredentials) -> None:
    refused = await authorize()
    authorize.refused(refused)
    assert await authorize() == {"Authorization": "Bearer token-2"}
    authorize.refused(refused)
    assert await authorize() == {"Authorization": "Bearer token-2"}, "a late answer is about an older one"


async def test_a_quota_project_is_named(authorize: GoogleAuthorization, credentials: FakeCredentials) -> None:
    credentials.quota_project_id = "billing"
    assert await authorize() == {"Authorization": "Bearer token-1", "x-goog-user-project": "billing"}


async def test_default_credentials_are_asked_for_with_the_scope(monkeypatch: pytest.MonkeyPatch, credentials: FakeCredentials) -> None:
    asked: list[Any] = []

    def default(scopes: list[str]) -> tuple[Any, str]:
        asked.append(scopes)
        return credentials, "project"

    monkeypatch.setattr(google.auth, "default", default)
    authorize = await GoogleAuthorization.default(FixedRuntime())
    assert asked == [[SCOPE]]
    assert (await authorize())["Authorization"] == "Bearer token-1"


async def test_no_credentials_at_all_say_where_to_put_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def default(scopes: list[str]) -> tuple[Any, str]:
        raise DefaultCredentialsError("none were found")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(google.auth, "default", default)
    with pytest.raises(ConfigurationError, match=r"gcloud auth application-default login.*GOOGLE_APPLICATION_CREDENTIALS.*EMULATOR_HOST"):
        await GoogleAuthorization.default(FixedRuntime())
