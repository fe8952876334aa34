"""What a caller sees of an error, beside its sentence."""

from __future__ import annotations

import pickle
import traceback

import pytest

import tiered
from tiered import TieredError

ERRORS = [each for name in tiered.__all__ if isinstance(each := getattr(tiered, name), type) and issubclass(each, TieredError)]

MADE_OF_PARTS = (tiered.ConditionFailedError, tiered.OutcomeUnknownError)
"""They make their sentence themselves. `tests/store` pickles them."""


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind not in MADE_OF_PARTS])
def test_traceback_shows_the_name_that_callers_import(kind: type[TieredError]) -> None:
    assert traceback.format_exception_only(kind("why")) == [f"tiered.{kind.__name__}: why\n"]
    copy = pickle.loads(pickle.dumps(kind("why")))
    assert type(copy) is kind and str(copy) == "why"


def test_every_error_is_shown_so() -> None:
    assert len(ERRORS) == 12
    assert {kind.__module__ for kind in ERRORS} == {"tiered"}
