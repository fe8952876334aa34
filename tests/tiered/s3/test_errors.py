"""What the answers of an S3 service mean."""

from __future__ import annotations

import pytest

from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from tiered.s3.errors import CODES, PASSING, Refusal, error_of


@pytest.mark.parametrize(
    ("status", "code", "kind", "advice"),
    [
        (403, "RequestTimeTooSkewed", UnavailableError, "clock"),
        (400, "ExpiredToken", UnavailableError, "renew"),
        (403, "SignatureDoesNotMatch", UnavailableError, "credentials"),
        (403, "AccessDenied", ConfigurationError, "s3:PutObject"),
        (404, "NoSuchBucket", ConfigurationError, "tiered provision"),
        (301, "PermanentRedirect", ConfigurationError, "s3.region"),
        (307, "307", ConfigurationError, "s3.region"),
        (503, "SlowDown", UnavailableError, "lower the load"),
        (409, "ConditionalRequestConflict", UnavailableError, "try again"),
        (400, "BadDigest", UnavailableError, "damaged"),
        (400, "MetadataTooLarge", InvalidRequestError, "rule"),
        (501, "NotImplemented", ConfigurationError, "endpoint"),
        (500, "InternalError", UnconfirmedError, "the service failed"),
        (503, "ServiceUnavailable", UnconfirmedError, "the service failed"),
        (502, "502", UnconfirmedError, "the service failed"),
        (200, "InternalError", UnconfirmedError, "the service failed"),
    ],
)
def test_an_answer_to_what_may_have_an_effect(status: int, code: str, kind: type[TieredError], advice: str) -> None:
    error = error_of(Refusal(status, code, "said"), "putting x", effect=True)
    assert type(error) is kind and advice in str(error) and "putting x" in str(error) and "said" in str(error)
    assert error.code == code and error.heard is (None if kind is UnconfirmedError else True)


@pytest.mark.parametrize("code", ["InternalError", "ServiceUnavailable", "502"])
def test_what_only_reads_has_not_happened_if_the_service_failed(code: str) -> None:
    assert type(error_of(Refusal(500, code, ""), "reading x", effect=False)) is UnavailableError


def test_what_passes_is_what_certainly_had_no_effect() -> None:
    assert all(CODES[code][0] is UnavailableError for code in PASSING if not code.isdecimal())


@pytest.mark.parametrize("word", ["WordOfOneService", "Word" * 9])
def test_the_code_of_an_error_is_from_a_list_because_metrics_show_it(word: str) -> None:
    error = error_of(Refusal(418, word, ""), "reading x", effect=False)
    assert error.code == "418" and word in str(error)
