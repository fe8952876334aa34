"""`GoogleAuthorization`: the headers that Google's services accept, from application default credentials.

    credentials                              --refresh, in a thread of its own-->   token   -->   {"Authorization": ...}
    (a file, the metadata server, workload identity)

A token is renewed ahead: from `RENEW_EARLY_S` before it expires, a call begins a renewal and goes on with the old
token. Only a call without any good token waits, for `WAIT_MAX_S` at most and as long as its own time allows. It can be
cancelled. All such calls wait for one renewal. Whatever it hangs on, nothing else waits for its thread. A renewal that
takes longer than `HUNG_AFTER_S` is not counted on any more, and another one may begin, `RENEWALS_MAX` in all.

A token that is refused is forgotten. If it was new, the next one would be refused as well, and the caller is told at
once; an older one may have been revoked or have expired, and the call is repeated with a new one.

*Failure*: if a renewal fails and the old token is still good, the renewal is tried again after `RETRY_S`. If there is
no good token, the call raises `UnavailableError`: nothing was sent, and it tells nothing of the service. So it is if
what is answered is no token. It is final if Google says that it gives none for these credentials (`_FINAL`). If there
are no credentials at all, it is a `ConfigurationError` that says where to put them. Tokens are never shown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, Self, TypeVar

import anyio
import google.auth
import requests
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import Request
from urllib3.exceptions import HTTPError

from changelog.base.errors import ConfigurationError, UnavailableError, no_credentials
from changelog.base.own_waits import own_wait
from changelog.base.runtime import Runtime
from changelog.base.threads import detached

T = TypeVar("T")

RENEW_EARLY_S = 225
"""The same as in Google's own clients. Earlier than that, a metadata server gives out the same token again."""
RETRY_S = 10.0
REFRESH_TIMEOUT_S = 10.0
WAIT_MAX_S = 10.0
HUNG_AFTER_S = 30.0
RENEWALS_MAX = 4
ANSWER_BYTES_MAX = 1024 * 1024
FIND_MAX_S = 60.0
"""How long it may take to find the credentials. Google's library asks whether there is a metadata server."""

NEW_S = 60.0
"""A younger token that is refused was not revoked meanwhile: what it was made with is not accepted."""

_FINAL = frozenset({
    "invalid_grant", "invalid_client", "unauthorized_client", "invalid_scope", "invalid_target", "access_denied",
    "PERMISSION_DENIED", "NOT_FOUND", "UNAUTHENTICATED",
})  # fmt: skip
"""What Google says where no token is given until somebody changes something: a key is deleted or belongs to nobody, a
login was revoked, a right to impersonate is missing. The first ones are of OAuth (RFC 6749, 5.2), the last of Google's
APIs. A new key may be refused so for a minute, until all of Google knows it: that is told at once, too.
"""
_NS_PER_S = 1_000_000_000
_TOKEN = re.compile(r"[!-~]+")


class Credentials(Protocol):
    """The part of `google.auth.credentials.Credentials` that is used.

    `expiry`: a datetime in UTC, without a time zone; None: the token never expires.
    """

    token: Any
    expiry: Any

    @property
    def quota_project_id(self) -> Any: ...
    def refresh(self, request: Any) -> None: ...


class _Sends(requests.Session):
    """Follows no redirect, because what it sends is a secret. Reads no more of an answer than one may have, unpacked by
    nobody.
    """

    def __init__(self) -> None:
        super().__init__()
        self.headers["Accept-Encoding"] = "identity"

    def send(self, request: Any, **how: Any) -> requests.Response:
        answer = super().send(request, **{**how, "allow_redirects": False, "stream": True})
        with answer:
            try:
                content = answer.raw.read(ANSWER_BYTES_MAX + 1, decode_content=False)
            except (HTTPError, OSError) as error:
                raise requests.ConnectionError(f"the answer was cut off ({type(error).__name__})") from error
        if len(content) > ANSWER_BYTES_MAX:
            raise requests.ConnectionError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
        answer._content = content
        return answer


