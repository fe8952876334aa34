"""Names and signatures of small trees: each way to break a caller is found, and what breaks none is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulators.promises.breaks import UndescribedError
from emulators.promises.python_names import python_breaks

PAGE = "::: tiered.Store\n    options:\n      filters: [\"!^_\", \"!^inner$\"]\n\n::: tiered.{}\n"
HEAD = "from dataclasses import dataclass\nfrom enum import Enum\nfrom typing import Literal\n"
STORE = "class Store:\n    inner: int\n    {}\n"


def tree(root: Path, code: str, *, shown: str = "Other", exports: str = "Store, Other", other: str = "class Other:\n    pass\n") -> Path:
    """A package whose names come from a module that nobody was promised."""
    for folder in ("changelog", "tiered", "recovery/feed", "docs/reference"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / "recovery/__init__.py").touch()
    names = ", ".join(f'"{name}"' for name in exports.split(", "))
    (root / "tiered/__init__.py").write_text(f"from tiered.inside import {exports}\n__all__ = [{names}]\n")
    (root / "tiered/inside.py").write_text(HEAD + code + other)
    (root / "docs/reference/library.md").write_text(PAGE.format(shown))
    return root


def breaks(tmp_path: Path, old: str, new: str) -> set[str]:
    found = python_breaks(tree(tmp_path / "old", old), tree(tmp_path / "new", new))
    return {f"{each.name} {each.what}" for each in found}


def method(signature: str) -> str:
    return STORE.format(f"{signature}: ...")


BROKEN = [
    ("def put(self): ...", "x = 1", "tiered.Store.put was removed"),
    ("def put(self): ...", "put: int = 1", "tiered.Store.put is another kind of thing"),
    ("def put(self): ...", "async def put(self): ...", "tiered.Store.put is now awaited"),
    ("def put(self): ...", "@staticmethod\n    def put(self): ...", "tiered.Store.put is now a static method"),
    ("def put(self): ...", "@property\n    def put(self): ...", "tiered.Store.put is another kind of thing"),
    ("def put(self, a): ...", "def put(self): ...", "tiered.Store.put(a) was removed"),
    ("def put(self, a, b): ...", "def put(self, b, a): ...",
     "tiered.Store.put(a) has another position|tiered.Store.put(b) has another position"),
    ("def put(self, a): ...", "def put(self, *, a): ...", "tiered.Store.put(a) is passed in another way"),
    ("def put(self, a=1): ...", "def put(self, a=2): ...", "tiered.Store.put(a) has another default"),
    ("def put(self, a=1): ...", "def put(self, a): ...", "tiered.Store.put(a) must be given now"),
    ("def put(self): ...", "def put(self, a): ...", "tiered.Store.put(a) is new and must be given"),
    ("def put(self) -> int: ...", "def put(self) -> int | None: ...", "tiered.Store.put can also return None"),
    ("def put(self) -> int: ...", "def put(self): ...", "tiered.Store.put tells no longer what it returns"),
    ("def put(self, a: int | str): ...", "def put(self, a: int): ...", "tiered.Store.put(a) no longer takes str"),
    ("size: int", "size: int | None", "tiered.Store.size can also be None"),
    ("def __aenter__(self): ...", "x = 1", "tiered.Store.__aenter__ was removed"),
]


@pytest.mark.parametrize(("old", "new", "told"), BROKEN)
def test_a_change_that_breaks_callers_is_found(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert breaks(tmp_path, STORE.format(old), STORE.format(new)) == set(told.split("|"))


@pytest.mark.parametrize(("old", "new"), [
    ("def put(self, a): ...", "def put(self, a, b=1, *, c=2): ..."),
    ("def put(self, *, a, b): ...", "def put(self, *, b, a): ..."),
    ("def put(self, a: int): ...", "def put(self, a: 'int | str' = 1): ..."),
    ("def put(self) -> int | None: ...", "def put(self) -> int: ..."),
    ("def put(self): ...", "def put(self): ...\n    def get(self): ..."),
    ("def put(self, *, c: Literal['a']): ...", "def put(self, *, c: Literal['a', 'b']): ..."),
    ("def _inside(self): ...", "x = 1"),
    ("def inner(self): ...", "x = 1"),
])  # fmt: skip
def test_a_change_that_breaks_nobody_is_not(tmp_path: Path, old: str, new: str) -> None:
    assert breaks(tmp_path, STORE.format(old), STORE.format(new)) == set()


@pytest.mark.parametrize(("old", "new", "told"), [
    ("class Store(OSError):\n    pass\n", "class Store(Exception):\n    pass\n", {"tiered.Store is no longer a kind of OSError"}),
    ("@dataclass\nclass Store:\n    a: int\n    b: int\n", "@dataclass\nclass Store:\n    b: int\n    a: int\n",
     {"tiered.Store(a) has another position", "tiered.Store(b) has another position"}),
    ("@dataclass\nclass Store:\n    a: int\n", "class Store:\n    a: int\n    def __init__(self, a: int) -> None: ...\n",
     {"tiered.Store is no longer a dataclass"}),
    ("class Store(Enum):\n    A = 'a'\n    B = 'b'\n", "class Store(Enum):\n    A = 'other'\n",
     {"tiered.Store.A is 'other' and was 'a'", "tiered.Store.B was removed"}),
    ("Store = int | str\n", "Store = int\n", {"tiered.Store is no longer str"}),
    ("Store = int\n", "Store = int | str\n", set()),
    ("class Base:\n    def put(self): ...\nclass Store(Base):\n    pass\n", "class Base:\n    pass\nclass Store(Base):\n    pass\n",
     {"tiered.Store.put was removed"}),
    ("class Base:\n    def put(self, a): ...\nclass Store(Base):\n    pass\n",
     "class Base:\n    async def put(self): ...\nclass Store(Base):\n    pass\n",
     {"tiered.Store.put is now awaited", "tiered.Store.put(a) was removed"}),
    ("class Base:\n    def __init__(self, a): ...\nclass Store(Base):\n    pass\n",
     "class Base:\n    def __init__(self): ...\nclass Store(Base):\n    pass\n", {"tiered.Store(a) was removed"}),
])  # fmt: skip
def test_bases_fields_members_and_unions(tmp_path: Path, old: str, new: str, told: set[str]) -> None:
    assert {each.replace(".__init__(", "(") for each in breaks(tmp_path, old, new)} == told


@pytest.mark.parametrize(("now", "told"), [
    ({"exports": "Store", "shown": "Store"}, ["tiered.Other was removed"]),
    ({"exports": "Store, Other, More", "other": "class Other:\n    pass\nclass More:\n    pass\n"}, []),
])  # fmt: skip
def test_what_the_release_exports_is_promised_and_what_is_new_is_not(tmp_path: Path, now: dict[str, str], told: list[str]) -> None:
    code = method("def put(self)")
    found = python_breaks(tree(tmp_path / "old", code), tree(tmp_path / "new", code, **now))
    assert [f"{each.name} {each.what}" for each in found] == told


def test_what_two_promised_classes_share_is_told_of_the_one_that_has_it(tmp_path: Path) -> None:
    old, new = (tree(tmp_path / name, method(f"def put(self{a})"), other="class Other(Store):\n    pass\n")
                for name, a in (("old", ", a"), ("new", "")))  # fmt: skip
    assert [each.name for each in python_breaks(old, new)] == ["tiered.Store.put(a)"]


def test_a_name_may_move_between_modules(tmp_path: Path) -> None:
    code = method("def put(self, a)")
    old, new = tree(tmp_path / "old", code), tree(tmp_path / "new", code)
    (new / "tiered/inside.py").rename(new / "tiered/elsewhere.py")
    (new / "tiered/__init__.py").write_text((new / "tiered/__init__.py").read_text().replace("inside", "elsewhere"))
    assert list(python_breaks(old, new)) == []


def test_a_name_that_is_only_no_longer_documented_is_a_broken_promise(tmp_path: Path) -> None:
    code = method("def put(self)")
    old = tree(tmp_path / "old", code, shown="inside.Other", exports="Store")
    new = tree(tmp_path / "new", code, shown="Store", exports="Store")
    assert [each.what for each in python_breaks(old, new)] == ["is no longer shown in docs/reference"]


def test_a_tree_that_shows_what_it_does_not_have_ends_the_comparison(tmp_path: Path) -> None:
    code = method("def put(self)")
    with pytest.raises(UndescribedError, match=r"shows tiered\.Gone in docs/reference, and does not have it"):
        list(python_breaks(tree(tmp_path / "old", code, shown="Gone"), tree(tmp_path / "new", code, shown="Gone")))


def test_the_trees_that_are_named_are_read_and_not_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """griffe looks into the current directory first: so both sides were once today's code, and nothing could differ."""
    old = tree(tmp_path / "old", method("def put(self, a)"))
    monkeypatch.chdir(tree(tmp_path / "new", method("def put(self)")))
    assert [each.name for each in python_breaks(old, Path.cwd())] == ["tiered.Store.put(a)"]
