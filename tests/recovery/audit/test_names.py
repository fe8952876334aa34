"""How the audit reads names, and which rows may name a blob of a range.

Every range of a small adversarial world is tried.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.base.errors import InvalidRequestError
from recovery.audit.finding import NO_USECASE
from recovery.audit.finding_classes import NameForm
from recovery.audit.names import after, is_of, read_name, rows_before, usecase_of
from tiered.object_id import ObjectId

REVISION = "018bcfe5-6800-7000-8000-000000000001"
PATH = "attachments/org.17/objects/abc"


@pytest.mark.parametrize(("name", "form", "path", "revision"), [
    (f"{PATH}/{REVISION}", NameForm.REVISION, PATH, REVISION),
    (f"{PATH}/{REVISION}/{REVISION}", NameForm.REVISION, f"{PATH}/{REVISION}", REVISION),
    (f"usecase/objects/{REVISION}", NameForm.UNSUFFIXED, f"usecase/objects/{REVISION}", None),
    (PATH, NameForm.UNSUFFIXED, PATH, None),
    (f"{PATH}/{REVISION.upper()}", NameForm.UNSUFFIXED, f"{PATH}/{REVISION.upper()}", None),
    (f"{PATH}/018bcfe5-6800-4000-8000-000000000001", NameForm.UNSUFFIXED, f"{PATH}/018bcfe5-6800-4000-8000-000000000001", None),
    (f"{PATH}/", NameForm.UNSUFFIXED, f"{PATH}/", None),
    ("usecase/objects/uploads/x", NameForm.UNSUFFIXED, "usecase/objects/uploads/x", None),
    (f"attachments/org.17/uploads/abc/{REVISION}", NameForm.UPLOAD, None, None),
    ("usecase/uploads/x/objects/y", NameForm.UPLOAD, None, None),
    ("usecase/objects/", NameForm.UNPARSEABLE, None, None),
    ("usecase/scope-without-value/objects/key", NameForm.UNPARSEABLE, None, None),
    ("/objects/key", NameForm.UNPARSEABLE, None, None),
    (f"~old/objects/key/{REVISION}", NameForm.REVISION, "~old/objects/key", REVISION),
    ("~old/objects/key", NameForm.UNSUFFIXED, "~old/objects/key", None),
    (f"~changelog/objects/key/{REVISION}", NameForm.UNPARSEABLE, None, None),  # rows of such keys are not scanned
    ("~values/objects/key", NameForm.UNPARSEABLE, None, None),
    (f"~quarantine/a.b/c.d/objects/key/{REVISION}", NameForm.QUARANTINE, None, None),
    ("objects/key", NameForm.FOREIGN, None, None),
    ("backup.tar", NameForm.FOREIGN, None, None),
    ("usecase/objects", NameForm.UNPARSEABLE, None, None),
    (REVISION, NameForm.FOREIGN, None, None),
    ("", NameForm.FOREIGN, None, None),
    ("\U0001f600/objects/\u0301", NameForm.UNSUFFIXED, "\U0001f600/objects/\u0301", None),
])  # fmt: skip
def test_a_name_has_one_form(name: str, form: NameForm, path: str | None, revision: str | None) -> None:
    reading = read_name(name)
    assert (reading.form, reading.object, reading.revision) == (form, path, revision)


@given(st.lists(st.sampled_from(["objects", "a", "o.1", ".", "", "objects.x", "uploads", "\udcff", "k" * 4085]), max_size=6).map("/".join))
def test_a_name_is_a_path_if_and_only_if_an_object_may_have_it(name: str) -> None:
    try:
        path = ObjectId.parse(name).path
    except InvalidRequestError:
        path = None
    assert read_name(name).object == path


@pytest.mark.parametrize(("name", "usecase"), [("a/b", "a"), ("a/", "a"), ("a", NO_USECASE), ("/a", NO_USECASE), ("", NO_USECASE)])
def test_a_usecase_ends_at_the_first_slash(name: str, usecase: str) -> None:
    assert usecase_of(name) == usecase


def test_only_a_rows_own_blobs_are_of_it() -> None:
    assert is_of("a/b", "a/b") and is_of("a/b", f"a/b/{REVISION}")
    assert not is_of("a/b", "a/bc") and not is_of("a/b", "a") and not is_of("a/b", "a/b-/x") and not is_of("a/b", "c")


def test_the_rows_of_a_range_are_its_keys_and_those_before_it_in_every_small_world() -> None:
    """Tries every range over all names of up to three characters around the slash.

    Exactly the rows whose blob is in the range are read.
    """
    alphabet = "!-/0a"
    keys = ["".join(each) for length in (1, 2, 3) for each in itertools.product(alphabet, repeat=length)]
    bounds = sorted({*keys, *(f"{key}/r" for key in keys if len(key) < 3)})
    naive = 0
    for start in bounds:
        before = {key.decode() for key in rows_before(start)}
        assert all(key < start for key in before)
        for key in keys:
            for target in (key, f"{key}/r"):
                if target >= start and key < start:
                    naive += 1
                    assert key in before
    assert naive > 100, "the trap was never met"


def test_after_is_the_next_name() -> None:
    assert after("a") > "a" and not any("a" < other < after("a") for other in ("a\0", "a\0\0", "a ", "b"))
