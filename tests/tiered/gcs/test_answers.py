"""Whatever becomes of one answer of GCS: nothing is believed that it never said, and nothing leaves untranslated."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from multidict import CIMultiDict

import tiered.gcs.answers
from changelog.base.runtime import SystemRuntime
from emulators.changed_answers import Asked
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.gcs.wire import WireRequest
from tests.given.answered_calls import (
    CALLS,
    CUSTOM,
    FILE,
    PAYLOAD,
    AnswerBench,
    AnsweringService,
    Call,
    CallStage,
    bench,
    content,
    faults_of,
    file_of,
    file_there,
    files,
    generation,
    names_there,
    nothing,
    putting,
    read_file,
    reading,
    rotating,
    seen,
    stored,
    two_stored,
)  # fmt: skip
from tiered.gcs.answers import a_session
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.http import ConnectionSlot, GcsRequest
from tiered.services.capabilities import Retention
from tiered.services.scans import Removal
from tiered.transfer.upload_lanes import UploadLanes

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SERVERS: dict[str, GcsEmulator] = {}
"""By their addresses: some rows need a fault of the server's own."""


def kind_of(asked: Asked) -> str:
    """What our server calls it."""
    kind = WireRequest.parse(asked.method, asked.target, CIMultiDict(asked.headers)).kind
    if kind == "batch":
        kind = f"batch of {re.findall(rb'^(GET|DELETE) ', asked.body, re.MULTILINE)[0].decode()}"
    of_range = " of a range" if asked.header("range") else ""
    return f"{kind}{of_range}"


# --- the calls that only this service has ----------------------------------------------------------------


async def heads(blobs: Any, at: CallStage) -> Any:
    """Each that is left out is asked for alone."""
    told = await blobs.heads(names := [at.name, f"{at.name}x"])
    found = {name: told.get(name) or await blobs.head(name) for name in names}
    return {name: (each.size, each.generation) for name, each in found.items()}


async def generations(blobs: Any, at: CallStage) -> Any:
    return await blobs.generations((await at.behind.list(f"{at.path}/", f"{at.path}0", 10)).blobs)


async def two_seen(at: CallStage) -> None:
    await two_stored(at)
    at.made["two"] = [(each.name, each.generation) for each in (await at.behind.list(f"{at.path}/", f"{at.path}0", 10)).blobs]


async def delete_two(at: CallStage) -> None:
    """A part that nobody is told of is unknown, as the whole is."""
    told = await at.front.delete_generations(at.made["two"])
    unknown = [each for each in told if not isinstance(each, Removal)]
    if unknown:
        there = [each.name for each in (await at.behind.list(f"{at.path}/", f"{at.path}0", 10)).blobs]
        gone = [name for (name, _), each in zip(at.made["two"], told, strict=True) if isinstance(each, Removal)]
        assert not set(there) & set(gone), "what was told gone is there"
        raise unknown[0]
    assert told == [Removal.DELETED] * 2, told


async def two_left(blobs: Any, at: CallStage) -> Any:
    return [each.name for each in (await blobs.list(f"{at.path}/", f"{at.path}0", 10)).blobs]


async def deleted_before(at: CallStage) -> None:
    await seen(at)
    await at.behind.delete(at.name)


async def deleted(blobs: Any, at: CallStage) -> Any:
    return await blobs.deleted_generations(at.name)


async def restore(at: CallStage) -> None:
    assert await at.front.restore(at.name, at.made["generation"]) == await generation(at)


async def kept(what: Retention, blobs: Any, at: CallStage) -> Any:
    return await blobs.kept(what, f"{at.path}/", f"{at.path}0", "")


async def begun_session(at: CallStage) -> None:
    upload = await at.front.open_upload(at.name, CUSTOM, None)
    at.made["session"] = upload.session


async def session_status(blobs: Any, at: CallStage) -> Any:
    """Asked at the server's own address."""
    url = blobs._http.endpoint + at.made["session"][at.made["session"].index("/upload") :]
    asked = GcsRequest("PUT", url, "asking", a_session, headers={"Content-Range": "bytes */*"}, signed=False)
    return "open" if (await blobs._http.exchange(asked, ConnectionSlot())).status == 308 else "ended"


async def put_whose_end_is_lost(at: CallStage) -> None:
    SERVERS[at.behind._http.endpoint].faults.append(GcsFault(FaultMode.DROP_AFTER, "upload.put"))
    await putting(whole=False)(at)


OWN: Sequence[Call] = (
    Call("put of a stream whose answer is lost", nothing, put_whose_end_is_lost, content, PAYLOAD),
    Call("cancel a session", begun_session, lambda at: at.front.cancel(at.made["session"]), session_status, lambda at: "ended"),
    reading("heads", two_stored, heads), reading("generations", two_stored, generations),
    reading("entries", stored(CUSTOM), lambda blobs, at: blobs.entries(at.name)),
    Call("delete of two", two_seen, delete_two, two_left, lambda at: []),
    reading("what was deleted", deleted_before, deleted), Call("restore", deleted_before, restore, content, PAYLOAD),
    reading("kept, soft-deleted", deleted_before, partial(kept, Retention.SOFT_DELETED)),
    reading("kept, noncurrent", deleted_before, partial(kept, Retention.NONCURRENT)),
    Call("create a file", nothing, lambda at: files(at.front).create(file_of(at), FILE, "application/json"), read_file, lambda at: FILE),
    reading("read a file", file_there, read_file), reading("read no file", nothing, read_file),
    reading("whether a file is equal", file_there, lambda blobs, at: files(blobs).is_equal(file_of(at), FILE)),
    reading("names of files", file_there, names_there),
    reading("whether there are files", file_there, lambda blobs, at: files(blobs).has_any(f"{at.path}.")),
)  # fmt: skip

