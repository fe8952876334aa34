"""Probes of what lies beside the bytes of a blob, and of copies."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from recovery.prove.probes.bench import Bench
from recovery.prove.probes.blob_calls import (
    DAY_NS,
    LATE,
    MIB,
    OTHER,
    PAYLOAD,
    PLAIN,
    bytes_of,
    deleted,
    head_of,
    listed_one,
    makes,
    new_name,
    put,
    shows,
)
from tiered.metadata import NS_PER_MS, Metadata, TimeToIdle, TimeToLive
from tiered.provision.probes import Tried
from tiered.services.capabilities import PartUploads
from tiered.services.scans import QUARANTINE

# --- metadata and deadlines ------------------------------------------------------------------------

_ASCII = "".join(map(chr, range(33, 127)))
_KINDS = (
    PLAIN,
    Metadata(
        TimeToLive(timedelta(days=30)), time_created_ns=1_700_000_000_123_456_789, content_type="text/plain; charset=utf-8",
        compression="Zstd", origin="203.0.113.42", filename=f"a {_ASCII}.txt", custom={"key": _ASCII, "Trouble": "a b", "empty": ""},
    ),
    Metadata(TimeToIdle(timedelta(days=90)), custom={"!#$%&'*+-.^_`|~019": "x", "UPPER": "case"}, unknown={"newer": {"x": [1, None, "x"]}}),
    Metadata(filename="gr\u00f6\u00dfe \U0001f642.txt", origin="\u65e5\u672c", custom={"text": "\u00fc e\u0301 \uff5e"}),
    Metadata(custom={"long": "x" * 5000}),
)  # fmt: skip


async def metadata_as_stored(bench: Bench) -> Tried:
    far_ns = _far_ns(bench)
    for number, kind in enumerate(_KINDS):
        name, metadata = new_name(bench, "metadata"), kind if kind.expiration is None else replace(kind, time_expires_ns=far_ns)
        if number % 2 and isinstance(bench.blobs, PartUploads):
            session = await bench.blobs.begin_parts(name, metadata)
            await bench.blobs.complete_parts(name, session, [await bench.blobs.put_part(name, session, 1, [PAYLOAD])])
        else:
            await put(bench, name, PAYLOAD, metadata)
        head, reader = await head_of(bench, name), await bench.other_blobs.open(name)
        if reader is None:
            return "loses a blob"
        await reader.aclose()
        created_ns = head.created_ns if metadata.time_created_ns is None else metadata.time_created_ns
        wanted = replace(metadata, size=len(PAYLOAD), time_created_ns=created_ns)
        for told in (head.metadata, reader.metadata):
            if wrong := [each for each in Metadata.__dataclass_fields__ if getattr(told, each) != getattr(wanted, each)]:
                return f"tells other metadata of a blob than were stored: {', '.join(wrong)}"
    return None


def _far_ns(bench: Bench) -> int:
    """A deadline after the trial, in whole milliseconds: no service keeps more."""
    return (bench.runtime.wall_ns() + 30 * DAY_NS) // NS_PER_MS * NS_PER_MS


async def deadlines(bench: Bench) -> Tried:
    name, without, over = new_name(bench, "deadlines"), new_name(bench, "deadlines"), new_name(bench, "deadlines")
    first_ns = _far_ns(bench)
    later_ns, idle = first_ns + DAY_NS, TimeToIdle(timedelta(days=30))
    await put(bench, name, metadata=Metadata(idle, time_expires_ns=first_ns))
    await put(bench, over, metadata=Metadata(TimeToLive(ns=1), time_expires_ns=first_ns - 31 * DAY_NS))
    await put(bench, without)
    if await _deadline(bench, name) != (first_ns, first_ns):
        return "tells another deadline of a blob than it was stored with"
    if await bytes_of(bench.other_blobs, over) != PAYLOAD:
        return "hides a blob as soon as its deadline has passed, when readers whose clock is behind still want it"
    for asked_ns in (later_ns, first_ns):
        if not await bench.blobs.touch(name, asked_ns):
            return "does not find a blob whose deadline is to be extended"
        if await _deadline(bench, name) != (later_ns, later_ns):
            return "does not extend a deadline" if asked_ns == later_ns else "shortens a deadline"
    if await bytes_of(bench.other_blobs, name) != PAYLOAD:
        return "changes a blob whose deadline is extended"
    if not await bench.blobs.touch(without, later_ns) or await _deadline(bench, without) != (None, None):
        return "gives a deadline to a blob that has none"
    if await bench.blobs.touch(new_name(bench, "deadlines"), later_ns):
        return "says that it extended the deadline of a blob that is not there"
    return None


async def _deadline(bench: Bench, name: str) -> tuple[int | None, int | None]:
    """As it is told of the blob, and as it is listed."""
    listed = await listed_one(bench, name)
    return (await head_of(bench, name)).metadata.time_expires_ns, listed.deadline_ns


# --- copies ----------------------------------------------------------------------------------------


async def copies(bench: Bench) -> Tried:
    source, name, payload = new_name(bench, "copies"), new_name(bench, "copies"), bytes(range(256)) * (MIB // 256)
    await put(bench, source, payload, Metadata(custom={"of": "the source"}))
    before = await head_of(bench, source)
    changed = Metadata(content_type="text/plain", custom={"of": "the copy"})
    await (await bench.blobs.open_copy(source, before.generation, name, changed)).finalise()
    copy = await head_of(bench, name)
    if await bytes_of(bench.other_blobs, name) != payload or copy.size != len(payload):
        return "gives other bytes of a copy than those of its source"
    if (copy.metadata.content_type, copy.metadata.custom) != (changed.content_type, changed.custom):
        return "tells other metadata of a copy than were asked for"
    return None if await head_of(bench, source) == before else "changes a blob that is copied"


async def copies_what_was_named(bench: Bench) -> Tried:
    source, other, there, name = [new_name(bench, "copied") for _ in range(4)]
    for each, payload in ((source, PAYLOAD), (other, OTHER), (there, LATE)):
        await put(bench, each, payload)
    generation, another = (await head_of(bench, source)).generation, (await head_of(bench, other)).generation
    if await makes(await bench.blobs.open_copy(source, another, name, PLAIN)) or await shows(bench, name):
        return "copies another generation than the one that was named"
    if await makes(await bench.blobs.open_copy(source, generation, there, PLAIN)) or await bytes_of(bench.other_blobs, there) != LATE:
        return "replaces a blob by a copy"
    return None


async def set_aside(bench: Bench) -> Tried:
    """What the audit does to a blob that it deletes, and what brings it back."""
    name, far_ns = new_name(bench, "aside"), _far_ns(bench)
    kept = Metadata(TimeToIdle(timedelta(days=30)), time_created_ns=5, time_expires_ns=far_ns, custom={"key": "value"})
    copy = f"{QUARANTINE}prove/{name}"
    await put(bench, name, PAYLOAD, kept)
    before = await head_of(bench, name)
    aside = await bench.blobs.set_aside(name, before.generation, copy)
    if not isinstance(aside, str):
        return f"keeps no copy of a blob before it is deleted ({aside.value})"
    if await bench.blobs.set_aside(name, before.generation, copy) != aside:
        return "makes a copy anew that is there already"
    await bench.blobs.delete_generation(name, before.generation)
    if await bytes_of(bench.other_blobs, copy) != PAYLOAD:
        return "loses a copy with the blob that was copied"
    back = await bench.blobs.bring_back(copy, aside, name, bench.runtime.wall_ns())
    if not isinstance(back, str):
        return f"does not bring back a blob from its copy ({back.value})"
    after = await head_of(bench, name)
    if await bytes_of(bench.other_blobs, name) != PAYLOAD or after.metadata != before.metadata:
        return "brings back another blob from a copy than was copied"
    await deleted(bench, [name, copy])
    return None if back == after.generation != before.generation else "brings back a blob under the generation that it had"
