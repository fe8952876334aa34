"""A plugin of pytest: `Metadata` with rows that no other line of the product knows. Load it before the product.

    python -m pytest -p tests.given.planted_field …

A row of a header is left out if the product has a field of it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

MODULE = "tiered.metadata"
BEFORE = "    custom: Mapping[str, str] = field("
ROWS = ('''\
    planted_header: str | None = field(default=None, kw_only=True, metadata=_row(
        check=header_name, header="Content-Language", is_column=True, option=("TAG", "Its language"),
    ))
''', '''\
    planted_caching: str | None = field(default=None, kw_only=True, metadata=_row(header="Cache-Control", option=("TEXT", "Caching")))
''', '''\
    planted_text: str | None = field(default=None, kw_only=True, metadata=_row(is_column=True, option=("TEXT", "Whatever it is")))
    planted_number: int | None = field(default=None, kw_only=True, metadata=_row(check=_checked_size, kind=int, write=str))
''')


class _PlantingLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        assert source.count(BEFORE) == 1
        rows = [row for row in ROWS if not any(header in source for header in re.findall(r'header="[^"]+"', row))]
        return compile(source.replace(BEFORE, "".join(rows) + BEFORE), self.path, "exec")


class _PlantingFinder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path) if name == MODULE else None
        if found is not None and found.origin is not None:
            found.loader = _PlantingLoader(name, found.origin)
        return found


assert MODULE not in sys.modules, "the product was loaded without the planted rows"
sys.meta_path.insert(0, _PlantingFinder())


def pytest_sessionstart() -> None:
    from tiered.metadata import FIELDS  # noqa: PLC0415 - only now with the rows

    assert FIELDS.keys() >= {"planted_text", "planted_number"}
