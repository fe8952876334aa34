"""Replaces parts of the product, or of the simulated services, from outside: the product has no hooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

Replacement = tuple[Any, str, Any]
"""A module or class, the name of what it has, and what it has instead."""


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """For as long as it is entered, one after the other; an error within ends it, too."""
    with ExitStack() as stack:
        for owner, name, instead in replacements:
            stack.enter_context(patch.object(owner, name, instead))
        yield
