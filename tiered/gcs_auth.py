"""`GoogleAuthorization`: the headers that Google's services accept, from application default credentials.

    credentials (a file, the metadata server, workload identity) --refresh, in a thread--> token --> {"Authorization": ...}

A token is kept until a few minutes before it expires, and one task at a time renews it while the others wait for that one. *Failure*: a
renewal that fails is `UnavailableError`, unless the token that is held is still good; no credentials at all are a
`ConfigurationError` that says where to put them. Tokens are never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from functools import partial
from typing import Any, Protocol, Self

import google.auth
from anyio import Lock, to_thread
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import Request

from changelog.errors import ConfigurationError, UnavailableError
from changelog.runtime import Runtime
from tiered.metadata import NS_PER_S

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
RENEW_EARLY_S = 300
REFRESH_TIMEOUT_S = 10.0


class Credentials(Protocol):
    """What is used of `google.auth.credentials.Credentials`. `expiry`: a datetime in UTC without saying so; None: never."""

    token: Any
    expiry: Any

    @property
    def quota_project_id(self) -> Any: ...
    def refresh(self, request: Any) -> None: ...


class GoogleAuthorization:
    """An `Authorize`. `runtime`: the clock that a token's expiry is judged by."""

    def __init__(self, credentials: Credentials, runtime: Runtime) -> None:
        self._credentials = credentials
        self._runtime = runtime
        self._renewing = Lock()

    @classmethod
    async def default(cls, runtime: Runtime) -> Self:
        """Finds the credentials of this machine or this user. `ConfigurationError`: there are none."""
        try:
            credentials, _ = await to_thread.run_sync(partial(google.auth.default, scopes=[SCOPE]))
        except DefaultCredentialsError as error:
            raise ConfigurationError(
                "there are no Google credentials: run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS "
                f"to the file of a key ({error})"
            ) from error
        return cls(credentials, runtime)

    async def __call__(self) -> Mapping[str, str]:
        """`UnavailableError`: no token could be had."""
        if self._left_s() <= RENEW_EARLY_S:
            async with self._renewing:
                if self._left_s() <= RENEW_EARLY_S:
                    await self._renew()
        headers = {"Authorization": f"Bearer {self._credentials.token}"}
        project = self._credentials.quota_project_id
        return headers | {"x-goog-user-project": str(project)} if project else headers

    def _left_s(self) -> float:
        """For how long the token will do; 0: there is none."""
        if not self._credentials.token:
            return 0.0
        if self._credentials.expiry is None:
            return float("inf")
        expires_s: float = self._credentials.expiry.replace(tzinfo=UTC).timestamp()
        return max(0.0, expires_s - self._runtime.wall_ns() / NS_PER_S)

    async def _renew(self) -> None:
        try:
            await to_thread.run_sync(self._credentials.refresh, partial(Request(), timeout=REFRESH_TIMEOUT_S))
        except GoogleAuthError as error:
            if self._left_s() == 0:
                raise UnavailableError(f"the Google credentials could not be renewed: {error}") from error
