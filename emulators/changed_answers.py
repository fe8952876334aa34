"""A proxy before a server of HTTP that changes one answer, and the table of changes.

    proxy.arm(2, change)      the third request from now on is answered so; all others, as the server answers them
    proxy.seen                the requests from then on, each with the answer that the server gave to it

An `AnswerChange` is made of the right answer; where the request does not reach the server, of the one that it gave to
the same call for another object. `changes_of` has the whole table. It takes the right answer apart, so each header and
each field of a body is a row without anybody naming it. Knows no service: what is XML or JSON, it sees.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from xml.etree import ElementTree

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from changelog.base.runtime import SystemRuntime

HEAD_BYTES_MAX = 65_536
WORDS = {200: "OK", 204: "No Content", 206: "Partial Content", 404: "Not Found"}
HTML = b"<!DOCTYPE html>\n<html><head><title>Welcome</title></head><body>Accept the terms, please<br></body></html>"
STATUSES = (200, 204, 206, 301, 304, 308, 400, 403, 404, 409, 412, 429, 500, 503)
ANY = (200, 202, 204, 302, 400, 401, 403, 404, 405, 409, 412, 416, 429, 503)
LATE_S = 0.05


class AfterAnswer(Enum):
    """What becomes of the connection after the bytes were sent."""

    KEPT = "it is kept for the next request"
    CLOSED = "it is closed"
    HELD = "it stays open, and nothing more is sent"
    RESET = "it is reset"


@dataclass(frozen=True)
class Asked:
    """A request. `target`: its path with query, as it was sent."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")


@dataclass(frozen=True)
class RightAnswer:
    """An answer. `body`: as it was meant, without chunks. `is_head`: it answers HEAD, so its body is never sent."""

    status: int
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    is_head: bool = False

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    def without(self, name: str) -> RightAnswer:
        return replace(self, headers=[each for each in self.headers if each[0].lower() != name])

    def having(self, name: str, value: str) -> RightAnswer:
        return replace(self, headers=[*self.without(name.lower()).headers, (name, value)])

    def told(self, body: bytes, kind: str | None = None) -> RightAnswer:
        """The same with another body, and its length."""
        other = replace(self, body=body) if kind is None else replace(self, body=body).having("Content-Type", kind)
        return other if self.is_head else other.having("Content-Length", str(len(body)))

    @property
    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {WORDS.get(self.status, 'Other')}", *(f"{key}: {value}" for key, value in self.headers)]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"

    @property
    def sent_body(self) -> bytes:
        return b"" if self.is_head or self.status in (204, 304) else self.body

    @property
    def raw(self) -> bytes:
        return self.head + self.sent_body


Made = tuple[bytes, AfterAnswer]


@dataclass(frozen=True)
class AnswerChange:
    """`make`: from the right answer to the bytes that are sent. `of_other`: from that for another object.

    `is_late`: they are sent once more a while later.
    """

    name: str
    make: Callable[[RightAnswer], Made]
    is_passed: bool = True
    is_late: bool = False
    of_other: bool = False

    def __str__(self) -> str:
        return self.name if self.is_passed else f"{self.name}, and it never arrived"


@dataclass
class Exchange:
    asked: Asked
    answered: RightAnswer | None = None


@dataclass
class AnswerProxy:
    """`url`: where it listens. `used`: the change was made."""

    target: str
    url: str = ""
    seen: list[Exchange] = field(default_factory=list)
    used: bool = False
    _at: int = -1
    _change: AnswerChange | None = None
    _instead: RightAnswer | None = None
    _sending: int = 0
    _quiet: anyio.Event = field(default_factory=anyio.Event)

    def arm(self, at: int, change: AnswerChange | None, instead: RightAnswer | None = None) -> None:
        """`instead`: the right answer to the same call for another object."""
        self.seen, self.used = [], False
        self._at, self._change, self._instead = at, change, instead

    async def quiet(self) -> None:
        """Waits until nothing is being sent any more."""
        while self._sending:
            await self._quiet.wait()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[AnswerProxy]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._serve)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    async def _serve(self, client: SocketStream) -> None:
        coming = BufferedByteReceiveStream(client)
        async with client:
            with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
                while await self._one(client, coming):
                    pass

    async def _one(self, client: SocketStream, coming: BufferedByteReceiveStream) -> bool:
        """One request. Returns whether another may follow."""
        first, headers = await _head(coming)
        method, target, _ = first.split(" ", 2)
        told = Asked(method, target, headers, b"")
        if told.header("expect"):
            await client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        asked = replace(told, body=await _body(coming, told.header("content-length"), told.header("transfer-encoding")))
        exchange, number = Exchange(asked), len(self.seen)
        self.seen.append(exchange)
        change = self._change if number == self._at else None
        self.used = self.used or change is not None
        self._sending += 1
        try:
            if change is None or change.is_passed:
                exchange.answered = await _passed_on(self.target, asked)
            right = exchange.answered or RightAnswer(200)
            if change is not None and (change.of_other or not change.is_passed):
                right = self._instead or right
            raw, ending = (right.raw, AfterAnswer.KEPT) if change is None else change.make(replace(right, is_head=method == "HEAD"))
            await client.send(raw)
            if change is not None and change.is_late:
                await SystemRuntime().sleep(LATE_S)
                await client.send(raw)
        finally:
            self._sending -= 1
            self._quiet.set()
            self._quiet = anyio.Event()
        if ending is AfterAnswer.HELD:
            await client.receive()
        if ending is AfterAnswer.RESET:
            reset: socket.socket = client.extra(anyio.abc.SocketAttribute.raw_socket)
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return ending is AfterAnswer.KEPT


