"""Everything that our encoders can produce keeps the rules, and the reader of the page reads it as we do."""

from __future__ import annotations

import json
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.base.errors import InvalidRequestError
from changelog.bigtable.channel import BigtableTable
from changelog.change import Change, ChangeId, Entry, Stuck, encode, encode_stuck
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from tests.conformance import reader
from tests.conformance.rules import (
    BLOB,
    ENTRY,
    HEADERS,
    ROW,
    WrittenEntry,
    WrittenRow,
    as_resource,
    as_written,
    broken,
    is_blob_of,
    is_path,
)
from tests.given.caller_values import expirations, field_texts, tokens, unknowns
from tests.given.stored_bytes import MAY_HAVE, TABLE, TimeOfDay
from tiered.bigtable.rows import BigtableRows
from tiered.gcs.format import decode_resource, encode_headers, encode_resource
from tiered.metadata import DEADLINE_MAX_NS, NS_PER_S, Metadata, encode_metadata
from tiered.object_id import ObjectId, blob_name
from tiered.services.backends import Inline, RowState, Tombstone

EXAMPLES = 60
NOW_NS = 1_700_000_000_123_456_789
PATH = "attachments/org.17/project.42/objects/abc123"
TOLD = {"size": "5", "generation": "7", "metageneration": "2", "timeCreated": "2023-11-14T22:13:20.500Z"}

visible = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=8).map(lambda text: text.strip(" "))
"""What a header carries, by this store's own limits."""
customs = st.dictionaries(tokens, visible, max_size=3).map(lambda custom: {key.lower(): text for key, text in custom.items()})
content_types = st.sampled_from(["a/b", "text/plain; charset=utf-8", "application/octet-stream"])
metadata = st.builds(
    Metadata, expiration=expirations, time_created_ns=st.none() | st.integers(0, DEADLINE_MAX_NS), unknown=unknowns,
    custom=customs | st.builds(dict, X=visible), **field_texts(visible) | {"content_type": content_types},
).map(lambda given: given.stamped(NOW_NS))  # fmt: skip
tokens_of_changes = st.integers(0, (1 << 48) - 1).map(ChangeId.first)


# --- rows ----------------------------------------------------------------------------------------------


@st.composite
def states(draw: st.DrawFn) -> tuple[ChangeId, RowState]:
    token, told = draw(tokens_of_changes), draw(metadata)
    if draw(st.booleans()):
        described = told.with_facts(size=5) if draw(st.booleans()) else None
        return token, Tombstone(blob_name(PATH, token), told.expiration, told.time_expires_ns, None, draw(st.booleans()), described)
    payload = draw(st.binary(max_size=5))
    return token, Inline(told.with_facts(size=len(payload)), payload)


async def written(states: list[tuple[ChangeId, RowState]]) -> list[tuple[RowState, WrittenRow]]:
    """The row after each of these writes, with the state that our store reads from it."""
    runtime = TimeOfDay(NOW_NS)
    server = MemoryBigtable(runtime, {TABLE: MAY_HAVE})
    rows = BigtableRows(BigtableTable(MemoryChannel(server), TABLE), runtime)
    found: list[tuple[RowState, WrittenRow]] = []
    for token, state in states:
        server.tables[TABLE].put(PATH.encode(), ())
        if isinstance(state, Inline):
            assert await rows.put_inline(PATH, token, state)
        else:
            assert await rows.swap(PATH, token, None, state, runtime.boot_time() + 60)
        found.append(((await rows.read(PATH)).state, as_written(PATH.encode(), server.tables[TABLE].rows[PATH.encode()])))
    return found