def sending() -> Request:
    """What Google's library sends its requests with: for tokens, signatures and who this machine is."""
    return Request(_Sends())


class _Renewal:
    """One renewal. `failure`: why it brought no token."""

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.ended = anyio.Event()
        self.failure: BaseException | None = None


class GoogleAuthorization:
    """An `Authorize`, for one event loop. `runtime` gives the clock by which a token expires.

    `credentials`: those that it was made with, or found.
    """

    def __init__(self, credentials: Credentials, runtime: Runtime) -> None:
        self.credentials = credentials
        self._runtime = runtime
        self._token: str | None = None
        self._expires_s = math.inf
        self._got_at = -math.inf
        self._refused: tuple[str, bool] = ("", True)
        self._renewals: list[_Renewal] = []
        self._in_vain_at = -math.inf

    @classmethod
    async def default(cls, runtime: Runtime, scope: str) -> Self:
        """Finds the credentials of this machine or this user.

        `ConfigurationError`: there are none, or they cannot be used. `UnavailableError`: that was not told in time.
        """
        try:
            credentials, _ = await called(partial(google.auth.default, scopes=[scope]), FIND_MAX_S, anyio.Semaphore(1))
        except DefaultCredentialsError as error:
            raise no_credentials(error) from error
        except TimeoutError:
            raise UnavailableError(
                f"the Google credentials were not found within {FIND_MAX_S:g} s: check the metadata server (GCE_METADATA_HOST), or set "
                "GOOGLE_APPLICATION_CREDENTIALS to the file of a key"
            ).telling(heard=False) from None
        except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise ConfigurationError(
                f"the Google credentials cannot be used: {_said(error)}; run 'gcloud auth application-default login', or correct the file "
                "that GOOGLE_APPLICATION_CREDENTIALS names"
            ) from error
        return cls(credentials, runtime)

    async def __call__(self, within_s: float = WAIT_MAX_S) -> Mapping[str, str]:
        """The headers for one request. `UnavailableError`: there is no good token, and none could be got in time."""
        left_s = self._left_s()
        if left_s <= RENEW_EARLY_S:
            renewal = self._renewal(must=left_s == 0)
            if left_s == 0 and renewal is not None:
                waits_s = min(within_s, WAIT_MAX_S)
                with own_wait(), anyio.move_on_after(waits_s):
                    await renewal.ended.wait()
                self._check_renewed(renewal, waits_s)
        headers = {"Authorization": f"Bearer {self._token}"}
        project = self.credentials.quota_project_id
        return headers | {"x-goog-user-project": str(project)} if project else headers

    def refused(self, headers: Mapping[str, str]) -> bool:
        """Forgets the token, if it is still the one in `headers`: it was revoked, or this machine's clock is wrong.

        All who sent the one that was refused last are told the same; who sent an older one has a newer one by now.
        """
        proof = headers.get("Authorization", "")
        if proof == f"Bearer {self._token}":
            self._token = None
            self._refused = proof, self._runtime.monotonic() - self._got_at >= NEW_S
        return self._refused[1] if proof == self._refused[0] else True

    def _left_s(self) -> float:
        """For how many seconds the token is still good. 0: there is none."""
        if self._token is None:
            return 0.0
        return max(0.0, self._expires_s - self._runtime.wall_ns() / _NS_PER_S)

    # --- renewals

    def _renewal(self, *, must: bool) -> _Renewal | None:
        """The renewal that is under way, or a new one. `must` False: no new one soon after one that was in vain."""
        now = self._runtime.monotonic()
        if self._renewals and (now - self._renewals[-1].began_at <= HUNG_AFTER_S or len(self._renewals) >= RENEWALS_MAX):
            return self._renewals[-1]
        if not must and now < self._in_vain_at + RETRY_S:
            return None
        renewal = _Renewal(now)
        try:
            detached(partial(_renewed, self.credentials), partial(self._end, renewal))
        except UnavailableError as error:
            self._in_vain_at = now
            if must:
                raise UnavailableError(f"the Google token could not be renewed: {error}").telling(heard=False) from error
            return None
        self._renewals.append(renewal)
        return renewal

    def _end(self, renewal: _Renewal, renewed: tuple[str, float] | None, failure: BaseException | None) -> None:
        self._renewals.remove(renewal)
        renewal.failure = failure
        # One that hung may come with an older token than there is by now.
        if renewed is not None and (self._token is None or renewed[1] >= self._expires_s):
            self._token, self._expires_s = renewed
            self._got_at = self._runtime.monotonic()
        if self._left_s() <= RENEW_EARLY_S:
            self._in_vain_at = self._runtime.monotonic()
        renewal.ended.set()

    def _check_renewed(self, renewal: _Renewal, waited_s: float) -> None:
        if self._left_s():
            return
        why = (
            f"no answer within {waited_s:.3g} s" if not renewal.ended.is_set()
            else "it expires at once; check the clock of this machine" if renewal.failure is None
            else _said(renewal.failure)
        )
        error = UnavailableError(
            f"the Google token could not be renewed, so nothing was sent: {why}; check the network, the metadata server "
            "(GCE_METADATA_HOST) or the file of the key, or log in again"
        ).telling(heard=False)
        raise (error.refusing() if renewal.ended.is_set() and _code(renewal.failure) in _FINAL else error) from renewal.failure


