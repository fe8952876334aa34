"""What the last release promised is kept, or users were told twice; each kind of break is found, and no other."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from changelog.postgres.pool import SERVER_VERSION_MIN
from emulators.promises import surface
from emulators.promises.__main__ import UndescribedError, described, main, refused
from emulators.promises.breaks import DEPRECATED, breaks, listed, refusal
from emulators.promises.python_names import NOT_PROMISED, python_names
from emulators.released import NotReleasedError, released
from tests.given.repository import ROOT

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
    assert sorted(map(" ".join, breaks(old, new))) == sorted(broken)


@pytest.mark.parametrize(("old", "new"), [
    ({"setting a": {"from": 2, "to": 8, "choices": ["x"]}}, {"setting a": {"from": 1, "choices": ["y", "x"]}, "setting b": {}}),
    ({"setting a": {"required": True}}, {"setting a": {"required": False}}),
    ({}, {"setting s": {}, "setting s.must": {"required": True}}),
    ({}, {"command tiered new": {}, "command tiered new --must": {"required": True}}),
    ({"JSON of /x: a": {}}, {"JSON of /x: a": {"type": "text"}}),
])  # fmt: skip
def test_what_is_new_or_wider_is_none(old: Forms, new: Forms) -> None:
    assert list(breaks(old, new)) == []


# --- Python names ---------------------------------------------------------------------------------------

PAGE = "::: tiered.Store\n    options:\n      filters: [\"!^_\", \"!^inner$\"]\n\n::: tiered.Other\n"
HEAD = "from dataclasses import dataclass\nfrom enum import Enum\nfrom typing import Literal\n"
STORE = "class Store:\n    inner: int\n    {}\n"
OTHER = "class Other:\n    pass\n"


def tree(root: Path, code: str, inside: str = "inside") -> Path:
    """A package whose names come from a module that nobody was promised."""
    for folder in ("changelog", "tiered", "recovery/feed", "docs/reference"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / "recovery/__init__.py").touch()
    exports = [name for name in ("Store", "Other", "More") if f"class {name}" in code or f"{name} = " in code]
    (root / "tiered/__init__.py").write_text(f"from tiered.{inside} import {', '.join(exports)}\n__all__ = {exports}\n")
    (root / f"tiered/{inside}.py").write_text(HEAD + code)
    (root / "docs/reference/library.md").write_text(PAGE)
    return root


def python_breaks(tmp_path: Path, old: str, new: str, inside: str = "inside") -> set[str]:
    sides = tree(tmp_path / "old", old), tree(tmp_path / "new", new, inside)
    return set(map(" ".join, breaks(*(dict(python_names(side)) for side in sides))))


def test_a_release_whose_pages_had_a_line_for_each_name_promised_the_same(tmp_path: Path) -> None:
    code = HEAD + STORE.format("def put(self): ...") + OTHER
    old, new = tree(tmp_path / "old", code), tree(tmp_path / "new", code)
    marks = '<!-- ::: tiered.Store {filters: ["!^_", "!^inner$"]} -->\ntext\n<!-- end of tiered.Store -->\n<!-- ::: tiered.Other -->\n'
    (new / "docs/reference/library.md").write_text(marks)
    names = dict(python_names(new))
    assert names == dict(python_names(old)) and "tiered.Store.put" in names and "tiered.Store.inner" not in names


@pytest.mark.parametrize(("old", "new", "told"), [
    ("def put(self): ...", "x = 1", "tiered.Store.put was removed"),
    ("def put(self): ...", "put: int = 1", "tiered.Store.put has the kind attribute, and had function"),
    ("def put(self): ...", "@property\n    def put(self): ...", "tiered.Store.put has the kind attribute, and had function"),
    ("def put(self): ...", "async def put(self): ...", "tiered.Store.put has the call async, and had plain"),
    ("def put(self): ...", "@staticmethod\n    def put(self): ...", "tiered.Store.put has the call staticmethod, and had plain"),
    ("def put(self, a): ...", "def put(self): ...", "tiered.Store.put(a) was removed"),
    ("def put(self, a, b): ...", "def put(self, b, a): ...",
     "tiered.Store.put(a) has the position 1, and had 0|tiered.Store.put(b) has the position 0, and had 1"),
    ("def put(self, a): ...", "def put(self, *, a): ...", "tiered.Store.put(a) is no longer passed by position"),
    ("def put(self, a=1): ...", "def put(self, a=2): ...", "tiered.Store.put(a) is 2 by default, and was 1"),
    ("def put(self, a=1): ...", "def put(self, a): ...",
     "tiered.Store.put(a) is nothing by default, and was 1|tiered.Store.put(a) must be given now"),
    ("def put(self): ...", "def put(self, a): ...", "tiered.Store.put(a) is new and must be given"),
    ("def put(self) -> int: ...", "def put(self) -> int | None: ...", "tiered.Store.put can also be None"),
    ("def put(self) -> int: ...", "def put(self): ...", "tiered.Store.put no longer has a type"),
    ("def put(self, a: int | str): ...", "def put(self, a: int): ...", "tiered.Store.put(a) no longer takes str"),
    ("size: int", "size: int | None", "tiered.Store.size can also be None"),
    ("def __aenter__(self): ...", "x = 1", "tiered.Store.__aenter__ was removed"),
    # and what breaks nobody
    ("def put(self, a): ...", "def put(self, a, b=1, *, c=2): ...", ""),
    ("def put(self, *, a, b): ...", "def put(self, *, b, a): ...", ""),
    ("def put(self, a: int): ...", "def put(self, a: 'int | str'): ...", ""),
    ("def put(self, a: int): ...", "def put(self, a: object = 1): ...", ""),
    ("def put(self) -> int | None: ...", "def put(self) -> int: ...", ""),
    ("def put(self): ...", "def put(self): ...\n    def get(self): ...", ""),
    ("def put(self, *, c: Literal['a']): ...", "def put(self, *, c: Literal['a', 'b']): ...", ""),
    ("def _inside(self): ...", "x = 1", ""),
    ("def inner(self): ...", "x = 1", ""),
])  # fmt: skip
def test_a_change_of_a_member_that_breaks_callers_is_found(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert "|".join(sorted(python_breaks(tmp_path, STORE.format(old) + OTHER, STORE.format(new) + OTHER))) == told


@pytest.mark.parametrize(("old", "new", "told"), [
    ("class Store(OSError):\n    pass\n", "class Store(Exception):\n    pass\n", "tiered.Store is no longer a kind of OSError"),
    ("@dataclass\nclass Store:\n    a: int\n    b: int\n", "@dataclass\nclass Store:\n    b: int\n    a: int\n",
     "tiered.Store(a) has the position 1, and had 0|tiered.Store(b) has the position 0, and had 1"),
    ("@dataclass\nclass Store:\n    a: int\n", "class Store:\n    a: int\n    def __init__(self, a: int) -> None: ...\n",
     "tiered.Store is no longer a kind of dataclass"),
    ("class Store(Enum):\n    A = 'a'\n    B = 'b'\n", "class Store(Enum):\n    A = 'other'\n",
     "tiered.Store.A has the value 'other', and had 'a'|tiered.Store.B was removed"),
    ("Store = int | str\n", "Store = int\n", "tiered.Store no longer has str"),
    ("Store = int\n", "Store = int | str\n", ""),
    ("class Base:\n    def put(self, a): ...\nclass Store(Base):\n    pass\n",
     "class Base:\n    async def put(self): ...\nclass Store(Base):\n    pass\n",
     "tiered.Store.put has the call async, and had plain|tiered.Store.put(a) was removed"),
    ("class Store:\n    def put(self, a): ...\nclass More(Store):\n    pass\n",
     "class Store:\n    def put(self): ...\nclass More(Store):\n    pass\n",
     "tiered.Store.put(a) was removed"),
    ("class Store:\n    pass\nclass More:\n    def put(self): ...\n", "class Store:\n    pass\n", "tiered.More was removed"),
])  # fmt: skip
def test_bases_fields_members_and_unions(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert "|".join(sorted(python_breaks(tmp_path, old + OTHER, new + OTHER))) == told


def test_a_name_may_move_between_modules_and_the_named_trees_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """griffe looks into the current directory first: so both sides were once today's code, and nothing could differ."""
    monkeypatch.chdir(tree(tmp_path, STORE.format("x = 1") + OTHER))
    code = STORE.format("def put(self): ...") + OTHER
    assert python_breaks(tmp_path / "a", code, code, "moved") == set()


