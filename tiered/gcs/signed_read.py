"""`SignedRead`: the signed address of a blob, as the service's V4 signing process makes it (pure).

    SignedRead(…).to_sign(email)        the bytes that the account signs
    SignedRead(…).signed(email, sig)    the address, for GET and for HEAD of nobody's but the blob's own bytes

It names no generation. So it leads nowhere when the blob is deleted, also in a bucket that keeps noncurrent ones. The
service takes over `response-content-disposition`, because blobs of this store have none of their own. It ignores
`response-content-type` wherever a blob has a content type, and all have one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from tiered.metadata import NS_PER_S

ALGORITHM = "GOOG4-RSA-SHA256"


@dataclass(frozen=True, slots=True)
class SignedRead:
    """`endpoint`: without a slash at its end. `now_ns`: since 1970. `expires_in_s`: from then on."""

    endpoint: str
    bucket: str
    name: str
    now_ns: int
    expires_in_s: int
    disposition: str

    def to_sign(self, email: str) -> bytes:
        """The string to sign. `email`: of the account that signs."""
        host = self.endpoint.partition("://")[2]
        request = "\n".join(["GET", self._path, self._query(email), f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"])
        return "\n".join([ALGORITHM, self._time, self._scope, hashlib.sha256(request.encode()).hexdigest()]).encode()

    def signed(self, email: str, signature: bytes) -> str:
        """The address. `signature`: of `to_sign`, by that account."""
        return f"{self.endpoint}{self._path}?{self._query(email)}&X-Goog-Signature={signature.hex()}"

    @property
    def _path(self) -> str:
        return f"/{self.bucket}/{quote(self.name, safe='/~')}"

    @property
    def _time(self) -> str:
        return datetime.fromtimestamp(self.now_ns // NS_PER_S, UTC).strftime("%Y%m%dT%H%M%SZ")

    @property
    def _scope(self) -> str:
        return f"{self._time[:8]}/auto/storage/goog4_request"

    def _query(self, email: str) -> str:
        said = {
            "X-Goog-Algorithm": ALGORITHM, "X-Goog-Credential": f"{email}/{self._scope}", "X-Goog-Date": self._time,
            "X-Goog-Expires": str(self.expires_in_s), "X-Goog-SignedHeaders": "host",
            "response-content-disposition": self.disposition,
        }  # fmt: skip
        return "&".join(sorted(f"{key}={quote(value, safe='~')}" for key, value in said.items()))
