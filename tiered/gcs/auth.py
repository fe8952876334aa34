"""`GoogleAuthorization`: the headers that Google's services accept, from application default credentials.

    credentials                              --refresh, in a thread-->   token   -->   {"Authorization": ...}
    (a file, the metadata server, workload identity)

A token is used until `RENEW_EARLY_S` before it expires. Then one call renews it. The other calls use the old token
while it is still good; otherwise they wait for the new one.

*Failure*: if a renewal fails and the old token is still good, the renewal is tried again after `RETRY_S`. If there is
no good token, the call raises `UnavailableError`. If there are no credentials at all, it is a `ConfigurationError` that
says where to put them. The renewal has a thread of its own, so that a payload cannot keep it waiting. Tokens are never
shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from functools import partial
from typing import Any, Protocol, Self

import google.auth
from anyio import CapacityLimiter, Lock
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import Request

from changelog.base.errors import UnavailableError, no_credentials
from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from tiered.metadata import NS_PER_S

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
RENEW_EARLY_S = 225
"""The same as in Google's own clients. Earlier than that, a metadata server gives out the same token again."""
RETRY_S = 10.0
REFRESH_TIMEOUT_S = 10.0


class Credentials(Protocol):
    """The part of `google.auth.credentials.Credentials` that is used.

    `expiry`: a datetime in UTC, without a time zone; None: the token never expires.
    """

    token: Any
    expiry: Any

    @property
    def quota_project_id(self) -> Any: ...
    def refresh(self, request: Any) -> None: ...


class GoogleAuthorization:
    """An `Authorize`. `runtime` gives the clock by which a token expires."""

    def __init__(self, credentials: Credentials, runtime: Runtime) -> None:
        self._credentials = credentials
        self._runtime = runtime
        self._renewing = Lock()
        self._thread = CapacityLimiter(1)
        self._in_vain_at = -math.inf

    @classmethod
    async def default(cls, runtime: Runtime) -> Self:
        """Finds the credentials of this machine or this user. `ConfigurationError`: there are none."""
        try:
            credentials, _ = await in_thread(partial(google.auth.default, scopes=[SCOPE]), CapacityLimiter(1))
        except DefaultCredentialsError as error:
            raise no_credentials(error) from error
        return cls(credentials, runtime)

    async def __call__(self) -> Mapping[str, str]:
        """The headers for one request. `UnavailableError`: there is no good token, and none could be got."""
        if self._is_due() and not (self._renewing.locked() and self._left_s()):
            async with self._renewing:
                if self._is_due():
                    await self._renew()
        headers = self._bearer()
        project = self._credentials.quota_project_id
        return headers | {"x-goog-user-project": str(project)} if project else headers

    def refused(self, headers: Mapping[str, str]) -> None:
        """Forgets the token, if it is still the one in `headers`: it was revoked, or this machine's clock is wrong."""
        if headers.get("Authorization") == self._bearer()["Authorization"]:
            self._credentials.token = None

    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._credentials.token}"}

    def _is_due(self) -> bool:
        """Whether to renew now. Without a good token: always.

        With one: if it expires within `RENEW_EARLY_S`, and the last renewal in vain was more than `RETRY_S` ago.
        """
        left_s = self._left_s()
        return left_s == 0 or (left_s <= RENEW_EARLY_S and self._runtime.monotonic() >= self._in_vain_at + RETRY_S)

    def _left_s(self) -> float:
        """For how many seconds the token is still good. 0: there is none."""
        if not self._credentials.token:
            return 0.0
        if self._credentials.expiry is None:
            return float("inf")
        expires_s: float = self._credentials.expiry.replace(tzinfo=UTC).timestamp()
        return max(0.0, expires_s - self._runtime.wall_ns() / NS_PER_S)

    async def _renew(self) -> None:
        try:
            await in_thread(partial(self._credentials.refresh, partial(Request(), timeout=REFRESH_TIMEOUT_S)), self._thread)
        except (GoogleAuthError, UnavailableError) as error:
            if self._left_s() == 0:
                raise UnavailableError(f"the Google credentials could not be renewed: {error}") from error
        if self._left_s() <= RENEW_EARLY_S:
            self._in_vain_at = self._runtime.monotonic()
