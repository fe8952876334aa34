"""Looks at the bucket of an S3 service, and makes one for `tiered provision`.

    a bucket of ours     uploads in parts ended after a month
    its service          does what the store rests on: it is tried, below `~probe/` (`s3_probes.py`)
    its owner            a marker that says which store's blobs these are (`tiered/buckets/owners.py`)
    not touched          versions, which are a safety net for others, and cost

An existing bucket gets a marker, and is not changed otherwise. Problems are a service that loses or hides data,
settings that lose blobs (a lifecycle rule that expires them) or keep garbage for ever (a default retention), and
another owner.

*Failure*: what this identity may not look at is a note. A service that does not answer is `UnavailableError`, in one
sentence. Every call is made once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from changelog.base.errors import TieredError
from changelog.base.runtime import Runtime
from tiered.buckets.owners import OWNERS, encode_marker, marker_name, own_marker, place
from tiered.provision.findings import Mend, Notice, Provisioning, note, problem
from tiered.provision.owner import settled, to_give
from tiered.provision.probes import NotTriedError
from tiered.provision.s3_probes import try_service
from tiered.s3.blobs import S3Blobs
from tiered.s3.client import S3Client, SharedSession
from tiered.s3.errors import Refusal
from tiered.services.capabilities import PARTS_DAYS_MAX
from tiered.settings import S3Settings

_NOT_DONE = ("NotImplemented", "501", "MethodNotAllowed", "405")
"""The service has no such call."""

_NOT_SUCH = ("InvalidArgument", "InvalidRequest", "MalformedXML")
"""The service has such a call, and not for this."""

_NO_RULES = ("NoSuchLifecycleConfiguration", "404")
_DENIED = ("AccessDenied", "403", *_NOT_DONE)
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}
_KEEPS_PARTS = "keeps, and bills, for ever what was uploaded in parts and never completed"


async def inspect_bucket(at: S3Settings, runtime: Runtime, owner: str | None) -> list[Notice]:
    """The findings of `tiered check`. `owner`: of the rows; None: nobody knows it."""
    return [each async for each in _look(at, runtime, owner, Provisioning())]


async def provision_bucket(at: S3Settings, runtime: Runtime, owner: str, wanted: Provisioning) -> list[Notice]:
    """Makes the bucket if there is none, and gives it to its owner. It may be repeated."""
    return [await _carried_out(each, wanted) async for each in _look(at, runtime, owner, wanted)]


async def _carried_out(finding: Notice, wanted: Provisioning) -> Notice:
    """As `carry_out`, of calls that may tell something else than that they are done."""
    if (mend := finding.mend) is None:
        return finding
    if wanted.dry_run:
        return mend.planned()
    try:
        told: Notice | None = await mend.call()
    except TieredError as error:
        return mend.failed(error)
    return told or mend.done()


async def _look(at: S3Settings, runtime: Runtime, owner: str | None, wanted: Provisioning) -> AsyncIterator[Notice]:
    """Each finding, looked for after whoever asks has mended the one before."""
    session = SharedSession()
    try:
        async with _connected(at, runtime, session) as blobs:
            client = blobs.client
            if await _is_missing(client, at):
                made: list[str] = []
                yield _missing(client, at, wanted.location, made)
                if made or wanted.dry_run:
                    yield _ending_parts(client, at)
                if wanted.dry_run or (not made and await _is_missing(client, at)):
                    return
            for look in (_by_lifecycle(client, at), _costly(client, at)):
                async for notice in look:
                    yield notice
            async with _connected(at, runtime, session) as other:
                for notice in await try_service(blobs, other, at.prefix, runtime, whole_checksums=at.whole_checksums):
                    yield notice
            if owner is not None:
                yield await _owner(blobs, at, owner, wanted)
    except TieredError as error:
        yield problem(str(error))


def _connected(at: S3Settings, runtime: Runtime, session: SharedSession) -> AbstractAsyncContextManager[S3Blobs]:
    return S3Blobs.connect(
        at.bucket, runtime, prefix=at.prefix, endpoint=at.endpoint, region=at.region, addressing_style=at.addressing_style,
        answer_timeout_s=at.timeout_s, session=session,
    )  # fmt: skip


async def _is_missing(client: S3Client, at: S3Settings) -> bool:
    """Asks by a GET: an answer to HEAD has no words, and says of expired credentials what it says of a bad request."""
    answer = await client.call("list_objects_v2", f"looking at bucket {at.bucket}", accept=("NoSuchBucket", "AccessDenied"), MaxKeys=1)
    return isinstance(answer, Refusal) and answer.code == "NoSuchBucket"


def _missing(client: S3Client, at: S3Settings, location: str | None, made: list[str]) -> Notice:
    """`made`: takes the name of the bucket once it was made, and not of one that another process made meanwhile."""
    where = location or at.region

    async def create() -> Notice | None:
        named: dict[str, Any] = {}
        if where is not None and where != "us-east-1":
            named["CreateBucketConfiguration"] = {"LocationConstraint": where}
        doing = f"making bucket {at.bucket}"
        if isinstance(await client.call("create_bucket", doing, effect=True, accept=("BucketAlreadyOwnedByYou",), **named), Refusal):
            return note(f"bucket {at.bucket} was made by another process meanwhile, and is not changed")
        made.append(at.bucket)
        return None

    mend = Mend(("create", "created"), f"bucket {at.bucket}{f' in {where}' if where else ''}", create)
    return problem(f"there is no bucket {at.bucket}: run 'tiered provision', or correct s3.bucket", mend)


def _ending_parts(client: S3Client, at: S3Settings) -> Notice:
    """The lifecycle rule of a bucket that was just made."""

    async def add() -> Notice | None:
        doing = f"adding a lifecycle rule to bucket {at.bucket}"
        # In some regions it is no error to make a bucket again. Then another process's rules would be replaced.
        there = await client.call("get_bucket_lifecycle_configuration", doing, accept=(*_NO_RULES, *_DENIED))
        if not isinstance(there, Refusal):
            return note(f"bucket {at.bucket} has lifecycle rules already, and they are not changed")
        rule = {
            "ID": "tiered-uploads", "Status": "Enabled", "Filter": {"Prefix": at.prefix},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": PARTS_DAYS_MAX},
        }  # fmt: skip
        answer = await client.call(
            "put_bucket_lifecycle_configuration", doing, effect=True, accept=(*_NOT_DONE, *_NOT_SUCH), ChecksumAlgorithm="CRC32",
            LifecycleConfiguration={"Rules": [rule]},
        )  # fmt: skip
        if isinstance(answer, Refusal):
            why = f"the service has none ({answer.code})" if answer.code in _NOT_DONE else f"it does not take this one ({answer.code})"
            return note(f"could not add a lifecycle rule to bucket {at.bucket}: {why}")
        return None

    what = f"a lifecycle rule to bucket {at.bucket}: uploads in parts are ended after {PARTS_DAYS_MAX} days"
    return note(f"bucket {at.bucket} has just been made", Mend(("add", "added"), what, add))


async def _by_lifecycle(client: S3Client, at: S3Settings) -> AsyncIterator[Notice]:
    doing = f"reading the lifecycle rules of bucket {at.bucket}"
    answer = await client.call("get_bucket_lifecycle_configuration", doing, accept=(*_NO_RULES, *_DENIED))
    if isinstance(answer, Refusal) and answer.code in _NOT_DONE:
        yield note(
            f"the service tells no lifecycle rules ({answer.code}), so nobody knows whether bucket {at.bucket} {_KEEPS_PARTS}: see"
            " its documentation"
        )  # fmt: skip
        return
    if isinstance(answer, Refusal) and answer.code not in _NO_RULES:
        allowed = f"allow this identity s3:GetLifecycleConfiguration ({answer.code})"
        yield note(f"the lifecycle rules of bucket {at.bucket} could not be verified: {allowed}")
        return
    told = [] if isinstance(answer, Refusal) else answer.get("Rules", ())
    rules = [rule for rule in told if rule.get("Status") == "Enabled" and _may_concern(rule, at.prefix)]
    for rule in rules:
        if {"Days", "Date"} & rule.get("Expiration", {}).keys():
            sentence = f"the lifecycle rule {rule.get('ID', '')!r} of bucket {at.bucket} deletes live blobs: remove it"
            yield problem(sentence)
        if away := sorted({str(each.get("StorageClass")) for each in rule.get("Transitions", ())} & _ARCHIVES):
            yield problem(
                f"the lifecycle rule {rule.get('ID', '')!r} of bucket {at.bucket} moves blobs to {away[0]}, where nobody can read"
                " them until they are restored: remove it, or let it name GLACIER_IR"
            )  # fmt: skip
    ending = "AbortIncompleteMultipartUpload"
    days = [rule[ending].get("DaysAfterInitiation", 0) for rule in rules if ending in rule]
    if not days:
        yield note(
            f"bucket {at.bucket} {_KEEPS_PARTS}: add the lifecycle rule"
            f" AbortIncompleteMultipartUpload with DaysAfterInitiation {PARTS_DAYS_MAX}"
        )
    elif min(days) < PARTS_DAYS_MAX:
        yield note(
            f"bucket {at.bucket} ends uploads in parts after {min(days)} days, which may be before they are completed: raise"
            f" DaysAfterInitiation to {PARTS_DAYS_MAX}"
        )


def _may_concern(rule: Mapping[str, Any], prefix: str) -> bool:
    told = rule.get("Filter") or {}
    below = str(told.get("Prefix") or (told.get("And") or {}).get("Prefix") or rule.get("Prefix") or "")
    return below.startswith(prefix) or prefix.startswith(below)


async def _costly(client: S3Client, at: S3Settings) -> AsyncIterator[Notice]:
    answer = await client.call("get_bucket_versioning", f"looking for versions in bucket {at.bucket}", accept=_DENIED)
    if isinstance(answer, Refusal):
        cure = f"the service does not tell ({answer.code})" if answer.code in _NOT_DONE else "allow this identity s3:GetBucketVersioning"
        yield note(f"nobody can tell whether bucket {at.bucket} keeps versions: {cure}")
    elif answer.get("Status"):
        yield note(
            f"bucket {at.bucket} keeps versions ({answer['Status'].lower()}): what this store deletes is deleted with all versions,"
            " for which it needs s3:DeleteObjectVersion and s3:ListBucketVersions; what others delete stays, and is billed, until a rule"
            " NoncurrentVersionExpiration removes it"
        )
    locked = await client.call(
        "get_object_lock_configuration", f"looking for retention in bucket {at.bucket}",
        accept=(*_DENIED, "ObjectLockConfigurationNotFoundError", "404", "InvalidRequest"),
    )  # fmt: skip
    if not isinstance(locked, Refusal) and (locked.get("ObjectLockConfiguration") or {}).get("Rule"):
        sentence = f"bucket {at.bucket} keeps every blob for a while (object lock), so garbage cannot be deleted: use another"
        yield problem(sentence)


async def excess_of(at: S3Settings, runtime: Runtime) -> list[str]:
    """What everybody may do by the bucket's policy. `NotTriedError`: it lets nobody in, and S3 tells no more."""
    async with _connected(at, runtime, SharedSession()) as blobs:
        doing = f"asking whether bucket {at.bucket} is public"
        told = await blobs.client.call("get_bucket_policy_status", doing, accept=(*_DENIED, "NoSuchBucketPolicy", "404"))
    if not isinstance(told, Refusal) and (told.get("PolicyStatus") or {}).get("IsPublic"):
        return ["shares the bucket with everybody: its policy is public"]
    raise NotTriedError("S3 tells no identity what it may do: read its policies")