async def _head(coming: BufferedByteReceiveStream) -> tuple[str, Sequence[tuple[str, str]]]:
    lines = (await coming.receive_until(b"\r\n\r\n", HEAD_BYTES_MAX)).decode("latin-1").split("\r\n")
    return lines[0], [(key, value.strip()) for key, _, value in (line.partition(":") for line in lines[1:])]


async def _body(coming: BufferedByteReceiveStream, length: str, encoding: str) -> bytes:
    if encoding.lower() != "chunked":
        return await coming.receive_exactly(int(length)) if length else b""
    body = b""
    while size := int((await coming.receive_until(b"\r\n", 1024)).partition(b";")[0], 16):
        body += await coming.receive_exactly(size)
        await coming.receive_exactly(2)
    while await coming.receive_until(b"\r\n", HEAD_BYTES_MAX):
        pass
    return body


async def _passed_on(target: str, asked: Asked) -> RightAnswer:
    """What the server answers, over a connection of its own."""
    host, port = target.removeprefix("http://").split(":")
    kept = [each for each in asked.headers if each[0].lower() not in ("expect", "connection", "transfer-encoding", "content-length")]
    sized = [("Content-Length", str(len(asked.body)))] if asked.body or asked.method in ("PUT", "POST") else []
    lines = [f"{asked.method} {asked.target} HTTP/1.1", *(f"{key}: {value}" for key, value in [*kept, *sized, ("Connection", "close")])]
    async with await anyio.connect_tcp(host, int(port)) as server:
        await server.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + asked.body)
        coming = BufferedByteReceiveStream(server)
        while True:
            first, headers = await _head(coming)
            status = int(first.split(" ")[1])
            if status >= 200:
                break
        answer = RightAnswer(status, [each for each in headers if each[0].lower() not in ("connection", "keep-alive")])
        if asked.method == "HEAD" or status in (204, 304):
            return replace(answer, is_head=asked.method == "HEAD")
        length, encoding = answer.header("content-length"), answer.header("transfer-encoding")
        if not length and not encoding:
            body = b""
            with suppress(anyio.EndOfStream):
                while True:
                    body += await coming.receive()
        else:
            body = await _body(coming, length, encoding)
        return answer.without("transfer-encoding").told(body)


# --- the table ---------------------------------------------------------------------------------------


def kept(make: Callable[[RightAnswer], RightAnswer]) -> Callable[[RightAnswer], Made]:
    return lambda right: (make(right).raw, AfterAnswer.KEPT)


def closed(make: Callable[[RightAnswer], bytes]) -> Callable[[RightAnswer], Made]:
    return lambda right: (make(right), AfterAnswer.CLOSED)


def changes_of(right: RightAnswer) -> Iterator[AnswerChange]:
    """Everything that may become of this answer on its way."""
    yield from _of_the_status(right)
    yield from _of_something_between(right)
    yield from _of_the_headers(right)
    yield from _of_the_body(right)
    yield from _of_the_connection(right)


def _of_the_status(right: RightAnswer) -> Iterator[AnswerChange]:
    for status in STATUSES:
        if status != right.status:
            yield AnswerChange(f"status {status}", kept(lambda each, status=status: replace(each, status=status)))  # type: ignore[misc]


