"""Tries whether a service of S3 does what the store rests on. `PROBES` is the table: a new probe is a row.

    a bucket  -->  try_service  -->  what is missing, each with what it would cost

All of it lies below `PREFIX~probe/RUN/`, which no listing of blobs, no audit and no daemon shows as a blob, and is
removed at the end. `RequestSizes` says how much is tried: `tiered check` tries little, `tiered prove` more. Each
condition is raced, by many requests at once, because a service that looks first and then writes keeps it in each single
request. Names are those that the store can make: those that it refuses are not tried.

*Crash*: a run removes what another left below `~probe/` that began before `LEFT_AFTER_S`; the daemon does so a day
later. *Failure*: as of `try_all`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyio import CancelScope, move_on_after

from changelog.base.errors import TieredError, UnconfirmedError
from changelog.base.runtime import Runtime
from tiered.metadata import NS_PER_S, Metadata
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.provision import s3_bench
from tiered.provision.findings import Notice, NoticeKind, note, problem
from tiered.provision.probes import NO_RIGHT, Probe, ProbeOutcome, RequestSizes, Result, Tried, try_all
from tiered.provision.s3_bench import PAGES_MAX, S3Bench, at_once
from tiered.s3.blobs import S3Blobs
from tiered.s3.client import Answer
from tiered.s3.errors import PASSING_OR_UNCLEAR, Refusal
from tiered.s3.format import NAME_BYTES_MAX, ns_of, tag_of
from tiered.services.backends import ByteRange

_CLEANING_S = 60.0
_FAR_NS = 1 << 62
_PAYLOAD, _LATE = b"tiered tries what this service does", b"what came late"


async def try_service(
    ours: S3Blobs, other: S3Blobs, prefix: str, runtime: Runtime, sizes: RequestSizes | None = None, *, whole_checksums: bool = True
) -> list[Notice]:
    """What is missing, as `tiered check` tells it. The arguments are those of `try_probes`."""
    sizes = sizes or s3_bench.CHECK
    outcomes, left = await try_probes(ours, other, prefix, runtime, sizes, whole_checksums=whole_checksums)
    service = ours.client.endpoint
    found = [_notice(service, each) for each in outcomes if each.result is not Result.HELD and not each.never_begun]
    if rest := [each for each in outcomes if each.never_begun]:
        unknown = "; ".join(each.probe.promise for each in rest)
        found.append(problem(f"{service} {rest[0].said}, so nobody knows whether it keeps to this: {unknown}; try again"))
    return found if left is None else [*found, note(left)]


async def try_probes(
    ours: S3Blobs, other: S3Blobs, prefix: str, runtime: Runtime, sizes: RequestSizes, *, whole_checksums: bool = True
) -> tuple[list[ProbeOutcome[S3Bench]], str | None]:
    """The outcomes, and why something is left of what was tried. Raises `TieredError` if nobody answers.

    `ours`, `other`: the same bucket over other connections. `prefix`: of the store. `whole_checksums`: as in the
    settings.
    """
    bench = S3Bench(ours, other, prefix, runtime, sizes, whole_checksums=whole_checksums)
    try:
        with move_on_after(sizes.limit_s):
            await bench.sweep()
        outcomes = await try_all(PROBES, bench, sizes.limit_s, PASSING_OR_UNCLEAR)
    finally:
        with CancelScope(shield=True), move_on_after(_CLEANING_S):
            why = await bench.clean()
    return outcomes, None if why is None else f"what was tried lies below {bench.prefix}, until a later check removes it: {why}"


def _notice(service: str, outcome: ProbeOutcome[S3Bench]) -> Notice:
    probe = outcome.probe
    told = f"{outcome.said}. Without it," if outcome.said.endswith(")") and probe.promise in outcome.said else f"{outcome.said}, so"
    lasts = probe.kind is NoticeKind.NOTE and outcome.result is Result.BROKEN
    return Notice(probe.kind, f"{service} {told} {probe.cost}: {probe.cure}", lasts=lasts)


# --- what is tried -----------------------------------------------------------------------------------


async def _basis(bench: S3Bench) -> Tried:
    """Through the store's own adapter, which checks what it is told."""
    name, metadata = bench.name("basis"), Metadata(custom={"tried": "yes"})
    upload = await bench.ours.open_upload(name, metadata, len(_PAYLOAD))
    bench.made(name)
    await upload.write(_PAYLOAD)
    await upload.finalise()
    for range, wanted in ((None, _PAYLOAD), (ByteRange(2, 9), _PAYLOAD[2:9])):
        reader = await bench.other.open(name, range)
        if reader is None:
            return "does not find an object that it has just stored"
        try:
            read = b"".join([chunk async for chunk in reader.chunks()])
        finally:
            await reader.aclose()
        if read != wanted:
            return f"tells other bytes of {'an object' if range is None else 'a range'} than were stored"
        if dict(reader.metadata.custom) != {"tried": "yes"}:
            return "loses the metadata of an object"
    told = await bench.head(name)
    bench.versions = told is not None and told.get("VersionId") not in (None, "null")
    return None