# --- what is allowed -------------------------------------------------------------------------------------

OLD_HISTORY = "# History\n\n## 1.0.0{}\n\nGood.\n\n**Deprecated**\n- `{}`: use another.\n- `other`\n\n**More**\n\n- `third`\n"
NEW_HISTORY = (
    "# History\n\n## 2.0.0 (unreleased)\n\n**Removed or changed**\n\n- `{}`: use\n  another.\n\n"
    "## 1.0.0\n\n**Removed or changed**\n\n- `b`\n"
)
WARN, CALL = "1.0.0 lists it under **Deprecated** in HISTORY.md", 'the code of 1.0.0 calls deprecated("{}", …)'
ANNOUNCE = "begin an item of **Removed or changed** in the first section of HISTORY.md with `{}`"


@pytest.mark.parametrize(("name", "warned", "called", "announced", "told"), [
    ("tiered.Store.put(a)", True, True, True, ""),
    ("setting lease.expiry_s", True, True, True, ""),
    ("metric tiered_x_total", True, False, True, ""),                 # it cannot warn of itself
    ("tiered.Store.put(a)", False, True, True, WARN),
    ("tiered.Store.put(a)", True, False, True, CALL),
    ("setting lease.expiry_s", True, False, True, CALL),
    ("command tiered ls --limit", True, True, False, ANNOUNCE),
    ("b", True, True, False, ANNOUNCE),                               # an older section of today's has it
    ("third", False, True, True, WARN),                               # another list has it
])  # fmt: skip
def test_what_was_warned_of_twice_may_go_and_else_it_is_said_what_to_do(
    tmp_path: Path, name: str, warned: bool, called: bool, announced: bool, told: str
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old / "tiered", new):
        folder.mkdir(parents=True)
    (old / "tiered/store.py").write_text(f'def put() -> None:\n    deprecated("{name if called else "x"}", "use another")\n')
    (new / "HISTORY.md").write_text(NEW_HISTORY.format(name if announced else "x"))
    for out in ("", " (unreleased)"):
        (old / "HISTORY.md").write_text(OLD_HISTORY.format(out, name if warned else "x"))
        said = refusal((name, "was removed"), "1.0.0", old, new) or ""
        assert said.startswith(f"{name} was removed. " if told else "") and told.format(name) in said and bool(said) is bool(told)
        assert ("1.0.0 is not out yet: name a later commit in .ci/released" in said) is (bool(out) and told in (WARN, CALL))


