"""Links: what a signed address says, how it is signed, and how one that came back is checked.

    https://files.example.com/links/CLAIMS.SIGNATURE
        CLAIMS       base64url of JSON: the method, the object, its revision, when the link ends, and its limits
        SIGNATURE    base64url of HMAC-SHA256 over `_LABEL` and CLAIMS, by the first key of `links.keys`

Who has a link has what it allows, until it ends, and can read the claims. All that it allows is in them, in one segment
of the path, so that nothing on the way can read them in two ways. The signature is compared as text, before the claims
are read: no other spelling of a signed text passes. The clocks of signers and of readers may differ. So an end that
lies further away than any signer of `EXPIRES_MAX` puts it is refused, too.

`storage.sign_get` signs, and `tiered.asgi` reads. The long-term tier may sign links of its own instead
(`SignedUrls`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from urllib.parse import quote, unquote

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from tiered.metadata import CONTENT_TYPE_DEFAULT, NS_PER_S
from tiered.object_id import ObjectId
from tiered.settings import LinkSettings
from tiered.stored import ObjectHead
from tiered.text import header_value, quoted

Disposition = Literal["inline", "attachment"]

EXPIRES_MIN, EXPIRES_MAX = timedelta(seconds=1), timedelta(days=7)
"""For how long a link may be good. GCS signs for no longer."""
CLOCKS_DIFFER_S = 900
"""By how much the clocks of two machines may differ, in seconds. GCS allows as much."""
TOKEN_CHARS_MAX = 8192
"""No link of ours is longer, and nothing longer is read."""

_LABEL = b"tiered link 1\n"
"""Nothing else that is signed with the same key begins so."""
_CLAIMS = {"method", "object", "revision", "expires", "type", "disposition"}
_OF_A_PART = {"part", "bytes"}
_NO_HEADER = re.compile(r"[^\x20-\x7e]")
_NO_FILENAME = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")


@dataclass(frozen=True, slots=True)
class SignedLink:
    """What a link allows: one method, for one revision of one object.

    Attributes:
        revision: Of a link to write, the id of an open upload.
        expires_s: When the link ends, in seconds since 1970.
        content_type: What is answered instead of the object's own; None: that.
        disposition: Whether a browser shows the object or saves it.
        part: The number of the part that a link to write takes.
        size_max: How many bytes that part may have; None: as many as a part may have.
    """

    method: str
    object_id: ObjectId
    revision: ChangeId
    expires_s: int
    content_type: str | None = None
    disposition: Disposition = "inline"
    part: int | None = None
    size_max: int | None = None

    def encode(self) -> bytes:
        claims: dict[str, object] = {
            "method": self.method, "object": self.object_id.path, "revision": self.revision, "expires": self.expires_s,
            "type": self.content_type, "disposition": self.disposition,
        }  # fmt: skip
        if self.part is not None:
            claims |= {"part": self.part, "bytes": self.size_max}
        return json.dumps(claims, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, claims: bytes) -> SignedLink:
        """Reads what a key of ours has signed. A claim that is unknown here limits the link, so it is no link here.

        Other claims than ours are a `ValueError`, `TypeError` or `InvalidRequestError`.
        """
        told = json.loads(claims)
        if not isinstance(told, dict) or told.keys() not in (_CLAIMS, _CLAIMS | _OF_A_PART):
            raise ValueError(f"the claims of a link are {sorted(_CLAIMS)}, and of one to write {sorted(_OF_A_PART)}, too")
        object_id, revision = ObjectId.parse(told["object"]), ChangeId(told["revision"])
        ends_s, part, size_max = int(told["expires"]), told.get("part"), told.get("bytes")
        return cls(told["method"], object_id, revision, ends_s, told["type"], told["disposition"], part, size_max)


class Links:
    """Signs and reads links. `runtime`: its clock says when they end. `origins`: whose scripts may use them."""

    def __init__(self, settings: LinkSettings, runtime: Runtime) -> None:
        self.origins = settings.origins
        self._base_url = settings.base_url
        self._keys: Sequence[bytes] = [key.get_secret_value().encode() for key in settings.keys]
        self._runtime = runtime

    def sign(self, link: SignedLink) -> str:
        """The address of the link. `InvalidRequestError`: it would be so long that nobody reads it."""
        claims = _base64(link.encode())
        token = f"{claims}.{_signature(self._keys[0], claims)}"
        if len(token) > TOKEN_CHARS_MAX:  # that of the longest object fits
            raise InvalidRequestError(f"content_type is so long that the link has more than {TOKEN_CHARS_MAX} characters: shorten it")
        return f"{self._base_url}/{token}"

    def read(self, token: str) -> SignedLink | None:
        """What a link allows. `token`: the end of its address. None: none of our keys has signed it."""
        claims, _, signature = token.rpartition(".")
        if len(token) > TOKEN_CHARS_MAX or not token.isascii():
            return None
        # All keys are tried, so that the time does not tell which one it was.
        if not any([hmac.compare_digest(_signature(key, claims), signature) for key in self._keys]):  # noqa: C419
            return None
        try:
            return SignedLink.decode(urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        except (ValueError, TypeError, InvalidRequestError):  # another version of this software signed it
            return None

    def refusal(self, link: SignedLink) -> str | None:
        """Why a link is not good now. None: it is."""
        left_s = self.left_s(link)
        if left_s <= 0:
            return "the link has expired"
        if left_s > EXPIRES_MAX.total_seconds() + CLOCKS_DIFFER_S:
            return "the link ends later than any link may: the clock of its signer, or of this server, is wrong"
        return None

    def left_s(self, link: SignedLink) -> float:
        """For how many seconds the link is good from now on. Below 0: it has expired."""
        return link.expires_s - self._runtime.wall_ns() / NS_PER_S


def checked_life(expires_in: object) -> int:
    """For how many whole seconds a link is good. Raises `InvalidRequestError`."""
    if not isinstance(expires_in, timedelta):
        raise InvalidRequestError(f"expires_in is a timedelta such as timedelta(hours=1), not {quoted(expires_in)}")
    if not EXPIRES_MIN <= expires_in <= EXPIRES_MAX:
        raise InvalidRequestError(f"expires_in is {expires_in}: a link is good for 1 second to 7 days; sign another one later")
    return int(expires_in.total_seconds())


def checked_disposition(disposition: object) -> None:
    if disposition not in ("inline", "attachment"):
        raise InvalidRequestError(f"disposition is 'inline' (a browser shows it) or 'attachment' (it saves it), not {quoted(disposition)}")


def checked_content_type(content_type: object) -> str | None:
    """The content type to answer with instead of the stored one. Raises `InvalidRequestError`."""
    if content_type is None:
        return None
    text = header_value("content_type", content_type)
    if not text or _NO_HEADER.search(text):
        raise InvalidRequestError(f"content_type {quoted(text)} is empty or not ASCII: leave it out for the stored one")
    return text


def content_type_of(head: ObjectHead) -> str:
    """The stored content type as a header. Other software may have stored what none can carry."""
    stored = head.metadata.content_type
    return stored.strip() if can_be_header(stored) else CONTENT_TYPE_DEFAULT


def can_be_header(text: str) -> bool:
    return _NO_HEADER.search(text) is None and bool(text.strip())


def content_disposition(disposition: Disposition, head: ObjectHead) -> str:
    """The header (RFC 6266), with the name of the file in the metadata, or the end of the key.

    A name that was percent-encoded, so that it is ASCII, is decoded. Whatever was stored there, nothing of it leaves
    the quotes.
    """
    said = _decoded(head.metadata.filename or "") or head.object_id.key.rpartition("/")[2] or head.object_id.key
    name = _NO_FILENAME.sub("_", said)
    plain = re.sub(r'[^\x20-\x7e]|["%]', "_", name)  # browsers disagree about a % and about an escaped quote
    header = f'{disposition}; filename="{plain}"'
    return header if plain == name else f"{header}; filename*=UTF-8''{quote(name, safe='!#$&+^`|')}"


def _decoded(name: str) -> str:
    try:
        return unquote(name, errors="strict")
    except UnicodeError:
        return name


def _signature(key: bytes, claims: str) -> str:
    return _base64(hmac.new(key, _LABEL + claims.encode(), hashlib.sha256).digest())


def _base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
