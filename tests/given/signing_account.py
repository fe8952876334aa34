"""A service account with a key that was made for the test, for Google's credentials and for the emulator of GCS."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.oauth2.service_account import Credentials

EMAIL = "reader@my-project.iam.gserviceaccount.com"


@cache
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def credentials() -> Credentials:
    pem = private_key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    info = {"client_email": EMAIL, "token_uri": "https://oauth2.googleapis.com/token", "private_key": pem}
    made: Credentials = Credentials.from_service_account_info(info)  # type: ignore[no-untyped-call]
    return made


async def sign(message_of: Callable[[str], bytes]) -> tuple[str, bytes]:
    """A `Sign`."""
    return EMAIL, credentials().sign_bytes(message_of(EMAIL))