BUCKETS: dict[str, dict[str, Any]] = {
    "soft delete": {"softDeletePolicy": {"retentionDurationSeconds": "604800"}}, "versions": {"versioning": {"enabled": True}},
    "lanes": {},
}  # fmt: skip
PAIRS = [
    *[("soft delete", call) for call in (*CALLS, *OWN)],
    *[("versions", call) for call in OWN if call.name in ("restore", "what was deleted", "kept, noncurrent")],
    *[("lanes", call) for call in CALLS if call.name.startswith("put") and call.name != "put a part"],
]  # fmt: skip
SOURCES = Path(tiered.gcs.answers.__file__).parent
VALUES = "nobody can tell the value that a caller gave from another one: the service signs none"
DELETED = "a deletion is answered with 204 and not a word, whatever was deleted; to look after each would be one more request"
EMPTY = "an empty listing looks like this, and a blob that has no deadline, or is not deleted"
NAMED = "an id is only the service's"
ENDED = "some servers answer the end of a session so"
UNTOLD = [
    *[("object.list", change, EMPTY) for change in ("without items$", "without items/0/(customTime|timeDeleted)$")],
    ("xml.uploads", "the answer for another object$", "it may have been asked a moment before this one was begun"),
    ("xml.parts.list", "without Part$", EMPTY), ("xml.uploads", "without Upload$", EMPTY),
    ("bucket.get", "(without|empty) versioning", EMPTY),
    *[(kind, "a flipped bit", VALUES) for kind in ("object.list", "object.get", "xml.parts.list", "xml.uploads")],
    ("xml.parts.start", "nonsense in UploadId", NAMED), ("upload.cancel", "20[04] with nothing, and it never", ENDED),
    ("object.delete", "(204 with nothing|the answer for another object), and it never", DELETED),
    ("object.get", "(without|empty|nonsense in) (contentType|customTime|metadata)", VALUES),
    ("object.read of a range", "a flipped bit", "only the whole has a checksum"),
    ("object.get", "twice, once late", "where a touch sends PATCH next, it looks like the answer; a touch may be repeated"),
]


def service(server: str) -> AnsweringService:
    lanes = UploadLanes(2, 0, 8) if server == "lanes" else UploadLanes(1)

    async def make(url: str, bucket: str) -> None:
        SERVERS[url].create_bucket(bucket, BUCKETS[server])

    def opened(url: str, bucket: str, answer_timeout_s: float) -> AbstractAsyncContextManager[GcsBlobs]:
        return GcsBlobs.connect(
            bucket, SystemRuntime(), endpoint=url, answer_timeout_s=answer_timeout_s, upload_budget_s=0, lanes=lanes
        )

    return AnsweringService(server, make, opened, kind_of, (*CALLS, *OWN), (), UNTOLD)


@asynccontextmanager
async def benched(server: str) -> AsyncIterator[AnswerBench]:
    async with GcsEmulator() as emulator:
        emulator.parts.part_bytes_min = 1
        SERVERS[emulator.url] = emulator
        try:
            async with bench(service(server), emulator.url) as on:
                yield on
        finally:
            del SERVERS[emulator.url]


@pytest.fixture
async def on(request: pytest.FixtureRequest) -> AsyncIterator[AnswerBench]:
    async with benched(cast(str, request.param)) as on:
        yield on


EACH_CALL = pytest.mark.parametrize(
    ("on", "call"), PAIRS, indirect=["on"], ids=[f"{server}: {call.name}".replace(" ", "-") for server, call in PAIRS]
)


@EACH_CALL
async def test_a_changed_answer_is_told_no_or_unknown_or_changes_nothing(on: AnswerBench, call: Call) -> None:
    count, wrong = await faults_of(on, call, rotating(1, PAIRS.index((on.service.name, call))))
    assert count and not wrong, "\n".join(wrong)


@pytest.mark.night
@EACH_CALL
async def test_whatever_becomes_of_an_answer(on: AnswerBench, call: Call) -> None:
    count, wrong = await faults_of(on, call, lambda _, changes: changes)
    assert count and not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong)


def made_in(name: str) -> set[tuple[str, int]]:
    """Where the adapter's code makes one."""
    return {
        (path.name, each.lineno) for path in SOURCES.glob("*.py") for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == name
    }  # fmt: skip


async def test_every_request_that_the_adapter_can_make_is_made_by_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the places in the code that make one, so a call more needs a row more."""
    made: set[tuple[str, int]] = set()
    init = GcsRequest.__init__

    def noting(self: GcsRequest, *args: Any, **named: Any) -> None:
        at = sys._getframe(1)
        made.add((Path(at.f_code.co_filename).name, at.f_lineno))
        init(self, *args, **named)

    monkeypatch.setattr(GcsRequest, "__init__", noting)
    for server in BUCKETS:
        async with benched(server) as on:
            for _, call in (each for each in PAIRS if each[0] == server):
                await on.right(call)
    assert not made_in("GcsRequest") - made, "calls without a row"


def test_no_answer_comes_beside_the_judge() -> None:
    """One place sends, two take what comes, and each makes of it what `GcsResponse.of` judges."""
    texts = {path.name: path.read_text() for path in SOURCES.glob("*.py")}
    assert {name for name, text in texts.items() if "aiohttp" in text} == {"http.py"}
    assert texts["http.py"].count("_session.request(") == 1 and texts["http.py"].count("await self._begin(") == 2
    assert not made_in("GcsResponse")
    shape = next(each for each in dataclasses.fields(GcsRequest) if each.name == "shape")
    assert shape.default is shape.default_factory is dataclasses.MISSING, "a call says what its answer looks like"