def test_a_list_ends_where_the_next_one_begins() -> None:
    assert listed(DEPRECATED, OLD_HISTORY.format("", "a")) == {"a", "other"}


# --- whole trees ----------------------------------------------------------------------------------------

PARTS = ("changelog", "tiered", "recovery", "docs", "tests/given", "pyproject.toml", "HISTORY.md")
PLANTED = [
    ("tiered/storage.py", "async def head(self, object_id: ObjectId, *, checksum: bool = False)",
     "async def head(self, object_id: ObjectId, *, checksum: bool = True)",
     "tiered.TieredStorage.head(checksum) is True by default, and was False"),
    ("tiered/sync/storage.py", "def copy(\n        self, source: ObjectId, destination: ObjectId,",
     "def copy(\n        self, destination: ObjectId, source: ObjectId,",
     "tiered.sync.SyncTieredStorage.copy(destination) has the position 0, and had 1|"
     "tiered.sync.SyncTieredStorage.copy(source) has the position 1, and had 0"),
    ("tiered/asgi/__init__.py", "import LinkApp, create_app", "import LinkApp", "tiered.asgi.create_app was removed"),
    ("tiered/testing/fixtures.py", "def memory_store(", "def a_store(", "tiered.testing.fixtures.memory_store was removed"),
    ("tiered/__init__.py", "import Telemetry as Telemetry", "import Telemetry as _Telemetry", "tiered.Telemetry was removed"),
    ("tiered/errors.py", "class RateLimitedError(AtCapacityError)", "class RateLimitedError(TieredError)",
     "tiered.RateLimitedError is no longer a kind of AtCapacityError"),
    ("recovery/feed/files.py", "\ndef write(", "\nasync def write(", "recovery.feed.files.write has the call async, and had plain"),
    ("tiered/settings/sections.py", "shutdown_budget_s: Annotated[Seconds, TUNING] = 20.0",
     "shutdown_budget_s: Annotated[Seconds, TUNING] = 21.0",
     "setting recovery.shutdown_budget_s is 21.0 by default, and was 20.0"),
    ("tiered/settings/sections.py", "Field(ge=0, le=65_535)] | None", "Field(ge=0, le=9_999)] | None",
     "setting daemon.http_port ends at 9999, and ended at 65535"),
    ("tiered/settings/sources.py", 'ENV_CONFIG = "TIERED_CONFIG"', 'ENV_CONFIG = "TIERED_FILE"', "variable TIERED_CONFIG was removed"),
    ("recovery/cli/objects.py", 'typer.Option("--raw"', 'typer.Option("--stored"', "command tiered get --raw was removed"),
    ("recovery/cli/objects.py", '"size": entry.size, "tier": entry.tier.value,', '"size": entry.tier.value,',
     "JSON of tiered ls: size has the type text, and had number|JSON of tiered ls: tier was removed"),
    ("recovery/status/as_json.py", "asdict(each) for each in status.daemons",
     "{key: value for key, value in asdict(each).items() if key != 'seen_s_ago'} for each in status.daemons",
     "JSON of /status.json: daemons[].seen_s_ago was removed|JSON of tiered status: daemons[].seen_s_ago was removed"),
    ("tiered/telemetry/metrics.py", '"answer", ("won", "lost"))', '"answer", ("won",))',
     "metric tiered_claims_total: answer no longer has lost"),
    ("recovery/http/history.py", "\nVERSION = 1", "\nVERSION = 2", "format history of the status page has the value 2, and had 1"),
    ("docs/metrics.md", "| `tiered_daemons` | gauge", "| `tiered_daemons` | counter", "metric tiered_daemons has the type counter"),
    ("docs/logs.md", "| `recovery_failed` | warning | `id`, `object`", "| `recovery_failed` | warning | `id`",
     "event recovery_failed no longer has object"),
    ("docs/failures.md", "**Exit code:** 7", "**Exit code:** 9", "exit code of ConditionFailedError has the value 9, and had 7"),
    ("docs/http.md", "| `/readyz` |", "| `/ready` |", "address /readyz was removed"),
    ("docs/reference/feed.md", "::: recovery.feed.view.ViewRecord", "", "recovery.feed.view.ViewRecord was removed"),
    ("pyproject.toml", 'requires-python = ">=3.11"', 'requires-python = ">=3.12"', "Python 3 begins at 12, and began at 11"),
    ("pyproject.toml", "\nkafka = [", "\nconfluent = [", "extra kafka was removed"),
    ("pyproject.toml", '[project.entry-points."fsspec.specs"]\ntiered =', '[project.entry-points."fsspec.specs"]\nblobs =',
     "entry point fsspec.specs: tiered was removed"),
]  # fmt: skip
ALLOWED = "setting lease.expiry_s"


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Two copies of today's, without its caches: they would outlive an edit of the same second."""
    sides = tmp_path / "old", tmp_path / "new"
    for side in sides:
        for part in PARTS:
            (side / part).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, side / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / part, side / part)
    return sides


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text, f"{path} no longer has {old!r}: plant something else"
    path.write_text(text.replace(old, new, 1), "utf-8")


