"""A client of the GCS emulator by plain HTTP: nothing is escaped, followed or repeated."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import aiohttp
import google_crc32c
from yarl import URL


class RawClient:
    """Requests as sent: nothing escaped, followed or repeated."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answered:
        url = URL(path if path.startswith("http") else self.url + path, encoded=True)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        async with self.session.request(method, url, data=body, headers=named, allow_redirects=False) as response:
            return Answered(response.status, response.headers, await response.read())

    async def put(self, name: str, payload: Any = b"payload", query: dict[str, str] | None = None, **headers: str) -> Answered:
        return await self.send("POST", uploads("media", name, query), payload, **headers)

    async def start(self, name: str, resource: dict[str, Any] | None = None, query: dict[str, str] | None = None) -> str:
        answer = await self.send("POST", uploads("resumable", name, query), json.dumps(resource or {}), Content_Type="application/json")
        assert answer.status == 200
        return str(answer.headers["Location"])

    async def put_range(self, session: str, content_range: str, payload: Any = b"", **headers: str) -> Answered:
        return await self.send("PUT", session, payload, Content_Range=content_range, **headers)

    async def read(self, name: str, **headers: str) -> Answered:
        return await self.send("GET", at(name) + "?alt=media", **headers)

    async def list(self, **query: str) -> dict[str, Any]:
        return (await self.send("GET", f"/storage/v1/b/bucket/o?{urlencode(query)}")).json


class Answered:
    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


def uploads(kind: str, name: str, query: dict[str, str] | None = None) -> str:
    return f"/upload/storage/v1/b/bucket/o?{urlencode({'uploadType': kind, 'name': name, **(query or {})})}"


def at(name: str) -> str:
    return f"/storage/v1/b/bucket/o/{quote(name, safe='')}"


def crc32c(payload: bytes) -> str:
    return base64.b64encode(google_crc32c.value(payload).to_bytes(4, "big")).decode()


class PartsClient:
    """An upload of several parts to `/bucket/a/b`."""

    def __init__(self, client: RawClient, path: str = "/bucket/a/b") -> None:
        self.client = client
        self.path = path
        self.id = ""

    async def start(self, **headers: str) -> PartsClient:
        answer = await self.client.send("POST", f"{self.path}?uploads", **headers)
        assert answer.status == 200
        self.id = xml_texts(answer, "UploadId")[0]
        return self

    async def put(self, number: int, payload: bytes, **headers: str) -> Answered:
        return await self.client.send("PUT", f"{self.path}?partNumber={number}&uploadId={self.id}", payload, **headers)

    async def listed(self, query: str = "") -> Answered:
        return await self.client.send("GET", f"{self.path}?uploadId={self.id}{query}")

    async def complete(self, *parts: tuple[int, str], **headers: str) -> Answered:
        named = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in parts)
        body = f"<CompleteMultipartUpload>{named}</CompleteMultipartUpload>"
        return await self.client.send("POST", f"{self.path}?uploadId={self.id}", body, **headers)

    async def cancel(self) -> Answered:
        return await self.client.send("DELETE", f"{self.path}?uploadId={self.id}")


def xml_texts(answer: Answered, tag: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(answer.body).iter() if each.tag.rpartition("}")[2] == tag]


def refused(answer: Answered) -> tuple[int, str]:
    """The status and the code of a refusal, in the form of the XML API."""
    return answer.status, xml_texts(answer, "Code")[0]
