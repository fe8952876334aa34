"""Two sorted streams become one, whatever the names are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.given.directories import PREFIX, object_at, write_tree
from tiered import ListEntry, Tier
from tiered.directories.pairs import Pair, pairs
from tiered.directories.tree import LocalEntry, LocalTree

T = TypeVar("T")

keys_of_any_kind = st.text(alphabet="a!/0Aé", min_size=1, max_size=5)
names_of_files = keys_of_any_kind.filter(lambda name: all(name.split("/")))


async def each_of(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item


async def merged(files: set[str], keys: set[str], links: set[str]) -> list[Pair]:
    entries = sorted((LocalEntry(file, "a link" if file in links else None) for file in files), key=lambda each: each.order)
    objects = [ListEntry(object_at(key), Tier.HIGH_VOLUME) for key in sorted(keys, key=str.encode)]
    return [pair async for pair in pairs(PREFIX, each_of(entries), each_of(objects))]


def below(path: str, others: Iterable[str]) -> bool:
    return any(path.startswith(f"{other}/") for other in others)


@given(st.sets(names_of_files, max_size=8), st.sets(keys_of_any_kind, max_size=8), st.sets(names_of_files, max_size=3))
def test_each_name_comes_once_with_both_sides_and_what_is_above_it(files: set[str], keys: set[str], links: set[str]) -> None:
    found = anyio.run(merged, files, keys, links)
    assert [each.path for each in found] == sorted(files | keys, key=str.encode)
    for each in found:
        assert (each.local is not None, each.remote is not None) == (each.path in files, each.path in keys)
        assert each.below_object == below(each.path, (key for key in keys if not key.endswith("/")))
        assert each.below_skipped == below(each.path, files & links)


@pytest.mark.parametrize("depth", [3, 900])
def test_a_walk_has_the_order_of_a_listing(tmp_path: Path, depth: int) -> None:
    paths = [f"{'d/' * depth}x", "a!b", "a/b", "a/b!", "a/b0/c", "a0", "é", "z/z/z"]
    write_tree(tmp_path, dict.fromkeys(paths, b""))
    tree = LocalTree(tmp_path, make=False)
    assert [each.path for each in tree.walk()] == sorted(paths, key=str.encode)
    tree.close()
