"""Each rule of `rules.py` holds for golden rows and blobs, and for none in which a fault of its own was planted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.conformance.golden import FORMS, bytes_of
from tests.conformance.rules import (
    BLOB,
    ENTRY,
    HEADERS,
    KNOWN_THERE,
    METADATA,
    ROW,
    SENT_AS,
    WrittenCell,
    WrittenEntry,
    WrittenRow,
    as_resource,
    broken,
    is_duration,
    is_text,
)

WRITTEN_TODAY = [
    "an object that stays", "an object with a time to live", "an object with a time to idle", "an empty object",
    "metadata of newer software", "marks and a reservation beside an object", "a tombstone that stays",
    "a tombstone with a time to live, written with a condition", "a tombstone with a time to idle",
    "a tombstone that describes its blob", "a tombstone that describes its blob, with a time to idle",
    "a blob with a time of creation and unknown keys", "a lifetime with fractions",
    "marks alone", "a reservation alone", "nothing",
]  # fmt: skip
EXPIRING, STAYING, LARGE, LARGE_STAYING = WRITTEN_TODAY[1], WRITTEN_TODAY[0], WRITTEN_TODAY[7], WRITTEN_TODAY[6]
TELLING = WRITTEN_TODAY[10]
TEXTS = [key for key, holds in METADATA.items() if holds is is_text]
POLICY = b'{"expiration_policy":{"TimeToLive":{"secs":%d,"nanos":0}}}'
OTHER = "018bcfe5-6800-7000-8000-000000000009"


def row(form: str) -> WrittenRow:
    cells = [WrittenCell(family, column, at_us, bytes_of(value)) for family, column, at_us, value in FORMS[form]["cells"]]
    return WrittenRow(FORMS[form]["key"].encode(), cells)


def blob(form: str) -> dict[str, Any]:
    [told] = FORMS[form]["blobs"]
    return {key: value for key, value in told.items() if key not in ("size", "timeCreated")}


def entry(form: str = "an entry of the changelog", state: bytes | None = None) -> WrittenEntry:
    [(_, _, _, value)] = FORMS[form]["cells"]
    return WrittenEntry(FORMS[form]["key"], value.encode(), state)


@pytest.mark.parametrize("form", WRITTEN_TODAY)
def test_what_is_written_today_keeps_every_rule(form: str) -> None:
    assert broken(ROW, row(form)) == []
    assert [broken(BLOB, blob(form)) for _ in FORMS[form].get("blobs", ())] in ([], [[]])


def test_an_entry_keeps_every_rule_in_each_state() -> None:
    for state in (None, b'{"state":"done"}', b'{"state":"stuck","error":"failed","at":1700000000000}'):
        assert broken(ENTRY, entry(state=state)) == []


@pytest.mark.parametrize("text", ["1s", "1m 30s", "1h", "1day", "30days", "2months 29days 2h 52m 48s", "11months 30days 3h 50m 24s",
                                  "1s 500ms", "1year", "2years", "1month", "9us 9ns", "100years 1month"])  # fmt: skip
def test_a_duration_has_one_spelling(text: str) -> None:
    assert is_duration(text)


# --- a fault for each rule ----------------------------------------------------------------------------


def with_cells(change: Callable[[WrittenCell], WrittenCell | None], *more: WrittenCell, form: str = EXPIRING) -> WrittenRow:
    cells = [changed for cell in row(form).cells if (changed := change(cell)) is not None]
    return row(form)._replace(cells=[*cells, *more])


def valued(column: str, value: bytes | Callable[[bytes], bytes], form: str = EXPIRING) -> WrittenRow:
    def change(cell: WrittenCell) -> WrittenCell:
        return cell if cell.column != column else cell._replace(value=value if isinstance(value, bytes) else value(cell.value))

    return with_cells(change, form=form)


def described(change: Callable[[dict[str, Any]], dict[str, Any]], form: str = EXPIRING) -> WrittenRow:
    column = "d" if form == TELLING else "m"
    return valued(column, lambda raw: json.dumps(change(json.loads(raw)), separators=(",", ":"), ensure_ascii=False).encode(), form)


def extra(family: str, column: str, value: bytes = b"", form: str = STAYING) -> WrittenRow:
    return with_cells(lambda cell: cell, WrittenCell(family, column, 1_700_000_000_000_000, value), form=form)


def keyed(key: str) -> WrittenRow:
    return row(STAYING)._replace(key=key.encode())


def has(**values: Any) -> WrittenRow:
    return described(lambda told: told | values)


def lacks(key: str, form: str = EXPIRING) -> WrittenRow:
    return described(lambda told: {name: value for name, value in told.items() if name != key}, form)


def without(column: str, form: str = EXPIRING) -> WrittenRow:
    return with_cells(lambda cell: None if cell.column == column else cell, form=form)


def later(by_us: int, columns: str) -> WrittenRow:
    return with_cells(lambda cell: cell._replace(timestamp_us=cell.timestamp_us + by_us) if cell.column in columns else cell)


ROW_FAULTS: dict[str, list[WrittenRow]] = {
    "the key is the path of an object": [
        keyed("~mine/objects/k"), keyed("a/objects/"), keyed("a/org/objects/k"), keyed("a/or/g.1/objects/k"), keyed("a/org.ü/objects/k"),
        keyed("a/objects/../k"), keyed("a/objects/\n"), keyed("a/uploads/k"), keyed("a/objects/" + "k" * 978), keyed("/objects/k"),
        row(STAYING)._replace(key=b"a/objects/\xff"),
    ],
    "only known families and columns": [extra("fm", "q"), extra("fpm", "p"), extra("fc", "c")],
    "one cell in each column": [extra("fm", "p", b"x")],
    "an object, a tombstone, or nothing": [
        *(without(column) for column in "pmv"), *(without(column, LARGE) for column in "rtv"), extra("fm", "r", b"x"), extra("fm", "c"),
        extra("fm", "d"),
    ],
    "one family": [with_cells(lambda cell: cell._replace(family="fm") if cell.column == "v" else cell)],
    "one deadline": [later(1000, "v")],
    "whole milliseconds": [later(1, "pmv"), later(-2_000_000_000_000_000, "pmv")],
    "what expires has a policy and says when": [
        lacks("expiration_policy"), lacks("time_expires"), valued("t", b"{}", LARGE),
        has(time_expires={"secs_since_epoch": 1700003600, "nanos_since_epoch": 124000000}),
        with_cells(lambda cell: cell._replace(family="fm")), valued("t", POLICY % 1, LARGE_STAYING),
        lacks("expiration_policy", TELLING), described(lambda told: told | {"time_expires": told["time_created"]}, TELLING),
    ],
    "v is a change's id": [valued("v", OTHER.upper().encode()), valued("v", b""), valued("v", OTHER.replace("7", "4", 1).encode())],
    "r is the revision that v names": [valued("v", OTHER.encode(), LARGE), valued("r", b"", LARGE)],
    "t is a policy or {}": [
        valued("t", raw, LARGE) for raw in (b"", b"[]", b'{"expiration_policy":null}', POLICY % 0)
    ],
    "c is empty": [valued("c", b"1", LARGE)],
    "JSON has no spaces": [valued("m", lambda raw: raw.replace(b":", b": ")), valued("t", b"{ }", LARGE_STAYING),
                           valued("d", lambda raw: raw + b" ", TELLING)],
    "keys of metadata in their order": [
        described(lambda told: dict(reversed(told.items()))), described(lambda told: {"newer": 1} | told),
        lacks("content_type"), lacks("content_type", TELLING),
    ],
    "values of metadata in their form": [
        has(expiration_policy={"TimeToIdle": {"secs": 1.5, "nanos": 0}}), has(expiration_policy={"Never": {"secs": 1, "nanos": 0}}),
        has(time_created={"secs_since_epoch": 1, "nanos_since_epoch": 10**9}),
        has(time_created={"nanos_since_epoch": 1, "secs_since_epoch": 1}),
        has(content_type="text"), has(content_type=""), has(content_type="größe/x"), has(compression="gzip"), has(size=True),
        has(size=-1), has(custom={}), *(has(**{key: value}) for key in TEXTS for value in ("", None, " a", "größe", "a\tb")),
        *(has(custom=custom) for custom in ({"b": "", "a": ""}, {"A": "", "a": ""}, {"a b": ""}, {"a": 1}, {"a": "ü"})),
    ],
    "d has size and time of creation": [lacks("size", TELLING), lacks("time_created", TELLING)],
    "size is that of p": [has(size=6), valued("p", b""), lacks("size")],
    "marks are of changes": [
        *(extra("ff", column) for column in ("w:me", OTHER, f"q:{OTHER}", "x")), extra("ff", f"w:{OTHER}", b"1"), extra("ff", "x", b"me"),
    ],
}  # fmt: skip


def beside(**entries: str | None) -> dict[str, Any]:
    """A blob with other entries; `_` stands for `-`, and `X_` for the prefix of custom ones."""
    named = {key.replace("X_", "x-snme-").replace("_", "-"): value for key, value in entries.items()}
    told = blob(LARGE)
    return told | {"metadata": {key: value for key, value in (told["metadata"] | named).items() if value is not None}}


def changed(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in (blob(LARGE) | fields).items() if value is not None}


BLOB_FAULTS: dict[str, list[dict[str, Any]]] = {
    "the name is a path and a revision": [
        changed(name=name) for name in ("a/objects/k", f"a/k/{OTHER}", f"~mine/objects/k/{OTHER}", f"a/objects/k/{OTHER.upper()}")
    ],
    "only known fields": [changed(storageClass="NEARLINE")],
    "no other key with x-sn-": [beside(x_sn_created="1"), beside(x_sn_="")],
    "every other key is custom": [beside(mine="1"), beside(tiered_created="1"), changed(metadata={"X-SNME-a": "1"})],
    "keys of custom are tokens, none twice": [
        changed(metadata=custom) for custom in ({"x-snme-a b": ""}, {"x-snme-": ""}, {"x-snme-A": "", "x-snme-a": ""})
    ],
    "values are legal in headers": [
        beside(X_a="ü"), beside(X_a=" a"), *(beside(**{key: value}) for key in KNOWN_THERE for value in ("", "a\x7f")),
        *(changed(**{field: value}) for field in SENT_AS for value in ("", "ü")),
    ],
    "unknown keys are a JSON object": [beside(X_Tiered_Unknown=text) for text in ("[]", "{", "")],
    "the disposition is a time of creation": [
        changed(contentDisposition=text) for text in ("inline", "inline; created-ns=", "inline; created-ns=-5", "attachment", "")
    ],
    "the lifetime is ttl: or tti: and a duration": [
        beside(x_sn_expiration=text) for text in (
            "1h", "ttl:", "ttl:0s", "ttl:60m", "ttl:1h  1m", "ttl:1m 1h", "ttl:1s 1s", "ttl:2day", "ttl:1days", "ttl:1hour", "ttl:90s",
            "ttl:12months", "tto:1h", "ttl:01h", "ttl:1000ms",
        )
    ],
    "what has a lifetime has a deadline, and nothing else has": [changed(customTime=None), beside(x_sn_expiration=None)],
    "the deadline is in whole milliseconds": [
        changed(customTime=f"2023-11-14T22:13:20{rest}") for rest in ("Z", ".123456Z", ".123+00:00", ".123")
    ],
    "the content type has a /": [changed(contentType=text) for text in ("text", "", "/x", "text/", "text/plain\n")],
    "the encoding is zstd": [changed(contentEncoding="Zstd"), changed(contentEncoding="gzip"), changed(contentEncoding="")],
    "all together fits": [beside(X_a="a" * 8192)],
}  # fmt: skip

SENT = {"Content-Type": "text/plain", "x-goog-custom-time": "2023-11-14T22:13:20.123Z", "x-goog-meta-x-sn-expiration": "ttl:1h"}
HEADER_FAULTS: dict[str, list[Mapping[str, str]]] = {
    "only known headers": [SENT | {"x-amz-meta-a": "1"}, SENT | {"content-type": "text/plain"}],
    "names of metadata are in lower case": [SENT | {"x-goog-meta-x-snme-A": "1"}, SENT | {"x-goog-meta-x-snme-a_b": "1"}],
    "headers carry the values as they are": [SENT | {"x-goog-meta-x-snme-a": value} for value in ("", " a", "a ", "ü", "a\nb")],
}


def entry_with(**values: Any) -> WrittenEntry:
    return entry()._replace(value=json.dumps(entry().told() | values, separators=(",", ":")).encode())


ENTRY_FAULTS: dict[str, list[WrittenEntry]] = {
    "the key is a shard and a change's id": [
        entry()._replace(key=f"~{key}") for key in (
            f"changelog/02/{OTHER}", f"changelog/9/{OTHER}", f"changelog/{OTHER}", f"log/09/{OTHER}", "changelog/00/x",
        )
    ],
    "JSON has no spaces": [entry()._replace(value=entry().value.replace(b":", b": ")), entry()._replace(value=b"")],
    "its keys in their order": [
        entry()._replace(value=json.dumps(dict(reversed(entry().told().items())), separators=(",", ":")).encode()), entry_with(newer=1),
    ],
    "version 1 of an object": [entry_with(v=2), entry_with(id=""), entry_with(id="a/uploads/k")],
    "blobs of this object": [entry_with(new=f"b/objects/k/{OTHER}"), entry_with(old="b/objects/k"), entry_with(old=1)],
    "the new blob is the change's": [entry_with(new=f"{entry().told()['id']}/{OTHER}")],
    "counts are whole numbers": [entry_with(attempt=-1), entry_with(attempt="0"), entry_with(cleanup_after=1.5), entry_with(attempt=None)],
    "texts are text": [entry_with(owner=None), entry_with(upload=1), entry_with(trace=["x"]), entry_with(assembling={"a": 1})],
    "its state is open, done or stuck": [
        entry(state=raw) for raw in (
            b"", b"{}", b'{"state": "done"}', b'{"state":"gone"}', b'{"state":"stuck","error":"","at":1}', b'{"state":"stuck"}',
        )
    ],
}  # fmt: skip

TABLES: list[tuple[Mapping[str, Any], Mapping[str, list[Any]]]] = [
    (ROW, ROW_FAULTS), (BLOB, BLOB_FAULTS), (HEADERS, HEADER_FAULTS), (ENTRY, ENTRY_FAULTS),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "faults"), TABLES, ids=["row", "blob", "headers", "entry"])
def test_each_rule_notices_its_own_faults(rules: Mapping[str, Any], faults: Mapping[str, list[Any]]) -> None:
    assert faults.keys() == rules.keys()
    unnoticed = [(rule, fault) for rule, planted in faults.items() for fault in planted if rule not in broken(rules, fault)]
    assert unnoticed == []


def test_headers_make_the_blob_that_a_resource_makes() -> None:
    assert broken(HEADERS, SENT) == []
    assert broken(BLOB, as_resource(blob(LARGE)["name"], SENT)) == []
