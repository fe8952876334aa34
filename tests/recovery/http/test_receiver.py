"""The receiver of a feed: what it keeps, what it refuses, and what it shows."""

from __future__ import annotations

import base64
import errno
import gzip
import json
import os
import resource
import signal
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial, wraps
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio import to_thread
from anyio.from_thread import start_blocking_portal
from fastavro import schemaless_writer
from starlette.types import ASGIApp, Message
from trio.testing import MockClock

from changelog.base.runtime import SystemRuntime
from recovery.feed.avro import REFERENCES, ContainerWriter
from recovery.feed.sinks.sink import Segment
from recovery.http.receiver import BODIES_MAX, make_receiver
from tests.given.daemon_process import wait_for
from tests.given.segments import GENERATION, NOW, segments

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]

FIRST, SECOND, *_ = segments()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def on_a_loop_of_its_own(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """For a test that looks at the processes which read files: none waits there from before."""
    @wraps(test)
    def run(**given: Any) -> None:
        with start_blocking_portal() as portal:
            portal.call(partial(test, **given))

    return run


@asynccontextmanager
async def client(directory: Path, bytes_max: int = 10_000) -> AsyncIterator[httpx.AsyncClient]:
    app = make_receiver(directory, SystemRuntime(), {"localhost"}, bytes_max)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:9465") as sender:
        yield sender


def digest(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(sha256(content).digest()).decode()}:"


async def put(sender: httpx.AsyncClient, path: str, content: bytes, told: str | None = None) -> httpx.Response:
    return await sender.put(f"/{path}", content=content, headers={"Repr-Digest": digest(content) if told is None else told})


def kept(directory: Path) -> dict[str, bytes]:
    return {str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.is_file()}


async def test_what_was_acknowledged_is_kept_and_shown_again(tmp_path: Path) -> None:
    async with client(tmp_path) as sender:
        for each in (FIRST, SECOND, SECOND):
            assert (await put(sender, each.path, each.data)).status_code == 204
        generations = (await sender.get("/")).text.splitlines()
        assert [json.loads(line) for line in generations] == [{"generation": GENERATION, "folder": FIRST.folder}]
        for address in (f"/{FIRST.folder}/", f"/{FIRST.folder}"):
            listed = await sender.get(address)
            assert listed.headers["content-type"] == "application/jsonl"
            assert [json.loads(line) for line in listed.text.splitlines()] == [
                {"name": each.name, "time": each.time, "bytes": len(each.data)} for each in (FIRST, SECOND)
            ]
        file = await sender.get(f"/{SECOND.path}")
        assert (file.content, file.headers["repr-digest"]) == (SECOND.data, digest(SECOND.data))
        head = await sender.head(f"/{SECOND.path}")
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(SECOND.data)))
        assert head.headers["repr-digest"] == digest(SECOND.data)
        for path in ("/", f"/{FIRST.folder}/"):
            assert (await sender.put(path, content=b"")).status_code == 405
    assert kept(tmp_path) == {FIRST.path: FIRST.data, SECOND.path: SECOND.data}


async def test_an_empty_receiver_has_nothing(tmp_path: Path) -> None:
    async with client(tmp_path / "feed") as sender:
        assert (await sender.get("/")).text == ""
        for address in (FIRST.folder, FIRST.path):
            assert (await sender.get(f"/{address}")).status_code == 404
    assert kept(tmp_path) == {}


async def test_without_the_right_digest_nothing_is_kept(tmp_path: Path) -> None:
    wrong = [
        "", "sha-256=", "sha-256=::", "sha-256=:!:", "md5=:AAAA:", digest(b"other"), digest(FIRST.data)[:-1],
        "sha-512=:AAAA:, sha-256=:AAAA:",
    ]  # fmt: skip
    async with client(tmp_path) as sender:
        for told in wrong:
            assert (await put(sender, FIRST.path, FIRST.data, told)).status_code == 400, told
            assert kept(tmp_path) == {}, told
        assert (await put(sender, FIRST.path, FIRST.data, f"md5=:AAAA:, {digest(FIRST.data)}")).status_code == 204
    assert kept(tmp_path) == {FIRST.path: FIRST.data}


