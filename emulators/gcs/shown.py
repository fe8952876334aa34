"""How the GCS emulator shows an object in either API, and what the headers of an upload say of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from emulators.gcs.answers import WireResponse
from emulators.gcs.bodies import parse_fields, select
from emulators.gcs.objects import CONTENT_KEYS, ObjectGeneration
from emulators.gcs.wire import WireRequest

CUSTOM, CUSTOM_TIME, STORAGE_CLASS = "x-goog-meta-", "x-goog-custom-time", "x-goog-storage-class"

Step = Callable[[WireRequest, bytes], WireResponse]


def shown(resource: Mapping[str, Any], call: WireRequest) -> WireResponse:
    """Returns a resource as an answer of the JSON API, with links to where it was asked. With `fields`, only these."""
    linked = _linked(resource, f"http://{call.headers.get('Host', '127.0.0.1')}")
    answer = WireResponse.of_json(select(linked, parse_fields(call.query["fields"])) if call.query.get("fields") else linked)
    etag = resource.get("etag")
    return answer.with_headers({"ETag": etag}) if etag else answer


def _linked(resource: Mapping[str, Any], root: str) -> Mapping[str, Any]:
    """Returns the resource; each object in it has the address of its bytes. Clients of some languages read by it."""
    if resource.get("kind") == "storage#object":
        path = f"b/{quote(resource['bucket'], safe='')}/o/{quote(resource['name'], safe='')}"
        return {**resource, "mediaLink": f"{root}/download/storage/v1/{path}?generation={resource['generation']}&alt=media"}
    if resource.get("kind") == "storage#objects" and "items" in resource:
        return {**resource, "items": [_linked(each, root) for each in resource["items"]]}
    return {**resource, "resource": _linked(resource["resource"], root)} if "resource" in resource else resource


def written(stored: ObjectGeneration) -> WireResponse:
    """Returns what the XML API answers when it has written an object."""
    return WireResponse(200, headers={
        "ETag": stored.xml_etag, "X-Goog-Generation": str(stored.generation), "X-Goog-Metageneration": str(stored.metageneration),
        "X-Goog-Hash": stored.hashes, "X-Goog-Stored-Content-Length": str(len(stored.payload)),
        "X-Goog-Stored-Content-Encoding": stored.content.get("contentEncoding", "identity"),
        **({} if stored.components is None else {"X-Goog-Component-Count": str(stored.components)}),
    })  # fmt: skip


def described(call: WireRequest) -> dict[str, Any]:
    """Returns the object's resource as the headers of its upload say it. Keys of custom metadata become lower case."""
    content = {key: call.headers[name] for key in CONTENT_KEYS if (name := re.sub("(?=[A-Z])", "-", key)) in call.headers}
    custom = {key.lower()[len(CUSTOM) :]: value for key, value in call.headers.items() if key.lower().startswith(CUSTOM)}
    others = {"customTime": CUSTOM_TIME, "storageClass": STORAGE_CLASS}
    told = {key: call.headers[name] for key, name in others.items() if name in call.headers}
    return {"contentType": "application/octet-stream", **content, **told, "metadata": custom}


def told_hashes(call: WireRequest) -> list[tuple[str, object]]:
    """Returns the hashes of `X-Goog-Hash`, which may come several times, and of `Content-MD5` of a whole object."""
    told = [pair.strip().partition("=")[::2] for header in call.headers.getall("X-Goog-Hash", []) for pair in header.split(",")]
    whole = [] if call.to_session or call.kind == "upload.multipart" else call.headers.getall("Content-MD5", [])
    return [*told, *(("md5", value) for value in whole)]
