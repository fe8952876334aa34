"""Whatever becomes of one answer of S3, nothing is believed that the service never said, or leaves untranslated."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from urllib.parse import parse_qs, unquote

import pytest

from changelog.base.runtime import SystemRuntime
from emulators.changed_answers import Asked
from tests.given.answered_calls import CALLS, AnswerBench, AnsweringService, Call, bench, faults_of, rotating
from tests.given.s3_buckets import make_bucket, s3_blobs
from tiered.s3.blobs import S3Blobs

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
        asks = next((each for each in ("uploads", "versions", "lifecycle", "versioning", "object-lock") if each in names), "list-type")
        return f"{asked.method} {asks}"
    beside = re.match("~[a-z]+/", unquote(key))
    return f"{operation}{f' {beside[0]}' if beside else ''}{' of a range' if asked.header('range') else ''}"


KINDS = {
    "put_object", "put_object ~t/", "put_object ~m/", "get_object", "get_object ~m/", "get_object of a range", "head_object",
    "delete_object", "delete_object ~t/", "create_multipart_upload", "upload_part", "upload_part_copy", "list_parts",
    "complete_multipart_upload", "abort_multipart_upload", "GET list-type", "GET uploads",
}
_LIES = [
    ("the answer for another object", "an answer with an object does not name it"),
    ("without x-amz-meta", "only the service knows which there are"), ("empty x-amz-meta", "only the service knows their values"),
    ("nonsense in x-amz-meta", "as before"), ("as HTML", "a blob may have any type"), ("as gzip", "a blob may have any encoding"),
    ("without content-type", "as before"), ("empty content-type", "as before"), ("nonsense in content-type", "as before"),
    ("without content-encoding", "as before"),
]  # fmt: skip
UNTOLD = [
    *((kind, change, why) for kind in ("get_object", "get_object of a range", "head_object") for change, why in _LIES),
    ("head_object", "content-length", "nothing else tells the size"),
    ("get_object of a range", "a flipped bit", "only the whole has a checksum"),
    ("GET list-type", "nonsense in Contents/Key", "any name may be there"),
    ("GET list-type", "without Contents", "a page may have any number of names"), ("list_parts", "without Part", "as before"),
    ("put_object ~t/", "the answer for another object, and it never arrived", "a marker is empty, so all have one tag"),
]


def service(server: str) -> AnsweringService:
    def opened(url: str, bucket: str, answer_timeout_s: float) -> AbstractAsyncContextManager[S3Blobs]:
        return s3_blobs(
            url, bucket, SystemRuntime(), answer_timeout_s=answer_timeout_s, upload_budget_s=0, whole_checksums=server != "moto"
        )

    return AnsweringService(server, make_bucket, opened, operation_of, CALLS, KINDS, UNTOLD)


@pytest.fixture(params=["versitygw"])
async def on(request: pytest.FixtureRequest) -> AsyncIterator[AnswerBench]:
    async with bench(service(request.param), request.getfixturevalue(f"{request.param}_url")) as on:
        yield on


EACH_CALL = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name.replace(" ", "-"))


@EACH_CALL
async def test_a_changed_answer_is_told_no_or_unknown_or_changes_nothing(on: AnswerBench, call: Call) -> None:
    count, wrong = await faults_of(on, call, rotating(1, CALLS.index(call)))
    assert count and not wrong, "\n".join(wrong)


@pytest.mark.sim
@pytest.mark.parametrize("on", ["moto", "versitygw"], indirect=True)
@EACH_CALL
async def test_whatever_becomes_of_an_answer(on: AnswerBench, call: Call) -> None:
    count, wrong = await faults_of(on, call, lambda _, changes: changes)
    assert count and not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong)


async def test_every_request_of_the_adapter_has_a_row(on: AnswerBench) -> None:
    assert {on.service.kind_of(each.asked) for call in CALLS for each in await on.right(call)} == KINDS