@pytest.mark.parametrize("path", [
    "notes.txt", "generation-1/0.json", f"{FIRST.folder}/notes.txt", f"{FIRST.folder}/.{FIRST.name}", f"other/{FIRST.name}",
    f"{FIRST.folder}/{FIRST.name}.tmp", f"{FIRST.folder}/..%2f{FIRST.name}", f"..%2f{FIRST.path}", f"{FIRST.folder}/%2e%2e/{FIRST.name}",
    f"{FIRST.folder}/{FIRST.name}%00", f"{FIRST.folder}/{FIRST.name}%0a", f"{FIRST.folder}//{FIRST.name}",
    f"{FIRST.folder}/{'9' * 19}.json",
    f"{FIRST.folder}/{'٣' * 19}.json", f"{FIRST.folder.upper()}/{FIRST.name}",
])  # fmt: skip
async def test_a_foreign_name_reaches_no_file(path: str, tmp_path: Path) -> None:
    (tmp_path / "secret.json").touch()
    async with client(tmp_path / "feed") as sender:
        for answer in (await put(sender, path, FIRST.data), await sender.get(f"/{path}")):
            assert answer.status_code in (404, 405)
    assert kept(tmp_path) == {"secret.json": b""}


async def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with client(tmp_path, bytes_max=len(SECOND.data)) as sender:
        assert (await put(sender, FIRST.path, FIRST.data)).status_code == 204
        assert (await put(sender, SECOND.path, SECOND.data)).status_code == 204
        answer = await put(sender, segments()[2].path, SECOND.data + b"\n")
        assert (answer.status_code, answer.text) == (413, f"a file may have {len(SECOND.data)} bytes here: raise --bytes-max, "
                                                          "or set a smaller feed.batch_max\n")  # fmt: skip
        told = {"Repr-Digest": digest(b""), "Content-Length": "-1"}
        assert (await sender.put(f"/{segments()[2].path}", content=b"", headers=told)).status_code == 413
    assert set(kept(tmp_path)) == {FIRST.path, SECOND.path}
    chunks: list[dict[str, object]] = [{"type": "http.request", "body": b"x" * 40, "more_body": True}] * 100
    assert await status_of(tmp_path, chunks) == 413
    assert len(chunks) > 90


async def test_what_is_no_feed_is_refused(tmp_path: Path) -> None:
    async with client(tmp_path) as sender:
        for content in (b"", b"hello\n", FIRST.data[:-10], segments("avro")[0].data, b"\xff\xfe"):
            assert (await put(sender, FIRST.path, content)).status_code == 422, content
            assert kept(tmp_path) == {}


async def test_avro_is_kept_too(tmp_path: Path) -> None:
    avro = segments("avro")[0]
    async with client(tmp_path) as sender:
        assert (await put(sender, avro.path, avro.data)).status_code == 204
        assert (await sender.get(f"/{avro.path}")).headers["content-type"] == "application/avro"


async def test_other_bytes_under_a_known_name_are_a_conflict(tmp_path: Path) -> None:
    other = Segment.of(GENERATION, NOW, FIRST.data, "json")
    async with client(tmp_path) as sender:
        for each in (FIRST, SECOND):
            await put(sender, each.path, each.data)
        assert (await put(sender, other.path, other.data)).status_code == 409
    assert kept(tmp_path)[SECOND.path] == SECOND.data


async def test_a_full_disk_and_a_foreign_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with client(tmp_path) as sender:
        monkeypatch.setattr(os, "fsync", full)
        answer = await put(sender, FIRST.path, FIRST.data)
        assert answer.status_code == 503 and "the disk is full; free space" in answer.text
        monkeypatch.undo()
        (tmp_path / FIRST.folder / "notes.txt").touch()
        answer = await put(sender, FIRST.path, FIRST.data)
        assert answer.status_code == 500 and "notes.txt" in answer.text
        (tmp_path / FIRST.folder / "notes.txt").unlink()
        assert (await put(sender, FIRST.path, FIRST.data)).status_code == 204


async def test_a_sender_that_goes_away_leaves_nothing(tmp_path: Path) -> None:
    told: list[dict[str, object]] = [{"type": "http.request", "body": FIRST.data[:10], "more_body": True}, {"type": "http.disconnect"}]
    assert await status_of(tmp_path, told) == 400
    assert kept(tmp_path) == {}


async def status_of(directory: Path, told: list[dict[str, object]]) -> object:
    """What a PUT is answered whose body comes like this, without a length."""
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return told.pop(0)

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"repr-digest", digest(FIRST.data).encode())]
    scope = {"type": "http", "method": "PUT", "path": f"/{FIRST.path}", "headers": headers, "query_string": b""}
    await make_receiver(directory, SystemRuntime(), {"localhost"}, 100)(scope, receive, send)  # type: ignore[arg-type]
    return sent[0]["status"]


async def test_who_may_ask_what(tmp_path: Path) -> None:
    async with client(tmp_path) as sender:
        for method in ("POST", "DELETE", "PATCH"):
            answer = await sender.request(method, f"/{FIRST.path}")
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, PUT")
        answer = await sender.put(f"/{FIRST.path}", content=FIRST.data, headers={"Host": "evil.example", "Repr-Digest": digest(FIRST.data)})
        assert answer.status_code == 421 and "give another --listen" in answer.text
        assert (await sender.get("/")).headers["x-content-type-options"] == "nosniff"
    assert kept(tmp_path) == {}


