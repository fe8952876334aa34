"""What a caller sees of an error, beside its sentence."""

from __future__ import annotations

import pickle
import traceback

import pytest

import tiered
from tiered import TieredError

ERRORS = [each for name in tiered.__all__ if isinstance(each := getattr(tiered, name), type) and issubclass(each, TieredError)]

MORE: dict[type[TieredError], tuple[object, ...]] = {tiered.RangeNotSatisfiableError: (5,), tiered.OffsetMismatchError: (5,)}
"""What an error is made of beside its sentence."""

MADE_OF_PARTS = (tiered.ConditionFailedError, tiered.OutcomeUnknownError, tiered.UploadEndedError)
"""They make their sentence themselves. `tests/store` pickles them."""


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind not in MADE_OF_PARTS])
def test_traceback_shows_the_name_that_callers_import(kind: type[TieredError]) -> None:
    error = kind("why", *MORE.get(kind, ()))
    assert traceback.format_exception_only(error) == [f"tiered.{kind.__name__}: why\n"]
    copy = pickle.loads(pickle.dumps(error.coded("416")))
    assert type(copy) is kind and str(copy) == "why" and vars(copy) == vars(error)


def test_every_error_is_shown_so() -> None:
    assert len(ERRORS) == 17
    assert {kind.__module__ for kind in ERRORS} == {"tiered"}