def test_what_the_last_release_promised_is_kept_or_was_deprecated_by_it() -> None:
    try:
        release = released()
        source = release.source()
    except NotReleasedError as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))
    assert "\n".join(refused(release.version, source, ROOT)) == ""


@pytest.mark.night
def test_every_planted_break_is_found_and_only_these_and_the_one_that_was_warned_of_is_allowed(trees: tuple[Path, Path]) -> None:
    old, new = trees
    for path, had, has, _ in PLANTED:
        edit(new / path, had, has)
    edit(new / "tiered/settings/sections.py", "TUNING] = 30.0\n\n    @property\n    def heartbeat",
         "TUNING] = 29.0\n\n    @property\n    def heartbeat")  # fmt: skip
    edit(old / "HISTORY.md", "\n## ", f"\n## 0.2.0\n\n**Deprecated**\n\n- `{ALLOWED}`: it will be 29 s.\n\n## ")
    (old / "tiered/warns.py").write_text(f'deprecated("{ALLOWED}", "set it to 29")\n')
    edit(new / "HISTORY.md", "\n## ", f"\n## 0.3.0 (unreleased)\n\n**Removed or changed**\n\n- `{ALLOWED}`: it is 29 s.\n\n## ")
    found = refused("0.2.0", old, new, long=True)
    wanted = [each for *_, told in PLANTED for each in told.split("|")]
    assert [each for each in wanted if not any(sentence.startswith(each) for sentence in found)] == []
    assert [sentence for sentence in found if not any(sentence.startswith(each) for each in wanted)] == []
    assert len(found) == len(wanted)


