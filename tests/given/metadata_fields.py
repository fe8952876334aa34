"""A value for each field of metadata that is carried because of its row: all that have no place of their own."""

from __future__ import annotations

from typing import Any

from changelog.base.errors import InvalidRequestError
from tiered.metadata import FIELDS, Metadata


def _accepted(name: str, which: str) -> Any:
    """A value that the row's check accepts, and that no other field has."""
    for value in (f"{which} {name}", f"{which}-{name}/x", f"{which}-{name}".replace("_", "-"), "Zstd", len(which)):
        try:
            FIELDS[name].check(name, value)
        except InvalidRequestError:
            continue
        return value
    raise AssertionError(f"{name}: add a value that its check accepts")


CARRIED = {name: _accepted(name, "a") for name, row in FIELDS.items() if not row.is_placed}
OTHERS = {name: _accepted(name, "another") for name in CARRIED}


def carried(metadata: Metadata | None) -> dict[str, Any]:
    assert metadata is not None
    return {name: getattr(metadata, name) for name in CARRIED}
