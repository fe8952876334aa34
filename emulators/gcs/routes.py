"""Which calls the GCS emulator knows, by method and path, and what may be said in each of them.

    GET /storage/v1/b/B/o/N?alt=media    object.read, of the JSON API: a path of `ROUTES`
    GET /B/N                             xml.get, of the XML API: every other path begins with a bucket

What the service has and this emulator lacks is answered with 501 and its name. A parameter or a header that would
change what the call means is never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from emulators.gcs.answers import GcsError

OBJECT, OBJECTS = r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)", r"/storage/v1/b/([^/]+)/o"
TO = r"/storage/v1/b/([^/]+)/o/([^/]+)/{}To/b/([^/]+)/o/([^/]+)"
OF_OBJECT = r"/storage/v1/b/([^/]+)/o/([^/]+)/{}"
BUCKET, BUCKETS = r"/storage/v1/b/([^/]+)", r"/storage/v1/b"
UPLOADS = r"(?:/resumable)?/upload/storage/v1/b/([^/]+)/o"

ROUTES = [
    (UPLOADS, {"POST": "upload", "PUT": "upload.put", "DELETE": "upload.cancel"}),
    (OBJECT, {"GET": "object.get", "DELETE": "object.delete", "PATCH": "object.patch", "PUT": "object.update"}),
    (TO.format("rewrite"), {"POST": "object.rewrite"}),
    (TO.format("copy"), {"POST": "object.copy"}),
    (OF_OBJECT.format("moveTo/o/([^/]+)"), {"POST": "object.move"}),
    (OF_OBJECT.format("restore"), {"POST": "object.restore"}),
    (OF_OBJECT.format("compose"), {"POST": "object.compose"}),
    (OBJECTS, {"GET": "object.list"}),
    (BUCKET, {"GET": "bucket.get", "PATCH": "bucket.patch", "DELETE": "bucket.delete", "PUT": "bucket.update"}),
    (BUCKETS, {"GET": "bucket.list", "POST": "bucket.create"}),
    (r"/batch/storage/v1", {"POST": "batch"}),
]
"""The calls of the JSON API. Where one may GET, one may HEAD."""
LACKING = (
    r"/storage/v1/b/[^/]+/o/[^/]+/(acl|iam)(/.*)?|/storage/v1/projects/.*|/storage/v1/b/[^/]+/o/(bulkRestore|watch)|/storage/v1/b/[^/]+/"
    r"(acl|anywhereCaches|defaultObjectAcl|folders|iam|lockRetentionPolicy|managedFolders|notificationConfigs|operations|relocate|restore)"
    r"(/.*)?"
)
"""Paths of the service that this emulator lacks."""
OF_JSON = r"/(storage|upload|resumable|download|batch)(/.*)?"
"""Paths of the JSON API."""
KINDS = {"media": "upload.media", "multipart": "upload.multipart", "resumable": "upload.start"}

MATCHES = frozenset(f"if{fact}{match}" for fact in ("Generation", "Metageneration") for match in ("Match", "NotMatch"))
OF_METADATA = frozenset(match for match in MATCHES if "Meta" in match)
OF_SOURCE = frozenset({"sourceGeneration", *(f"ifSource{match[2:]}" for match in MATCHES)})
OVERRIDES = frozenset({"response-content-type", "response-content-disposition"})
SIGNED = frozenset(f"X-Goog-{name}" for name in ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"))
PARAMETERS: dict[str, Iterable[str]] = {
    "upload": {*MATCHES, "contentEncoding", "name", "uploadType", "upload_id"}, "object": {*MATCHES, "generation"},
    "object.get": {*MATCHES, "generation", "softDeleted"},
    "object.rewrite": {*MATCHES, *OF_SOURCE, "rewriteToken", "maxBytesRewrittenPerCall"}, "object.copy": {*MATCHES, *OF_SOURCE},
    "object.move": {*MATCHES, *OF_SOURCE}, "object.compose": {"ifGenerationMatch", "ifMetagenerationMatch"},
    # Nothing here has folders, so to include them adds none.
    "object.list": {"prefix", "delimiter", "startOffset", "endOffset", "maxResults", "pageToken", "softDeleted", "versions",
                    "includeTrailingDelimiter", "matchGlob", "includeFoldersAsPrefixes"},
    # Nobody is refused here, whatever a new bucket says of access. gcsfs always says something.
    "bucket": OF_METADATA, "bucket.create": {"predefinedAcl", "predefinedDefaultObjectAcl"},
    "bucket.list": {"maxResults"}, "batch": (),
    "xml": (), "xml.get": {"generation", *OVERRIDES}, "xml.head": {"generation", *OVERRIDES}, "xml.delete": {"generation"},
    "xml.parts.start": {"uploads"}, "xml.parts.put": {"partNumber", "uploadId"}, "xml.parts.complete": {"uploadId"},
    "xml.parts.cancel": {"uploadId"}, "xml.parts.list": {"uploadId", "max-parts", "part-number-marker", "encoding-type"},
    "xml.uploads": {"uploads", "prefix", "key-marker", "upload-id-marker", "max-uploads", "encoding-type"},
    "xml.list": {"list-type", "prefix", "delimiter", "start-after", "continuation-token", "max-keys"},
}  # fmt: skip
"""What each kind of call, or its first word, knows. Another parameter would change what the call means."""
MEANINGLESS = {"fields", "prettyPrint", "quotaUser", "userIp", "userProject", "key", "projection", "project", "alt"}
"""Parameters of every call that change nothing here: who pays, how the answer looks."""
OF_LISTINGS = {
    "prefix", "delimiter", "startOffset", "endOffset", "maxResults", "pageToken", "matchGlob", "versions", "force", "autoPaginate",
}
"""Parameters that mean nothing where nothing is listed. Google's client for Node.js repeats them where it deletes."""
UNASKED = ("", "false", "False")
"""Values of a parameter that ask for nothing else than its absence does."""

