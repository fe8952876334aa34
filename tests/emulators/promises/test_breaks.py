"""What of a surface is a break, and which breaks are allowed: told by the release, told again today, and warned of."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from changelog.base.deprecation import deprecated
from emulators.promises.breaks import Break, UndescribedError, surface_breaks, told

Forms = dict[str, dict[str, Any]]


@pytest.mark.parametrize(("old", "new", "broken"), [
    ({"command tiered a": {}, "command tiered a --b": {}, "command tiered a: argument 1": {}}, {}, ["command tiered a was removed"]),
    ({"command tiered a": {}, "command tiered a --b": {}}, {"command tiered a": {}}, ["command tiered a --b was removed"]),
    ({"command tiered a": {}}, {"command tiered a": {}, "command tiered a --b": {"required": True}},
     ["command tiered a --b is new and must be given"]),
    ({"setting s": {}, "setting s.b": {"required": True}}, {}, ["setting s was removed"]),
    ({"setting s": {}}, {"setting s": {}, "setting s.b": {"required": True}}, ["setting s.b is new and must be given"]),
    ({"setting a": {}}, {"setting a": {}, "setting b": {"required": True}}, ["setting b is new and must be given"]),
    ({"setting a": {"default": "1"}}, {"setting a": {"default": "2"}}, ["setting a is 2 by default, and was 1"]),
    ({"setting a": {"default": "1"}}, {"setting a": {"required": True}},
     ["setting a is nothing by default, and was 1", "setting a must be given now"]),
    ({"setting a": {"choices": ["x", "y"]}}, {"setting a": {"choices": ["x"]}}, ["setting a no longer has y"]),
    ({"setting a": {"from": 1, "to": 9}}, {"setting a": {"from": 2, "to": 8}},
     ["setting a begins at 2, and began at 1", "setting a ends at 8, and ended at 9"]),
    ({"setting a": {}}, {"setting a": {"to": 9}}, ["setting a ends at 9, and ended at any value"]),
    ({"exit code of XError": {"value": "4"}}, {"exit code of XError": {"value": "5"}}, ["exit code of XError has the value 5, and had 4"]),
    ({"metric m": {"type": "gauge", "choices": ["a", "b"]}}, {"metric m": {"type": "counter", "choices": ["b"]}},
     ["metric m has the type counter, and had gauge", "metric m no longer has a"]),
    ({"event e": {"choices": ["id"]}}, {"event f": {"choices": ["id"]}}, ["event e was removed"]),
    ({"JSON of tiered ls": {}, "JSON of tiered ls: a": {}, "JSON of tiered ls: a.b": {}}, {"JSON of tiered ls": {}},
     ["JSON of tiered ls: a was removed"]),
    ({"JSON of tiered ls: a[].b": {}, "JSON of tiered ls: a": {}}, {"JSON of tiered ls: a": {}}, ["JSON of tiered ls: a[].b was removed"]),
])  # fmt: skip
def test_what_is_gone_or_narrower_is_a_break_and_is_told_once(old: Forms, new: Forms, broken: list[str]) -> None:
    assert sorted(f"{each.name} {each.what}" for each in surface_breaks(old, new)) == sorted(broken)


@pytest.mark.parametrize(("old", "new"), [
    ({"setting a": {"from": 2, "to": 8, "choices": ["x"]}}, {"setting a": {"from": 1, "choices": ["y", "x"]}, "setting b": {}}),
    ({"setting a": {"required": True}}, {"setting a": {"required": False}}),
    ({}, {"setting s": {}, "setting s.must": {"required": True}}),
    ({}, {"command tiered new": {}, "command tiered new --must": {"required": True}}),
    ({"JSON of /x: a": {}}, {"JSON of /x: a": {"type": "text"}}),
])  # fmt: skip
def test_what_is_new_or_wider_is_none(old: Forms, new: Forms) -> None:
    assert list(surface_breaks(old, new)) == []


# --- what is allowed -------------------------------------------------------------------------------------

NAMES = {"python": "tiered.Store.put(a)", "setting": "setting lease.expiry_s", "metric": "metric tiered_x_total"}
CALL = 'def put() -> None:\n    deprecated("{}", "use another")\n'
OLD_HISTORY = "# History\n\n## 1.0.0\n\nGood.\n\n**Deprecated**\n- `{}`: use another.\n- `other`\n\n**More**\n\n- `third`\n"
NEW_HISTORY = "# History\n\n## 2.0.0 (unreleased)\n\n**Removed or changed**\n\n- `{}`: use\n  another.\n\n## 1.0.0\n"


def trees(tmp_path: Path, *, warned: str, called: str, announced: str) -> tuple[Path, Path]:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "tiered").mkdir(parents=True)
    new.mkdir()
    (old / "tiered/store.py").write_text(CALL.format(called))
    (old / "HISTORY.md").write_text(OLD_HISTORY.format(warned))
    (new / "HISTORY.md").write_text(NEW_HISTORY.format(announced))
    return old, new


@pytest.mark.parametrize("name", NAMES.values())
def test_what_was_warned_of_and_is_announced_may_go(tmp_path: Path, name: str) -> None:
    found = Break(name, "was removed", is_python=name == NAMES["python"])
    called = "" if name == NAMES["metric"] else name  # a metric cannot warn of itself
    assert told("1.0.0", *trees(tmp_path, warned=name, called=called, announced=name)).refusal(found) is None


@pytest.mark.parametrize(("missing", "sentence"), [
    ("warned", "1.0.0 lists it under **Deprecated** in HISTORY.md"),
    ("called", 'the code of 1.0.0 calls deprecated("{}", …)'),
    ("announced", "begin an item of **Removed or changed** in the first section of HISTORY.md with `{}`"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["python", "setting"])
def test_where_one_of_the_three_is_missing_it_is_refused_with_what_to_do(tmp_path: Path, kind: str, missing: str, sentence: str) -> None:
    name = NAMES[kind]
    all_three = dict.fromkeys(("warned", "called", "announced"), name) | {missing: f"{name}x"}
    refusal = told("1.0.0", *trees(tmp_path, **all_three)).refusal(Break(name, "was removed", is_python=kind == "python"))
    assert refusal is not None and refusal.startswith(f"{name} was removed. ") and sentence.format(name) in refusal


def test_only_the_lists_of_these_names_count(tmp_path: Path) -> None:
    """An item of another list, of another section of today's, or a name within a sentence, warns of nothing."""
    old, new = trees(tmp_path, warned="a", called="a", announced="a")
    (new / "HISTORY.md").write_text(NEW_HISTORY.format("a") + "\n**Removed or changed**\n\n- `b`\n")
    known = told("1.0.0", old, new)
    assert [set(each) for each in (known.warned, known.called, known.announced)] == [{"a", "other"}, {"a"}, {"a"}]


