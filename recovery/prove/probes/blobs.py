"""What the store rests on in the long-term tier, tried through its own adapter. `BLOBS` is the table.

What only requests of its own can try is in a table of the service (`tiered/provision/s3_probes.py`, `gcs_probes.py`).
A probe looks over the connections that did not write, and lists too. What a race has made is deleted before the next
round, so that little is left if the run is killed. All probes together move less than 200 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from recovery.prove.probes.bench import Bench
from recovery.prove.probes.blob_calls import takes_parts
from recovery.prove.probes.blob_metadata import copies, copies_what_was_named, deadlines, metadata_as_stored, set_aside
from recovery.prove.probes.blob_reads import (
    COMMON,
    RARE,
    checksums,
    deletes_many,
    deletes_one_generation,
    deletions_race,
    generations,
    large,
    listings,
    many_heads,
    names_as_they_are,
    ranges,
    seen_at_once,
    times_of_creation,
)
from recovery.prove.probes.blob_uploads import (
    cancel_races,
    cancelled,
    hidden_before,
    made_of_parts,
    one_maker,
    open_sessions,
    parts_cancelled,
    parts_race,
    stored_and_read,
)
from tiered.provision.findings import NoticeKind
from tiered.provision.probes import Probe
from tiered.services.capabilities import BatchDeletion, BatchHeads

COMES_BACK = "a write that arrives late replaces a blob, or brings back one that was deleted"
GARBAGE = "a large put that recovery has undone appears later, as garbage that nobody finds but the audit"
NOT_FOUND = "what was stored is not found, and the audit calls it lost, or calls garbage what nobody needs to delete"
AUDIT = "the audit cannot compare what is there with the rows, and deletes what is needed"
WRONG_BYTES = "readers get wrong bytes"
OTHER_GENERATION = "the audit deletes another blob than it judged"
WRONG_METADATA = "objects are read with other metadata than were stored"
WRONG_DEADLINE = "a blob is removed before its row, and what is still read is lost"
PARTS_LOST = "an object that its caller sends in parts is lost, or is another one"
RARE_NAMES = "objects with such keys cannot be stored, or the audit doubts what it lists and deletes nothing"
OTHER_KEYS = "use no such keys, or another service"

BLOBS: Sequence[Probe[Bench]] = (
    Probe("a blob", "a blob is stored, and read", NoticeKind.PROBLEM, "no store can be kept there", stored_and_read),
    Probe(
        "create-only", "of many uploads of one name at once, one makes the blob, and none replaces it", NoticeKind.PROBLEM, COMES_BACK,
        partial(one_maker, in_sessions=False),
    ),
    Probe(
        "create-only in sessions", "of many sessions of one name that end at once, one makes the blob, and none replaces it",
        NoticeKind.PROBLEM, COMES_BACK, partial(one_maker, in_sessions=True),
    ),
    Probe(
        "nothing before the end", "nothing of an upload is seen before it ends", NoticeKind.PROBLEM,
        "readers and the audit see half a blob", hidden_before,
    ),
    Probe("cancelled sessions", "a session that was cancelled makes no blob any more", NoticeKind.PROBLEM, GARBAGE, cancelled),
    Probe(
        "cancelled at the end", "a session that is cancelled while it ends makes its blob exactly if it says so", NoticeKind.PROBLEM,
        GARBAGE, cancel_races,
    ),
    Probe(
        "parts", "parts of an upload make one blob when they are completed, once, whoever sent them", NoticeKind.PROBLEM,
        PARTS_LOST, made_of_parts, is_needed=takes_parts,
    ),
    Probe(
        "cancelled parts", "an upload in parts that was cancelled or completed makes no blob any more", NoticeKind.PROBLEM, GARBAGE,
        parts_cancelled, is_needed=takes_parts,
    ),
    Probe(
        "parts cancelled at the end", "an upload in parts that is cancelled while it is completed makes its blob exactly if it says so",
        NoticeKind.PROBLEM, GARBAGE, parts_race, is_needed=takes_parts,
    ),
    Probe(
        "uploads that have not ended", "the uploads in parts that have not ended are listed, page by page", NoticeKind.NOTE,
        "the daemon does not end uploads whose writer died before it had recorded them", open_sessions,
        "a rule of the bucket, or the service itself, must end them", takes_parts,
    ),
    Probe(
        "reads after writes", "what is stored or deleted is seen so at once by another connection, in listings, too", NoticeKind.PROBLEM,
        NOT_FOUND, seen_at_once,
    ),
    Probe("listings", "a listing has all blobs, once, in the order of bytes, in pages of any size", NoticeKind.PROBLEM, AUDIT, listings),
    Probe(
        "names", "a blob of any common name is stored, read, listed in the order of bytes, and deleted", NoticeKind.PROBLEM,
        "objects with such keys cannot be stored or read, or the audit calls them lost", partial(names_as_they_are, keys=COMMON),
        OTHER_KEYS,
    ),
    Probe(
        "rare names", "a blob of any rare name is stored, read, listed in the order of bytes, and deleted", NoticeKind.NOTE,
        RARE_NAMES,
        partial(names_as_they_are, keys=RARE),
        OTHER_KEYS,
    ),
    Probe(
        "times of creation", "a blob was made when the service's clock says so", NoticeKind.PROBLEM,
        "the audit takes what was just stored for old, and calls it garbage", times_of_creation,
    ),
    Probe("ranges", "a range of a blob has the bytes that were stored there", NoticeKind.PROBLEM, WRONG_BYTES, ranges),
    Probe(
        "a large blob", "a large blob is stored in several streams, and read in ranges", NoticeKind.PROBLEM, WRONG_BYTES,
        large,
    ),
    Probe(
        "checksums", "a checksum that is told is that of the bytes", NoticeKind.PROBLEM,
        "each read of the blob fails, or what was damaged is said to be stored", checksums,
    ),
    Probe(
        "generations", "a generation tells two blobs apart that had one name", NoticeKind.PROBLEM,
        "a reader goes on in another blob than it began, and the audit deletes another one than it judged", generations,
    ),
    Probe(
        "many heads", "what many blobs are is told in one request as it is told one by one", NoticeKind.PROBLEM,
        "listings show objects as they are not", many_heads, is_needed=lambda bench: isinstance(bench.other_blobs, BatchHeads),
    ),
    Probe(
        "deletions by generation", "only the generation that was named is deleted", NoticeKind.PROBLEM,
        OTHER_GENERATION, deletes_one_generation,
    ),
    Probe(
        "many deletions", "of many deletions in one request, each deletes only the generation that it names", NoticeKind.PROBLEM,
        OTHER_GENERATION, deletes_many, is_needed=lambda bench: isinstance(bench.blobs, BatchDeletion),
    ),
    Probe(
        "deletions that race", "a deletion by generation never deletes what is made at that moment", NoticeKind.NOTE,
        "what 'tiered audit restore' brings back at that moment could be deleted by 'tiered audit delete'", deletions_race,
        "run one of them at a time",
    ),
    Probe(
        "metadata", "metadata are read as they were stored, whatever characters they have", NoticeKind.PROBLEM,
        WRONG_METADATA, metadata_as_stored,
    ),
    Probe(
        "deadlines", "a deadline is told as it was stored; a touch extends it, and never shortens it", NoticeKind.PROBLEM,
        WRONG_DEADLINE, deadlines,
    ),
    Probe(
        "copies", "a copy has the bytes of its source and the metadata that were asked for", NoticeKind.NOTE, "objects cannot be copied",
        copies,
    ),
    Probe(
        "copies of a generation", "only the generation that was named is copied, and no copy replaces a blob", NoticeKind.PROBLEM,
        "a copy has other bytes than its caller saw, or replaces a blob", copies_what_was_named,
    ),
    Probe(
        "the quarantine", "a blob is copied before it is deleted, and brought back from its copy", NoticeKind.NOTE,
        "the audit keeps no copy of what it deletes", set_aside,
    ),
)  # fmt: skip
"""The first is what all others need."""