async def test_many_at_once(tmp_path: Path) -> None:
    async with client(tmp_path) as sender:
        await put(sender, FIRST.path, FIRST.data)
        async with anyio.create_task_group() as tasks:
            for each in segments() * 3:
                tasks.start_soon(put, sender, each.path, each.data)
    assert kept(tmp_path) == {each.path: each.data for each in segments()}


async def test_what_is_no_file_in_the_directory_is_not_shown_and_hides_nothing(tmp_path: Path) -> None:
    """A link may lead anywhere, and a pipe would hold up every answer."""
    async with client(tmp_path) as sender:
        await put(sender, FIRST.path, FIRST.data)
        folder = tmp_path / FIRST.folder
        outside = tmp_path / "outside"
        outside.write_bytes(b"secret")
        names = ["0001795000000000001.json", "0001795000000000002.json", "0001795000000000003.json", "0001795000000000004.json"]
        (folder / names[0]).symlink_to(outside)
        (folder / names[1]).symlink_to(tmp_path / "nowhere")
        os.mkfifo(folder / names[2])
        (folder / names[3]).mkdir()
        with anyio.fail_after(60):
            listed = [json.loads(line)["name"] for line in (await sender.get(f"/{FIRST.folder}/")).text.splitlines()]
            answers = [(await sender.get(f"/{FIRST.folder}/{name}")) for name in names]
        assert listed == [FIRST.name]
        assert [each.status_code for each in answers] == [500] * 4 and not any(b"secret" in each.content for each in answers)


# --- senders that are slow, or send little that unpacks to much -------------------------------------


def scope_of(segment: Segment, body: bytes, told: str | None = None) -> dict[str, object]:
    headers = [(b"host", b"localhost"), (b"repr-digest", (digest(body) if told is None else told).encode())]
    return {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "method": "PUT", "path": f"/{segment.path}",
            "raw_path": f"/{segment.path}".encode(), "query_string": b"", "headers": headers}  # fmt: skip