def _renewed(credentials: Credentials) -> tuple[str, float]:
    """Renews the token. Returns it, and when it expires, in seconds since 1970. `ValueError`: what came is no token."""
    credentials.refresh(partial(sending(), timeout=REFRESH_TIMEOUT_S))
    token, expiry = credentials.token, credentials.expiry
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ValueError(f"it is {type(token).__name__}, not the text of a token")
    if expiry is None:
        return token, math.inf
    if not isinstance(expiry, datetime):
        raise ValueError(f"it expires at {expiry!r}, which is no time")
    return token, (expiry.replace(tzinfo=UTC) if expiry.tzinfo is None else expiry).timestamp()


def _said(error: BaseException) -> str:
    """What Google's library says in one line. It lets errors out that only say what it did not find in the answer."""
    if isinstance(error, GoogleAuthError):
        return str(error.args[0] if error.args else error).partition("\n")[0].rstrip(".")
    return f"what was answered is no token ({type(error).__name__}: {error})"


def _code(error: BaseException | None) -> str:
    """What Google answered in the place of a token, in one word. Its library keeps the answer beside its sentence."""
    told: Any = error.args[-1] if isinstance(error, GoogleAuthError) and error.args else None
    with suppress(ValueError, RecursionError):
        told = json.loads(told) if isinstance(told, str) else told
    said = told.get("error") if isinstance(told, dict) else None
    word = said.get("status") if isinstance(said, dict) else said
    return word if isinstance(word, str) else ""


async def called(function: Callable[[], T], within_s: float, at_once: anyio.Semaphore) -> T:
    """Calls it in a thread that nothing waits for. `TimeoutError`: it has not returned in time, or not begun.

    `at_once`: bounds such threads. One that was given up counts until it has returned.
    """
    ended = anyio.Event()
    outcome: list[tuple[T | None, BaseException | None]] = []

    def end(result: T | None, failure: BaseException | None) -> None:
        at_once.release()
        outcome.append((result, failure))
        ended.set()

    with anyio.fail_after(within_s):
        await at_once.acquire()
        try:
            detached(function, end)
        except UnavailableError:
            at_once.release()
            raise
        await ended.wait()
    [(result, failure)] = outcome
    if failure is not None:
        raise failure
    return result  # type: ignore[return-value]  # no failure, so it is what the function returned
