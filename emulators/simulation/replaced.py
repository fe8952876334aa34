"""Replaces parts of the product, or of the simulated services, from outside. The product has no hooks for this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

Replacement = tuple[Any, str, Any]
"""A module or class, the name of its attribute, and the replacement."""


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Makes the replacements, one after the other, as long as the block runs. They end with it, even after an error.
    """
    with ExitStack() as stack:
        for owner, name, instead in replacements:
            stack.enter_context(patch.object(owner, name, instead))
        yield