@settings(max_examples=EXAMPLES // 4)
@given(st.lists(states(), min_size=1, max_size=6))
def test_every_row_keeps_the_rules_and_is_read_alike(drawn: list[tuple[ChangeId, RowState]]) -> None:
    for state, row in anyio.run(written, drawn):
        assert broken(ROW, row) == []
        cells = [reader.ReadCell(*cell) for cell in row.cells]
        if isinstance(state, Inline) and (state.metadata.time_expires_ns or NOW_NS + NS_PER_S) > NOW_NS:
            found = reader.read(row.key, cells, dict[str, Any]().get, NOW_NS // 1000)
            assert found is not None and (found.metadata, found.payload) == (as_json(state.metadata), state.payload)


def as_json(told: Metadata) -> dict[str, Any]:
    return dict(json.loads(encode_metadata(told)))


# --- blobs ---------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES)
@given(metadata, tokens_of_changes)
def test_every_blob_keeps_the_rules_and_is_read_alike(told: Metadata, revision: ChangeId) -> None:
    name = blob_name(PATH, revision)
    headers = encode_headers(name, told)
    assert broken(HEADERS, headers) == []
    for resource in (json.loads(encode_resource(name, told)), as_resource(name, headers)):
        assert broken(BLOB, resource) == []
        ours = as_json(decode_resource(name, resource | TOLD).metadata)
        found = reader.read(PATH.encode(), [reader.ReadCell("fm", "r", 1000, name.encode())], {name: resource | TOLD}.get, 0)
        assert found is not None and found.metadata == ours
        assert {**ours, "time_created": None} == {**as_json(told.with_facts(size=5)), "time_created": None}, "nothing was lost"


# --- names and entries -----------------------------------------------------------------------------------


pieces = st.sampled_from(["a", "Z", "0", "/", ".", "~", "é", "\0", "\n", " ", "objects", "uploads", "_-($!+')", "k" * 400])
names = st.lists(pieces, max_size=4).map("".join)


@settings(max_examples=EXAMPLES * 3)
@given(names, names, st.lists(st.tuples(names, names), max_size=2), tokens_of_changes)
def test_every_name_that_an_object_may_have_keeps_the_rules(
    usecase: str, key: str, scopes: list[tuple[str, str]], revision: ChangeId
) -> None:
    try:
        path = ObjectId.create(usecase, key, scopes).path
    except InvalidRequestError:
        return
    assert is_path(path) and reader.PATH.fullmatch(path)
    assert is_blob_of(blob_name(path, revision), path)


texts_of_entries = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=EXAMPLES)
@given(tokens_of_changes, tokens_of_changes, st.booleans(), texts_of_entries, st.integers(0, 9), texts_of_entries)
def test_every_entry_keeps_the_rules(
    token: ChangeId, old: ChangeId, is_put: bool, text: str | None, number: int, assembling: str | None
) -> None:
    change = Change(token, PATH, blob_name(PATH, token) if is_put else None, blob_name(PATH, old) if number else None, text, text)
    entry = Entry(change, token.row_key(), text or "", number, number or None, assembling=assembling)
    for state in (None, encode_stuck(Stuck(text or "?", number)).encode()):
        assert broken(ENTRY, WrittenEntry(entry.key, encode(entry), state)) == []


def test_unknown_keys_of_a_large_object_are_ascii() -> None:
    """They are shown as a header by Objectstore, whose Rust client failed on them."""
    unknown = {"später": "é", "x": [1, {"y": "日本"}]}
    entry = json.loads(encode_resource(PATH, Metadata(unknown=unknown)))["metadata"]["x-snme-Tiered-Unknown"]
    assert entry.isascii() and json.loads(entry) == unknown


def test_all_that_metadata_may_hold_fits_beside_a_blob() -> None:
    """Escapes make unknown keys longer there than in the JSON of a row, up to three times."""
    for text in ("x", "é", "日", "😀"):
        fits = 0
        for step in (4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
            try:
                metadata = Metadata(unknown={"k": text * (fits + step)})
            except InvalidRequestError:
                continue
            fits, largest = fits + step, metadata
        entries = json.loads(encode_resource(PATH, largest))["metadata"]
        assert sum(len(key) + len(value.encode()) for key, value in entries.items()) <= 8192