def sender_to(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def send_chunk_by_chunk(app: ASGIApp, segment: Segment, body: bytes, then: anyio.Event) -> int:
    """Sends a body but for its end, and goes away at the event. Returns the status."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": True}]
    statuses: list[int] = []

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await then.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    await app(scope_of(segment, body), receive, send)
    return statuses[0]


async def test_four_senders_that_stopped_in_the_middle_kept_out_all_others(tmp_path: Path) -> None:
    app, gone = make_receiver(tmp_path, SystemRuntime(), {"localhost"}, 10_000), anyio.Event()
    statuses: list[int] = []

    async def stall() -> None:
        statuses.append(await send_chunk_by_chunk(app, FIRST, b"x" * 100, gone))

    async with anyio.create_task_group() as tasks, sender_to(app) as sender:
        for _ in range(50):
            tasks.start_soon(stall)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(60):
            assert (await put(sender, FIRST.path, FIRST.data)).status_code == 204
            assert (await sender.get(f"/{FIRST.path}")).content == FIRST.data
        gone.set()
    assert statuses == [400] * 50


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})], scope="module")
async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    app, began = make_receiver(tmp_path, SystemRuntime(), {"localhost"}, 10_000), anyio.current_time()
    assert await send_chunk_by_chunk(app, FIRST, b"x", anyio.Event()) == 408
    assert anyio.current_time() < began + 60


async def test_more_bytes_than_fit_into_memory_are_told_to_come_again(tmp_path: Path) -> None:
    app, gone = make_receiver(tmp_path, SystemRuntime(), {"localhost"}, 1000), anyio.Event()
    async with anyio.create_task_group() as tasks, sender_to(app) as sender:
        for _ in range(BODIES_MAX):
            tasks.start_soon(send_chunk_by_chunk, app, FIRST, b"x" * 1000, gone)
        await anyio.wait_all_tasks_blocked()
        answer = await put(sender, FIRST.path, FIRST.data)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        gone.set()
    async with client(tmp_path, 1000) as sender:
        assert (await put(sender, FIRST.path, FIRST.data)).status_code == 204


def bomb(suffix: str) -> bytes:
    """A file of some kilobytes that unpacks to a line, or a block, that takes gigabytes of memory."""
    if suffix == "json":
        return gzip.compress(b'{"array":[' + b"[]," * 20_000_000 + b"[]]}\n")
    updates = 20_000_000
    block = avro_long(updates) + b"\0\0\0\0" * updates + b"\0"  # data is two empty texts; time and diff are 0
    avro = BytesIO()
    ContainerWriter(avro, REFERENCES).flush()
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(b"\0" + block) + packer.flush()
    marker = avro.getvalue()[-16:]
    return avro.getvalue() + avro_long(1) + avro_long(len(packed)) + packed + marker


def avro_long(number: int) -> bytes:
    to = BytesIO()
    schemaless_writer(to, "long", number)
    return to.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [pytest.param("json", marks=pytest.mark.night), "avro"])
async def test_a_small_file_that_unpacks_to_gigabytes_is_refused_in_bounded_memory(tmp_path: Path, suffix: str) -> None:
    path = f"{FIRST.folder}/{0:019d}.{suffix}"
    body = bomb(suffix)
    assert len(body) < 300_000
    before = peak_bytes()
    async with client(tmp_path, 1_000_000) as sender:
        answer = await put(sender, path, body)
        assert answer.status_code == 422, answer.text
        assert (await put(sender, FIRST.path, FIRST.data)).status_code == 204
    assert peak_bytes() - before < 100 * 2**20
    assert list(kept(tmp_path)) == [FIRST.path]


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.night
@pytest.mark.slow
@on_a_loop_of_its_own
async def test_a_file_whose_sender_has_gone_held_the_only_thread_until_it_was_read(tmp_path: Path) -> None:
    app = make_receiver(tmp_path, SystemRuntime(), {"localhost"}, 10_000_000)
    lines = gzip.compress(b'{"array":[]}\n' * 30_000_000)
    for _ in range(4):
        assert await leave(app, lines, lambda: readers() != []) == [400]
        await to_thread.run_sync(wait_for, lambda: readers() == [])  # the process that read it was ended
    async with sender_to(app) as sender:
        assert (await put(sender, FIRST.path, FIRST.data)).status_code == 204


@pytest.mark.slow
@on_a_loop_of_its_own
async def test_each_sender_that_left_at_once_left_a_process_behind(tmp_path: Path) -> None:
    app, before = make_receiver(tmp_path, SystemRuntime(), {"localhost"}, 10_000), set(children())
    for _ in range(4):
        # On a busy machine the file may be read before the receiver hears that its sender has left.
        assert await leave(app, FIRST.data, lambda: bool(set(children()) - before)) in ([400], [204])
    # None is left where the last sender went while its file was being read: the process that reads is ended then.
    assert len(set(children()) - before) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@on_a_loop_of_its_own
async def test_a_good_file_was_called_too_large_to_read_because_the_idle_process_had_been_killed(tmp_path: Path, number: int) -> None:
    """And an interrupt, which a terminal sends to all processes of the group, was raised by the receiver."""
    async with client(tmp_path) as sender:
        before = set(children())
        assert (await put(sender, FIRST.path, FIRST.data)).status_code == 204
        for child in set(children()) - before:
            os.kill(child, number)
        answer = await put(sender, SECOND.path, SECOND.data)
    assert answer.status_code == 204, answer.text


@pytest.mark.night
@pytest.mark.slow
@on_a_loop_of_its_own
async def test_a_process_that_reads_worked_on_for_ever_if_the_receiver_was_killed(tmp_path: Path) -> None:
    app = make_receiver(tmp_path, SystemRuntime(), {"localhost"}, 10_000_000)
    lines = gzip.compress(b'{"array":[]}\n' * 30_000_000)
    def is_bounded(pid: int) -> bool:
        with suppress(PermissionError):  # a server that other tests run as another user
            return 0 < resource.prlimit(pid, resource.RLIMIT_CPU)[0] < 1000
        return False

    assert await leave(app, lines, lambda: any(map(is_bounded, children()))) == [400]


async def test_a_mark_that_is_large_was_read_whole_and_kept_all_others_waiting(tmp_path: Path) -> None:
    mark = b"[" + b"[]," * 4000 + b"[]]"
    async with client(tmp_path, 10_000_000) as sender:
        answer = await put(sender, "_feed.json", mark)
    assert (answer.status_code, answer.text) == (413, "a file may have 8192 bytes here: this is no mark of a feed\n")


async def leave(app: ASGIApp, body: bytes, when: Callable[[], bool]) -> list[int]:
    """Sends a whole file, goes away once `when` is true, and returns the status that nobody gets."""
    messages: list[Message] = [{"type": "http.disconnect"}, {"type": "http.request", "body": body, "more_body": False}]
    statuses: list[int] = []

    async def receive() -> Message:
        if len(messages) == 1:
            await to_thread.run_sync(wait_for, when)
        return messages.pop()

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    await app(scope_of(FIRST, body), receive, send)
    return statuses


def readers() -> list[str]:
    """The processes of this one that are busy."""
    states = [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] for child in children()]
    return [state for state in states if state == "R"]


def children() -> list[int]:
    """The processes that this one has begun and that are there."""
    return [int(child) for thread in Path("/proc/self/task").glob("*/children") for child in thread.read_text().split()]