def test_of_a_candidate_it_is_said_that_another_commit_may_be_named(tmp_path: Path) -> None:
    old, new = trees(tmp_path, warned="", called="", announced="")
    gone = Break("metric m", "was removed")
    assert ".ci/released" not in str(told("1.0.0", old, new).refusal(gone))
    (old / "HISTORY.md").write_text(OLD_HISTORY.replace("1.0.0", "1.0.0 (unreleased)"))
    assert "1.0.0 is not out yet: name a later commit in .ci/released" in str(told("1.0.0", old, new).refusal(gone))


def test_a_history_without_sections_is_refused(tmp_path: Path) -> None:
    old, new = trees(tmp_path, warned="", called="", announced="")
    (new / "HISTORY.md").write_text("# History\n")
    with pytest.raises(UndescribedError, match="has no section"):
        told("1.0.0", old, new)


# --- how the release warns ---------------------------------------------------------------------------------


def test_a_program_gets_a_warning_that_names_its_own_line() -> None:
    def put() -> None:
        deprecated("tiered.Store.put", "call store")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        put()
    [warning] = caught
    assert warning.category is DeprecationWarning and warning.filename == __file__
    assert str(warning.message) == "tiered.Store.put is deprecated, and the next release will not have it: call store"


@pytest.mark.parametrize("name", ["setting lease.expiry_s", "command tiered ls --limit"])
def test_an_operator_gets_a_line_in_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    deprecated(name, "use another")
    [record] = caplog.records
    assert (record.levelname, record.__dict__["event"], record.__dict__["fields"]) == ("WARNING", "deprecated", {"name": name})
    assert record.__dict__["why"] == "the next release will not have it: use another"
