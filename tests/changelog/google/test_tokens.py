"""GoogleAuthorization are kept, renewed in time and by one task at a time; what fails says what to do."""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, cast

import anyio
import google.auth
import pytest
from google.auth import compute_engine
from google.auth.compute_engine import _metadata
from google.auth.exceptions import DefaultCredentialsError, OAuthError, RefreshError, TransportError

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.own_waits import OwnWaits
from changelog.base.runtime import SystemRuntime
from changelog.google.tokens import HUNG_AFTER_S, NEW_S, RENEW_EARLY_S, RENEWALS_MAX, RETRY_S, GoogleAuthorization
from tests.given import signing_account
from tests.given.no_threads import no_threads
from tests.given.waiting import becomes

pytestmark = pytest.mark.anyio
NOW_NS = 1_700_000_000_000_000_000
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class FixedTimeRuntime(SystemRuntime):
    now_ns = NOW_NS
    waited_s = 0.0

    def monotonic(self) -> float:
        return self.waited_s

    def wall_ns(self) -> int:
        return self.now_ns

    def later(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


class FakeCredentials:
    """GoogleAuthorization of an hour, numbered."""

    def __init__(self, runtime: FixedTimeRuntime) -> None:
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
def runtime() -> FixedTimeRuntime:
    return FixedTimeRuntime()


@pytest.fixture
def credentials(runtime: FixedTimeRuntime) -> FakeCredentials:
    return FakeCredentials(runtime)


@pytest.fixture
def authorize(credentials: FakeCredentials, runtime: FixedTimeRuntime) -> GoogleAuthorization:
    return GoogleAuthorization(credentials, runtime)


async def test_a_token_is_fetched_in_another_thread_and_kept(authorize: GoogleAuthorization, credentials: FakeCredentials) -> None:
    assert await authorize() == {"Authorization": "Bearer token-1"}
    assert await authorize() == {"Authorization": "Bearer token-1"}
    assert credentials.refreshed == 1
    assert threading.get_ident() not in credentials.threads


async def renewed(authorize: GoogleAuthorization) -> None:
    """Waits until no renewal is under way."""
    with anyio.fail_after(10):
        while authorize._renewals:
            await authorize._renewals[-1].ended.wait()


async def test_a_token_is_renewed_before_it_expires_and_nobody_waits_for_that(
    authorize: GoogleAuthorization, runtime: FixedTimeRuntime
) -> None:
    await authorize()
    runtime.later(3600 - RENEW_EARLY_S - 1)
    assert await authorize() == {"Authorization": "Bearer token-1"}
    assert not authorize._renewals
    runtime.later(1)
    assert await authorize() == {"Authorization": "Bearer token-1"}
    await renewed(authorize)
    assert await authorize() == {"Authorization": "Bearer token-2"}


async def test_a_token_that_never_expires_is_kept(
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedTimeRuntime
) -> None:
    credentials.lifetime = None
    await authorize()
    runtime.later(1e6)
    assert await authorize() == {"Authorization": "Bearer token-1"}


async def test_a_token_is_renewed_however_many_threads_wait_elsewhere(
    authorize: GoogleAuthorization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As payloads from pipes do, or whatever else the process reads in anyio's own threads."""
    monkeypatch.setattr(google.auth, "default", lambda scopes: (FakeCredentials(FixedTimeRuntime()), "project"))
    busy = threading.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(int(anyio.to_thread.current_default_thread_limiter().total_tokens)):
            tasks.start_soon(partial(anyio.to_thread.run_sync, busy.wait))
        try:
            with anyio.fail_after(30):
                assert await authorize() == {"Authorization": "Bearer token-1"}
                await GoogleAuthorization.default(FixedTimeRuntime(), SCOPE)
        finally:
            busy.set()


async def test_a_thread_that_cannot_be_had_is_no_error_while_the_token_is_good(
    authorize: GoogleAuthorization, runtime: FixedTimeRuntime
) -> None:
    await authorize()
    runtime.later(3600 - 10)
    with no_threads():
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
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedTimeRuntime
) -> None:
    await authorize()
    runtime.later(3600 - 10)
    credentials.error = RefreshError("the metadata server is away")  # type: ignore[no-untyped-call]
    assert await authorize() == {"Authorization": "Bearer token-1"}
    await renewed(authorize)
    runtime.later(10)
    with pytest.raises(UnavailableError):
        await authorize()


class HangingRefresh:
    """What `refresh` does is held up until the test lets it go on."""

    def __init__(self, credentials: FakeCredentials) -> None:
        self.go_on = threading.Event()
        self.begun = 0
        self._refresh = credentials.refresh
        credentials.refresh = self.refresh  # type: ignore[method-assign]

    def refresh(self, request: Any) -> None:
        self.begun += 1
        assert self.go_on.wait(30)
        self._refresh(request)


async def test_a_renewal_that_hangs_holds_up_nobody_while_the_token_is_good(
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedTimeRuntime
) -> None:
    await authorize()
    runtime.later(3600 - 60)
    hanging = HangingRefresh(credentials)
    with anyio.fail_after(5):
        assert [await authorize() for _ in range(20)] == [{"Authorization": "Bearer token-1"}] * 20
    hanging.go_on.set()
    await renewed(authorize)
    assert hanging.begun == 1 and await authorize() == {"Authorization": "Bearer token-2"}


async def test_a_caller_leaves_a_renewal_that_hangs_when_its_own_time_is_up(
    authorize: GoogleAuthorization, credentials: FakeCredentials
) -> None:
    hanging = HangingRefresh(credentials)
    with anyio.move_on_after(0.05) as scope:
        await authorize()
    assert scope.cancelled_caught
    with pytest.raises(UnavailableError, match=r"nothing was sent: no answer within 0\.05 s; check.*GCE_METADATA_HOST") as caught:
        await authorize(0.05)
    assert caught.value.heard is False
    hanging.go_on.set()
    assert await authorize() == {"Authorization": "Bearer token-1"}
    assert hanging.begun == 1


async def test_beside_a_renewal_that_hangs_for_good_others_are_tried_but_not_without_end(
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedTimeRuntime
) -> None:
    hanging = HangingRefresh(credentials)
    for _ in range(3 * RENEWALS_MAX):
        with pytest.raises(UnavailableError):
            await authorize(0.01)
        runtime.waited_s += HUNG_AFTER_S + 1
    assert len(authorize._renewals) == RENEWALS_MAX
    hanging.go_on.set()
    await renewed(authorize)
    assert hanging.begun == RENEWALS_MAX
    assert (await authorize())["Authorization"].startswith("Bearer token-")


async def test_a_wait_for_a_token_is_no_silence_of_the_service(
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedTimeRuntime
) -> None:
    hanging = HangingRefresh(credentials)
    with OwnWaits(runtime.monotonic) as waits:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(authorize)
            await anyio.wait_all_tasks_blocked()
            runtime.waited_s = 9.0
            assert waits.over_at(0.0) == 9.0, "it goes on"
            hanging.go_on.set()
        runtime.waited_s = 11.0
        assert waits.over_at(0.0) == 9.0


@pytest.mark.parametrize("fails", [True, False])
async def test_a_renewal_in_vain_is_not_repeated_by_every_call(
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedTimeRuntime, fails: bool
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
        await renewed(authorize)
    assert len(tried) == 1
    runtime.waited_s += RETRY_S
    await authorize()
    await renewed(authorize)
    assert len(tried) == 2


async def test_a_token_that_the_service_refuses_is_not_sent_again(authorize: GoogleAuthorization, credentials: FakeCredentials) -> None:
    refused = await authorize()
    authorize.refused(refused)
    assert await authorize() == {"Authorization": "Bearer token-2"}
    authorize.refused(refused)
    assert await authorize() == {"Authorization": "Bearer token-2"}, "a late answer is about an older one"


async def test_a_token_that_is_refused_while_it_is_new_is_no_matter_of_its_age(
    authorize: GoogleAuthorization, credentials: FakeCredentials, runtime: FixedTimeRuntime
) -> None:
    """One that is old may have been revoked, and the next one be taken. All who sent it are told the same."""
    new = await authorize()
    assert [authorize.refused(new) for _ in range(2)] == [False] * 2
    kept = await authorize()
    runtime.waited_s += NEW_S
    assert [authorize.refused(each) for each in (kept, new, kept)] == [True] * 3
    again = await authorize()
    assert again == {"Authorization": "Bearer token-3"} and [authorize.refused(each) for each in (again, again)] == [False] * 2


refresh, oauth, transport = cast(Any, (RefreshError, OAuthError, TransportError))  # the package has no types
SAID: list[tuple[Exception, bool]] = [
    (refresh("invalid_grant: Invalid JWT.", {"error": "invalid_grant", "error_description": "Invalid JWT."}), True),
    (refresh("invalid_grant: Token has been expired or revoked.", {"error": "invalid_grant"}, retryable=False), True),
    (oauth("Error code invalid_client: no", '{"error": "invalid_client", "error_description": "no"}'), True),
    (refresh("Unable to acquire impersonated credentials", '{"error": {"code": 403, "status": "PERMISSION_DENIED"}}'), True),
    (refresh("Unable to acquire impersonated credentials", '{"error": {"code": 503, "status": "UNAVAILABLE"}}'), False),
    (refresh("internal_failure: None", {"error": "internal_failure"}, retryable=True), False),
    (refresh(transport("no route to the metadata server")), False), (transport("no route"), False), (refresh(), False),
    (oauth("<html>bad gateway</html>", "<html>bad gateway</html>"), False), (refresh("x", '"invalid_grant"'), False),
    (refresh("x", {"error": ["invalid_grant"]}), False), (refresh("x", "[" * 100_000), False), (ValueError("x"), False),
]  # fmt: skip


@pytest.mark.parametrize(("error", "is_final"), SAID)
async def test_google_says_whether_it_will_give_no_token_tomorrow_either(
    authorize: GoogleAuthorization, credentials: FakeCredentials, error: Exception, is_final: bool
) -> None:
    credentials.error = error
    with pytest.raises(UnavailableError, match="so nothing was sent") as failed:
        await authorize()
    assert (failed.value.is_final, failed.value.heard) == (is_final, False)


async def test_a_quota_project_is_named(authorize: GoogleAuthorization, credentials: FakeCredentials) -> None:
    credentials.quota_project_id = "billing"
    assert await authorize() == {"Authorization": "Bearer token-1", "x-goog-user-project": "billing"}


async def test_default_credentials_are_asked_for_with_the_scope(monkeypatch: pytest.MonkeyPatch, credentials: FakeCredentials) -> None:
    asked: list[Any] = []

    def default(scopes: list[str]) -> tuple[Any, str]:
        asked.append(scopes)
        return credentials, "project"

    monkeypatch.setattr(google.auth, "default", default)
    authorize = await GoogleAuthorization.default(FixedTimeRuntime(), SCOPE)
    assert asked == [[SCOPE]]
    assert (await authorize())["Authorization"] == "Bearer token-1"


async def test_no_credentials_at_all_say_where_to_put_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def default(scopes: list[str]) -> tuple[Any, str]:
        raise DefaultCredentialsError("none were found")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(google.auth, "default", default)
    with pytest.raises(ConfigurationError, match=r"gcloud auth application-default login.*GOOGLE_APPLICATION_CREDENTIALS.*EMULATOR_HOST"):
        await GoogleAuthorization.default(FixedTimeRuntime(), SCOPE)


# --- a metadata server -----------------------------------------------------------------------------------

GOOD = json.dumps({"access_token": "from-the-server", "expires_in": 3600, "token_type": "Bearer"})


def detached() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "tiered-detached"}


@pytest.fixture
async def default(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[list[Any], threading.Event]]:
    """A metadata server in threads of its own: what it answers to who asks for a token, and what ends its threads.

    It outlives the threads that ask it. Otherwise they would ask whoever has its port next, and log what they think of
    that among what other tests log, for a quarter of a minute.
    """
    answers: list[Any] = [GOOD]
    over, before = threading.Event(), detached()

    async def are_over() -> bool:
        return detached() <= before

    class TokenHandler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            answer = answers[0] if "/token" in self.path else json.dumps({"email": "robot@example.com", "scopes": []})
            status, body = answer if isinstance(answer, tuple) else (200, answer)
            if body == "hangs":
                over.wait(120)
                status, body = 200, GOOD
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            trickles = body.startswith("trickles")
            for byte in body:
                with suppress(OSError):
                    self.wfile.write(byte.encode())
                if trickles:
                    over.wait(0.05)

    server = ThreadingHTTPServer(("127.0.0.1", 0), TokenHandler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    yield answers, over
    over.set()
    await becomes(are_over)
    server.shutdown()
    server.server_close()


def tokens() -> GoogleAuthorization:
    return GoogleAuthorization(compute_engine.Credentials(scopes=[SCOPE]), SystemRuntime())  # type: ignore[no-untyped-call]


async def test_a_metadata_server_gives_the_token(default: tuple[list[Any], threading.Event]) -> None:
    assert await tokens()() == {"Authorization": "Bearer from-the-server"}


@pytest.mark.parametrize("how", ["hangs", "trickles" * 10_000])
async def test_a_metadata_server_that_never_comes_to_an_end_holds_up_no_call_beyond_its_time(
    default: tuple[list[Any], threading.Event], how: str
) -> None:
    answers, over = default
    answers[0] = how
    authorize = tokens()
    with anyio.move_on_after(0.2) as scope:
        await authorize()
    assert scope.cancelled_caught
    with pytest.raises(UnavailableError, match=r"nothing was sent: no answer within 0\.2 s"):
        await authorize(0.2)
    over.set()


@pytest.mark.parametrize("answer", [
    "{}", "[]", "null", '"text"', "not JSON", '{"access_token": 5, "expires_in": 3600}', '{"access_token": "two\\nlines", "expires_in": 1}',
    '{"access_token": "t"}', '{"access_token": "t", "expires_in": "soon"}', '{"access_token": "t", "expires_in": 1e30}',
    '{"access_token": "t", "expires_in": -5}', '{"access_token": "", "expires_in": 3600}', "<html>welcome</html>",
    (404, "none"), (403, "no"),
])  # fmt: skip
async def test_what_is_no_token_is_unavailable_in_one_line_and_nothing_was_sent(
    default: tuple[list[Any], threading.Event], answer: Any
) -> None:
    default[0][0] = answer
    authorize = tokens()
    with pytest.raises(UnavailableError, match=r"^the Google token could not be renewed, so nothing was sent: .*; check") as caught:
        await authorize()
    assert caught.value.heard is False and len(str(caught.value).splitlines()) == 1
    default[0][0] = GOOD
    assert await authorize() == {"Authorization": "Bearer from-the-server"}


# --- whoever answers in place of Google ---------------------------------------------------------------------

JSON_TYPE = b"Content-Type: application/json\r\nMetadata-Flavor: Google\r\n"
BOMB = gzip.compress(GOOD.encode() + b" " * 100_000_000)
ELSEWHERE = json.dumps({"access_token": "from-elsewhere", "expires_in": 3600, "token_type": "Bearer"}).encode()
ODD: dict[str, bytes] = {
    "HTML": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html>welcome",
    "nothing": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "no type": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "cut off": b"HTTP/1.1 200 OK\r\n%bContent-Length: 9999\r\n\r\n%b" % (JSON_TYPE, GOOD.encode()[:-9]),
    "a refusal that is cut off": b"HTTP/1.1 404 Not Found\r\n%bContent-Length: 99\r\n\r\n{\"er" % JSON_TYPE,
    "no text": b"HTTP/1.1 200 OK\r\n%bContent-Length: 4\r\n\r\n\xff\xfe\xfd\xfc" % JSON_TYPE,
    "deep": b"HTTP/1.1 200 OK\r\n%bContent-Length: 200000\r\n\r\n%b" % (JSON_TYPE, b"[" * 200_000),
    "a bomb": b"HTTP/1.1 200 OK\r\n%bContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (JSON_TYPE, len(BOMB), BOMB),
    "without an end": b"HTTP/1.1 200 OK\r\n%bContent-Length: 999999999\r\n\r\n%b" % (JSON_TYPE, b" " * 4_000_000),
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "no answer": b"",
    **{f"{status} elsewhere": b"HTTP/1.1 %d Moved\r\nLocation: ELSEWHERE\r\nContent-Length: 0\r\n\r\n" % status
       for status in (301, 302, 303, 307, 308)},
}  # fmt: skip


@pytest.fixture
async def in_place(anyio_backend: str) -> AsyncIterator[Callable[[bytes], tuple[str, list[bytes]]]]:
    """Starts a server that answers each request so, and returns its address and the requests that came elsewhere."""
    with ExitStack() as servers:

        def start(answer: bytes, came: list[bytes]) -> str:
            class Handler(StreamRequestHandler):
                def handle(self) -> None:
                    with suppress(OSError):
                        came.append(b"".join(iter(self.rfile.readline, b"\r\n")))
                        self.wfile.write(answer)

            server = servers.enter_context(ThreadingTCPServer(("127.0.0.1", 0), Handler))
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
            servers.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_address[1]}"

        def started(answer: bytes) -> tuple[str, list[bytes]]:
            elsewhere: list[bytes] = []
            other = start(b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (JSON_TYPE, len(ELSEWHERE), ELSEWHERE), elsewhere)
            return start(answer.replace(b"ELSEWHERE", f"{other}/token".encode()), []), elsewhere

        yield started


@pytest.mark.parametrize("whose", ["metadata server", "token endpoint"])
@pytest.mark.parametrize("odd", list(ODD))
async def test_whoever_answers_in_place_of_google_gives_no_token_and_gets_no_secret(
    in_place: Callable[[bytes], tuple[str, list[bytes]]], monkeypatch: pytest.MonkeyPatch, whose: str, odd: str
) -> None:
    url, elsewhere = in_place(ODD[odd])
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", url.partition("//")[2])
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda seconds: None)
    at_the_endpoint = signing_account.credentials().with_scopes([SCOPE])
    at_the_endpoint._token_uri = f"{url}/token"
    of_the_machine = compute_engine.Credentials(scopes=[SCOPE])  # type: ignore[no-untyped-call]
    authorize = GoogleAuthorization(of_the_machine if whose == "metadata server" else at_the_endpoint, SystemRuntime())
    with pytest.raises(UnavailableError, match=r"nothing was sent: .*; check") as caught:
        await authorize(60)
    assert caught.value.heard is False and not elsewhere
    assert "no answer within" not in str(caught.value), "it was answered, or its connection ended"