# --- the owner ---------------------------------------------------------------------------------------


async def _owner(blobs: S3Blobs, at: S3Settings, owner: str, wanted: Provisioning) -> Notice:
    address, markers = f"s3://{at.bucket}", await blobs.owners()
    own = own_marker(markers, at.prefix)
    if (finding := settled(markers, address, at.prefix, owner, wanted.adopt_from)) is not None:
        return finding

    async def give() -> None:
        metadata, text = encode_marker(address, at.prefix, owner)
        only: dict[str, Any] = {"IfNoneMatch": "*"} if own is None else {}
        doing = f"writing the owner of {place(address, at.prefix)}"
        await blobs.client.call(
            "put_object", doing, effect=True, body=text, ContentLength=len(text), Key=marker_name(at.prefix), Metadata=dict(metadata),
            ContentType="text/plain; charset=utf-8", **only,
        )  # fmt: skip

    is_taken = own is None and await _holds_any(blobs, at.prefix)
    return to_give(own, address, at.prefix, owner, wanted, give, is_taken=is_taken)


async def _holds_any(blobs: S3Blobs, prefix: str) -> bool:
    """Whether anything but markers lies below the prefix."""
    found: Sequence[Any] = (await blobs.list(prefix, f"{prefix[:-1]}0" if prefix else None, 2)).blobs
    return any(prefix or not each.name.startswith(OWNERS) for each in found)