def test_the_page_names_the_versions_that_are_tested() -> None:
    page = " ".join((ROOT / "docs/promises.md").read_text("utf-8").split())
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    *others, last = [each.rpartition(" ")[2] for each in classifiers if "Python :: 3." in each]
    assert f"Python {', '.join(others)} and {last};" in page
    assert f"PostgreSQL {SERVER_VERSION_MIN // 10_000} or newer" in page


@pytest.mark.night
def test_the_command_says_that_all_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """Also what audits and exports print."""
    assert main() == 0, capsys.readouterr().err
    assert "promised is kept" in capsys.readouterr().out


@pytest.mark.night
def test_every_name_that_the_reference_shows_is_found_by_griffe() -> None:
    """What is not found is promised to nobody, without a word: `LOADED` leaves much of `recovery` out."""
    pages = [page.read_text("utf-8") for page in (ROOT / "docs/reference").glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"(?m)^<!-- ::: (\S+)", page)}
    assert shown - dict(python_names(ROOT)).keys() == {NOT_PROMISED}


def test_a_tree_that_cannot_be_described_is_named(tmp_path: Path) -> None:
    """Today's packages must not be taken for those of the other tree."""
    with pytest.raises(UndescribedError, match=rf"(?s)cannot describe {tmp_path}.*and not from {tmp_path}"):
        described(tmp_path)


NO_FORMATS = {
    "changelog.postgres.pool:SERVER_VERSION_MIN", "changelog.sqlite.checkpoints:SQLITE_VERSION", "changelog.key_values:VERSION_MAX",
    "tiered.postgres.schema:READ_VERSION", "tiered.postgres.schema:_VERSION_1",
    "recovery.last_audit:VERSION_OF_ONE", "recovery.audit.running.java:VERSION_MIN",
    "tiered.buckets.owners:_VERSION", "recovery.audit.deleting.loss_notes:_SCHEMA_VERSION",
}
"""Constants that are named as a version is, and are no version of a stored thing."""


def test_every_version_of_a_stored_thing_is_compared() -> None:
    assigned = re.compile(r"(?m)^([A-Z_][A-Z0-9_, ]*?)(?:: [^=\n]*)? = ")
    found = {
        f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}:{name}"
        for package in surface.PACKAGES for path in (ROOT / package).rglob("*.py")
        for names in assigned.findall(path.read_text("utf-8")) for name in names.split(", ")
        if re.fullmatch(r"([A-Z_]*_)?VERSIONS?(_[A-Z0-9_]+)?", name)
    }  # fmt: skip
    assert found - {place for places in surface.FORMATS.values() for place in places.split(" or ")} == NO_FORMATS
