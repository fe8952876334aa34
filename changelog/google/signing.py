"""`GoogleSigner`: signs as the service account that this process is.

    a key in a file, or an impersonated account      the credentials sign themselves
    any other service account                        IAM signs (`signBlob`), if the account may sign as itself
    a person, or no service account                  nobody signs: `ConfigurationError` names what to do

Whatever may ask a service does so in a thread that nothing waits for, `AT_ONCE` of them at most. One that hangs counts
until its requests have timed out.

*Failure*: IAM refuses: `ConfigurationError`, with the role that is missing. It does not answer in time:
`UnavailableError`; nothing was signed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
from google.auth import iam
from google.auth.credentials import Signing
from google.auth.exceptions import GoogleAuthError

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.google.tokens import GoogleAuthorization, called, sending

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ROLE = "roles/iam.serviceAccountTokenCreator"
SIGN_MAX_S = 10.0
AT_ONCE = 8
SIGNATURE_BYTES_MIN = 128
"""Of the smallest key of an account."""
TOLD_MAX = 500
REFUSED = ("PERMISSION_DENIED", "SCOPE_INSUFFICIENT", "SERVICE_DISABLED")
"""What IAM calls a refusal that only an operator ends."""


class GoogleSigner:
    """A `Sign`. `authorization`: with whose credentials it signs."""

    def __init__(self, authorization: GoogleAuthorization) -> None:
        self._credentials: Any = authorization.credentials
        self._account: _Account | None = None
        self._at_once = anyio.Semaphore(AT_ONCE)

    async def __call__(self, message_of: Callable[[str], bytes]) -> tuple[str, bytes]:
        try:
            return await called(partial(self._signed, message_of), SIGN_MAX_S, self._at_once)
        except TimeoutError:
            raise UnavailableError(f"nobody signed within {SIGN_MAX_S:g} s; try again").telling(heard=False) from None
        except TieredError:  # one is a ValueError, too
            raise
        except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise _failure(error) from error

    def _signed(self, message_of: Callable[[str], bytes]) -> tuple[str, bytes]:
        account = self._account or _account_of(self._credentials)
        self._account = account  # two threads may both find it, and it is the same
        signature = bytes(account.sign(message_of(account.email)))
        if len(signature) < SIGNATURE_BYTES_MIN:
            raise ValueError(f"what was answered is no signature: it has {len(signature)} bytes")
        return account.email, signature


@dataclass(frozen=True, slots=True)
class _Account:
    email: str
    sign: Callable[[bytes], bytes]


def _account_of(credentials: Any) -> _Account:
    """Who signs. It may ask the metadata server. `ConfigurationError`: nobody can."""
    if isinstance(credentials, Signing):
        return _Account(str(credentials.signer_email), credentials.sign_bytes)
    request = partial(sending(), timeout=SIGN_MAX_S)
    email = str(getattr(credentials, "service_account_email", None) or "")
    if email == "default":
        credentials.refresh(request)  # only the metadata server knows the name
        email = str(credentials.service_account_email)
    if "@" not in email:
        raise ConfigurationError(
            "these Google credentials are of no service account, and only one can sign a link: set GOOGLE_APPLICATION_CREDENTIALS to the "
            "file of its key, or run 'gcloud auth application-default login --impersonate-service-account=ACCOUNT', or run where one is "
            "attached"
        )
    if hasattr(credentials, "with_scopes"):
        credentials = credentials.with_scopes([SCOPE])  # IAM takes no token that is for storage alone
    signer: Any = iam.Signer
    return _Account(email, signer(request, credentials, email).sign)


def _failure(error: Exception) -> TieredError:
    told = f"{type(error).__name__}: {error}".partition("\n")[0][:TOLD_MAX]
    if any(refused in told for refused in REFUSED):
        return ConfigurationError(
            f"IAM refuses to sign a link: grant whoever runs this (mostly the service account itself) the role {ROLE} on the service "
            f"account, enable iamcredentials.googleapis.com, and give a virtual machine the scope cloud-platform ({told})"
        )
    return UnavailableError(f"no link was signed: {told}; try again").telling(heard=False)
