"""Whatever becomes of one answer of S3, nothing is believed that the service never said, or leaves untranslated."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

import tiered.s3.client
from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.log import LeftGarbageError
from emulators.changed_answers import Asked
from tests.given.answered_calls import (
    CALLS,
    CUSTOM,
    DEADLINE_NS,
    EXPIRING,
    FILE,
    LONG_AGO_NS,
    AnswerBench,
    AnsweringService,
    Call,
    CallStage,
    bench,
    content,
    content_and_metadata,
    delete_generation,
    faults_of,
    file_of,
    file_there,
    files,
    names_there,
    nothing,
    put,
    read_file,
    reading,
    removed,
    rotating,
    seen,
    stored,
)  # fmt: skip
from tests.given.s3_buckets import delete_by_hand, make_bucket, s3_blobs
from tests.suites import share
from tiered.buckets.owners import marker_name
from tiered.metadata import Metadata, TimeToLive
from tiered.s3.blobs import S3Blobs
from tiered.s3.client import S3Client
from tiered.s3.listings import versions

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def operation_of(asked: Asked) -> str:
    """What botocore calls it, and of which objects it is."""
    path, _, query = asked.target.partition("?")
    key = [*path.split("/", 2), ""][2]
    names = parse_qs(query, keep_blank_values=True)
    operation = {
        "PUT": "put_object", "GET": "get_object", "HEAD": "head_object", "DELETE": "delete_object", "POST": "create_multipart_upload",
    }[asked.method]  # fmt: skip
    if "uploadId" in names:
        operation = {
            "PUT": "upload_part", "GET": "list_parts", "POST": "complete_multipart_upload", "DELETE": "abort_multipart_upload",
        }[asked.method]  # fmt: skip
        if asked.header("x-amz-copy-source"):
            operation = "upload_part_copy"
    if not key:
        listings = {"uploads": "list_multipart_uploads", "versions": "list_object_versions", "list-type": "list_objects_v2"}
        return next(listing for asked_for, listing in listings.items() if asked_for in names)
    beside = re.match("~[a-z]+/", unquote(key))
    of_what = " of a range" if asked.header("range") else " of a version" if "versionId" in names else ""
    return f"{operation}{f' {beside[0]}' if beside else ''}{of_what}"


# --- the calls that only this service has ----------------------------------------------------------------

EXPIRED = Metadata(TimeToLive(ns=1), time_expires_ns=LONG_AGO_NS)


async def create_file(at: CallStage) -> None:
    at.made["created"] = await files(at.front).create(file_of(at), FILE, "application/json")


async def owned(at: CallStage) -> None:
    await at.behind.client.call("put_object", "giving a prefix", effect=True, Key=marker_name(""), body=b"")


async def collect(at: CallStage) -> None:
    try:
        await at.front.collect(100)
    except LeftGarbageError as error:
        raise UnconfirmedError(str(error)) from error


async def with_deadlines(blobs: Any, at: CallStage) -> Any:
    return await content(blobs, at), await blobs._markers_of(at.name)


async def deleted_by_hand(at: CallStage) -> None:
    """The service may give a version another time when it is hidden."""
    delete_by_hand(at.behind, at.name)
    [version] = await at.behind.deleted_generations(at.name)
    at.made["generation"] = version.generation


async def hidden(at: CallStage) -> None:
    await stored(EXPIRING)(at)
    await deleted_by_hand(at)


async def hidden_with_what_was_amended(at: CallStage) -> None:
    await put(at.behind, at, Metadata(), whole=False, amended=CUSTOM)
    for each in await at.behind._all_below("looking for amendments", f"~m/{at.name}/"):
        delete_by_hand(at.behind, each["Key"])
    await deleted_by_hand(at)


async def restore(at: CallStage) -> None:
    if await at.front.restore(at.name, at.made["generation"]) is None:
        raise UnavailableError("it is said to be another")


async def versions_there(blobs: Any, at: CallStage) -> Any:
    return [each["VersionId"] for each in await versions(blobs.client, "looking", at.name)]


OWN: Sequence[Call] = (
    Call("create a file", nothing, create_file, read_file, lambda at: FILE),
    reading("read a file", file_there, read_file), reading("read no file", nothing, read_file),
    reading("whether a file is equal", file_there, lambda blobs, at: files(blobs).is_equal(file_of(at), FILE)),
    reading("names of files", file_there, names_there),
    reading("whether there are files", file_there, lambda blobs, at: files(blobs).has_any(f"{at.path}.")),
    reading("owners who are there", owned, lambda blobs, at: blobs.owners()),
    Call("collect", stored(EXPIRED), collect, with_deadlines, lambda at: (None, [])),
)  # fmt: skip
OF_VERSIONS: Sequence[Call] = (
    reading("what was deleted", hidden, lambda blobs, at: blobs.deleted_generations(at.name)),
    Call("restore", hidden, restore, content_and_metadata, lambda at: (at.payload, {}, DEADLINE_NS)),
    Call("restore with what was amended", hidden_with_what_was_amended, restore, content_and_metadata,
         lambda at: (at.payload, dict(CUSTOM.custom), None)),
    Call("delete with all versions", stored(), lambda at: at.front.delete(at.name), versions_there, lambda at: []),
    Call("delete of a generation that is a version", seen, delete_generation, removed, lambda at: (None, at.made["removal"])),
)


KINDS = {
    "put_object", "put_object ~t/", "put_object ~m/", "get_object", "get_object ~m/", "get_object of a range", "head_object",
    "delete_object", "delete_object ~t/", "create_multipart_upload", "upload_part", "upload_part_copy", "list_parts",
    "complete_multipart_upload", "abort_multipart_upload", "list_objects_v2", "list_multipart_uploads", "list_object_versions",
    "delete_object of a version", "get_object of a version", "delete_object ~m/ of a version", "head_object ~m/",
    "head_object ~owners/",
}
_LIES = [
    ("the answer for another object", "an answer with an object does not name it"),
    ("without x-amz-meta", "only the service knows which there are"), ("empty x-amz-meta", "only the service knows their values"),
    ("nonsense in x-amz-meta", "as before"), ("as HTML", "a blob may have any type"), ("as gzip", "a blob may have any encoding"),
    ("without content-type", "as before"), ("empty content-type", "as before"), ("nonsense in content-type", "as before"),
    ("without content-encoding", "as before"),
]  # fmt: skip
_ASKED = (("get", ""), ("get", " of a range"), ("get", " of a version"), ("head", ""))
UNTOLD = [
    *((f"{kind}_object{of_what}", change, why) for kind, of_what in _ASKED for change, why in _LIES),
    ("head_object", "content-length", "nothing else tells the size"),
    ("get_object of a range", "a flipped bit", "only the whole has a checksum"),
    ("put_object ~m/", "the answer for another object, and it never arrived", "what was amended of both is the same"),
    ("list_objects_v2", "nonsense in Contents/Key", "any name may be there"),
    ("list_objects_v2", "without Contents", "a page may have any number of names"), ("list_parts", "without Part", "as before"),
    ("put_object ~t/", "the answer for another object, and it never arrived", "a marker is empty, so all have one tag"),
    ("put_object", "the answer for another object, and it never arrived", "it has the same bytes"),
    ("list_object_versions", "without (Version|DeleteMarker)$", "as before"),
    ("list_object_versions", "nonsense in (Version/ETag|DeleteMarker/VersionId)", "only the service knows them"),
]
WAITS = {"restore with what was amended", "delete with all versions"}
"""Each makes several requests, and some of their changes are met by a timeout only: `make night` has them."""
PAIRS = [*[("versitygw", call) for call in (*CALLS, *OWN)], *[("versitygw with versions", call) for call in OF_VERSIONS]]


def service(server: str) -> AnsweringService:
    def opened(url: str, bucket: str, answer_timeout_s: float) -> AbstractAsyncContextManager[S3Blobs]:
        return s3_blobs(
            url, bucket, SystemRuntime(), answer_timeout_s=answer_timeout_s, upload_budget_s=0, whole_checksums=server != "moto"
        )

    make = partial(make_bucket, versions=server.endswith("versions"))
    return AnsweringService(server, make, opened, operation_of, (*CALLS, *OWN), KINDS, UNTOLD)


@asynccontextmanager
async def benched(server: str, request: pytest.FixtureRequest) -> AsyncIterator[AnswerBench]:
    async with bench(service(server), request.getfixturevalue(f"{server.partition(' ')[0]}_url")) as on:
        yield on


@pytest.fixture
async def on(request: pytest.FixtureRequest) -> AsyncIterator[AnswerBench]:
    async with benched(request.param, request) as on:
        yield on


def each_of(pairs: Sequence[tuple[str, Call]]) -> pytest.MarkDecorator:
    ids = [f"{server}: {call.name}".replace(" ", "-") for server, call in pairs]
    return pytest.mark.parametrize(("on", "call"), pairs, indirect=["on"], ids=ids)


@each_of(share([each for each in PAIRS if each[1].name not in WAITS], 3))
async def test_a_changed_answer_is_told_no_or_unknown_or_changes_nothing(on: AnswerBench, call: Call) -> None:
    count, wrong = await faults_of(on, call, rotating(1, PAIRS.index((on.service.name, call))))
    assert count and not wrong, "\n".join(wrong)


@pytest.mark.night
@each_of([*PAIRS, *[("moto", call) for call in CALLS]])
async def test_whatever_becomes_of_an_answer(on: AnswerBench, call: Call) -> None:
    count, wrong = await faults_of(on, call, lambda _, changes: changes)
    assert count and not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong)


async def test_every_request_that_the_adapter_can_make_is_made_by_a_row(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the places in the code that send one, so a call more needs a row more."""
    sources, sent, kinds = Path(tiered.s3.client.__file__).parent, set[tuple[str, int]](), set[str]()

    def noted(send: Any) -> Any:
        def noting(*args: Any, **named: Any) -> Any:
            at = sys._getframe(1)
            sent.add((Path(at.f_code.co_filename).name, at.f_lineno))
            return send(*args, **named)

        return noting

    for method in (S3Client.call, S3Client.open_body):
        monkeypatch.setattr(S3Client, method.__name__, noted(method))
    for server in ("versitygw", "versitygw with versions"):
        async with benched(server, request) as on:
            for call in (call for each, call in PAIRS if each == server):
                kinds |= {operation_of(each.asked) for each in await on.right(call)}
    can_send = {
        (path.name, each.lineno) for path in sources.glob("*.py") if path.name != "client.py"  # which asks after an odd answer alone
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in ("call", "open_body")
    }  # fmt: skip
    assert not can_send - sent, f"calls without a row: {sorted(can_send - sent)}"
    assert kinds == KINDS
