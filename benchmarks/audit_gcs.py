"""A GCS that only lists and describes: `python -m benchmarks.audit_gcs` says its URL and serves until stdin ends.

    GET …/b/names-{n}          the bucket: a world of n names
    GET …/b/names-{n}/o        a page of at most 1,000 from `startOffset` or `pageToken` to `endOffset`,
                               with the `fields` asked for, indented unless `prettyPrint` is false;
                               no markers of owners (`prefix=~…`), and no deleted blobs (`softDeleted`)
    GET …/b/names-{n}/o/{name} one blob, or 404
    POST /batch/storage/v1     many of these in one request

It speaks HTTP/1.1 as far as the benchmarks' clients need it: each request in chunks or whole, one after the other on a
connection. A page takes a tenth of a millisecond here. Its reader needs at least ten times as long.
"""

from __future__ import annotations

import asyncio
import re
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit

import anyio
import numpy as np

from benchmarks.audit_world import PAGE_MAX, AuditWorld, Items, blobs_among, blocks, name
from benchmarks.servers import left_alone

ROUTE = re.compile(r"/storage/v1/b/names-(\d+)(?:/o(?:/([^/]+))?)?")
JSON = "application/json; charset=UTF-8"
BOUNDARY = "answers"
MANY = f"multipart/mixed; boundary={BOUNDARY}"
CALL = re.compile(rb"<call\+(\d+)>\r\n\r\nGET (\S+)")
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


def answer(target: str) -> tuple[str, bytes]:
    """Returns status and body."""
    parts = urlsplit(target)
    found = ROUTE.fullmatch(parts.path)
    if found is None:
        return "404 Not Found", b'{"error":{"code":404,"message":"Not Found"}}'
    world, query = AuditWorld(int(found[1])), {key: values[0] for key, values in parse_qs(parts.query).items()}
    fields = query.get("fields")
    wanted = None if fields is None else frozenset(re.findall(r"\w+", fields))
    if found[2] is not None:
        return _blob(world, unquote(found[2]), wanted)
    if parts.path.endswith("/o"):
        return "200 OK", _page(AuditWorld(0) if _is_beside(query) else world, query, wanted)
    return "200 OK", b'{"kind":"storage#bucket","name":"names-%s","location":"EU"}' % found[1].encode()


def answers(calls: bytes) -> bytes:
    """Returns the body that answers a batch."""
    parts = []
    for number, target in CALL.findall(calls):
        status, body = answer(target.decode())
        head = f"--{BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <response-call+{number.decode()}>\r\n\r\n"
        parts.append(f"{head}HTTP/1.1 {status}\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n")
    return b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])


def _is_beside(query: dict[str, str]) -> bool:
    """Tells whether names are asked for that a world has none of: the markers of owners, and what was deleted."""
    return query.get("softDeleted") == "true" or query.get("prefix", "").startswith("~")


def _blob(world: AuditWorld, wanted: str, fields: frozenset[str] | None) -> tuple[str, bytes]:
    number = world.first_name(wanted.encode())
    if number == world.names or name(number) != wanted.encode() or not len(blobs := blobs_among(np.array([number]))):
        return "404 Not Found", b'{"error":{"code":404,"message":"No such object: %s","errors":[{"reason":"notFound"}]}}' % wanted.encode()
    return "200 OK", Items.of(fields).text(blobs)


def _page(world: AuditWorld, query: dict[str, str], fields: frozenset[str] | None) -> bytes:
    """Returns a page of as many names as were asked for.

    It is shorter if tombstones among them are dangling: those have no blob.
    """
    start = int(query["pageToken"]) if "pageToken" in query else world.first_name(query.get("startOffset", "").encode())
    end = world.first_name(query["endOffset"].encode()) if "endOffset" in query else world.names
    stop = min(end, start + min(int(query.get("maxResults", PAGE_MAX)), PAGE_MAX))
    indented = query.get("prettyPrint") != "false"
    items = Items.of(fields, indented)
    texts = items.between.join(map(items.text, blocks(blobs_among(np.arange(start, stop)))))
    if not indented:
        return b'{"kind":"storage#objects",%s"items":[%s]}' % (b'"nextPageToken":"%d",' % stop if stop < end else b"", texts)
    token = b'  "nextPageToken": "%d",\n' % stop if stop < end else b""
    return b'{\n  "kind": "storage#objects",\n%s  "items": [\n%s\n  ]\n}\n' % (token, texts)


class BareConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._received, 0, end + 2)
            after = end + 4 + (int(length[1]) if length else 0)
            if len(self._received) < after:
                return
            request, self._received = self._received[:after], self._received[after:]
            is_batch = request.startswith(b"POST /batch/")
            status, body = ("200 OK", answers(request[end:])) if is_batch else answer(request.split(b" ", 2)[1].decode())
            kind = MANY if is_batch else JSON
            head = f"HTTP/1.1 {status}\r\nDate: {formatdate(usegmt=True)}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            self._transport.writelines([head.encode(), body])


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(BareConnection, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await left_alone()
    server.close()


if __name__ == "__main__":
    anyio.run(serve)
