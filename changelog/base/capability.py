"""`Capability`: the base of a protocol that only some backends have, and that callers ask for with `isinstance`.

A wrapper that passes on what it does not know by `__getattr__` has the capabilities of what it wraps. One that sets a
method to None hides them. A `runtime_checkable` protocol says so up to Python 3.11; from 3.12 on it looks past
`__getattr__`, so a wrapped tier would do less there, without a word.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol, runtime_checkable


class _AskedFor(type(Protocol)):  # type: ignore[misc]  # the metaclass of protocols has no public name
    def __instancecheck__(cls, backend: object) -> bool:
        return all(getattr(backend, name, None) is not None for name in _members(cls))


@cache
def _members(capability: type) -> tuple[str, ...]:
    return tuple(name for kind in capability.__mro__[:-1] for name in vars(kind) if not name.startswith("_"))


@runtime_checkable
class Capability(Protocol, metaclass=_AskedFor):
    """Methods that begin with no underscore. Decorate each one with `runtime_checkable`, for the type checker."""
