"""Answers of the GCS emulator, and its refusals in the form of either API. No I/O.

    GcsError(412, "...").answer()            JSON, with the `reason` of the status
    XmlError(GcsError(412, "...")).answer()  XML, with the `code`: its own, or that of the status
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

REASONS = {
    400: "invalid", 401: "required", 403: "forbidden", 404: "notFound", 405: "methodNotAllowed", 409: "conflict", 410: "gone",
    412: "conditionNotMet", 416: "requestedRangeNotSatisfiable", 429: "rateLimitExceeded",
}  # fmt: skip
CODES = {
    304: "NotModified", 400: "InvalidArgument", 403: "AccessDenied", 404: "NoSuchKey", 405: "MethodNotAllowed", 409: "Conflict",
    412: "PreconditionFailed", 416: "InvalidRange", 429: "SlowDown", 500: "InternalError", 501: "NotImplemented",
    503: "ServiceUnavailable",
}  # fmt: skip
WHERE = {"conditionNotMet": ("header", "If-Match"), "required": ("parameter", "name")}
"""What an error of this reason says of where the fault is."""


@dataclass(frozen=True, slots=True)
class WireResponse:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value: object, status: int = 200) -> WireResponse:
        return cls(status, json.dumps(value, ensure_ascii=False).encode(), {"Content-Type": "application/json; charset=UTF-8"})

    @classmethod
    def of_xml(cls, text: str, status: int = 200) -> WireResponse:
        body = f"<?xml version='1.0' encoding='UTF-8'?>{text}"
        return cls(status, body.encode(), {"Content-Type": "application/xml; charset=UTF-8"})

    def with_headers(self, headers: Mapping[str, str]) -> WireResponse:
        return WireResponse(self.status, self.body, {**self.headers, **headers})


class GcsError(Exception):
    """An answer that refuses, in the service's form. `reason` is for the JSON API, `code` for the XML API."""

    def __init__(
        self, status: int, message: str, reason: str | None = None, headers: Mapping[str, str] | None = None, *, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or REASONS.get(status, "backendError")
        self.code = code or CODES.get(status, self.reason)
        self.headers = headers or {}

    @classmethod
    def lacking(cls, what: str) -> GcsError:
        """The service has this. To ignore it would be a wrong answer."""
        return cls(501, f"This emulator does not implement {what}", "notImplemented")

    def answer(self) -> WireResponse:
        error = {"message": str(self), "domain": "global", "reason": self.reason}
        if self.reason in WHERE:
            error["locationType"], error["location"] = WHERE[self.reason]
        plain = WireResponse.of_json({"error": {"code": self.status, "message": str(self), "errors": [error]}}, self.status)
        return plain.with_headers(self.headers)


class XmlError(GcsError):
    """The same in the form of the XML API."""

    def __init__(self, error: GcsError) -> None:
        super().__init__(error.status, str(error), error.reason, error.headers, code=error.code)

    def answer(self) -> WireResponse:
        told = {"Code": self.code, "Message": str(self), "Details": str(self)}
        return WireResponse.of_xml(f"<Error>{elements(told)}</Error>", self.status).with_headers(self.headers)


def elements(told: Mapping[str, object]) -> str:
    """Returns one XML element for each entry."""
    return "".join(f"<{key}>{escape(str(value))}</{key}>" for key, value in told.items())
