"""fsspec's own tests of file systems: on a store in memory, and by night on an embedded one, through `tiered://`.

The files of the embedded store hold all but the smallest.

Those of `mv` are none of a file system's: they are fixed to the local one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests import abstract

from tiered.filesystem.implementation import TieredFileSystem
from tiered.testing import BlockingMemoryStorage

pytestmark = pytest.mark.slow


class TieredFixtures(abstract.AbstractFixtures):  # type: ignore[misc] # fsspec has no types
    @pytest.fixture(params=["memory", pytest.param("embedded", marks=pytest.mark.night)])
    def fs(self, request: pytest.FixtureRequest, storage: BlockingMemoryStorage, tmp_path: Path) -> Iterator[TieredFileSystem]:
        if request.param == "memory":
            yield TieredFileSystem(storage=storage, skip_instance_cache=True)
        else:
            files = fsspec.filesystem("tiered", settings={"directory": str(tmp_path / "store"), "inline_bytes_max": 4})
            yield files
            files.close()

    @pytest.fixture
    def fs_path(self) -> str:
        return "notes/objects/tests"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(abstract.AbstractCopyTests, TieredFixtures):  # type: ignore[misc]
    pass


class TestGet(abstract.AbstractGetTests, TieredFixtures):  # type: ignore[misc]
    pass


class TestPut(abstract.AbstractPutTests, TieredFixtures):  # type: ignore[misc]
    pass


class TestOpen(abstract.AbstractOpenTests, TieredFixtures):  # type: ignore[misc]
    pass


class TestPipe(abstract.AbstractPipeTests, TieredFixtures):  # type: ignore[misc]
    pass


def test_every_suite_of_fsspec_is_run() -> None:
    ours: Any = {base for kind in TieredFixtures.__subclasses__() for base in kind.__mro__}
    assert {value for name, value in vars(abstract).items() if name.endswith("Tests")} <= ours
