"""GoogleSigner: who signs with which credentials, and what somebody must do where nobody can."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from google.auth import compute_engine, external_account, identity_pool, impersonated_credentials
from google.auth.transport import requests
from google.oauth2.credentials import Credentials as PersonsCredentials

import changelog.google.signing
from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.google.signing import AT_ONCE, GoogleSigner
from changelog.google.tokens import GoogleAuthorization
from tests.given.no_threads import no_threads
from tests.given.signing_account import EMAIL, credentials, private_key

pytestmark = pytest.mark.anyio
SIGNED = b"\x01signed" * 32


class HttpAnswer:
    def __init__(self, status: int, told: Any, kind: str = "application/json") -> None:
        self.status = status
        self.data = told.encode() if isinstance(told, str) else json.dumps(told).encode()
        self.headers = {"content-type": kind, "metadata-flavor": "Google"}


class Google:
    """Answers what Google's library asks of the metadata server and of IAM."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, str]] = []
        self.answer: Callable[[], HttpAnswer] = lambda: HttpAnswer(200, {"signedBlob": base64.b64encode(SIGNED).decode()})

    def __call__(self, url: str, method: str = "GET", body: Any = None, headers: Any = None, **_: Any) -> HttpAnswer:
        self.asked.append((url, body, (headers or {}).get("authorization", "")))
        return self.answered(url)

    def answered(self, url: str, *_: Any, **__: Any) -> HttpAnswer:
        if ":signBlob" in url:
            return self.answer()
        if url.endswith("/token") or "/token?" in url:
            return HttpAnswer(200, {"access_token": f"of {url.partition('scopes=')[2]}", "expires_in": 3600, "token_type": "Bearer"})
        if "/service-accounts/" in url:
            return HttpAnswer(200, {"email": EMAIL, "scopes": []})
        return HttpAnswer(200, "googleapis.com", "text/plain")

    @property
    def signed(self) -> list[tuple[str, bytes, str]]:
        return [(url, base64.b64decode(json.loads(body)["payload"]), by) for url, body, by in self.asked if ":signBlob" in url]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    """`asked` has what the signer asked. A thread that another test gave up may still ask, and is answered, too."""
    google = Google()
    monkeypatch.setattr(requests.Request, "__call__", lambda _, *args, **named: google.answered(*args, **named))
    monkeypatch.setattr(changelog.google.signing, "sending", lambda: google)
    return google


def signer(found: Any) -> GoogleSigner:
    return GoogleSigner(GoogleAuthorization(found, SystemRuntime()))


def message(email: str) -> bytes:
    return f"by {email}".encode()


async def test_a_key_signs_here_and_nobody_is_asked(google: Google) -> None:
    email, signature = await signer(credentials())(message)
    assert (email, google.asked) == (EMAIL, [])
    assert signature == credentials().sign_bytes(f"by {EMAIL}".encode())
    assert len(signature) == private_key().key_size // 8


async def test_a_machine_lets_iam_sign_with_a_token_that_iam_takes(google: Google) -> None:
    """Only the metadata server knows who the machine is. It is asked once."""
    sign = signer(compute_engine.Credentials())  # type: ignore[no-untyped-call]
    for _ in range(3):
        assert await sign(message) == (EMAIL, SIGNED)
    assert len(google.signed) == 3
    url, signed, by = google.signed[0]
    assert url.endswith(f"/serviceAccounts/{EMAIL}:signBlob") and signed == f"by {EMAIL}".encode()
    assert "cloud-platform" in by
    assert sum("/token" in asked for asked, _, _ in google.asked) == 2  # for its name, and for IAM


def workload(**told: str) -> external_account.Credentials:
    return identity_pool.Credentials(  # type: ignore[no-untyped-call]
        audience="//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        subject_token_type="urn:ietf:params:oauth:token-type:jwt", token_url="https://sts.googleapis.com/v1/token",
        credential_source={"file": "/dev/null"}, **told,
    )  # fmt: skip