CONDITIONS = ("if-match", "if-none-match")
CONDITIONAL = ("object.get", "object.read", "bucket.get", "xml.get", "xml.head")
"""The calls that know preconditions by tag."""
HEADERS_LACKING = (
    "x-goog-encryption-", "x-goog-acl", "x-goog-object-lock-", "x-goog-content-length-range", "x-goog-copy-source", "x-goog-resumable",
    "if-range", "if-modified-since", "if-unmodified-since", "x-amz-", *CONDITIONS,
)  # fmt: skip
"""How headers begin that ask for what this emulator lacks, unless the call is one that knows them."""


def json_route(method: str, path: str) -> tuple[str, tuple[str, ...]]:
    """Returns the kind of a call of the JSON API, and the segments of its path that name something, as they were sent.

    Raises `GcsError` if there is no such route.
    """
    for pattern, methods in ROUTES:
        if found := re.fullmatch(pattern, path):
            asked = "GET" if method == "HEAD" else method
            if asked in methods:
                return methods[asked], found.groups()
            raise GcsError.lacking(path) if re.fullmatch(LACKING, path) else GcsError(405, f"{method} is not allowed on {path}")
    raise GcsError.lacking(path) if re.fullmatch(LACKING, path) else GcsError(404, f"Not Found: {path}")


def json_kind(kind: str, query: Mapping[str, str], content_range: str) -> str:
    """Returns the kind of a call of which the path alone does not tell it."""
    if kind == "upload" and "upload_id" in query:  # gcsfs sends to its session by POST
        kind = "upload.put"
    if kind == "upload":
        if query.get("uploadType") not in KINDS:
            raise GcsError(400, f"uploadType must be one of {', '.join(KINDS)}")
        return KINDS[query["uploadType"]]
    if kind == "upload.put" and content_range.startswith("bytes */"):
        return "upload.status"
    return "object.read" if kind == "object.get" and query.get("alt") == "media" else kind


def xml_kind(method: str, bucket: str, name: str, query: Mapping[str, str]) -> str | None:
    """Returns the kind of a call of the XML API, or None if the emulator lacks it."""
    kinds: dict[str, str] = {}
    if "uploads" in query:
        kinds = {"POST": "parts.start"} if name else {"GET": "uploads"}
    elif name and "uploadId" in query:
        kinds = {"GET": "parts.list", "POST": "parts.complete", "DELETE": "parts.cancel", "PUT": "parts.put"}
    elif name:
        kinds = {"GET": "get", "HEAD": "head", "PUT": "put", "DELETE": "delete"}
    elif bucket and query.get("list-type") == "2":
        kinds = {"GET": "list"}
    return f"xml.{kinds[method]}" if method in kinds else None


def check_known(kind: str, query: Mapping[str, str], headers: Iterable[str]) -> None:
    """Raises 501 if a parameter or a header says something that no call of this kind knows here."""
    xml = kind.startswith("xml.")
    known = PARAMETERS[kind] if kind in PARAMETERS else PARAMETERS.get(kind.partition(".")[0], ())
    for parameter, value in query.items():
        if (xml and parameter in SIGNED) or parameter in known or parameter in MEANINGLESS:
            continue
        if not xml and not kind.endswith(".list") and parameter in OF_LISTINGS:
            continue
        if xml or value not in UNASKED:
            raise GcsError.lacking(f"the parameter {parameter} of {kind}")
    for header in headers:
        lower = header.lower()
        if lower.startswith(HEADERS_LACKING) and not (kind in CONDITIONAL and lower in CONDITIONS):
            raise GcsError.lacking(f"the header {header}")
