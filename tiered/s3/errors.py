"""What the answers of an S3 service mean: its error codes and statuses as our errors (pure).

    REFUSED       nothing happened, and the same request is refused again, as long as nobody changes something
    TURNED_AWAY   nothing happened, and it may be tried again
    UNCLEAR       it may have happened

A code says more than a status, and only the service's own XML has one. Without a body (`HEAD`), the status is all there
is. What neither table has proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError

BETWEEN = "something in between answered: look at proxies and gateways, and at the endpoint"
NO_KEY = "NoSuchKey"


class Refusal(NamedTuple):
    """An answer that is no success. `code`: the service's word, or the status if it gave none, as after HEAD.

    `message`: its words. `key`: of the object that it says it is about; empty: it does not say.
    """

    status: int
    code: str
    message: str
    key: str = ""


_Meaning = tuple[type[TieredError], str]
_RULE: _Meaning = (InvalidRequestError, "the request breaks a rule of the service")
_RIGHTS: _Meaning = (
    ConfigurationError,
    "allow this identity s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and s3:ListMultipartUploadParts on the"
    " objects, and s3:ListBucket and s3:ListBucketMultipartUploads on the bucket",
)
_CREDENTIALS: _Meaning = (UnavailableError, "the credentials were not accepted; renew them")
_EXPIRED: _Meaning = (UnavailableError, "the credentials have expired; renew them")
_SKEWED: _Meaning = (UnavailableError, "this machine's clock is too far from the service's; set it right")
_REGION: _Meaning = (ConfigurationError, "the bucket is in another region; set s3.region to that, or s3.endpoint")
_LIMITED: _Meaning = (UnavailableError, "it was turned away; lower the load, or raise the quota")
_DAMAGED: _Meaning = (UnavailableError, "it was damaged on its way; try again")
_CONFLICT: _Meaning = (UnavailableError, "it conflicts with another request; try again")
_FULL: _Meaning = (UnavailableError, "the service has no room; free some, or raise the quota")
_NO_SERVICE: _Meaning = (ConfigurationError, "the service does not do this; check the endpoint, or use another service")
_UNCLEAR: _Meaning = (UnconfirmedError, "the service failed")

CODES: Mapping[str, _Meaning] = {
    "AccessDenied": _RIGHTS, "AccountProblem": _RIGHTS, "AllAccessDisabled": _RIGHTS, "NotSignedUp": _RIGHTS,
    "InvalidAccessKeyId": _CREDENTIALS, "SignatureDoesNotMatch": _CREDENTIALS, "InvalidToken": _CREDENTIALS,
    "InvalidSecurity": _CREDENTIALS, "XAdminUserNotFound": _CREDENTIALS,  # versitygw's
    "ExpiredToken": _EXPIRED, "ExpiredTokenException": _EXPIRED, "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": _SKEWED, "RequestExpired": _SKEWED,
    "PermanentRedirect": _REGION, "TemporaryRedirect": _REGION, "Redirect": _REGION, "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "SlowDown": _LIMITED, "SlowDownRead": _LIMITED, "SlowDownWrite": _LIMITED, "Throttling": _LIMITED, "ThrottlingException": _LIMITED,
    "RequestLimitExceeded": _LIMITED, "TooManyRequests": _LIMITED, "BandwidthLimitExceeded": _LIMITED, "RequestThrottled": _LIMITED,
    "BadDigest": _DAMAGED, "InvalidDigest": _DAMAGED, "IncompleteBody": _DAMAGED, "XAmzContentSHA256Mismatch": _DAMAGED,
    "XAmzContentChecksumMismatch": _DAMAGED, "RequestTimeout": (UnavailableError, "the service got no more bytes for too long; try again"),
    "ConditionalRequestConflict": _CONFLICT, "OperationAborted": _CONFLICT,
    "PreconditionFailed": (UnavailableError, "it was changed meanwhile, or it is there already"),
    "InvalidObjectState": (
        ConfigurationError, "it was moved to an archive: restore it there, and remove the lifecycle rule that moves it ('tiered check')"
    ),
    "QuotaExceeded": _FULL, "InsufficientStorage": _FULL, "XMinioStorageFull": _FULL,
    "NotImplemented": _NO_SERVICE, "MethodNotAllowed": _NO_SERVICE,
    "NoSuchBucket": (ConfigurationError, "there is no such bucket; name another, or run `tiered provision`"),
    "MetadataTooLarge": _RULE, "KeyTooLongError": _RULE, "EntityTooLarge": _RULE, "EntityTooSmall": _RULE, "InvalidArgument": _RULE,
    "InvalidRequest": _RULE, "InvalidPart": _RULE, "InvalidPartOrder": _RULE, "MalformedXML": _RULE, "MissingContentLength": _RULE,
    "InvalidURI": _RULE, "InvalidBucketName": _RULE, "InvalidObjectName": _RULE, "XMinioInvalidObjectName": _RULE, "BadRequest": _RULE,
    "InternalError": _UNCLEAR, "ServiceUnavailable": _UNCLEAR,
}  # fmt: skip
"""By the service's own word. Only `_UNCLEAR` may have had its effect."""

STATUSES: Mapping[int, _Meaning] = {
    301: _REGION, 307: _REGION, 400: _RULE, 401: _CREDENTIALS, 403: _RIGHTS, 409: _CONFLICT,
    412: (UnavailableError, "it was changed meanwhile, or it is there already"), 429: _LIMITED, 501: _NO_SERVICE, 507: _FULL,
}  # fmt: skip
"""By the status, where the answer has no word that is known."""

PASSING = frozenset({
    "SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests",
    "BandwidthLimitExceeded", "RequestThrottled", "ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "429", "409",
})  # fmt: skip
"""Codes after which nothing happened, and the same request may succeed soon."""

PASSING_OR_UNCLEAR = PASSING | {word for word, meaning in CODES.items() if meaning is _UNCLEAR}
"""The same, with those after which it may have happened: for what may happen twice."""


def error_of(refusal: Refusal, doing: str, *, effect: bool) -> TieredError:
    """The error of an answer that was not expected. `effect`: the request may have changed something.

    Its code is one of `CODES`, or the status: metrics show it, and a service could make up any number of words.
    """
    meaning = kind, advice = CODES.get(refusal.code) or STATUSES.get(refusal.status) or _UNCLEAR
    heard = kind is not UnconfirmedError
    if kind is UnconfirmedError and not effect:
        kind = UnavailableError
    said = f" ({refusal.message})" if refusal.message else ""
    error = kind(f"{doing} failed with {refusal.status} {refusal.code}: {advice}{said}").coded(
        refusal.code if refusal.code in CODES else str(refusal.status), heard=heard or None
    )
    return error.refusing() if meaning in (_CREDENTIALS, _EXPIRED, _SKEWED) else error


@contextmanager
def begun(doing: str) -> Iterator[None]:
    """For requests after the first one that had an effect: if one of them fails, it did not fail without any."""
    try:
        yield
    except UnavailableError as error:
        raise UnconfirmedError(f"{doing} was begun, and its end was never confirmed: {error}").like(error) from error


def odd(doing: str, *, effect: bool, what: str) -> TieredError:
    """The error of an answer that something in between may have given. It proves nothing."""
    kind = UnconfirmedError if effect else UnavailableError
    return kind(f"{doing} was answered {what}; {BETWEEN}")