async def test_who_is_no_service_account_is_told_what_to_do(google: Google) -> None:
    for nobody in (PersonsCredentials("token"), workload()):  # type: ignore[no-untyped-call]
        with pytest.raises(ConfigurationError, match="only one can sign a link: set GOOGLE_APPLICATION_CREDENTIALS"):
            await signer(nobody)(message)
    assert google.asked == []


def test_a_workload_that_impersonates_an_account_has_its_name() -> None:
    url = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{EMAIL}:generateAccessToken"
    assert changelog.google.signing._account_of(workload(service_account_impersonation_url=url)).email == EMAIL


def test_an_impersonated_account_signs_itself() -> None:
    found = impersonated_credentials.Credentials(PersonsCredentials("token"), EMAIL, ["scope"])  # type: ignore[no-untyped-call]
    account = changelog.google.signing._account_of(found)
    assert (account.email, account.sign) == (EMAIL, found.sign_bytes)


@pytest.mark.parametrize("reason", ["PERMISSION_DENIED", "ACCESS_TOKEN_SCOPE_INSUFFICIENT"])
async def test_an_account_that_may_not_sign_is_told_the_role(google: Google, reason: str) -> None:
    google.answer = lambda: HttpAnswer(403, {"error": {"code": 403, "status": reason, "message": "Permission 'signBlob' denied"}})
    with pytest.raises(ConfigurationError, match=r"roles/iam\.serviceAccountTokenCreator"):
        await signer(compute_engine.Credentials())(message)  # type: ignore[no-untyped-call]


async def test_an_iam_that_answers_oddly_signs_nothing_and_the_next_call_asks_it_anew(google: Google) -> None:
    sign, right = signer(compute_engine.Credentials()), google.answer  # type: ignore[no-untyped-call]
    answers: list[tuple[int, Any]] = [(400, "odd"), (200, {"no": "signature"}), (200, "no json")]
    for number, answer in enumerate(answers):
        google.answer = partial(HttpAnswer, *answer)
        with pytest.raises(UnavailableError, match="no link was signed"):
            await sign(message)
        google.answer = right
        assert await sign(message) == (EMAIL, SIGNED) and len(google.signed) == 2 * (number + 1)


async def test_an_iam_that_hangs_holds_up_nobody_for_long_and_has_few_threads(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it hangs, and however many have given up meanwhile. As soon as it answers, it is asked again."""
    well = google.answer
    ends = threading.Event()
    hangs: list[None] = []

    def hang() -> HttpAnswer:
        hangs.append(None)
        ends.wait(60)
        return HttpAnswer(400, "odd")

    google.answer = hang
    sign = signer(compute_engine.Credentials(service_account_email=EMAIL))  # type: ignore[no-untyped-call]
    failed: list[BaseException] = []

    async def try_it() -> None:
        with pytest.raises(UnavailableError) as error:
            await sign(message)
        failed.append(error.value)

    with monkeypatch.context() as patch, anyio.fail_after(30):
        patch.setattr("changelog.google.signing.SIGN_MAX_S", 0.05)
        for rounds in range(1, 4):
            async with anyio.create_task_group() as tasks:
                for _ in range(2 * AT_ONCE):
                    tasks.start_soon(try_it)
            assert len(failed) == rounds * 2 * AT_ONCE
    assert 0 < len(hangs) <= AT_ONCE
    google.answer = well
    ends.set()
    assert await sign(message) == (EMAIL, SIGNED)


async def test_where_no_thread_can_be_had_nothing_counts_as_under_way(google: Google) -> None:
    sign = signer(compute_engine.Credentials(service_account_email=EMAIL))  # type: ignore[no-untyped-call]
    with no_threads():
        for _ in range(2 * AT_ONCE):
            with pytest.raises(UnavailableError, match="no thread could be started"):
                await sign(message)
    assert await sign(message) == (EMAIL, SIGNED)