def _of_something_between(right: RightAnswer) -> Iterator[AnswerChange]:
    """Answers that the service never gave: of a portal, of a gateway, of another service."""
    bodies = {
        "nothing": (b"", "text/plain"), "HTML": (HTML, "text/html"), "words": (b"no route", "text/plain"),
        "other XML": (b'<?xml version="1.0"?>\n<Welcome xmlns="urn:gate"><Name>gate</Name></Welcome>', "application/xml"),
        "other JSON": (b'{"name": "gate", "error": "no route"}', "application/json"), "a JSON list": (b"[1]", "application/json"),
        "deep JSON": (b"[" * 50_000, "application/json"), "no text": (bytes(range(128, 256)), "application/octet-stream"),
    }  # fmt: skip
    for what, (body, kind) in bodies.items():
        for status in ANY if what in ("nothing", "HTML") else (200, 404, 500):
            if status == 204 and body:
                continue
            for is_passed in (True, False):
                made = RightAnswer(status, [("Location", "http://127.0.0.1:1/login")] if status == 302 else [])
                yield AnswerChange(
                    f"{status} with {what}",
                    lambda each, made=made, body=body, kind=kind:  # type: ignore[misc]
                        (replace(made, is_head=each.is_head).told(body, kind).raw, AfterAnswer.KEPT),
                    is_passed,
                )  # fmt: skip
    page = [("ETag", '"65f1a2b3-6c"'), ("Last-Modified", "Fri, 01 Mar 2024 10:00:00 GMT"), ("Accept-Ranges", "bytes")]
    for is_passed in (True, False):
        yield AnswerChange(
            "a page of a site",
            lambda each: (RightAnswer(200, page, is_head=each.is_head).told(HTML, "text/html").having("Content-Length", str(len(HTML))).raw,
                          AfterAnswer.KEPT),
            is_passed,
        )  # fmt: skip
    for is_passed in (True, False):
        yield AnswerChange("the answer for another object", kept(lambda each: each), is_passed, of_other=True)
    yield AnswerChange("closed at once", lambda each: (b"", AfterAnswer.CLOSED), is_passed=False)


def _of_the_headers(right: RightAnswer) -> Iterator[AnswerChange]:
    for name in dict.fromkeys(key.lower() for key, _ in right.headers):
        if name in ("server", "connection", "accept-ranges", "vary", "allow"):
            continue
        if name == "content-length":
            yield AnswerChange("without content-length", closed(lambda each: each.without("content-length").raw))
            continue
        yield AnswerChange(f"without {name}", kept(lambda each, name=name: each.without(name)))  # type: ignore[misc]
        yield AnswerChange(f"empty {name}", kept(lambda each, name=name: each.having(name, "")))  # type: ignore[misc]
        yield AnswerChange(f"nonsense in {name}", kept(lambda each, name=name: each.having(name, "\xe9?")))  # type: ignore[misc]
    size = len(right.body)
    for told in (str(size + 7), str(max(0, size - 1)), "-1", "many", "99999999999999999999", f"{size}, {size + 1}"):
        yield AnswerChange(f"content-length {told}", closed(lambda each, told=told: each.having("Content-Length", told).raw))  # type: ignore[misc]
    yield AnswerChange("as HTML", kept(lambda each: each.having("Content-Type", "text/html")))
    yield AnswerChange("as gzip", kept(lambda each: each.having("Content-Encoding", "gzip")))
    yield AnswerChange("with a thousand headers", kept(lambda each: replace(each, headers=[*each.headers, *[("X-Many", "x")] * 1000])))
    yield AnswerChange("with a long header", kept(lambda each: each.having("X-Long", "x" * 100_000)))


