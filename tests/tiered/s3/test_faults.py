"""What uploads, reads and deletions do when the service fails: before the effect, after it, and with no answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from changelog.base.errors import ConfigurationError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.log import LeftGarbageError
from emulators.s3.faults import FaultKind, FaultyProxy, ServiceFault
from tests.given.s3_buckets import s3_blobs
from tiered.metadata import NS_PER_S, Metadata, TimeToLive
from tiered.s3.blobs import S3Blobs
from tiered.services.backends import SessionEndedError, Upload
from tiered.services.scans import Removal
from tiered.testing.contracts.whole_blobs import read, store
from tiered.transfer.upload_lanes import UploadLanes

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MIB = 1024 * 1024
LARGE = bytes(range(256)) * (9 * MIB // 256)
BEFORE, AFTER, CUT_BEFORE, CUT_AFTER, CUT_WITHIN = FaultKind
COMPLETION = "uploadId="


async def begun(blobs: S3Blobs, name: str, payload: bytes) -> Upload:
    upload = await blobs.open_upload(name, Metadata(), len(payload))
    await upload.write(payload)
    return upload


@pytest.mark.parametrize(
    "fault", [ServiceFault("PUT", AFTER, 500, "InternalError"), ServiceFault("PUT", CUT_AFTER), ServiceFault("PUT", AFTER, 502)]
)
async def test_a_put_whose_answer_was_lost_after_its_effect_is_found_stored(
    failing: S3Blobs, proxy: FaultyProxy, name: str, fault: ServiceFault
) -> None:
    upload = await begun(failing, name, b"payload")
    proxy.faults.append(fault)
    await upload.finalise()
    assert await read(failing, name) == b"payload"
    assert sum(each.startswith("PUT") for each in proxy.seen) == 1, "it is sent once"


@pytest.mark.parametrize(
    "fault", [ServiceFault("PUT", BEFORE, 500, "InternalError"), ServiceFault("PUT", CUT_BEFORE), ServiceFault("PUT", BEFORE, 503)]
)
async def test_a_put_that_nobody_confirms_may_appear_later_and_is_not_sent_again(
    failing: S3Blobs, proxy: FaultyProxy, name: str, fault: ServiceFault
) -> None:
    upload = await begun(failing, name, b"payload")
    proxy.faults.append(fault)
    with pytest.raises(UnconfirmedError):
        await upload.finalise()
    assert sum(each.startswith("PUT") for each in proxy.seen) == 1


def posted(kind: FaultKind, status: int = 503, code: str = "", *, having: str = COMPLETION) -> ServiceFault:
    return ServiceFault("POST", kind, status, code, having)


def each_of(what: str, *faults: ServiceFault) -> dict[str, list[ServiceFault]]:
    return {f"{what}, {fault.kind.name} {fault.status} {fault.code}": [fault] for fault in faults}


CARRIED_THROUGH: dict[str, list[ServiceFault]] = {
    **{f"a put that is turned away, {code}": [ServiceFault("PUT", BEFORE, status, code)] * 2
       for status, code in ((503, "SlowDown"), (409, "ConditionalRequestConflict"), (429, "TooManyRequests"))},
    **each_of(
        "a session that is not begun", posted(BEFORE, 503, "SlowDown", having="uploads"), posted(CUT_BEFORE, having="uploads"),
        posted(BEFORE, 500, "InternalError", having="uploads"), posted(AFTER, 503, "ServiceUnavailable", having="uploads"),
    ),
    "a part that is cut off": [ServiceFault("PUT", CUT_BEFORE), ServiceFault("PUT", AFTER, 500, "InternalError")],
    **each_of(
        "a completion that fails", posted(AFTER, 500, "InternalError"), posted(AFTER, 200, "InternalError"), posted(CUT_AFTER),
        posted(AFTER, 404, "NoSuchUpload"), posted(BEFORE, 200, "InternalError"), posted(BEFORE, 503, "SlowDown"), posted(CUT_BEFORE),
        posted(BEFORE, 409, "ConditionalRequestConflict"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CARRIED_THROUGH)
async def test_what_failed_on_the_way_before_or_after_its_effect_is_carried_through(
    failing: S3Blobs, proxy: FaultyProxy, name: str, what: str
) -> None:
    payload = b"payload" if what.startswith("a put") else LARGE
    proxy.faults += CARRIED_THROUGH[what]
    upload = await begun(failing, name, payload)
    await upload.finalise()
    assert await read(failing, name) == payload and not proxy.faults


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "RequestTimeTooSkewed", UnavailableError), (400, "ExpiredToken", UnavailableError), (403, "AccessDenied", ConfigurationError),
        (404, "NoSuchBucket", ConfigurationError), (400, "BadDigest", UnavailableError),
    ],
)  # fmt: skip
async def test_a_put_that_was_refused_has_no_effect_and_says_what_to_do(
    failing: S3Blobs, proxy: FaultyProxy, name: str, status: int, code: str, kind: type[Exception]
) -> None:
    upload = await begun(failing, name, b"payload")
    proxy.faults.append(ServiceFault("PUT", BEFORE, status, code))
    with pytest.raises(kind, match=code):
        await upload.finalise()
    assert await failing.head(name) is None


async def test_after_a_session_was_cancelled_from_another_process_its_blob_never_appears(
    failing: S3Blobs, proxy: FaultyProxy, versitygw_url: str, name: str
) -> None:
    # Before it has read a longer last part, the server answers and cuts the connection, so nobody hears the answer.
    upload = await begun(failing, name, bytes(2 * UploadLanes().part_bytes + 1000))
    assert upload.session is not None
    async with s3_blobs(versitygw_url, failing.client.bucket, SystemRuntime()) as other:
        while len(await other.parts(name, upload.session)) < 2:  # noqa: ASYNC110 - a real server is waited for
            await anyio.sleep(0.01)
        await other.cancel(upload.session)
    with pytest.raises(SessionEndedError):
        await upload.finalise()
    assert await failing.head(name) is None


@pytest.mark.parametrize("call", [S3Blobs.head, S3Blobs.open, S3Blobs.delete], ids=["head", "open", "delete"])
async def test_a_404_that_does_not_speak_as_the_service_is_no_absence(
    failing: S3Blobs, proxy: FaultyProxy, name: str, call: Callable[[S3Blobs, str], Awaitable[object]]
) -> None:
    await (await begun(failing, name, b"payload")).finalise()
    proxy.faults += [ServiceFault(method, BEFORE, 404) for method in ("HEAD", "GET", "DELETE")]
    with pytest.raises((UnavailableError, UnconfirmedError), match="in between"):
        await call(failing, name)
    proxy.faults.clear()
    assert await read(failing, name) == b"payload"


@pytest.mark.parametrize(
    ("status", "code"), [(409, "ConditionalRequestConflict"), (412, "PreconditionFailed"), (404, "NoSuchKey")]
)
async def test_a_generation_whose_deletion_is_refused_is_looked_at_again(
    failing: S3Blobs, proxy: FaultyProxy, name: str, status: int, code: str
) -> None:
    await (await begun(failing, name, b"payload")).finalise()
    head = await failing.head(name)
    assert head is not None
    proxy.faults.append(ServiceFault("DELETE", BEFORE, status, code))
    with pytest.raises(UnavailableError, match="try again"):  # it is there, whatever was answered
        await failing.delete_generation(name, head.generation)
    assert await read(failing, name) == b"payload"
    proxy.faults.append(ServiceFault("DELETE", AFTER, status, code))
    assert await failing.delete_generation(name, head.generation) is Removal.ABSENT and not proxy.faults


async def test_a_bucket_that_is_gone_is_no_absence_of_its_blobs(failing: S3Blobs, name: str, versitygw_url: str) -> None:
    async with s3_blobs(versitygw_url, "bucket-that-nobody-made", SystemRuntime()) as blobs:
        for call in (blobs.head, blobs.open, blobs.delete):
            with pytest.raises(ConfigurationError, match="no such bucket"):
                await call(name)


async def test_a_read_that_breaks_off_is_unavailable_and_never_short(failing: S3Blobs, proxy: FaultyProxy, name: str) -> None:
    await (await begun(failing, name, b"payload")).finalise()
    for kind in (CUT_BEFORE, CUT_WITHIN):
        proxy.faults.append(ServiceFault("GET", kind))
        with pytest.raises(UnavailableError):
            await read(failing, name)
    assert await read(failing, name) == b"payload"


async def test_an_answer_that_breaks_off_in_the_middle_is_no_answer(failing: S3Blobs, proxy: FaultyProxy, name: str) -> None:
    await (await begun(failing, name, b"payload")).finalise()
    proxy.faults.append(ServiceFault("GET", CUT_WITHIN, having="list-type=2"))
    with pytest.raises(UnavailableError, match="broke off"):
        await failing.list("", None, 10)
    proxy.faults.append(ServiceFault("POST", CUT_WITHIN, having=COMPLETION))
    upload = await begun(failing, f"{name}-large", LARGE)
    await upload.finalise()
    assert await read(failing, f"{name}-large") == LARGE and not proxy.faults


async def test_what_cannot_be_collected_is_told_and_the_round_goes_on(failing: S3Blobs, proxy: FaultyProxy, name: str) -> None:
    expired = Metadata(TimeToLive(ns=1), time_expires_ns=1_700_000_000 * NS_PER_S)
    for key in ("a", "b"):
        await store(failing, f"{name}-{key}", b"x", expired)
    proxy.faults.append(ServiceFault("DELETE", BEFORE, 500, "InternalError"))
    with pytest.raises(LeftGarbageError, match="1 expired") as raised:
        await failing.collect(100)
    assert raised.value.removed == 2
    assert [each.name for each in (await failing.list("", None, 10)).blobs] == [f"{name}-a"]
    assert await failing.collect(100) == 2