async def _seen_at_once(bench: S3Bench) -> Tried:
    """What is put and deleted by one connection is seen so by another."""
    for number in range(bench.sizes.rounds):
        name = bench.name(f"seen/{number}")
        await bench.put(name, _PAYLOAD)
        if await bench.head(name) is None or await bench.body(name) != _PAYLOAD:
            return "does not show an object that was just stored to another connection"
        if await bench.listed(name) != [name]:
            return "does not list an object that was just stored"
        await bench.delete(name)
        if await bench.head(name) is not None or await bench.body(name) is not None:
            return "still shows an object that was deleted"
        if await bench.listed(name):
            return "still lists an object that was deleted"
    return None


async def _one_tag(bench: S3Bench) -> Tried:
    name = bench.name("tag")
    await bench.put(name, _PAYLOAD)
    told = await bench.head(name)
    page = await bench.page(name)
    listed = next((each for each in page.get("Contents", ()) if each["Key"] == name), None)
    if told is None or listed is None:
        return "loses an object"
    by_head, by_list = (
        (tag_of(each), ns_of(each["LastModified"]) // NS_PER_S, each[size]) for each, size in ((told, "ContentLength"), (listed, "Size"))
    )
    return None if by_head == by_list else f"lists an object with another tag, second or size than HEAD tells ({by_list}, {by_head})"


async def _puts_race(bench: S3Bench) -> Tried:
    for number in range(bench.sizes.rounds):
        name, bodies = bench.name(f"puts/{number}"), _bodies(bench)
        outcomes = await at_once([partial(bench.put, name, body) for body in bodies])
        if wrong := await _not_one(bench, name, "PutObject", outcomes, bodies):
            return wrong
        if await bench.put(name, _LATE) or await bench.body(name) == _LATE:
            return "ignores If-None-Match in PutObject"
    return None


async def _completions_race(bench: S3Bench) -> Tried:
    """Half of them are completions, and half are puts, because either may come late."""
    for number in range(bench.sizes.rounds):
        name, bodies = bench.name(f"completed/{number}"), _bodies(bench)
        half = len(bodies) // 2 or 1
        *racing, late = [await bench.uploaded(name, body) for body in (*bodies[:half], _LATE)]
        completions = [partial(bench.complete, name, *each) for each in racing]
        outcomes = await at_once([*completions, *(partial(bench.put, name, body) for body in bodies[half:])])
        if wrong := await _not_one(bench, name, "CompleteMultipartUpload and PutObject", outcomes, bodies):
            return wrong
        if await bench.complete(name, *late) or await bench.body(name) == _LATE:
            return "ignores If-None-Match in CompleteMultipartUpload"
    return None


def _bodies(bench: S3Bench) -> list[bytes]:
    """Of equal size, so that only their bytes tell them apart."""
    return [f"{number:08}".encode() * (bench.sizes.body_bytes // 8) for number in range(bench.sizes.racers)]


async def _not_one(bench: S3Bench, name: str, call: str, outcomes: Sequence[bool | None], bodies: Sequence[bytes]) -> Tried:
    made = [body for outcome, body in zip(outcomes, bodies, strict=True) if outcome]
    if len(made) > 1:
        return f"told {len(made)} of {len(bodies)} {call} at once, each with If-None-Match, that they had made the same object"
    found = await bench.body(name)
    if found is None and None not in outcomes:
        return f"refused each of {len(bodies)} {call} at once, each with If-None-Match"
    if made and found != made[0]:
        return f"replaced the object of the one that won among {len(bodies)} {call} at once, each with If-None-Match"
    return None


async def _aborts(bench: S3Bench) -> Tried:
    name = bench.name("aborted/first")
    upload, part = await bench.uploaded(name, _PAYLOAD)
    await bench.abort(name, upload)
    if await bench.complete(name, upload, part) or await bench.head(name) is not None or await bench.listed(name):
        return "completes an upload in parts that was ended before"
    for number in range(bench.sizes.rounds):
        name = bench.name(f"aborted/{number}")
        upload, part = await bench.uploaded(name, _PAYLOAD)
        made, _ = await at_once([partial(bench.complete, name, upload, part), partial(bench.abort, name, upload)])
        await bench.abort(name, upload)
        if made is False and await bench.head(name) is not None:
            return "refused a completion beside the end of its upload, and made the object nevertheless"
        if made and await bench.body(name) != _PAYLOAD:
            return "lost an object whose completion it had confirmed, because its upload was being ended"
    return None


async def _deletes_only_the_tag(bench: S3Bench) -> Tried:
    name = bench.name("deleted/first")
    await bench.put(name, _PAYLOAD)
    tag = await bench.tag(name)
    if await bench.delete_tag(name, f"{tag[:-1]}{'0' if tag[-1:] != '0' else '1'}") or await bench.head(name) is None:
        return "ignores If-Match in DeleteObject"
    for number in range(bench.sizes.rounds):
        name = bench.name(f"deleted/{number}")
        await bench.put(name, _PAYLOAD)
        tag, again = await bench.tag(name), f"again {number}".encode()
        deletions = [partial(bench.delete_tag, name, tag)] * bench.sizes.racers
        outcomes = await at_once([*deletions, partial(bench.make, name, again)])
        if outcomes[-1] and await bench.body(name) != again:
            return f"deleted what came after the object that {len(deletions)} DeleteObject at once named by If-Match"
    return None


async def _refuses_a_wrong_put(bench: S3Bench) -> Tried:
    name = bench.name("wrong/whole")
    bench.made(name)
    taken = await _takes(lambda: bench.call("put_object", name, body=_PAYLOAD, ContentLength=len(_PAYLOAD), ChecksumCRC32C=_wrong_crc()))
    return "takes PutObject with bytes that do not have their crc32c" if taken or await bench.head(name) is not None else None


async def _refuses_a_wrong_part(bench: S3Bench) -> Tried:
    name = bench.name("wrong/part")
    upload = await bench.begin(name)
    taken = await _takes(lambda: bench.part(name, upload, _PAYLOAD, crc=_wrong_crc()))
    return "takes UploadPart with bytes that do not have their crc32c" if taken else None


async def _tells_what_arrived(bench: S3Bench) -> Tried:
    """A crc32c that is told proves that the bytes arrived, so it may not be the one that came with them."""
    name, wrong, told = bench.name("wrong/told"), _wrong_crc(), list[Any]()
    bench.made(name)
    upload = await bench.begin(name)
    for operation, only in (("put_object", {}), ("upload_part", {"UploadId": upload, "PartNumber": 1})):

        async def send(operation: str = operation, only: Mapping[str, Any] = only) -> None:
            told.append(await bench.call(operation, name, body=_PAYLOAD, ContentLength=len(_PAYLOAD), ChecksumCRC32C=wrong, **only))

        await _takes(send)
    told.append(await bench.head(name) or {})
    repeats = any(each.get("ChecksumCRC32C") == wrong for each in told)
    return "tells the crc32c that came with bytes, which is not theirs" if repeats else None


def _wrong_crc() -> str:
    return encode_crc(extend_crc(0, _PAYLOAD) ^ 1)


async def _takes(send: Callable[[], Awaitable[Any]]) -> bool:
    """Whether the service says yes. An error without its answer is raised."""
    try:
        await send()
    except TieredError as error:
        if not error.heard and not isinstance(error, UnconfirmedError):
            raise
        return False
    return True


async def _lists_parts(bench: S3Bench) -> Tried:
    name = bench.name("listed/parts")
    upload = await bench.begin(name)
    sent = [await bench.part(name, upload, _PAYLOAD * number, number) for number in (1, 2)]
    page = await bench.call("list_parts", name, UploadId=upload)
    assert not isinstance(page, Refusal), "no code is accepted"
    told = [(each.get("PartNumber"), tag_of(each), each.get("Size")) for each in page.get("Parts", ())]
    wanted = [(number, tag_of(each), len(_PAYLOAD) * number) for number, each in enumerate(sent, 1)]
    return None if told == wanted else f"lists other parts of an upload than it took ({told} instead of {wanted})"


async def _lists_uploads(bench: S3Bench) -> Tried:
    """Page by page, as the daemon looks for them."""
    prefix = bench.name("uploads/")
    names = sorted(f"{prefix}{number}/{bench.run}" for number in range(bench.sizes.uploads))
    for name in names:
        await bench.begin(name)
    found: list[str] = []
    after: str | None = ""
    for _ in range(PAGES_MAX):
        page = await bench.other.open_sessions(_FAR_NS, after or "", 2, prefix)
        found += [each.name for each in page.sessions]
        after = page.next_after
        if after is None:
            break
    if after is not None:
        return "lists the uploads that have not ended in pages without an end"
    return None if sorted(found) == names else f"lists {len(found)} of {len(names)} uploads that have not ended, or others"


async def _copies(bench: S3Bench) -> Tried:
    source, name = bench.name("copy/source"), bench.name("copy/made")
    await bench.put(source, _PAYLOAD)
    tag, upload = await bench.tag(source), await bench.begin(name, is_copy=True)

    async def copy(tag: str) -> Answer | Refusal:
        return await bench.call(
            "upload_part_copy", name, UploadId=upload, PartNumber=1, CopySource={"Bucket": bench.client.bucket, "Key": source},
            CopySourceIfMatch=f'"{tag}"',
        )  # fmt: skip

    if await _takes(lambda: copy("0" * 32)):
        return "ignores x-amz-copy-source-if-match in UploadPartCopy"
    answer = await copy(tag)
    assert not isinstance(answer, Refusal), "no code is accepted"
    part = {"PartNumber": 1, "ETag": (answer.get("CopyPartResult") or {}).get("ETag", "")}
    await bench.complete(name, upload, part)
    return None if await bench.body(name) == _PAYLOAD else "makes another object of a copy"


async def _tells_the_whole(bench: S3Bench) -> Tried:
    name, crc = bench.name("checksum"), encode_crc(extend_crc(0, _PAYLOAD))
    upload = await bench.begin(name)
    if not bench.whole:
        return None  # it takes none
    if not await bench.complete(name, upload, await bench.part(name, upload, _PAYLOAD)):
        return "refuses the crc32c of an object made of parts"
    told = await bench.head(name) or {}
    there = told.get("ChecksumCRC32C")
    is_wrong = told.get("ChecksumType") == "FULL_OBJECT" and there not in (None, crc)
    return f"tells a wrong crc32c of an object made of parts ({there} instead of {crc})" if is_wrong else None


# --- names -------------------------------------------------------------------------------------------

_FULL = "full/"
"""Stands for a name of as many bytes as S3 takes."""
_COMMON_ORDER, _ORDER = "the order of common names", "the order of all"
_COMMON = "objects with such keys cannot be stored or read, or the audit calls them lost"
_RARE = "objects with such keys cannot be stored, or the audit doubts what it lists and deletes nothing"
_OTHER_KEYS = "use no such keys, or another service"


@dataclass(frozen=True, slots=True)
class _Tails:
    """Names below `~probe/RUN/names/`, which are listed in the order of their bytes."""

    what: str
    tails: Sequence[str]
    is_common: bool = True


_NAMES = (
    _Tails("spaces and plus signs", ("a b/x", "a+b/x")),
    _Tails("what addresses and XML escape", ("%2F%25/x", "&<>\"'/x", "?#;=\\/x")),
    _Tails("other letters than ASCII", ("\u00e9/x", "e\u0301/x", "\uff5e/x", "\U0001f600/x")),
    _Tails("capital letters", ("case/x", "CASE/x")),
    _Tails("what comes before and after a slash", ("a!/x", "a/x", "a0/x")),
    _Tails("two slashes", ("//x", "slashes//x"), is_common=False),
    _Tails("what XML cannot hold", ("\ufffe/x",), is_common=False),
    _Tails("an object beside its own folder", ("own", "own/x"), is_common=False),
    _Tails("300 bytes between slashes", (f"{'s' * 300}/x",), is_common=False),
    _Tails(f"{NAME_BYTES_MAX} bytes", (_FULL,), is_common=False),
)


async def _names(bench: S3Bench) -> Mapping[str, Tried]:
    """What is wrong with each of `_NAMES`, and with their order. It is tried once in each run."""
    if not bench.names:
        tried = _TriedNames(bench)
        try:
            await tried.common()
            await tried.rare()
            await tried.deletions()
            bench.names = tried.found
        except TieredError as error:
            bench.names = error
    if isinstance(bench.names, TieredError):
        raise bench.names
    return bench.names


class _TriedNames:
    """Puts names, reads and lists each, lists all in order, and deletes all. `found`: what is wrong, by the tail."""

    def __init__(self, bench: S3Bench) -> None:
        self.found: dict[str, Tried] = {}
        self._bench = bench
        self._right: list[str] = []

    async def common(self) -> None:
        await self._put_all(is_common=True)
        self.found[_COMMON_ORDER] = await self._listed()

    async def rare(self) -> None:
        await self._put_all(is_common=False)
        self.found[_ORDER] = self.found[_COMMON_ORDER] or await self._listed()

    async def deletions(self) -> None:
        for tail in self._right:
            await self._judge(tail, self._delete)
        left = await self._bench.listed(self._name(""))
        for tail in self._right:
            if self.found[tail] is None and self._name(tail) in left:
                self.found[tail] = f"still lists a name with {_shown(tail)}, which was deleted"

    async def _put_all(self, *, is_common: bool) -> None:
        for tail in (tail for each in _NAMES if each.is_common is is_common for tail in each.tails):
            if await self._judge(tail, self._put):
                self._right.append(tail)
            else:  # so that it spoils nothing that is listed with it
                await self._judge(tail, self._delete)

    async def _judge(self, tail: str, work: Callable[[str], Awaitable[Tried]]) -> bool:
        before = self.found.get(tail)
        try:
            wrong = await work(tail)
        except TieredError as error:
            if work == self._delete and error.code in NO_RIGHT:
                raise  # what was stored is no less well stored
            wrong = f"fails at a name with {_shown(tail)} ({str(error).replace(self._name(tail), '…')})"
        self.found[tail] = before or wrong
        return self.found[tail] is None

    async def _put(self, tail: str) -> Tried:
        name = self._name(tail)
        made = await self._bench.put(name, name.encode())
        if not made:
            return f"{'gives no clear answer to' if made is None else 'says that there is already'} a name with {_shown(tail)}"
        if await self._bench.body(name) != name.encode():
            return f"does not find what it stored under a name with {_shown(tail)}"
        told = await self._bench.listed(name)
        return None if name in told else f"lists a name with {_shown(tail)} as {[_shown(each) for each in told]}"

    async def _delete(self, tail: str) -> Tried:
        await self._bench.delete(self._name(tail))
        return None

    async def _listed(self) -> Tried:
        try:
            told = await self._bench.listed(self._name(""))
        except TieredError as error:
            return f"does not list together the names that it lists one by one ({error})"
        wanted = sorted(map(self._name, self._right), key=str.encode)
        if told == wanted:
            return None
        return f"lists names in another order than that of their bytes, or not all: {', '.join(map(_shown, told))}"

    def _name(self, tail: str) -> str:
        name = self._bench.name(f"names/{tail}")
        return f"{(name + 'folder/' * NAME_BYTES_MAX)[: NAME_BYTES_MAX - 1]}x" if tail == _FULL else name


def _shown(name: str) -> str:
    tail = name.partition("/names/")[2] or name
    return ascii(tail if len(tail) <= 20 else f"{tail[:9]}…{tail[-9:]}")


def _probe_of(names: _Tails) -> Probe[S3Bench]:
    async def run(bench: S3Bench) -> Tried:
        found = await _names(bench)
        return next((found[tail] for tail in names.tails if found[tail] is not None), None)

    kind, cost = (NoticeKind.PROBLEM, _COMMON) if names.is_common else (NoticeKind.NOTE, _RARE)
    promise = f"an object whose name has {names.what} is stored, read, listed by this name, and deleted"
    return Probe(f"names: {names.what}", promise, kind, cost, run, _OTHER_KEYS)


async def _in_order(bench: S3Bench) -> Tried:
    return (await _names(bench))[_COMMON_ORDER]


async def _all_in_order(bench: S3Bench) -> Tried:
    found = await _names(bench)
    return None if found[_COMMON_ORDER] else found[_ORDER]


# --- the table ---------------------------------------------------------------------------------------

_COMES_BACK = "a write that arrives late would replace a blob, and one that was deleted could come back"

PROBES: Sequence[Probe[S3Bench]] = (
    Probe("an object", "an object is stored, and read", NoticeKind.PROBLEM, "no store can be kept there", _basis),
    Probe(
        "PutObject", "of many PutObject with If-None-Match at once, one makes the object", NoticeKind.PROBLEM, _COMES_BACK, _puts_race,
    ),
    Probe(
        "CompleteMultipartUpload", "of many completions and PutObject with If-None-Match at once, one makes the object",
        NoticeKind.PROBLEM, _COMES_BACK, _completions_race,
    ),
    Probe(
        "AbortMultipartUpload", "an upload in parts that was ended makes no object", NoticeKind.PROBLEM,
        "a large put that recovery has undone could appear later, as garbage that nobody finds but the audit", _aborts,
    ),
    Probe(
        "reads after writes", "what is stored or deleted is seen so at once, in listings, too", NoticeKind.PROBLEM,
        "what was stored is not found, and the audit calls it lost, or calls garbage what nobody needs to delete", _seen_at_once,
    ),
    Probe(
        "the order of listings", "names are listed in the order of their bytes", NoticeKind.PROBLEM,
        "the audit cannot compare what is there with the rows", _in_order,
    ),
    *map(_probe_of, _NAMES),
    Probe(
        "rare names in listings", "rare names are listed in the order of their bytes, too", NoticeKind.NOTE, _RARE, _all_in_order,
        _OTHER_KEYS,
    ),
    Probe(
        "ListParts", "the parts of an upload are listed with number, size and ETag", NoticeKind.PROBLEM,
        "an upload that its caller sends in parts can be neither resumed nor completed", _lists_parts,
    ),
    Probe(
        "the crc32c of an object", "bytes that do not have their crc32c are refused", NoticeKind.NOTE,
        "what is damaged on its way is found only by what is read back", _refuses_a_wrong_put,
    ),
    Probe(
        "the crc32c of a part", "a part that does not have its crc32c is refused", NoticeKind.NOTE,
        "what is damaged on its way is found only by what is read back", _refuses_a_wrong_part,
    ),
    Probe(
        "the crc32c that is told", "a crc32c that is told is that of the bytes that arrived", NoticeKind.PROBLEM,
        "what was damaged on its way would be said to be stored", _tells_what_arrived,
    ),
    Probe(
        "the crc32c of a whole", "the crc32c of an object made of parts is right", NoticeKind.PROBLEM,
        "each read of a large object would fail", _tells_the_whole, "set s3.whole_checksums: false", lambda bench: bench.whole_wanted,
    ),
    Probe(
        "tags", "a listing has the tag, the second and the size of an object that HEAD has", NoticeKind.NOTE,
        "the audit takes each blob for another one than it listed, and deletes none", _one_tag,
    ),
    Probe(
        "ListMultipartUploads", "the uploads that have not ended are listed, page by page", NoticeKind.NOTE,
        "the daemon does not end uploads whose writer died before it had recorded them", _lists_uploads,
        "a rule of the bucket, or the service itself, must end them",
    ),
    Probe(
        "If-Match in DeleteObject", "an object is deleted only if it has the tag that was named", NoticeKind.NOTE,
        "what 'tiered audit restore' brings back at that moment could be deleted by 'tiered audit delete'", _deletes_only_the_tag,
        "run one of them at a time", lambda bench: not bench.versions,
    ),
    Probe(
        "UploadPartCopy", "a part is copied from an object that has the tag that was named", NoticeKind.NOTE,
        "objects cannot be copied, and the audit keeps no copy of what it deletes", _copies,
    ),
)  # fmt: skip
"""The costliest first. The first is what all others need."""