def _of_the_body(right: RightAnswer) -> Iterator[AnswerChange]:
    if right.is_head or not right.body:
        yield AnswerChange("with a body", closed(lambda each: each.head + HTML))
        return
    yield AnswerChange("without a body", kept(lambda each: each.told(b"")))
    yield AnswerChange("another body", kept(lambda each: each.told(HTML)))
    yield AnswerChange("half a body, as all", kept(lambda each: each.told(each.body[: len(each.body) // 2])))
    yield AnswerChange("a flipped bit", kept(lambda each: each.told(_flipped(each.body))))
    for place in _places(right.body):
        yield AnswerChange(f"without {place}", kept(lambda each, place=place: each.told(_edited(each.body, place, None))))  # type: ignore[misc]
        yield AnswerChange(f"nonsense in {place}", kept(lambda each, place=place: each.told(_edited(each.body, place, "\xe9?"))))  # type: ignore[misc]
        yield AnswerChange(f"empty {place}", kept(lambda each, place=place: each.told(_edited(each.body, place, ""))))  # type: ignore[misc]


def _of_the_connection(right: RightAnswer) -> Iterator[AnswerChange]:
    for is_passed in (True, False):
        yield AnswerChange("no answer", lambda each: (b"", AfterAnswer.HELD), is_passed)
        yield AnswerChange("reset", lambda each: (b"", AfterAnswer.RESET), is_passed)
    yield AnswerChange("reset in the body", lambda each: (each.raw[: -len(each.body) // 2 or None], AfterAnswer.RESET))
    yield AnswerChange("closed without an answer", closed(lambda each: b""))
    yield AnswerChange("cut in the status", closed(lambda each: each.raw[:11]))
    yield AnswerChange("cut in the headers", closed(lambda each: each.head[: len(each.head) * 2 // 3]))
    yield AnswerChange("cut before the last line of the headers", closed(lambda each: each.head[:-2]))
    if not right.is_head and right.body:
        yield AnswerChange("cut after the headers", closed(lambda each: each.head))
        yield AnswerChange("cut in the body", closed(lambda each: each.raw[: -len(each.body) // 2]))
        yield AnswerChange("cut before the last byte", closed(lambda each: each.raw[:-1]))
        yield AnswerChange("without its last chunk", closed(lambda each: _chunked(each)[:-5]))
        yield AnswerChange("cut in a chunk", closed(lambda each: _chunked(each)[:-9]))
        yield AnswerChange("in chunks", lambda each: (_chunked(each), AfterAnswer.KEPT))
        for status in (404, 500):
            yield AnswerChange(
                f"{status} that is cut in its body",
                closed(lambda each, status=status: replace(each, status=status).raw[: -len(each.body) // 2]),  # type: ignore[misc]
            )
    yield AnswerChange("held in the headers", lambda each: (each.head[:-2], AfterAnswer.HELD))
    yield AnswerChange("no HTTP", lambda each: (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", AfterAnswer.CLOSED))
    yield AnswerChange("HTTP/1.0", lambda each: (each.raw.replace(b"HTTP/1.1", b"HTTP/1.0", 1), AfterAnswer.CLOSED))
    yield AnswerChange("100 before it", lambda each: (b"HTTP/1.1 100 Continue\r\n\r\n" * 2 + each.raw, AfterAnswer.KEPT))
    yield AnswerChange("103 before it", lambda each: (b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + each.raw, AfterAnswer.KEPT))
    yield AnswerChange("100 alone", lambda each: (b"HTTP/1.1 100 Continue\r\n\r\n", AfterAnswer.CLOSED))
    yield AnswerChange("twice", lambda each: (each.raw * 2, AfterAnswer.KEPT))
    yield AnswerChange("twice, once late", kept(lambda each: each), is_late=True)


def _flipped(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


def _chunked(each: RightAnswer) -> bytes:
    head = each.without("content-length").having("Transfer-Encoding", "chunked").head
    half = len(each.body) // 2
    pieces = [piece for piece in (each.body[:half], each.body[half:]) if piece]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


# --- the fields of a body ----------------------------------------------------------------------------

Place = tuple[Any, ...]
"""The way to a field: keys and positions of JSON, tags of XML."""


def _places(body: bytes) -> Iterator[str]:
    """The fields of a document, as `a/b`; none if it is none. Of several that are alike, the first."""
    parsed = _parsed(body)
    if isinstance(parsed, ElementTree.Element):
        yield from dict.fromkeys(_of_xml(parsed, ""))
    elif parsed is not None:
        yield from dict.fromkeys(_of_json(parsed, ""))


def _parsed(body: bytes) -> Any:
    with suppress(ValueError, RecursionError):
        found = json.loads(body)
        return found if isinstance(found, dict) else None
    with suppress(ElementTree.ParseError):
        return ElementTree.fromstring(body)
    return None


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _of_xml(element: ElementTree.Element, above: str) -> Iterator[str]:
    for child in element:
        place = f"{above}{_local(child.tag)}"
        yield place
        yield from _of_xml(child, f"{place}/")


def _of_json(value: Any, above: str) -> Iterator[str]:
    if isinstance(value, list) and value:
        yield from _of_json(value[0], f"{above}0/")
    if isinstance(value, dict):
        for key, child in value.items():
            if "/" not in key:
                yield f"{above}{key}"
                yield from _of_json(child, f"{above}{key}/")


def _edited(body: bytes, place: str, text: str | None) -> bytes:
    """The document with another text in a field, or without the field."""
    parsed, steps = _parsed(body), place.split("/")
    if isinstance(parsed, ElementTree.Element):
        at = parsed
        for step in steps[:-1]:
            at = next(each for each in at if _local(each.tag) == step)
        child = next((each for each in at if _local(each.tag) == steps[-1]), None)
        if child is None:
            return body
        if text is None:
            at.remove(child)
        else:
            child.text = text
            for each in list(child):
                child.remove(each)
        if space := re.match(r"\{(.*)\}", parsed.tag):
            parsed.set("xmlns", space[1])
        for each in parsed.iter():
            each.tag = _local(each.tag)
        return bytes(ElementTree.tostring(parsed, encoding="utf-8", xml_declaration=True))
    inner: Any = parsed
    for step in steps[:-1]:
        inner = inner[int(step) if isinstance(inner, list) else step]
    if text is None:
        inner.pop(steps[-1], None)
    else:
        inner[steps[-1]] = text
    return json.dumps(parsed).encode()
