"""Notices that a package that belongs to this one is another's of the same name, and says so in one sentence.

`changelog` and `recovery` are common names. A service's own `changelog.py`, or a package of that name from an index,
may come first on Python's path.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

PART_OF = "tiered"


def own(name: str) -> ModuleType:
    """Imports a package that is a part of this one. `ImportError`: what Python found under its name is another's."""
    found = import_module(name)
    if getattr(found, "PART_OF", None) != PART_OF:
        where = getattr(found, "__file__", None) or ", ".join(getattr(found, "__path__", ())) or "memory"
        raise ImportError(
            f"tiered has a package {name!r} of its own, and Python found another one in {where}: "
            "rename or uninstall that one, or run where it is not on Python's path", name=name,
        )  # fmt: skip
    return found


own("changelog")