async def test_a_process_ends_while_a_renewal_hangs(default: tuple[list[Any], threading.Event]) -> None:
    default[0][0] = "trickles" * 10_000
    program = f"""
import anyio
from google.auth import compute_engine
from changelog.base.runtime import SystemRuntime
from changelog.google.tokens import GoogleAuthorization

async def main():
    with anyio.move_on_after(0.2):
        await GoogleAuthorization(compute_engine.Credentials(scopes=[{SCOPE!r}]), SystemRuntime())()

anyio.run(main)
print("ended")
"""
    with anyio.fail_after(120):  # what hangs there would hold it up for an hour
        environment = {**os.environ, "GCE_METADATA_HOST": str(_metadata._GCE_METADATA_HOST)}
        ended = await anyio.run_process([sys.executable, "-c", program], env=environment)
    assert ended.stdout == b"ended\n"


@pytest.mark.parametrize("error", [KeyError("client_id"), ValueError("no JSON"), TypeError("None"), AttributeError("x"), OSError("file")])
async def test_credentials_that_cannot_be_used_say_what_to_correct(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def default(scopes: list[str]) -> tuple[Any, str]:
        raise error

    monkeypatch.setattr(google.auth, "default", default)
    with pytest.raises(ConfigurationError, match=r"cannot be used: .*GOOGLE_APPLICATION_CREDENTIALS"):
        await GoogleAuthorization.default(FixedTimeRuntime(), SCOPE)


async def test_looking_for_credentials_ends_with_the_scope_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(google.auth, "default", lambda scopes: go_on.wait(30))
    with anyio.move_on_after(0.05) as scope:
        await GoogleAuthorization.default(FixedTimeRuntime(), SCOPE)
    go_on.set()
    assert scope.cancelled_caught
