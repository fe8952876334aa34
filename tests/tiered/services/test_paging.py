"""Each listing of each adapter x each lie: what cannot be true is told as no evidence, and nothing goes on for ever.

The services are real ones in this process. Between them and the adapter, the pages of each listing are made anew from
all that the service has: two entries on each page, as it should be, or with a lie.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from changelog.base.errors import TieredError
from changelog.base.runtime import SystemRuntime
from changelog.log import LeftGarbageError
from emulators.gcs.server import GcsEmulator
from emulators.s3.memory import MemoryLibrary, MemoryS3, memory_blobs
from tests.given.repository import ROOT
from tiered.buckets.owners import encode_marker, marker_name
from tiered.gcs.answers import GcsResponse
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.bucket_files import GcsFiles
from tiered.gcs.http import ConnectionSlot, GcsRequest
from tiered.metadata import NS_PER_S, Metadata, TimeToLive
from tiered.s3.blobs import S3Blobs
from tiered.s3.bucket_files import S3Files
from tiered.s3.listings import versions
from tiered.services import paging
from tiered.services.capabilities import Retention
from tiered.services.paging import ListingError, PageCheck, page_of_uploads
from tiered.testing.contracts.whole_blobs import store

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
RUNTIME = SystemRuntime()
PAGE, ASKED_MAX = 2, 300
LATER_NS = RUNTIME.wall_ns() + 86_400 * NS_PER_S


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def few_empty_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "EMPTY_PAGES_MAX", 20)


# --- the rules -------------------------------------------------------------------------------------


def test_a_listing_in_order_within_what_was_asked_for_is_taken_page_by_page() -> None:
    check = PageCheck("listing", start="b", end="f", prefix="")
    for names, following in ((["b", "c"], 1), ([], 2), ([], 3), (["d", "e"], None)):
        check.take(names, following)
    several = PageCheck("listing", prefix="a")
    several.take(["a", "a", "ab"], 1, [1, 2, 1])
    several.take(["ab", "ab", "ac"], None, [2, 3, 1])


@pytest.mark.parametrize(
    ("asked", "pages"),
    [
        ({}, [(["a", "a"], None)]), ({}, [(["b", "a"], None)]), ({}, [(["a", "b"], 1), (["b"], None)]), ({}, [(["b"], 1), (["a"], None)]),
        ({}, [([], 1), ([], 1)]), ({}, [([], 1), ([], 2), ([], 1)]), ({"start": "b"}, [(["a"], None)]),
        ({"end": "b"}, [(["a", "b"], None)]),
        ({"prefix": "a/"}, [(["a/b", "b"], None)]), ({"prefix": "a/"}, [(["a", "a/b"], None)]), ({"after": "b"}, [(["b"], None)]),
        ({}, [(["\U0001f600", "\uffee"], None)]),
    ],
)  # fmt: skip
def test_what_no_listing_has_is_an_error(asked: Mapping[str, Any], pages: Sequence[tuple[list[str], Any]]) -> None:
    check = PageCheck("listing the blobs", **asked)
    for names, following in pages[:-1]:
        check.take(names, following)
    with pytest.raises(ListingError, match="listing the blobs: the answer is no evidence"):
        check.take(*pages[-1])


def test_an_entry_that_is_told_twice_is_an_error_also_across_pages() -> None:
    check = PageCheck("listing")
    check.take(["a", "b"], 1, [1, 1])
    with pytest.raises(ListingError, match="'b' once more"):
        check.take(["b", "c"], None, [1, 1])


async def test_all_uploads_in_one_page_need_no_order_and_more_of_them_do() -> None:
    async def ask(after: str, upload_id: str) -> tuple[Sequence[tuple[str, str]], bool]:
        return [("b", "1"), ("a", "2")], is_more

    is_more = False
    assert await page_of_uploads(ask, "listing", "", "") == ([("a", "2"), ("b", "1")], None)
    with pytest.raises(ListingError, match="not the order of bytes"):
        await page_of_uploads(ask, "listing", "0", "")
    is_more = True
    with pytest.raises(ListingError, match="not the order of bytes"):
        await page_of_uploads(ask, "listing", "", "")


# --- lies ------------------------------------------------------------------------------------------

Entries = list[Any]


@dataclass
class Lie:
    """Makes a page of `everything`, from the place `at` on: its entries, and what the next page begins at.

    `rename`: gives an entry another name. `number`: how many pages were asked for before. `loud`: it can be seen here.
    """

    name: str
    make: Callable[[Entries, int, int, Callable[[Any, str], Any]], tuple[Entries, Any]]
    loud: bool = True


def _honest(everything: Entries, at: int, number: int, rename: Any) -> tuple[Entries, Any]:
    return everything[at : at + PAGE], at + PAGE if at + PAGE < len(everything) else None


def _changed(change: Callable[[Entries, Callable[[Any, str], Any]], Entries]) -> Any:
    def make(everything: Entries, at: int, number: int, rename: Any) -> tuple[Entries, Any]:
        entries, following = _honest(everything, at, number, rename)
        return change(entries, rename), following

    return make


def _reversed_pages(everything: Entries, at: int, number: int, rename: Any) -> tuple[Entries, Any]:
    last = len(everything) - PAGE * number
    return everything[max(0, last - PAGE) : max(0, last)], at + PAGE if last > PAGE else None


LIES = [
    Lie("honest", _honest, loud=False),
    Lie("a page left out", lambda every, at, n, r: _honest(every, at + PAGE if at == PAGE else at, n, r), loud=False),
    Lie("it ends early", lambda every, at, n, r: (every[at : at + PAGE], None), loud=False),
    Lie("a key doubled", _changed(lambda page, rename: [*page[:1], *page])),
    Lie("a page doubled", lambda every, at, n, r: (_honest(every, max(0, at - PAGE), n, r)[0], at + PAGE)),
    Lie("pages reversed", _reversed_pages),
    Lie("reversed within a page", _changed(lambda page, rename: page[::-1])),
    Lie("a token repeated", lambda every, at, n, r: ([], "again")),
    Lie("empty without an end", lambda every, at, n, r: ([], f"empty-{n}")),
    Lie("a foreign key", _changed(lambda page, rename: [rename(page[0], "!foreign"), *page[1:]] if page else page)),
    Lie("a name changed", _changed(lambda page, rename: [rename(each, "//") for each in page]), loud=False),
]


@dataclass
class Liar:
    """`whole`: all that was first asked for, also if the rest alone is asked for now."""

    lie: Lie
    asked: int = 0
    whole: Entries = field(default_factory=list)

    def page(self, everything: Entries, at: int, rename: Callable[[Any, str], Any]) -> tuple[Entries, Any]:
        self.asked += 1
        assert self.asked < ASKED_MAX, "it goes on for ever"
        if not all(each in self.whole for each in everything):
            self.whole = everything
        else:
            at, everything = at + len(self.whole) - len(everything), self.whole
        return self.lie.make(everything, at, self.asked - 1, rename)


def renamed(name: Any, to: str) -> Any:
    if isinstance(name, int):
        return 0 if to == "!foreign" else name
    return name.replace("//", "/") if to == "//" else to


# --- S3 --------------------------------------------------------------------------------------------

KEYS = {"list_objects_v2": "Contents", "list_multipart_uploads": "Uploads", "list_parts": "Parts", "list_object_versions": "Versions"}
NAME = "u/objects/a//b/019a0000-0000-7000-8000-00000000000"
NAMES = [f"{NAME}{number}" for number in range(6)]
VERSIONS = [
    {
        "Key": NAMES[0], "VersionId": f"v{number}", "IsLatest": number == 0, "ETag": '"e"', "Size": 1,
        "LastModified": datetime(2026, 1, 1, tzinfo=UTC),
    }
    for number in range(6)
]  # fmt: skip


class LyingLibrary(MemoryLibrary):
    def __init__(self, server: MemoryS3, liar: Liar) -> None:
        super().__init__(server)
        self._liar = liar

    async def send(self, operation: str, named: Mapping[str, Any]) -> Any:
        if operation not in KEYS:
            return await super().send(operation, named)
        markers = ("StartAfter", "ContinuationToken", "KeyMarker", "UploadIdMarker", "VersionIdMarker", "PartNumberMarker")
        key = "PartNumber" if operation == "list_parts" else "Key"
        unpaged = {name: value for name, value in named.items() if name not in (*markers, "MaxKeys", "MaxUploads")}
        whole = await super().send(operation, unpaged)
        everything = VERSIONS if operation == "list_object_versions" else list(whole.get(KEYS[operation], ()))
        after = next((named[marker] for marker in ("StartAfter", "KeyMarker", "PartNumberMarker") if marker in named), None)
        if operation == "list_object_versions":
            at = next((place for place, each in enumerate(everything, 1) if each["VersionId"] == named.get("VersionIdMarker")), 0)
        else:
            at = next((place for place, each in enumerate(everything) if after is None or each[key] > after), len(everything))
        entries, following = self._liar.page(everything, at, lambda each, to: {**each, key: renamed(each[key], to)})
        answer = {**whole, KEYS[operation]: entries, "IsTruncated": following is not None}
        last = entries[-1] if entries else {}
        answer |= {"NextContinuationToken": str(following), "NextKeyMarker": last.get("Key", "k"), "NextPartNumberMarker": last.get(key, 1)}
        return answer | {"NextVersionIdMarker": last.get("VersionId", str(following))}


Read = Callable[[Any], Awaitable[Any]]


async def all_of(blobs: Any) -> list[str]:
    found, start = list[str](), "u/"
    while start is not None:
        page = await blobs.list(start, None, 100)
        found += [each.name for each in page.blobs]
        start = page.next_start
    return found


async def sessions_of(blobs: Any) -> list[str]:
    found, after = list[str](), ""
    while after is not None:
        page = await blobs.open_sessions(LATER_NS, after, 100)
        found += [each.name for each in page.sessions]
        after = page.next_after
    return found


async def parts_of(blobs: Any) -> list[int]:
    return [part.number for part in await blobs.parts(NAME, blobs.session)]


async def collected(blobs: Any) -> int:
    return int(await blobs.collect(1000))


async def names_of(files: Any) -> list[str]:
    return [each async for each in files.names("u/", "u/")]


def at_files(read: Read) -> Read:
    async def read_files(blobs: Any) -> Any:
        return await read(S3Files(blobs.client) if isinstance(blobs, S3Blobs) else GcsFiles(blobs._http, RUNTIME))

    return read_files


S3_CALLS: Mapping[str, Read] = {
    "list": all_of,
    "deadlines": lambda blobs: blobs.head(NAMES[0]),
    "owners": lambda blobs: blobs.owners(),
    "collect": collected,
    "uploads": sessions_of,
    "parts": parts_of,
    "versions": lambda blobs: versions(blobs.client, "listing versions", NAMES[0]),
    "files": at_files(names_of),
    "a file": at_files(lambda files: files.has_any("u/")),
}


@asynccontextmanager
async def s3(liar: Liar) -> AsyncIterator[S3Blobs]:
    server = MemoryS3(RUNTIME)
    async with memory_blobs(server, RUNTIME) as blobs:
        for name in NAMES:
            await store(blobs, name, b"x", Metadata(TimeToLive(ns=1), time_expires_ns=LATER_NS))
            await blobs.begin_parts(f"{name}-open", Metadata())
        for number in range(5):
            await blobs._mark(NAMES[0], LATER_NS + number * NS_PER_S)
            server.put(marker_name(f"{number}/"), b"", {"Metadata": dict(encode_marker("s3://b", f"{number}/", "o")[0])})
        blobs.session = await blobs.begin_parts(NAME, Metadata())  # type: ignore[attr-defined]
        for number in range(1, 7):
            await blobs.put_part(NAME, blobs.session, number, [b"x"])  # type: ignore[attr-defined]
        blobs.client._client = LyingLibrary(server, liar)
        yield blobs


# --- GCS -------------------------------------------------------------------------------------------


Exchange: TypeAlias = Callable[[GcsRequest, ConnectionSlot], Awaitable[GcsResponse]]


def lying(exchange: Exchange, liar: Liar) -> Exchange:
    """The exchanges of `GcsHttp`, whose listings are made anew, and judged as what comes from the service."""
    async def answer(request: GcsRequest, place: ConnectionSlot) -> GcsResponse:
        address = urlsplit(request.url)
        asked = {key: values[0] for key, values in parse_qs(address.query, keep_blank_values=True).items()}
        is_xml = request.xml and ("uploads" in asked or "uploadId" in asked)
        if request.method != "GET" or not (is_xml or address.path.endswith("/o")):
            return await exchange(request, place)
        paged = ("pageToken", "maxResults", "key-marker", "upload-id-marker", "part-number-marker", "max-uploads")
        whole = urlencode({key: value for key, value in asked.items() if key not in paged})
        told = await exchange(replace(request, url=address._replace(query=whole).geturl()), place)
        body = (_xml if is_xml else _json)(told.body, asked, liar)
        return GcsResponse.of(told.status, told.headers, body, request.shape, xml=request.xml)

    return answer


def _json(body: bytes, asked: Mapping[str, str], liar: Liar) -> bytes:
    page = json.loads(body)
    token = asked.get("pageToken", "0")
    at = int(token) if token.isdecimal() else 0
    items, following = liar.page(page.get("items", []), at, lambda each, to: {**each, "name": renamed(each["name"], to)})
    return json.dumps({"kind": page["kind"], "items": items} | ({} if following is None else {"nextPageToken": str(following)})).encode()


def _xml(body: bytes, asked: Mapping[str, str], liar: Liar) -> bytes:
    tag, key, marker = (b"Upload", b"Key", asked.get("key-marker")) if "uploads" in asked else (
        b"Part", b"PartNumber", asked.get("part-number-marker")
    )
    pattern = re.compile(b"<%b>.*?</%b>" % (tag, tag), re.DOTALL)
    everything = pattern.findall(body)

    def name_of(entry: bytes) -> Any:
        found = re.search(b"<%b>(.*?)</%b>" % (key, key), entry)
        assert found is not None
        return int(found[1]) if key == b"PartNumber" else found[1].decode()

    def rename(entry: bytes, to: str) -> bytes:
        return re.sub(b"(<%b>).*?<" % key, b"\\g<1>%b<" % str(renamed(name_of(entry), to)).encode(), entry)

    after = None if marker is None else int(marker) if key == b"PartNumber" else marker
    at = next((place for place, each in enumerate(everything) if after is None or name_of(each) > after), len(everything))
    entries, following = liar.page(everything, at, rename)
    said = b"<IsTruncated>%b</IsTruncated>" % (b"false" if following is None else b"true")
    if following is not None and key == b"PartNumber":
        said += b"<NextPartNumberMarker>%d</NextPartNumberMarker>" % (name_of(entries[-1]) if entries else 1)
    told = re.sub(b"<(IsTruncated|NextPartNumberMarker)>[^<]*</[^>]*>", b"", pattern.sub(b"", body))
    root = re.search(rb"</[A-Za-z]+>\s*$", told)
    assert root is not None
    return told[: root.start()] + said + b"".join(entries) + told[root.start() :]


async def kept_of(blobs: Any) -> int:
    number, token, check = 0, "", PageCheck("counting")
    while token is not None:
        page = await blobs.kept(Retention.SOFT_DELETED, "u/", "u0", token)
        check.take(() if page.last is None else [page.last], page.next_token, () if page.last is None else [page.next_token])
        number, token = number + page.number, page.next_token
    return number


GCS_CALLS: Mapping[str, Read] = {
    "list": all_of,
    "owners": lambda blobs: blobs.owners(),
    "heads": lambda blobs: blobs.heads(NAMES),
    "soft-deleted": lambda blobs: blobs.deleted_generations(f"{NAME}-gone"),
    "kept": kept_of,
    "uploads": sessions_of,
    "parts": parts_of,
    "files": at_files(names_of),
    "a file": at_files(lambda files: files.has_any("u/")),
}


@asynccontextmanager
async def gcs(liar: Liar) -> AsyncIterator[GcsBlobs]:
    async with GcsEmulator() as server:
        server.create_bucket("blobs")
        async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url) as blobs:
            for name in NAMES:
                await store(blobs, name, b"x")
                await blobs.begin_parts(f"{name}-open", Metadata())
                await store(blobs, f"{NAME}-gone", b"x")
                await blobs.delete(f"{NAME}-gone")
            for number in range(5):
                await store(blobs, marker_name(f"{number}/"), b"x")
            blobs.session = await blobs.begin_parts(NAME, Metadata())  # type: ignore[attr-defined]
            for number in range(1, 7):
                await blobs.put_part(NAME, blobs.session, number, [b"x"])  # type: ignore[attr-defined]
            blobs._http.exchange = lying(blobs._http.exchange, liar)  # type: ignore[assignment, method-assign]
            yield blobs


# --- the table -------------------------------------------------------------------------------------

CALLS: Mapping[Callable[[Liar], Any], Mapping[str, Read]] = {s3: S3_CALLS, gcs: GCS_CALLS}
TABLE = [pytest.param(opened, call, id=f"{opened.__name__}-{call}") for opened, calls in CALLS.items() for call in calls]
ONE_PAGE = ("a file",)
"""What this asks, the first page answers."""
OF_ONE_NAME = ("versions", "soft-deleted", "kept")
"""Their entries have one name, so their order cannot be seen to be wrong. All of them are there."""


async def outcome(read: Read, blobs: Any) -> tuple[Any, TieredError | None]:
    try:
        return await read(blobs), None
    except TieredError as error:
        return None, error


@pytest.mark.parametrize(("opened", "call"), TABLE)
async def test_a_listing_that_lies_is_no_evidence(opened: Callable[[Liar], Any], call: str) -> None:
    read, liar = CALLS[opened][call], Liar(Lie("all at once", lambda every, at, n, r: (every[at:], None)))
    async with opened(liar) as blobs:
        truth = await read(blobs)
        for lie in LIES:
            liar.lie, liar.asked, liar.whole = lie, 0, []
            told, error = await outcome(read, blobs)
            assert liar.asked, "the listing was asked for"
            if lie.name == "honest":
                assert error is None and told == truth
            elif error is not None:
                assert isinstance(error, ListingError | LeftGarbageError) or "in between" in str(error), repr(error)
            elif lie.loud:
                assert call in ONE_PAGE or (call in OF_ONE_NAME and "reversed" in lie.name), f"{lie.name}: {told!r} was believed"


def test_every_listing_goes_through_the_check() -> None:
    """A request that lists is sent by these modules alone, which check what it tells."""
    sends = re.compile(r'call\(\s*"list_|[ (]a_(listing|page|list_of_parts|list_of_uploads)\(')
    checks = {"tiered/s3/listings.py": 4, "tiered/gcs/http.py": 1, "tiered/gcs/blobs.py": 1, "tiered/gcs/parts.py": 2}
    # These ask for one thing: whether one may list, whether this is there, the time, which server it is.
    # `answers.py` has the shapes.
    # Probes read pages as they came, because what is wrong on one is what they look for.
    asks_once = {"tiered/provision/s3.py": 1, "tiered/s3/client.py": 3, "tiered/gcs/blobs.py": 1}
    asks_once |= {"tiered/provision/s3_probes.py": 1, "tiered/provision/s3_bench.py": 1}
    found = {
        str(path.relative_to(ROOT)): len(sends.findall(path.read_text()))
        for folder in ("tiered", "recovery") for path in (ROOT / folder).rglob("*.py")
        if path.name != "answers.py" and sends.search(path.read_text())
    }  # fmt: skip
    assert found == Counter(checks) + Counter(asks_once)
    for name, number in checks.items():
        taken = len(re.findall(r"PageCheck\(|check_of\(query|page_of_uploads\(", (ROOT / name).read_text()))
        assert taken >= number, f"{name}: each page goes through PageCheck.take"
    for path in (ROOT / "recovery/audit/sweeping").glob("*.py"):
        assert path.name == "tier_reads.py" or ".blobs.list" not in path.read_text(), f"{path.name}: list through TierReads.list"
