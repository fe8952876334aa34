"""Tables of several axes, of which `make test` runs a part and `make night` all."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def in_turn(*axes: Iterable[Any]) -> list[Any]:
    """All rows. `make test` runs those in which the last axis' value is the turn of the others.

    So each value of the last axis comes with each value of any longer one, and all the others with one another.
    """
    rows, turns = list[Any](), len(list(axes[-1]))
    for numbered in product(*(enumerate(axis) for axis in axes)):
        is_its_turn = sum(number for number, _ in numbered) % turns == 0
        values, marks = [value for _, value in numbered], () if is_its_turn else pytest.mark.night
        rows.append(pytest.param(*values, marks=marks, id="-".join(str(getattr(value, "value", value)) for value in values)))
    return rows
