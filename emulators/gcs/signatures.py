"""V4 signatures of the GCS emulator: whether an address was signed by a key that a test has given to an account.

It makes the canonical request anew, from what came. So it knows nothing of how the address was made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256

from emulators.gcs.answers import GcsError
from emulators.gcs.wire import WireRequest

SIGNATURE = "X-Goog-Signature"
LIFE_MAX_S = 7 * 86_400
CLOCK_SLACK = timedelta(minutes=15)


def check_signature(call: WireRequest, accounts: Mapping[str, RSAPublicKey], now_ns: int) -> None:
    """Raises `GcsError` unless the address is signed for this method, and good now. Without a signature, it is good.

    Who may GET may HEAD.
    """
    if SIGNATURE not in call.query:
        return
    try:
        told = {name: call.query[f"X-Goog-{name}"] for name in ("Credential", "Date", "Expires", "SignedHeaders")}
        email, _, scope = told["Credential"].partition("/")
        begins, life_s = datetime.strptime(told["Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC), int(told["Expires"])
        signature = bytes.fromhex(call.query[SIGNATURE])
    except (KeyError, ValueError):
        raise GcsError(400, "The query is no V4 signature.") from None
    if not 1 <= life_s <= LIFE_MAX_S:
        raise GcsError(400, f"X-Goog-Expires must be from 1 to {LIFE_MAX_S}.")
    now = datetime.fromtimestamp(now_ns / 1e9, UTC)
    if not begins - CLOCK_SLACK <= now < begins + timedelta(seconds=life_s):
        raise GcsError(400, "ExpiredToken: the address is not good now.", code="ExpiredToken")
    for method in ("HEAD", "GET") if call.method == "HEAD" else (call.method,):
        request = _canonical_request(call, method, told["SignedHeaders"])
        message = "\n".join(["GOOG4-RSA-SHA256", told["Date"], scope, hashlib.sha256(request.encode()).hexdigest()])
        with suppress(KeyError, InvalidSignature):
            accounts[email].verify(signature, message.encode(), PKCS1v15(), SHA256())
            return
    raise GcsError(403, "SignatureDoesNotMatch", "forbidden", code="SignatureDoesNotMatch")


def _canonical_request(call: WireRequest, method: str, signed_headers: str) -> str:
    query = "&".join(sorted(f"{_quoted(name)}={_quoted(value)}" for name, value in call.query.items() if name != SIGNATURE))
    headers = [f"{name}:{call.headers.get(name, '')}" for name in signed_headers.split(";")]
    return "\n".join([method, f"/{call.bucket}/{quote(call.name, safe='/~')}", query, *headers, "", signed_headers, "UNSIGNED-PAYLOAD"])


def _quoted(text: str) -> str:
    return quote(text, safe="~")
