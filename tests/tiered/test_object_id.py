"""Object ids and the names made of them: the worked examples, what may be created, and that what is printed parses."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.base.errors import InvalidRequestError
from changelog.change import ChangeId
from tests.given.caller_values import CallerWord, Loud, odd_ids
from tiered.object_id import PATH_BYTES_MAX, ObjectId, ObjectPrefix, blob_name, escape_scope, object_prefix, revision_of, unescape_scope

REVISION = ChangeId("018bcfe5-6800-7000-8000-000000000001")
OTHER = ChangeId("018bcfe5-6800-7000-8000-000000000002")
WORKED = ObjectId("attachments", (("org", "17"), ("project", "42")), "abc123")

scope_texts = st.text("abzAZ09_-()$!+'", min_size=1, max_size=5)
usecases = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=8).filter(
    lambda text: not text.startswith("~") and text not in (".", "..")
)
keys = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12).filter(
    lambda text: not {".", ".."} & set(text.split("/"))
)
object_ids = st.builds(ObjectId, usecases, st.lists(st.tuples(scope_texts, scope_texts), max_size=3).map(tuple), keys)


# --- worked examples -----------------------------------------------------------------------------


def test_the_worked_example_of_the_formats() -> None:
    created = ObjectId.create("attachments", "abc123", {"org": "17", "project": "42"})
    assert created == WORKED
    assert created.path == str(created) == "attachments/org.17/project.42/objects/abc123"
    assert len(created.path) == 44
    assert blob_name(created.path, REVISION) == "attachments/org.17/project.42/objects/abc123/018bcfe5-6800-7000-8000-000000000001"
    assert len(blob_name(created.path, REVISION)) == 81


def test_without_scopes_the_objects_follow_the_usecase() -> None:
    assert ObjectId.create("usecase", "key").path == "usecase/objects/key"
    assert ObjectId.parse("usecase/objects/key") == ObjectId("usecase", (), "key")


def test_the_order_of_scopes_is_part_of_the_address() -> None:
    one, other = (("a", "1"), ("b", "2")), (("b", "2"), ("a", "1"))
    assert ObjectId.create("u", "k", one).path == "u/a.1/b.2/objects/k"
    assert ObjectId.create("u", "k", one) != ObjectId.create("u", "k", other)
    assert ObjectId.create("u", "k", dict(one)) == ObjectId.create("u", "k", iter(one))


@pytest.mark.parametrize(
    ("path", "parsed"),
    [
        ("u/objects/a/b/c", ObjectId("u", (), "a/b/c")),
        ("u/objects/objects/k", ObjectId("u", (), "objects/k")),
        ("u/objects//k", ObjectId("u", (), "/k")),
        ("u/objects/../k", ObjectId("u", (), "../k")),
        ("u/a.b.c/objects/k", ObjectId("u", (("a", "b.c"),), "k")),
        ("u/objects.1/objects/k", ObjectId("u", (("objects", "1"),), "k")),
        ("~old/objects/k", ObjectId("~old", (), "k")),
        ("u/.1/objects/k", ObjectId("u", (("", "1"),), "k")),
        (f"u/objects/k/{REVISION}", ObjectId("u", (), f"k/{REVISION}")),
    ],
)
def test_what_is_stored_parses_from_the_left_even_where_we_would_not_create_it(path: str, parsed: ObjectId) -> None:
    assert ObjectId.parse(path) == parsed
    assert parsed.path == path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "is not an object id: write"),
        ("usecase", "is not an object id: write"),
        ("/objects/k", "is not an object id: write"),
        ("u/objects", "no 'objects/'"),
        ("u/a.1/", "no 'objects/'"),
        ("u/a.1/b.2", "no 'objects/'"),
        ("u/objects/", "key is empty"),
        ("u/scope/objects/k", "scope 'scope' is not NAME.VALUE"),
        ("u/uploads/x", "scope 'uploads'|no 'objects/'"),
    ],
)
def test_what_is_no_object_id_is_refused_with_the_reason(path: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as refused:
        ObjectId.parse(path)
    assert str(refused.value).endswith(": write USECASE/[NAME.VALUE/…]objects/KEY")


# --- creation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usecase", "scopes", "key", "words"),
    [
        ("", {}, "k", "usecase is empty"),
        ("a/b", {}, "k", "usecase 'a/b' must not contain '/'"),
        ("~changelog", {}, "k", "must not start with '~'"),
        (".", {}, "k", "usecase '.' is a relative path"),
        ("..", {}, "k", "usecase '..' is a relative path"),
        ("a\nb", {}, "k", r"usecase .* control character U\+000A at position 1"),
        ("u", {}, "", "key is empty"),
        ("u", {}, "a\0", r"key .* control character U\+0000 at position 1"),
        ("u", {}, "\x7f", r"U\+007F"),
        ("u", {}, "a\x85", r"U\+0085"),
        ("u", {}, "../../x", "'.' or '..' segment"),
        ("u", {}, "a/./b", "'.' or '..' segment"),
        ("u", {}, "..", "'.' or '..' segment"),
        ("u", {}, "a\ud800", "not valid Unicode"),
        ("u", {"": "1"}, "k", "scope name '' must be one or more of"),
        ("u", {"a": ""}, "k", "scope value '' must be one or more of"),
        ("u", {"a.b": "1"}, "k", "scope name 'a.b' must not contain"),
        ("u", {"a": "1.5"}, "k", r"scope value '1.5' must be one or more of .*; escape_scope spells it '1\+2E5'$"),
        ("u", {"a": "x/y"}, "k", r"scope value 'x/y' must not contain '/'; escape_scope spells it 'x\+2Fy'$"),
        ("u", {"user": "anna@example.com"}, "k", r"escape_scope spells it 'anna\+40example\+2Ecom'$"),
        ("u", {"ä": "1"}, "k", "scope name 'ä'"),
        ("u", {"a": "1\n"}, "k", "scope value"),
        ("u", {"a": 1.7}, "k", "scope value is 1.7, not text"),
    ],
)
def test_an_id_that_may_not_be_created_is_refused_by_part_and_limit(usecase: str, scopes: Mapping[str, str], key: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        ObjectId.create(usecase, key, scopes)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (("photos/org.17", (), "cat"), "usecase 'photos/org.17' must not contain '/'"),
        (("photos", (("org", "17/objects/cat"),), "x"), "scope value '17/objects/cat' must not contain '/'"),
        (("photos", (("org/objects/a", "17"),), "x"), "scope name .* must not contain '/'"),
        (("photos", (("org.1", "7"),), "cat"), r"scope name 'org.1' must not contain '/' nor '\.'"),
        (("", (), "cat"), "usecase is empty"),
        (("photos", (), ""), "key is empty"),
        (("photos", [("org", "17")], "cat"), r"ObjectId.create\(…, scopes="),
        (("photos", (["org", "17"],), "cat"), "scopes are pairs"),
        (("photos", ("ab",), "cat"), "scopes are pairs"),
        (("photos", (("a", "b", "c"),), "cat"), "scopes are pairs"),
        (("photos", None, "cat"), "scopes are pairs"),
        (("photos", (("org", 17),), "cat"), "scope value is 17, not text"),
        ((5, (), "cat"), "usecase is 5, not text"),
        (("photos", (), b"cat"), "key is b'cat', not text"),
        (("photos", (), 10**5000), "key is a value of type int, not text"),
        (("photos", (), "\ud800"), "not valid Unicode"),
        (("photos", (("a", "\ud800"),), "x"), "not valid Unicode"),
        (("photos", (), "k" * 4096), "4111 bytes of UTF-8; no stored one has more than 4096"),
    ],
)
def test_no_id_is_built_whose_path_is_that_of_another_or_of_none(parts: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        ObjectId(*parts)
    with pytest.raises(InvalidRequestError, match=words):
        replace(WORKED, usecase=parts[0], scopes=parts[1], key=parts[2])


@pytest.mark.slow
@given(object_id=odd_ids)
@settings(max_examples=200)
def test_whatever_can_be_built_is_what_its_path_parses_to(object_id: ObjectId | None) -> None:
    if object_id is not None:
        assert ObjectId.parse(object_id.path) == object_id
        assert pickle.loads(pickle.dumps(object_id)) == copy(object_id) == deepcopy(object_id) == object_id
        assert len({object_id, ObjectId.parse(object_id.path)}) == 1


# --- how any text becomes the value of a scope ---------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("anna@example.com", "anna+40example+2Ecom"), ("17", "17"), ("a-b_c($!')", "a-b_c($!')"), ("a+b", "a+2Bb"), ("+", "+2B"), ("", "+"),
        ("+40", "+2B40"), ("a/b.c d", "a+2Fb+2Ec+20d"), ("..", "+2E+2E"), ("ä", "+C3+A4"), ("a\u0308", "a+CC+88"), ("\0\n", "+00+0A"),
        ("😀", "+F0+9F+98+80"), ("objects", "objects"),
    ],
)  # fmt: skip
def test_a_text_has_one_spelling_that_a_scope_takes(text: str, spelling: str) -> None:
    assert escape_scope(text) == spelling and unescape_scope(spelling) == text
    made = ObjectId.create("u", "k", {"user": spelling})
    assert ObjectId.parse(made.path) == made and made.scopes == (("user", spelling),)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_every_text_comes_back(text: str) -> None:
    spelling = escape_scope(text)
    assert ObjectId.create("u", "k", {"a": spelling}).scopes == (("a", spelling),) and unescape_scope(spelling) == text


@given(spelling=st.text("+0249AFCEab.é", max_size=12))
def test_no_text_has_two_spellings(spelling: str) -> None:
    try:
        text = unescape_scope(spelling)
    except InvalidRequestError:
        return
    assert escape_scope(text) == spelling


@pytest.mark.parametrize(
    ("spelling", "words"),
    [
        ("a+b", "is no spelling"), ("a+2bc", "is no spelling"), ("a+61", "is no spelling"), ("+FF", "is no spelling"),
        ("", "is no spelling"), ("++", "is no spelling"),
        ("a+", "is no spelling"), ("+C0+AF", "is no spelling"), ("+ED+A0+80", "is no spelling"),
        ("a.b", "is no spelling"), ("+\uff14\uff10", "is no spelling"), (7, "is 7, not text"), ("\ud800", "not valid Unicode"),
    ],
)  # fmt: skip
def test_what_nobody_has_spelt_is_refused(spelling: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        unescape_scope(spelling)


@pytest.mark.parametrize(("text", "words"), [("\ud800", "not valid Unicode"), (None, "is None, not text"), (b"a", "is b'a', not text")])
def test_what_is_no_text_has_no_spelling(text: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        escape_scope(text)


def test_a_subclass_of_text_is_spelt_by_what_it_holds() -> None:
    assert (escape_scope(Loud("a@b")), unescape_scope(Loud("a+40b"))) == ("a+40b", "a@b")


def test_a_spelling_that_is_too_long_is_told_with_its_bytes() -> None:
    with pytest.raises(InvalidRequestError, match=r"the storage path has 1225 bytes of UTF-8; at most 987 fit: 'u/user\.\+E6"):
        ObjectId.create("u", "k", {"user": escape_scope("\u6f22" * 134 + "ab")})


def test_integers_and_uuids_are_values_of_scopes() -> None:
    tenant = UUID("018bcfe5-68c7-7f00-8000-000000000001")
    made = ObjectId.create("photos", "cat", [("org", 17), ("tenant", tenant), ("name", "n")])
    assert made.path == f"photos/org.17/tenant.{tenant}/name.n/objects/cat"
    assert made == ObjectId.parse(made.path) and {type(value) for _, value in made.scopes} == {str}
    assert ObjectPrefix.create("photos", scopes=[("org", -1)]).scopes == (("org", "-1"),)


@pytest.mark.parametrize(
    "scopes", [
        5, None, "a.b", b"ab", ["ab"], [b"ab"], [1], [("a",)], [("a", "b", "c")], [("a", 1.0)], [("a", True)],
        {"a": 10**5000}, [None], {1: "x"}, {"a": None}
    ]
)
def test_scopes_that_are_no_pairs_of_text_are_refused(scopes: Any) -> None:
    with pytest.raises(InvalidRequestError, match="scope"):
        ObjectId.create("u", "k", scopes)


def test_pairs_that_are_lists_will_do_to_create_one() -> None:
    assert ObjectId.create("u", "k", [["a", "1"]]) == ObjectId("u", (("a", "1"),), "k")  # type: ignore[list-item]


def test_text_of_a_subclass_is_the_text_that_it_is_and_not_what_it_prints() -> None:
    scopes = ((Loud("a"), Loud("1")),)
    for made in (ObjectId(Loud("u"), scopes, Loud("k")), ObjectId.create(Loud("u"), Loud("k"), scopes)):
        assert made == ObjectId("u", (("a", "1"),), "k") and made.path == "u/a.1/objects/k"
        assert {type(text) for text in (made.usecase, made.key, *made.scopes[0])} == {str}
    assert ObjectId.create(CallerWord.PHOTOS, "k").path == "photos/objects/k"


@pytest.mark.parametrize("path", [5, None, b"u/objects/k"])
def test_only_text_is_parsed(path: Any) -> None:
    with pytest.raises(InvalidRequestError, match="not text"):
        ObjectId.parse(path)


def test_the_message_about_a_long_id_is_short() -> None:
    long = "k/" * 1_000_000
    makes: list[Callable[[], ObjectId]] = [
        lambda: ObjectId.create("u", long), lambda: ObjectId.parse(long), lambda: ObjectId(long, (), "k")
    ]
    for make in makes:
        with pytest.raises(InvalidRequestError) as caught:
            make()
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("letter", "width"), [("k", 1), ("ü", 2), ("🙂", 4)])
def test_the_path_may_have_987_bytes_of_utf8_and_not_one_more(letter: str, width: int) -> None:
    room = PATH_BYTES_MAX - len("u/objects/")
    key = letter * (room // width) + "k" * (room % width)
    assert len(blob_name(ObjectId.create("u", key).path, REVISION).encode()) == 1024
    with pytest.raises(InvalidRequestError, match="988 bytes of UTF-8; at most 987 fit"):
        ObjectId.create("u", key + "k")


@given(object_id=object_ids)
def test_what_may_be_created_prints_and_parses_to_itself(object_id: ObjectId) -> None:
    object_id.validate()
    assert ObjectId.parse(object_id.path) == object_id
    assert object_id.path.startswith(object_prefix(object_id.usecase, object_id.scopes))


@given(path=st.text("ab./objects~", max_size=30) | st.builds("u/{}/objects/{}".format, st.text("a./"), st.text("a./", min_size=1)))
def test_whatever_parses_prints_as_it_was(path: str) -> None:
    try:
        parsed = ObjectId.parse(path)
    except InvalidRequestError:
        return
    assert parsed.path == path


# --- revisions -----------------------------------------------------------------------------------


@given(object_id=object_ids)
def test_the_revision_of_a_blob_is_read_from_its_name(object_id: ObjectId) -> None:
    assert revision_of(object_id.path, blob_name(object_id.path, REVISION)) == REVISION


@pytest.mark.parametrize(
    "blob",
    ["u/objects/k", "u/objects/k/", "u/objects/k/latest", f"u/objects/k2/{REVISION}", f"u/objects/k/{OTHER}/{REVISION}", str(REVISION)],
)
def test_a_blob_that_is_none_of_this_objects_revisions_has_no_revision_here(blob: str) -> None:
    assert revision_of("u/objects/k", blob) is None


def test_a_key_that_ends_like_a_revision_gives_a_name_two_readings() -> None:
    name = f"u/objects/k/{OTHER}/{REVISION}"
    assert revision_of(f"u/objects/k/{OTHER}", name) == REVISION
    assert revision_of("u/objects/k", f"u/objects/k/{OTHER}") == OTHER
    assert ObjectId.parse(name).key == f"k/{OTHER}/{REVISION}"


# --- prefixes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "prefix"), [
    ("", ObjectPrefix()), ("a", ObjectPrefix("a")), ("a/", ObjectPrefix("a")), ("a/o.17", ObjectPrefix("a", (("o", "17"),))),
    ("a/o.17/p.x.y/", ObjectPrefix("a", (("o", "17"), ("p", "x.y")))), ("a/objects", ObjectPrefix("a", (), "")),
    ("a/objects/", ObjectPrefix("a", (), "")),
    ("~theirs/o.17/", ObjectPrefix("~theirs", (("o", "17"),))),
    ("a/o.17/objects/x/objects/", ObjectPrefix("a", (("o", "17"),), "x/objects/")),
])  # fmt: skip
def test_a_prefix_is_read_from_the_beginning_of_a_path(text: str, prefix: ObjectPrefix) -> None:
    assert ObjectPrefix.parse(text) == prefix == ObjectPrefix.parse(prefix.path)
    assert str(prefix) == prefix.path and pickle.loads(pickle.dumps(prefix)) == prefix


@pytest.mark.parametrize(("make", "told"), [
    (lambda: ObjectPrefix.parse("a/org"), "'org' is neither NAME.VALUE nor 'objects': write USECASE/[NAME.VALUE/…][objects/KEY]"),
    (lambda: ObjectPrefix.parse("/a"), "'/a' is no prefix: the usecase is empty: write USECASE/"),
    (lambda: ObjectPrefix.parse("/"), "the usecase is empty"), (lambda: ObjectPrefix.parse("a//b"), "'' is neither NAME.VALUE"),
    (lambda: ObjectPrefix.parse(b"a"), "a prefix is b'a', not text"),  # type: ignore[arg-type]
    (lambda: ObjectPrefix.parse("~changelog"), "'~changelog' is the store's own"),
    (lambda: ObjectPrefix.create(None), "usecase is None, not text"),  # type: ignore[arg-type]
    (lambda: ObjectPrefix.create("a", {"org": "17"}), "key is {'org': '17'}, not text"),  # type: ignore[arg-type]
    (lambda: ObjectPrefix.create("a/b"), "must not contain '/'"),
    (lambda: ObjectPrefix.create("a", scopes="org"), "scopes are pairs"),  # type: ignore[arg-type]
    (lambda: ObjectPrefix.create("a", scopes=[("o.", "1")]), "nor '.'"),
    (lambda: ObjectPrefix(None, (("o", "1"),)), "needs a usecase"), (lambda: ObjectPrefix(key="x"), "needs a usecase"),
    (lambda: ObjectPrefix.parse("a/objects/\ud800"), "is not valid Unicode"),
])  # fmt: skip
def test_a_wrong_prefix_is_refused_in_one_sentence(make: Callable[[], object], told: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        make()
    assert told in str(refused.value)


@given(object_id=object_ids)
@settings(max_examples=50)
def test_an_object_is_in_every_prefix_of_its_parts_and_in_no_other(object_id: ObjectId) -> None:
    usecase, scopes, key = object_id.usecase, object_id.scopes, object_id.key
    mine = [ObjectPrefix(), *(ObjectPrefix(usecase, scopes[:end]) for end in range(len(scopes) + 1))]
    mine += [ObjectPrefix(usecase, scopes, key[:end]) for end in range(len(key) + 1)]
    assert all(object_id in prefix for prefix in mine)
    others = [ObjectPrefix(f"{usecase}x"), ObjectPrefix(usecase, (*scopes, ("x", "y"))), ObjectPrefix(usecase, scopes, f"{key}x")]
    others += [ObjectPrefix(usecase, (*scopes[:-1], (name, f"{value}x"))) for name, value in scopes[-1:]]
    others += [ObjectPrefix(usecase, (*scopes[:-1], (name, value[:-1]))) for name, value in scopes[-1:]]
    assert not any(object_id in prefix for prefix in others) and "text" not in mine[0]
