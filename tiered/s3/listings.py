"""The listings of a bucket, page by page. What is told is checked by `PageCheck`. Nobody else sends one but
`S3Client`, which looks for one name, and `tiered check`, which looks for what is wrong with them (a test).

    objects       one page of the objects after a name: one request, or more if the service leaves a page empty
    pages         page after page of objects
    versions      all versions of one name, and its delete markers
    hidden        the version that delete markers hide
    uploads       uploads in parts after a name; one request, and more if one name fills a page
    parts         all parts of an upload

S3 promises that objects, versions and uploads come in the order of the bytes of their names, and parts in that of their
numbers. A page of objects is asked for by the name before it, and by a token only if a page was empty. `ListingError`:
what was told cannot be true. Other *failures*: see `client.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tiered.s3.client import Answer, S3Client
from tiered.s3.errors import Refusal, odd
from tiered.s3.format import ns_of
from tiered.services.paging import PageCheck, page_of_uploads

PAGE_MAX = 1000


class ListedKeys(NamedTuple):
    """`is_last`: nothing comes after it. `answer`: the last one, as it came."""

    items: Sequence[Mapping[str, Any]]
    is_last: bool
    answer: Answer


async def objects(
    client: S3Client, doing: str, *, after: str = "", prefix: str = "", limit: int = PAGE_MAX, accept: Collection[str] = ()
) -> ListedKeys | Refusal:
    """Returns objects whose names come after `after` and begin with `prefix`, fewer than `limit` only if it is the end.

    A page without items is the last one.
    """
    named: dict[str, Any] = {"MaxKeys": limit, **({"Prefix": prefix} if prefix else {}), **({"StartAfter": after} if after else {})}
    check = PageCheck(doing, prefix=prefix, after=after or None)
    while True:
        answer = await client.call("list_objects_v2", doing, accept=accept, **named)
        if isinstance(answer, Refusal):
            return answer
        items, following = answer.get("Contents", ()), answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
        check.take([each["Key"] for each in items], None if items else following)
        if items:
            return ListedKeys(items, not answer.get("IsTruncated"), answer)
        if not answer.get("IsTruncated"):
            return ListedKeys((), True, answer)
        if not following:
            raise odd(doing, effect=False, what="with no object, and as if there were more")
        named["ContinuationToken"] = following


async def pages(
    ask: Callable[[str], Awaitable[ListedKeys]], after: str, last: str | None = None
) -> AsyncGenerator[Sequence[Mapping[str, Any]], None]:
    """Yields the items of all pages, or of those up to the one that reaches the name `last`. `ask`: for the page after
    a name.
    """
    while True:
        page = await ask(after)
        yield page.items
        if page.is_last or (last is not None and page.items[-1]["Key"] >= last):
            return
        after = page.items[-1]["Key"]


async def versions(client: S3Client, doing: str, name: str) -> Sequence[Mapping[str, Any]]:
    """A delete marker has no `ETag`, and no `Size`. Versions come newest first, and so do markers. What came between
    them, only `IsLatest` tells: services do not take the times of both from one clock."""
    found: list[Mapping[str, Any]] = []
    named: dict[str, Any] = {}
    checks = {kind: PageCheck(doing, prefix=name) for kind in ("Versions", "DeleteMarkers")}
    while True:
        page = await client.call("list_object_versions", doing, Prefix=name, MaxKeys=PAGE_MAX, **named)
        assert not isinstance(page, Refusal), "no code is accepted"
        following = (page.get("NextKeyMarker"), page.get("NextVersionIdMarker", "")) if page.get("IsTruncated") else None
        told = [each for kind in checks for each in page.get(kind, ())]
        for kind, check in checks.items():
            items = page.get(kind, ())
            check.take([each["Key"] for each in items], following, [each["VersionId"] for each in items])
        found += [each for each in told if each["Key"] == name]
        if following is None or any(each["Key"] != name for each in told):  # they come in the order of names
            return found
        if not following[0]:
            raise odd(doing, effect=False, what="as if there were more, and not where")
        named = {"KeyMarker": following[0], "VersionIdMarker": following[1]}


async def hidden(client: S3Client, name: str) -> tuple[Answer | None, Sequence[Answer]]:
    """The newest version of a name, and its delete markers, the newest first. None: no marker hides a version."""
    kept = await versions(client, f"listing the versions of blob {name!r}", name)
    markers = sorted((each for each in kept if "ETag" not in each), key=lambda each: not each.get("IsLatest"))
    version = next((each for each in kept if "ETag" in each), None)
    return (None, ()) if version is None or not markers or not markers[0].get("IsLatest") else (version, markers)


class UnendedUpload(NamedTuple):
    name: str
    upload_id: str
    begun_ns: int


async def uploads(client: S3Client, doing: str, after: str, prefix: str, limit: int) -> tuple[Sequence[UnendedUpload], str | None]:
    """As `page_of_uploads`."""

    async def ask(name: str, upload_id: str) -> tuple[Sequence[UnendedUpload], bool]:
        named: dict[str, Any] = {key: value for key, value in (("KeyMarker", name), ("UploadIdMarker", upload_id)) if value}
        page = await client.call("list_multipart_uploads", doing, Prefix=prefix, MaxUploads=limit, **named)
        assert not isinstance(page, Refusal), "no code is accepted"
        told = [UnendedUpload(each["Key"], each["UploadId"], ns_of(each["Initiated"])) for each in page.get("Uploads", ())]
        return told, bool(page.get("IsTruncated"))

    return await page_of_uploads(ask, doing, after, prefix)


async def parts(client: S3Client, doing: str, name: str, upload_id: str, accept: Collection[str]) -> Sequence[Mapping[str, Any]] | Refusal:
    found: list[Mapping[str, Any]] = []
    named: dict[str, Any] = {}
    check = PageCheck(doing, after=0)
    while True:
        page = await client.call("list_parts", doing, accept=accept, Key=name, UploadId=upload_id, **named)
        if isinstance(page, Refusal):
            return page
        told, marker = page.get("Parts", ()), page.get("NextPartNumberMarker") if page.get("IsTruncated") else None
        check.take([each["PartNumber"] for each in told], marker)
        found += told
        if not page.get("IsTruncated"):
            return found
        if not marker:
            raise odd(doing, effect=False, what="as if there were more, and not where")
        named = {"PartNumberMarker": marker}
